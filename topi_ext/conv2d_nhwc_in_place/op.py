"""The Relay operator `topi_ext.conv2d_nhwc_in_place`, which has the kernels of `conv2d_nhwc`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import tvm
from tvm import relay, te

from .. import _register
from .._register import known
from ..conv2d_nhwc import conv2d_nhwc
from ..conv2d_nhwc import op as plain
from ..conv2d_nhwc.problem import AT_RUN_TIME, Part, Problem

NAME = "topi_ext.conv2d_nhwc_in_place"
ARGUMENTS = {
    **plain.ARGUMENTS,
    "data": "(N, H, W, any number of channels)",
    "residual": "(N, OH, OW, any number of channels), or a scalar where there is none",
    "destination": "the result's shape, or a scalar where there is none",
}
OWN = ("data_from", "residual_from", "result_from", "result_channels", "has_destination")  # of the attributes
MAX_ELEMENTS = 2**31  # of a tensor: kernels count in 32 bits
ALIGNMENT = 8  # of channels: kernels for CUDA read and write 16 bytes at once


def conv2d_nhwc_in_place(
    data: relay.Expr,
    weight: relay.Expr,
    bias: relay.Expr | None = None,
    residual: relay.Expr | None = None,
    destination: relay.Expr | None = None,
    *,
    data_from: int = 0,
    residual_from: int = 0,
    result_from: int = 0,
    result_channels: int,
    **options: Any,
) -> relay.Expr:
    """`conv2d_nhwc` of some channels of a tensor, whose result is some channels of another.

    So the results of several convolutions are written where they would be concatenated, and read from there.
    In a network that `tvm_passes.runtime` compiles for CUDA, a result is in the memory of its destination
    where nothing reads what that held; elsewhere, the destination is copied. For other targets, and for
    channels that are no multiples of eight, Relay's pass `Legalize` replaces the operator by slices,
    `conv2d_nhwc` and a concatenation.

    Parameters
    ----------
    data : relay.Expr
        (N, H, W, at least `data_from` + C). All extents are known at compile time.
    weight, bias, options
        As those of `conv2d_nhwc`, but for `groups` and `block_size`, which must be 1. weight: (K, R, S, C).
    residual : relay.Expr, optional
        (N, OH, OW, at least `residual_from` + K), of a type that `conv2d_nhwc` takes.
    destination : relay.Expr, optional
        (N, OH, OW, `result_channels`), of the type of the result: what the result has in its other channels.
    data_from, residual_from : int
        The first channel that is read.
    result_from : int
        The first channel that is written.
    result_channels : int
        How many channels the result has, at least `result_from` + K.

    Returns
    -------
    result : relay.Expr
        (N, OH, OW, `result_channels`): the convolution in channels `result_from` to `result_from` + K, the
        destination in the others. Without a destination, those are unspecified.

    >>> from topi_ext.conv2d_nhwc_in_place import reference
    >>> data = np.array([[[[1, 2, 3]]]], "float32")
    >>> weight = np.array([[[[10, 1]]]], "float32")
    >>> destination = np.array([[[[7, 8]]]], "float32")
    >>> where = {"data_from": 1, "result_from": 1, "result_channels": 2}
    >>> print(reference.conv2d_nhwc_in_place(data, weight, destination=destination, **where)[0, 0])
    [[ 7. 23.]]
    """
    call = conv2d_nhwc(data, weight, bias, residual, **options)
    own = {
        "data_from": data_from,
        "residual_from": residual_from,
        "result_from": result_from,
        "result_channels": result_channels,
    }
    for name, number in own.items():
        if number < 0:
            raise ValueError(f"conv2d_nhwc_in_place: {name} must not be negative, but is {number}")
    own["has_destination"] = int(destination is not None)
    attrs = tvm.ir.make_node("DictAttrs", **dict(call.attrs.items()), **own)
    given = relay.const(0, "float32") if destination is None else destination
    return relay.Call(relay.op.get(NAME), [*call.args, given], attrs)


# --- types


def problem_of(tensors: Sequence[relay.TensorType | te.Tensor], attrs: tvm.ir.Attrs) -> Problem:
    """The problem of these types or tensors, which all have a shape and a dtype; refuses invalid ones."""
    data, weight, bias, residual, slope, scale, destination = tensors
    extents = [known(extent) or 0 for extent in weight.shape]
    filters, channels = extents[:1] + extents[3:] if len(extents) == 4 else (0, 0)
    read, data_part = _part("data", data, int(attrs["data_from"]), channels)
    added, residual_part = residual, None
    if attrs["has_residual"]:
        added, residual_part = _part("residual", residual, int(attrs["residual_from"]), filters)
    problem = plain.problem_of([read, weight, bias, added, slope, scale], attrs)
    if AT_RUN_TIME in (problem.batch, *problem.size):
        _register.refuse(NAME, "the batch and the size of images must be known at compile time")
    for name, number in (("block_size", problem.block), ("groups", problem.groups)):
        if number != 1:
            _register.refuse(NAME, f"{name} must be 1, not {number}")
    first, whole = int(attrs["result_from"]), int(attrs["result_channels"])
    if first + filters > whole:
        _register.refuse(
            NAME, f"{filters} filters from channel {first} on do not fit into {whole} result_channels"
        )
    result_part = None if whole == filters else Part(first, whole)
    problem = replace(problem, data_part=data_part, residual_part=residual_part, result_part=result_part)
    wholes = (math.prod(tensor.shape) for tensor in (data, residual))
    if max(*map(int, wholes), math.prod(problem.shape)) >= MAX_ELEMENTS:
        _register.refuse(NAME, "2 ** 31 elements and more are too many: split the batch")
    if attrs["has_destination"]:
        shape = tuple(map(known, destination.shape))
        if shape != problem.shape or destination.dtype != problem.out_dtype:
            _register.refuse(
                NAME,
                f"destination must have the shape {problem.shape} and type {problem.out_dtype}, not "
                f"{destination.shape} of {destination.dtype}",
            )
    return problem


def _part(
    name: str, tensor: relay.TensorType | te.Tensor, first: int, count: int
) -> tuple[relay.TensorType | te.Tensor, Part | None]:
    """The type of the channels that are read of a tensor, and which they are; None if they are all."""
    whole = known(tensor.shape[-1]) if len(tensor.shape) == 4 else None
    if whole is None or (first == 0 and whole == count):
        return tensor, None
    if first + count > whole:
        _register.refuse(NAME, f"{name} has {whole} channels: {count} from {first} on are not in it")
    return relay.TensorType((*tensor.shape[:3], count), tensor.dtype), Part(first, whole)


def _type_relation(types: Sequence[relay.Type], attrs: tvm.ir.Attrs) -> relay.TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, relay.TensorType) for type_ in types):
        return None
    problem = problem_of(types, attrs)
    return relay.TensorType(problem.shape, problem.out_dtype)


# --- kernels


def has_kernel(problem: Problem, target: tvm.target.Target | None) -> bool:
    """Whether there is a kernel for a target that reads and writes the channels where they are."""
    parts = problem.data_part, problem.residual_part, problem.result_part
    counts = problem.counts.values()
    extents = [extent for part, count in zip(parts, counts) if part for extent in (*part, count)]
    is_aligned = all(extent % ALIGNMENT == 0 for extent in extents)
    return target is not None and target.kind.name == "cuda" and is_aligned


def by_copies(call_attrs: tvm.ir.Attrs, arguments: Sequence[relay.Expr], problem: Problem) -> relay.Expr:
    """The same of other operators: slices, conv2d_nhwc and a concatenation."""
    data, weight, bias, residual, slope, scale, destination = arguments
    parts = problem.parts
    if problem.data_part:
        data = _channels(data, parts["data"].first, problem.channels)
    if problem.residual_part:
        residual = _channels(residual, parts["residual"].first, problem.filters)
    attrs = {name: value for name, value in call_attrs.items() if name not in OWN}
    attrs = tvm.ir.make_node("DictAttrs", **attrs)
    result = relay.Call(relay.op.get(plain.NAME), [data, weight, bias, residual, slope, scale], attrs)
    first, whole = parts["result"]
    behind = first + problem.filters

    def other(begin: int, end: int) -> relay.Expr:
        if call_attrs["has_destination"]:
            return _channels(destination, begin, end - begin)
        return relay.zeros((*problem.shape[:3], end - begin), problem.out_dtype)

    before, after = ([other(*each)] if each[0] < each[1] else [] for each in ((0, first), (behind, whole)))
    return relay.concatenate([*before, result, *after], 3) if before or after else result


def _channels(tensor: relay.Expr, first: int, count: int) -> relay.Expr:
    return relay.strided_slice(tensor, [first], [first + count], axes=[3])


def _legalized(
    attrs: tvm.ir.Attrs, arguments: Sequence[relay.Expr], types: Sequence[relay.Type]
) -> relay.Expr | None:
    """What TVM compiles in place of a call, or None for the call itself."""
    problem = problem_of(types[: len(arguments)], attrs)
    if has_kernel(problem, tvm.target.Target.current(allow_none=True)):
        return None
    return by_copies(attrs, arguments, problem)


class _Kernels(plain.Kernels):
    def __init__(self, attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], target: tvm.target.Target) -> None:
        problem = problem_of(inputs, attrs)
        if not has_kernel(problem, target):
            _register.refuse(NAME, f"{target.kind.name} needs Relay's pass Legalize, so at least opt_level 1")
        super().__init__(problem, target)


def _compute(kernels: _Kernels, attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    *arguments, destination = inputs
    return kernels.compute(arguments, **({"destination": destination} if attrs["has_destination"] else {}))


_register.register(
    NAME,
    "Convolution of NHWC data that reads and writes some of the channels of wider tensors.",
    {name: f"Of shape {shape}." for name, shape in ARGUMENTS.items()},
    _type_relation,
    None,
    _Kernels,
    _compute,
)
relay.op.register_legalize(NAME, _legalized)


# --- memory


class Access(NamedTuple):
    """Which channels a call writes, and which it reads of some of its arguments, by their places."""

    written: range
    read: dict[int, range]
    destination: int | None  # the argument whose memory the result can take


def access_of(call: relay.Call) -> Access:
    """What a typed call of the operator does to memory."""
    problem = problem_of([argument.checked_type for argument in call.args], call.attrs)
    parts, counts = problem.parts, problem.counts
    of = {name: range(part.first, part.first + counts[name]) for name, part in parts.items()}
    names = list(ARGUMENTS)
    read = {names.index(name): of[name] for name in ("data", "residual")}
    return Access(of["result"], read, names.index("destination") if call.attrs["has_destination"] else None)
