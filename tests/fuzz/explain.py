"""Differences that no compiler is to blame for, as rules.

A rule varies what an operator computes, within what anyone may compute for it: another rounding, another
number where the result is not defined. An oracle that is run so several times shows which of its outputs
depend on it, and how far; what differs from it by no more is explained by the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Arrays = list[np.ndarray]
Compute = Callable[[Arrays], Arrays]

RUNS = 8
MANY, NEARLY_ALL = 100, 0.98  # of many elements at a step, some stay on one side in all runs
SPREAD = 4  # a difference is explained up to this many times what the runs differ by


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names of operators, in lower case, of ONNX and of aten.
EXACT = _words(
    """
    identity alias clone detach copy copy_ reshape view _unsafe_view _reshape_alias flatten
    transpose permute t
    squeeze unsqueeze expand slice select split split_with_sizes concat cat stack gather gathernd
    gatherelements index index_select embedding pad constant_pad_nd reflection_pad1d
    reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d tile repeat roll flip depthtospace spacetodepth
    pixel_shuffle pixel_unshuffle where triu tril trilu as_strided unbind lift_fresh sort topk argsort
    unfold channel_shuffle native_channel_shuffle nonzero masked_select slice_scatter select_scatter
    max min amax amin maximum minimum argmax argmin clip clamp clamp_min clamp_max relu hardtanh
    reducemax reducemin maxpool max_pool2d max_pool2d_with_indices max_pool1d max_pool3d threshold
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    equal eq ne lt le gt ge less greater lessorequal greaterorequal not and or xor logical_not logical_and
    logical_or logical_xor isnan isinf isfinite all any nms nonmaxsuppression
    neg abs sign round floor ceil trunc constant constantofshape shape size full zeros ones empty fill fill_
    arange range zeros_like ones_like full_like empty_like scalar_tensor tensor
    """
)
SUMS = _words(  # the error of a sum is as large as its largest summand's, whatever the sum is
    """
    conv convtranspose convolution mm addmm bmm baddbmm matmul gemm dot mv linear einsum
    sum mean prod var std var_mean cumsum cumprod norm logsumexp linalg_vector_norm
    reducesum reducemean reduceprod reducel1 reducel2 reducelogsum reducelogsumexp reducesumsquare
    softmax _softmax _log_softmax logsoftmax batchnormalization native_batch_norm
    _native_batch_norm_legit_no_training cudnn_batch_norm native_group_norm native_layer_norm
    layernormalization instancenormalization groupnormalization
    averagepool avg_pool1d avg_pool2d avg_pool3d globalaveragepool adaptive_avg_pool2d _adaptive_avg_pool2d
    resize upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d roi_align roialign
    """
)
CASTS = {"cast", "_to_copy", "to"}
# Where a NaN is compared: IEEE 754 has one minimum that keeps it, and one that drops it.
NAN_IS_LOST = _words(
    """
    max min amax amin maximum minimum argmax argmin clip clamp clamp_min clamp_max relu leakyrelu prelu
    hardtanh reducemax reducemin maxpool max_pool2d max_pool2d_with_indices max_pool1d max_pool3d sort topk
    argsort
    sign round floor ceil _softmax softmax
    """
)


class Context(NamedTuple):
    random: np.random.Generator
    eps: float  # of the least exact type that the pipeline computes in; 0: of each tensor's own
    run: int  # which of RUNS this is


def rounding(op: str, inputs: Arrays, compute: Compute, context: Context) -> Arrays:
    if op in EXACT:
        return compute(inputs)
    if op in CASTS:
        outputs = compute(inputs)
        is_narrower = outputs[0].dtype.kind == "f" and outputs[0].dtype.itemsize < inputs[0].dtype.itemsize
        return [_jiggle(output, context) if is_narrower else output for output in outputs]
    if op not in SUMS:
        return [_jiggle(output, context) for output in compute(inputs)]
    outputs = compute([_jiggle(value, context) for value in inputs])
    return [_jiggle(output, context, _steps(inputs[0], output)) for output in outputs]


def _steps(summands: np.ndarray, result: np.ndarray) -> float:
    """By how much more a sum is rounded that adds one number after the other: a random walk."""
    return max(1.0, summands.size / max(result.size, 1)) ** 0.5


def ties(op: str, inputs: Arrays, compute: Compute, context: Context) -> Arrays:
    """Equal elements in any order; in the first two runs in that of their places, or against it."""
    if op not in ("topk", "sort", "argsort"):
        return compute(inputs)
    varied = _jiggle(inputs[0], context)
    if context.run < 2 and varied.dtype.kind == "f":
        places = _places_among_equals(inputs[0])
        step = 2 * max(float(np.finfo(varied.dtype).eps), context.eps)
        varied = (inputs[0] * (1 + (places if context.run else -places) * step)).astype(varied.dtype)
    return compute([varied, *inputs[1:]])


def _places_among_equals(array: np.ndarray) -> np.ndarray:
    """0 for the first element of its value, 1 for the second, ..."""
    flat = array.ravel()
    order = np.argsort(flat, kind="stable")
    index = np.arange(flat.size)
    is_first = np.concatenate([[True], flat[order][1:] != flat[order][:-1]])[: flat.size]
    places = np.empty(flat.size, int)
    places[order] = index - np.maximum.accumulate(np.where(is_first, index, 0))
    return places.reshape(array.shape)


def resizing_of_float64(op: str, inputs: Arrays, compute: Compute, context: Context) -> Arrays:
    outputs = compute(inputs)
    if (
        not op.startswith(("resize", "upsample", "_upsample", "grid_sample"))
        or outputs[0].dtype != np.float64
    ):
        return outputs
    return [_jiggle(output, context._replace(eps=2.0**-22)) for output in outputs]


def _jiggle(array: np.ndarray, context: Context, steps: float = 1.0) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    amplitude = 2 * steps * max(float(np.finfo(array.dtype).eps), context.eps)
    noise = context.random.uniform(-amplitude, amplitude, array.shape)
    with np.errstate(all="ignore"):
        return np.asarray(array.astype("float64") * (1 + noise)).astype(array.dtype)


def cast_out_of_range(op: str, inputs: Arrays, compute: Compute, context: Context) -> Arrays:
    outputs = compute(inputs)
    if op not in CASTS or inputs[0].dtype.kind != "f" or outputs[0].dtype.kind not in "iu":
        return outputs
    value, limits = inputs[0].astype("float64"), np.iinfo(outputs[0].dtype)
    undefined = ~((value > limits.min - 1.0) & (value < limits.max + 1.0))
    undefined |= (value >= limits.max) & (limits.bits == 64)
    choices = np.array([limits.min, limits.max, 0, -1 if limits.min else 1, 77], outputs[0].dtype)
    return [np.where(undefined, context.random.choice(choices, value.shape), outputs[0])]


def not_a_number(op: str, inputs: Arrays, compute: Compute, context: Context) -> Arrays:
    if op not in NAN_IS_LOST or not any(_has_nan(value) for value in inputs):
        return compute(inputs)
    choices = [-np.inf, np.inf, 0.0, np.nan]

    def chosen(value: np.ndarray) -> np.ndarray:
        if not _has_nan(value):
            return value
        return np.where(np.isnan(value), context.random.choice(choices), value).astype(value.dtype)

    return compute([chosen(value) for value in inputs])


def _has_nan(value: np.ndarray) -> bool:
    return value.dtype.kind == "f" and bool(np.isnan(value).any())


class Rule(NamedTuple):
    name: str
    reason: str
    vary: Callable[[str, Arrays, Compute, Context], Arrays]


RULES = (
    Rule(
        "rounding",
        "the result changes as much when each operator that rounds does so differently, by two units in the "
        "last place: a step function at its step, a near tie, a sum that cancels, an amplified error",
        rounding,
    ),
    Rule(
        "ties",
        "PyTorch and ONNX do not say which of equal elements a top-k takes, nor how they are sorted",
        ties,
    ),
    Rule(
        "resizing of float64",
        "TVM's kernel interpolates in float32, to seven digits",
        resizing_of_float64,
    ),
    Rule(
        "cast out of range",
        "a float is cast to an integer type that does not have it, or is NaN: not defined in ONNX or C",
        cast_out_of_range,
    ),
    Rule(
        "not a number",
        "a NaN is compared, by a maximum or an order: which number comes out is not defined in ONNX",
        not_a_number,
    ),
)


def _all_rules(op: str, inputs: Arrays, compute: Compute, context: Context) -> Arrays:
    for rule in RULES:
        compute = _wrapped(rule, op, compute, context)
    return compute(inputs)


def _wrapped(rule: Rule, op: str, compute: Compute, context: Context) -> Compute:
    return lambda inputs: rule.vary(op, inputs, compute, context)


Vary = Callable[[str, Arrays, Compute], Arrays]
Oracle = Callable[[Vary], Arrays]  # a run of the network, each operator's inputs and computation given away


def plain(op: str, inputs: Arrays, compute: Compute) -> Arrays:
    return compute(inputs)


def explanation(oracle: Oracle, found: Sequence[np.ndarray], eps: float = 0.0) -> str | None:
    """The rule that explains why `found` is not what the oracle computes, or None."""
    expected = oracle(plain)
    for name, vary in [*((rule.name, rule.vary) for rule in RULES), ("several", _all_rules)]:
        runs = []
        for seed in range(RUNS):
            context = Context(np.random.default_rng(seed), eps, seed)
            runs.append(oracle(lambda *args, c=context, v=vary: v(*args, c)))
        if all(_explains(*group) for group in zip(expected, found, zip(*runs))):
            return name
    return None


def _explains(expected: np.ndarray, found: np.ndarray, runs: Sequence[np.ndarray]) -> bool:
    if found.dtype != expected.dtype:
        return False
    if found.shape != expected.shape:
        return any(run.shape != expected.shape for run in runs)
    runs = [run for run in runs if run.shape == expected.shape]
    wrong = ~agree(expected, found)
    if not wrong.any():
        return True
    varies = np.zeros(expected.shape, bool)
    spread = np.zeros(expected.shape)
    base = expected.astype("float64")
    with np.errstate(all="ignore"):
        for run in runs:
            varies |= (run != expected) & ~(_nan(run) & _nan(expected))
            spread = np.fmax(spread, np.abs(run.astype("float64") - base))
        distance = np.abs(found.astype("float64") - base)
    if expected.dtype.kind != "f":
        return float(varies[wrong].mean()) >= (1.0 if wrong.sum() < MANY else NEARLY_ALL)
    finite = np.isfinite(base) & np.isfinite(found.astype("float64"))
    explained = np.where(finite, (distance <= SPREAD * spread) | np.isinf(spread), varies)
    for run in runs:  # what some run computes is right, a NaN or infinity too
        explained |= agree(run, found)
        explained |= varies & ~np.isfinite(run)
    return bool(explained[wrong].all())


def _nan(array: np.ndarray) -> np.ndarray:
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)


TOLERANCE = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-9}


def agree(expected: np.ndarray, found: np.ndarray, eps: float = 0.0) -> np.ndarray:
    """Element by element; tensors of one shape and type."""
    if expected.dtype.kind != "f":
        return np.asarray(expected == found)
    tolerance = max(TOLERANCE[str(expected.dtype)], 8 * eps)
    wide, other = expected.astype("float64"), found.astype("float64")
    finite = np.abs(wide[np.isfinite(wide)])
    scale = float(finite.max()) if finite.size else 0.0
    with np.errstate(all="ignore"):
        return np.isclose(other, wide, rtol=tolerance, atol=tolerance * min(scale, 1.0) * 0.1, equal_nan=True)


def all_agree(expected: Sequence[np.ndarray], found: Sequence[np.ndarray], eps: float = 0.0) -> bool:
    return len(expected) == len(found) and all(
        one.shape == other.shape and one.dtype == other.dtype and bool(agree(one, other, eps).all())
        for one, other in zip(expected, found)
    )
