"""The Relay operator `topi_ext.attention`: its arguments, types, shapes, and the kernels that it calls."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import tvm
from tvm import relay, te, tir

from .. import _register
from .._register import known
from ..cudnn.session import LIBRARY
from . import cudnn
from .problem import BHND, BNHD, LAYOUTS, NO_PARTS, Part, Problem, by_axis

NAME = "topi_ext.attention"
FLOATS = ("float32", "float16", "bfloat16")
MOST_ELEMENTS = 2**31  # of a tensor, which kernels count in int32
ARGUMENTS = {
    "query": "(B, H, N, D)",
    "key": "(B, H, M, D)",
    "value": "(B, H, M, E)",
    "mask": "(B, H, N, M) or 1 for any of them, or a scalar where there is none",
}


def attention(
    query: relay.Expr,
    key: relay.Expr,
    value: relay.Expr,
    mask: relay.Expr | None = None,
    *,
    scale: float,
    layouts: Sequence[str] = LAYOUTS,
    parts: Sequence[Part | None] = NO_PARTS,
) -> relay.Expr:
    """softmax(query key^T * scale + mask) value, for each head, in one kernel: scores are never in memory.

    For a target such as `cuda -libs=cudnn-frontend`, cuDNN computes it where it can.

    Parameters
    ----------
    query : relay.Expr
        (B, H, N, D): float32, float16 or bfloat16. All extents are known at compile time.
    key : relay.Expr
        (B, H, M, D), of the type of the query.
    value : relay.Expr
        (B, H, M, E), of the type of the query.
    mask : relay.Expr, optional
        (B, H, N, M), or with a 1 for any of these: float32 or of the type of the query; -inf excludes a key.
    scale : float
        The factor of the products, often 1 / sqrt(D).
    layouts : four of str
        The order of the axes of query, key, value and result: "BHND", as above, or "BNHD".
    parts : three of Part or None
        Where query, key and value are in the tensors given, which then have any shape, such as the result of
        one layer for all three: Part(shape as BHND, strides in elements, first element). The strides of an
        axis may be 0.

    Returns
    -------
    result : relay.Expr
        (B, H, N, E), of the type of the query.

    Convention
    ----------
    - As torch's `scaled_dot_product_attention`, with a mask that is added, not of booleans.
    - Products, scores and softmax are float32. On tensor cores, the softmax is rounded to the type of the
      values before it multiplies them; its sum is not.
    - The result of a query whose keys are all excluded is NaN.

    >>> from topi_ext.attention import reference
    >>> key = np.float32([[[[1, 0], [0, 1]]]])
    >>> query, value = np.float32([[[[9, 0]]]]), np.float32([[[[1, 2, 3], [4, 5, 6]]]])
    >>> print(reference.attention(query, key, value, scale=1.0).round(2))
    [[[[1. 2. 3.]]]]
    """
    if not math.isfinite(scale):
        raise ValueError(f"attention: scale must be finite, not {scale}")
    layouts = tuple(layouts)
    if len(layouts) != 4 or not set(layouts) <= {BHND, BNHD}:
        raise ValueError(f"attention: layouts must be four of {BHND!r} and {BNHD!r}, not {layouts}")
    numbers = [_numbers(*each) for each in zip(("query", "key", "value"), parts, layouts)]
    given = {"parts": numbers} if any(numbers) else {}
    attrs = tvm.ir.make_node(
        "DictAttrs", scale=float(scale), layouts=layouts, has_mask=int(mask is not None), **given
    )
    nothing = relay.const(0, "float32")
    return relay.Call(relay.op.get(NAME), [query, key, value, nothing if mask is None else mask], attrs)


def _numbers(name: str, part: Part | None, layout: str) -> list[list[int]]:
    """A part as an attribute of the operator."""
    if part is None:
        return []
    if len(part.shape) != 4 or len(part.strides) != 4 or layout != BHND:
        raise ValueError(
            f"attention: a part has four extents and four strides, as {BHND}, but {name} has {part}"
        )
    return [list(map(int, part.shape)), list(map(int, part.strides)), [int(part.first)]]


def parts_of(attrs: tvm.ir.Attrs) -> tuple[Part | None, ...]:
    """Which parts of their tensors query, key and value are."""
    if "parts" not in set(attrs.keys()):
        return NO_PARTS
    numbers = ([tuple(map(int, each)) for each in part] for part in attrs["parts"])
    return tuple(Part(part[0], part[1], *part[2]) if part else None for part in numbers)


# --- types and shapes


def _type_relation(types: Sequence[relay.Type], attrs: tvm.ir.Attrs) -> relay.TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, relay.TensorType) for type_ in types):
        return None
    problem = problem_of(types, attrs)
    return relay.TensorType(problem.shape, problem.dtype)


def problem_of(tensors: Sequence[relay.TensorType | te.Tensor], attrs: tvm.ir.Attrs) -> Problem:
    """The problem of these types or tensors, which all have a shape and a dtype; refuses invalid ones."""
    layouts, parts = tuple(map(str, attrs["layouts"])), parts_of(attrs)
    dtype = tensors[0].dtype
    if dtype not in FLOATS:
        _refuse(f"query must be of type {', '.join(FLOATS)}, not {dtype}")
    shapes = []
    for name, tensor, layout, part in zip(ARGUMENTS, tensors[:3], layouts, parts):
        if tensor.dtype != dtype:
            _refuse(f"{name} must be of the type of query, {dtype}, not {tensor.dtype}")
        if part is not None:
            shapes.append(_shape_of_part(name, tensor, part))
            continue
        if len(tensor.shape) != 4:
            _refuse(f"{name} must have four axes, {layout}, but its shape is {tensor.shape}")
        shapes.append(by_axis(_static(name, tensor.shape), layout))
    (batch, heads, queries, depth), of_key, (*_, width) = shapes
    keys = of_key[2]
    for name, shape, length in (("key", of_key, depth), ("value", shapes[2], width)):
        if shape != (batch, heads, keys, length):
            _refuse(
                f"{name} must have batch {batch}, {heads} heads, {keys} keys"
                f"{f' and vectors of {depth}' if name == 'key' else ''}, but its shape is {shape} as {BHND}"
            )
    if min(batch, heads, queries, keys, depth, width) < 1:
        _refuse(f"no extent may be 0: {', '.join(map(str, shapes))}")
    if batch * heads * max(queries, keys) * max(depth, width) >= MOST_ELEMENTS:
        _refuse("2 ** 31 elements and more are too many: split the batch")
    scale = float(attrs["scale"])
    problem = Problem(batch, heads, queries, keys, depth, width, scale, dtype, layouts, parts=parts)
    return _with_mask(problem, tensors[3]) if attrs["has_mask"] else problem


def _shape_of_part(name: str, tensor: relay.TensorType | te.Tensor, part: Part) -> tuple[int, ...]:
    elements = math.prod(_static(name, tensor.shape))
    if part.strides[3] != 1 or min(part.first, *part.strides) < 0 or part.last >= elements:
        _refuse(f"{name} must be vectors side by side among the {elements} elements given, but it is {part}")
    if elements >= MOST_ELEMENTS:
        _refuse("2 ** 31 elements and more are too many: split the batch")
    return part.shape


def _with_mask(problem: Problem, mask: relay.TensorType | te.Tensor) -> Problem:
    full = problem.batch, problem.heads, problem.queries, problem.keys
    shape = _static("mask", mask.shape)
    if len(shape) != 4 or any(extent not in (1, whole) for extent, whole in zip(shape, full)):
        _refuse(f"mask must have the shape {full}, or a 1 for any of these, not {tuple(shape)}")
    if mask.dtype not in ("float32", problem.dtype):
        _refuse(f"mask must be of type float32 or {problem.dtype}, not {mask.dtype}")
    if math.prod(shape) >= MOST_ELEMENTS:
        _refuse("2 ** 31 elements and more are too many: split the batch")
    values = {**vars(problem), "mask": tuple(shape), "mask_dtype": mask.dtype}
    return Problem(**values)


def _static(name: str, shape: Sequence[tir.PrimExpr]) -> list[int]:
    if any(known(extent) is None for extent in shape):
        _refuse(f"all extents must be known at compile time, but {name} has the shape {shape}")
    return [int(extent) for extent in shape]


def _refuse(reason: str) -> NoReturn:
    _register.refuse(NAME, reason)


# --- kernels


def kernels_for(problem: Problem, target: tvm.target.Target) -> ModuleType:
    """The module of the kernels: cuDNN's where the target allows it, it can, and it is faster."""
    kind = target.kind.name
    has_cudnn = kind == "cuda" and LIBRARY in target.libs
    if has_cudnn and cudnn.is_capable(problem, target) and cudnn.is_faster(problem):
        return cudnn
    return importlib.import_module(f"{__package__}.{_register.KERNELS[kind]}")


class _Kernels:
    """The kernels for one problem on one target."""

    def __init__(self, attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], target: tvm.target.Target) -> None:
        self.target, self.module = target, kernels_for(problem_of(inputs, attrs), target)

    def schedule(self, outs: Sequence[te.Tensor]) -> te.Schedule:
        return self.module.schedule(outs)


def _compute(kernels: _Kernels, attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    given = list(inputs) if attrs["has_mask"] else list(inputs[:3])
    return [kernels.module.attention(problem_of(inputs, attrs), given, kernels.target)]


_register.register(
    NAME,
    "Attention of queries to keys.",
    {name: f"Of shape {shape}." for name, shape in ARGUMENTS.items()},
    _type_relation,
    None,
    _Kernels,
    _compute,
)
