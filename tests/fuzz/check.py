"""One network through every pipeline: what came of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from frontends import ImportFailure
from tvm_passes import default_pipeline, detection_pipeline, runtime, subpixel_pipeline

import tvm
from tvm import relay

from .explain import Arrays, Oracle, all_agree, explanation, plain

HALF = 2.0**-10
Imported = tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]


@dataclass
class Pipeline:
    """`eps` is that of the type that it computes in, if that is less exact than the network's own.

    One that is for another target may leave what this one has no kernels for.
    """

    name: str
    passes: tvm.transform.Pass
    eps: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)  # of `runtime.compile`
    for_another_target: bool = False


def pipelines(target: str, of_our_own: bool = False) -> list[Pipeline]:
    """Those whose modules the target runs; for idioms of our own also those that are for another target.

    All operators have kernels for LLVM, so that what a pipeline for tensor cores leaves can be run there too.
    """
    found = [
        Pipeline("default", default_pipeline()),
        Pipeline("detection", detection_pipeline(target, dtype="float32")),
        Pipeline("subpixel", subpixel_pipeline(target, dtype="float32")),
    ]
    if of_our_own:
        is_cpu = target.startswith("llvm")
        gpu = "cuda -arch=sm_90" if is_cpu else target
        cut = {"cut": True}
        found += [
            Pipeline(
                "subpixel in NHWC", subpixel_pipeline("cuda -arch=sm_61", dtype="float32"), 0.0, {}, is_cpu
            ),
            Pipeline("subpixel in float16", subpixel_pipeline(gpu, dtype="float16"), HALF, {}, is_cpu),
            Pipeline("detection cut", detection_pipeline(target, dtype="float32", outputs="cut")),
            Pipeline(
                "detection padded", detection_pipeline(target, dtype="float32", outputs="padded"), 0.0, cut
            ),
            Pipeline("detection in float16", detection_pipeline(gpu, dtype="float16"), HALF, {}, is_cpu),
        ]
    return found


@dataclass
class Case:
    """A network, how it is imported, inputs in the order of its parameters or by name, and what is right."""

    load: Callable[[], Imported]
    inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray]
    oracles: list[Oracle]  # where they differ, any of them may be right
    stock: Callable[[], Imported] | None = None
    of_our_own: bool = False
    eps: float = 0.0  # of what the oracles are right to, if that is less than the type of the results


@dataclass
class Result:
    """`kind` is one of KINDS; `stock` says what stock TVM makes of the same, if it was asked."""

    kind: str
    reason: str = ""
    pipeline: str = ""
    stock: str | None = None
    compiled: int = 0


KINDS = ("right", "refused", "explained", "different", "error", "crashed", "hung", "not made")
TO_MEND = ("different", "error", "crashed", "hung")


def check(case: Case, target: str = "llvm", with_stock: bool = False) -> Result:
    result = _check(case, target)
    if case.stock and (with_stock or result.kind in TO_MEND) and result.kind != "not made":
        result.stock = _check_stock(case, target)
    return result


def _check(case: Case, target: str) -> Result:
    if not case.oracles:
        return Result("not made", "no oracle has all operators")
    try:
        expected = [oracle(plain) for oracle in case.oracles]
    except Exception as error:
        return Result("not made", f"oracle: {gist(error)}")
    try:
        mod, params = case.load()
    except ImportFailure as failure:
        return Result("refused", general(str(failure))[:200])
    except Exception as error:
        return Result("error", gist(error), "import")
    explained, compiled = [], 0
    for pipeline, after in _distinct(mod, pipelines(target, case.of_our_own)):
        if isinstance(after, Exception):
            return Result("error", gist(after), pipeline.name, None, compiled)
        compiled += 1
        try:
            found = _run(after, params, case.inputs, target, pipeline)
        except Exception as error:
            if pipeline.for_another_target:
                continue
            return Result("error", gist(error), pipeline.name, None, compiled)
        if any(all_agree(each, found, max(case.eps, pipeline.eps)) for each in expected):
            continue
        reason = _reason(case, expected, found, pipeline)
        if reason is None:
            return Result("different", difference(expected[0], found), pipeline.name, None, compiled)
        explained.append(reason)
    if explained:
        return Result("explained", explained[0], "", None, compiled)
    return Result("right", compiled=compiled)


def _reason(case: Case, expected: list[Arrays], found: Arrays, pipeline: Pipeline) -> str | None:
    if len(expected[0]) != len(found):
        return None
    for oracle in case.oracles:
        try:
            reason = explanation(oracle, found, max(case.eps, pipeline.eps))
        except Exception:  # an operator that it can run in the whole network only
            reason = None
        if reason:
            return reason
    if len(expected) > 1:
        by_output = zip(found, *expected)
        if all(any(all_agree([one], [array], pipeline.eps) for one in ones) for array, *ones in by_output):
            return "oracles differ"
    return None


def _distinct(
    mod: tvm.IRModule, of: Sequence[Pipeline]
) -> Iterator[tuple[Pipeline, tvm.IRModule | Exception]]:
    """Modules after the pipelines, those that are equal once: most pipelines leave most networks alone."""
    seen: list[tuple[dict[str, Any], tvm.IRModule]] = []
    for pipeline in of:
        try:
            after = relay.transform.InferType()(pipeline.passes(mod))
        except Exception as error:
            yield pipeline, error
            continue
        options = _options(pipeline, after)
        if any(options == given and tvm.ir.structural_equal(after, one) for given, one in seen):
            continue
        seen.append((options, after))
        yield pipeline, after


def _options(pipeline: Pipeline, after: tvm.IRModule) -> dict[str, Any]:
    """Those of `runtime.compile`: only padded results can be cut."""
    attrs = after["main"].attrs
    return pipeline.options if attrs and "padded_rows" in attrs else {}


def _run(
    mod: tvm.IRModule, params: Any, inputs: Any, target: str, pipeline: Pipeline | None = None
) -> Arrays:
    model = runtime.compile(mod, target, params, **(_options(pipeline, mod) if pipeline else {}))
    with np.errstate(all="ignore"):
        result = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    return list(result.values()) if isinstance(result, dict) else [result]


def _check_stock(case: Case, target: str) -> str:
    assert case.stock is not None
    try:
        mod, params = case.stock()
        found = _run(mod, params, case.inputs, target)
    except Exception:
        return "error"
    expected = [oracle(plain) for oracle in case.oracles]
    if any(all_agree(each, found, case.eps) for each in expected):
        return "right"
    return "explained" if _reason(case, expected, found, Pipeline("stock", None)) else "different"


def difference(expected: Arrays, found: Arrays) -> str:
    """The first output that differs, in words."""
    if len(expected) != len(found):
        return f"{len(found)} outputs for {len(expected)}"
    for place, (right, other) in enumerate(zip(expected, found)):
        if right.shape != other.shape:
            return f"output {place} has shape {other.shape} for {right.shape}"
        if right.dtype != other.dtype:
            return f"output {place} is {other.dtype} for {right.dtype}"
        if not all_agree([right], [other]):
            wrong = np.argwhere(
                ~np.isclose(right.astype("f8"), other.astype("f8"), rtol=1e-4, equal_nan=True)
            )
            at = tuple(wrong[0]) if len(wrong) else (0,) * right.ndim
            return (
                f"output {place} has {other[at]} for {right[at]}, {len(wrong)} of {right.size} elements wrong"
            )
    return "nothing"


def gist(error: BaseException) -> str:
    """An error's kind and last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("[bt]", "Stack trace", "File ", "note:"))]
    return general(f"{type(error).__name__}: {said[-1] if said else ''}")[:160]


def general(message: str) -> str:
    """A message without what is this network's alone, to count by."""
    message = re.sub(r"the node '[^']*' ", "the node ", message)
    message = re.sub(r"'[^']*'", "'...'", message)
    return re.sub(r"\d+", "N", message.splitlines()[0] if message else message)
