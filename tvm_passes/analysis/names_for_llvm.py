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
    known = _asked("target.llvm_get_cpu_archlist", triple) if processor else None
    if known and processor not in (*map(str, known), "generic"):
        near = difflib.get_close_matches(processor, map(str, known))
        hint = f", but {', '.join(near)}" if near else ""
        raise ValueError(
            f"-mcpu: LLVM {_version()} has no processor {processor!r}{hint}; give an older one that it "
            "knows, or topi_ext.cpu_target() for this machine (--target native)"
        )
    for feature in features:
        if feature[:1] not in ("+", "-"):
            raise ValueError(f"-mattr: {feature!r} says neither + nor -: give such as +{feature}")
        if _asked("target.llvm_cpu_has_feature", triple, feature[1:]) is False:
            raise ValueError(f"-mattr: LLVM {_version()} has no feature {feature[1:]!r}")


def _asked(function: str, triple: str, feature: str | None = None) -> Any:
    """What LLVM answers for a target that has this feature; None if it does not compile for the triple."""
    ask = tvm.get_global_func(function, allow_missing=True)
    if ask is None or (triple and not _is_enabled(triple)):
        return None
    options = {"kind": "llvm", **({"mtriple": triple} if triple else {})}
    if feature is None:
        return ask(tvm.target.Target(options))
    return bool(ask(feature, tvm.target.Target({**options, "mattr": [f"+{feature}"]})))


def _is_enabled(triple: str) -> bool:
    families = tvm.get_global_func("target.llvm_get_targets", allow_missing=True)
    return families is not None and triple.partition("-")[0] in [str(each) for each in families()]


def _version() -> int:
    version = tvm.get_global_func("target.llvm_version_major", allow_missing=True)
    return version() if version else 0
