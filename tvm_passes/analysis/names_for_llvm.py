"""Names of processors and of their features in a target, which LLVM ignores where it does not know them."""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any

from topi_ext.bootstrap import tvm_in_use

import tvm


def check_names_for_llvm(target: tvm.target.Target) -> None:
    """Raise ValueError if LLVM does not know `-mcpu` or `-mattr` of a target or of its host.

    It compiles then for any processor, such as without AVX, which takes several times as long to run.
    """
    for each in (target, target.host):
        if each is not None and each.kind.name == "llvm" and tvm_in_use.compiles:
            triple = str(each.attrs.get("mtriple", ""))
            features = tuple(map(str, each.attrs.get("mattr", ())))
            _check(triple, str(each.attrs.get("mcpu", "")), features)


@lru_cache(None)
def _check(triple: str, processor: str, features: tuple[str, ...]) -> None:
    known = _processors(triple) if processor else ()
    if known and processor not in (*known, "generic"):
        near = difflib.get_close_matches(processor, known)
        hint = f", but {', '.join(near)}" if near else ""
        raise ValueError(
            f"-mcpu: LLVM {_version()} has no processor {processor!r}{hint}; give an older one that it "
            "knows, or topi_ext.cpu_target() for this machine (--target native)"
        )
    for feature in features:
        if feature[:1] not in ("+", "-"):
            raise ValueError(f"-mattr: {feature!r} says neither + nor -: give such as +{feature}")
        if _lacks(triple, feature[1:]):
            raise ValueError(f"-mattr: LLVM {_version()} has no feature {feature[1:]!r}")


def _processors(triple: str) -> tuple[str, ...]:
    """All that LLVM knows for a triple; none if it cannot tell."""
    of_target = _question("target.llvm_get_cpu_archlist", triple)
    return () if of_target is None else tuple(map(str, of_target(_target(triple))))


def _lacks(triple: str, feature: str) -> bool:
    """Whether LLVM knows no such feature for a triple; False if it cannot tell."""
    has_feature = _question("target.llvm_cpu_has_feature", triple)
    return has_feature is not None and not has_feature(feature, _target(triple, mattr=[f"+{feature}"]))


def _question(name: str, triple: str) -> Any:
    """A function of TVM that asks LLVM; None if there is none, or if LLVM does not compile for the triple."""
    if triple and not _is_enabled(triple):
        return None
    return tvm.get_global_func(name, allow_missing=True)


def _target(triple: str, **options: Any) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", **({"mtriple": triple} if triple else {}), **options})


def _is_enabled(triple: str) -> bool:
    families = tvm.get_global_func("target.llvm_get_targets", allow_missing=True)
    return families is not None and triple.partition("-")[0] in [str(each) for each in families()]


def _version() -> int:
    version = tvm.get_global_func("target.llvm_version_major", allow_missing=True)
    return version() if version else 0
