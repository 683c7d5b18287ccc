"""The convolution on CUDA by cuDNN: its graph API fuses bias, activations and residual into one kernel.

`topi_ext.cudnn` calls it, and `choose_kernel` says of which convolutions it is the faster kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tvm

from .._destination import filled_from
from .._int8 import INT8
from .._kernel import bytes_of
from .._tvm import te, tir
from ..cudnn.session import Operator, data_types, new_graph
from .cuda import (  # a packed function needs no other schedule
    schedule,  # noqa: F401
    schedule_function,  # noqa: F401
)
from .problem import Activation, Part, Problem

LACKING = {"hard_swish"}  # of the activations
BYTES_AT_ONCE = 16  # which cuDNN's kernels for tensor cores copy


def is_capable(problem: Problem) -> bool:
    """Whether cuDNN computes the problem: a type of tensor cores, aligned channels, no depth to space.

    In the same kernel, it rounds to int8 only what it has computed from int8. It may have no plan for groups
    of a few channels.
    """
    if problem.dtype == "float32" or (problem.is_quantized and problem.dtype != INT8):
        return False
    activations = {problem.activation.name, problem.final_activation.name}
    has_all = problem.block == 1 and not problem.is_depthwise and not activations & LACKING
    return problem.is_aligned(alignment(problem.dtype)) and has_all


def alignment(dtype: str) -> int:
    """Channels and filters of a type must be multiples of this."""
    return BYTES_AT_ONCE // bytes_of(dtype)


def conv2d_nhwc(
    problem: Problem,
    data: te.Tensor,
    weight: te.Tensor,
    bias: te.Tensor | None,
    residual: te.Tensor | None,
    slope: te.Tensor | None,
    scale: te.Tensor | None,
    _target: tvm.target.Target,
    destination: te.Tensor | None = None,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`, and of a destination `topi_ext.conv2d_nhwc_in_place`."""
    inputs = {"data": data, "weight": weight, "bias": bias, "residual": residual, "slope": slope}
    inputs |= {"scale": scale, "destination": destination}
    inputs = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    firsts = {name: part.first for name, part in problem.parts.items()}
    text = problem.from_channel_0().to_json()  # where a part begins changes addresses, and not the plan

    def body(call: Callable[..., tir.PrimExpr], *tensors: tir.Buffer) -> tir.Stmt:
        buffers = dict(zip([*inputs, "result"], tensors))
        destination, result = buffers.pop("destination", None), buffers["result"]
        given = [_from(buffer, firsts.get(name, 0)) for name, buffer in buffers.items()]
        return filled_from(destination, result, tir.Evaluate(call(*given)))

    return OPERATOR.call(text, list(inputs.values()), problem.shape, problem.out_dtype, body)


def _from(buffer: tir.Buffer, channel: int) -> tir.Buffer:
    """A tensor whose address is that of a channel of the first pixel.

    It keeps its extents, by which `tune` allocates: the plan has their strides, and never reaches the end.
    """
    if not channel:
        return buffer
    return tir.decl_buffer(buffer.shape, buffer.dtype, buffer.name, buffer.data, elem_offset=channel)


def build_graph(cudnn: ModuleType, problem: Problem, handle: Any) -> Any:
    """The graph of a problem. Uids count from 1: the arguments in order, the result, `numbers`."""
    types, graph = data_types(cudnn), new_graph(cudnn, problem.dtype, handle)
    result = problem.batch, *problem.out_size, problem.filters
    arguments = {
        "data": ((problem.batch, *problem.size, problem.channels), problem.dtype),
        # Of fewer channels than the data, from which cuDNN knows the number of groups.
        "weight": ((problem.filters, *problem.kernel, problem.channels_of_group), problem.dtype),
        "bias": ((1, 1, 1, problem.filters), problem.bias),
        "residual": (result, problem.residual),
        "slope": ((1, 1, 1, problem.filters), problem.slope),
        "scale": ((1, 1, 1, problem.filters), "float32" if problem.dtype == INT8 else None),
    }
    tensors = {}
    for name, (shape, dtype) in arguments.items():
        if dtype:
            dim, stride = _layout(shape, problem.parts.get(name))
            tensors[name] = graph.tensor(name=name, dim=dim, stride=stride, data_type=types[dtype])
            tensors[name].set_uid(len(tensors))
    y = graph.conv_fprop(
        image=tensors["data"],
        weight=tensors["weight"],
        pre_padding=list(problem.padding[:2]),
        post_padding=list(problem.padding[2:]),
        stride=list(problem.strides),
        dilation=list(problem.dilation),
        **({"compute_data_type": cudnn.data_type.INT32} if problem.dtype == INT8 else {}),
    )
    if problem.dtype == INT8:
        y = graph.mul(y.set_data_type(cudnn.data_type.INT32), tensors["scale"])
    if problem.bias:
        y = graph.add(y, tensors["bias"])
    y = _activate(graph, problem.activation, y, tensors.get("slope"))
    uid_of_result, factors = len(tensors) + 1, {}
    for uid, name in enumerate(numbers(problem), uid_of_result + 1):
        factors[name] = graph.tensor(
            dim=[1] * 4, stride=[1] * 4, data_type=cudnn.data_type.FLOAT, is_pass_by_value=True
        )
        factors[name].set_uid(uid)
    if problem.residual:
        residual = tensors["residual"]
        y = graph.add(y, graph.mul(residual, factors["residual"]) if "residual" in factors else residual)
    y = _activate(graph, problem.final_activation, y)
    y = graph.mul(y, factors["result"]) if "result" in factors else y
    dim, stride = _layout(result, problem.parts["result"])
    y.set_output(True).set_data_type(types[problem.out_dtype]).set_dim(dim).set_stride(stride)
    y.set_uid(uid_of_result)
    return graph


def numbers(problem: Problem) -> dict[str, float]:
    """By which the graph multiplies the residual and the result, where that is not 1."""
    factors = {"residual": problem.residual_scale if problem.residual else 1, "result": problem.out_scale}
    return {name: factor for name, factor in factors.items() if factor != 1}


def _layout(shape: Sequence[int], part: Part | None = None) -> tuple[list[int], list[int]]:
    """Extents and strides of NHWC data, or of a part of it, in the order that cuDNN expects: NCHW."""
    batch, height, width, channels = shape
    whole = part.whole if part else channels
    return [batch, channels, height, width], [height * width * whole, 1, width * whole, whole]


def _activate(graph: Any, activation: Activation, y: Any, slope: Any = None) -> Any:
    if activation.name == "relu":
        return graph.relu(y)
    if activation.name == "leaky_relu":
        return graph.leaky_relu(y, negative_slope=activation.low)
    if activation.name == "clip":
        return graph.relu(y, lower_clip=activation.low, upper_clip=activation.high)
    if activation.name in ("sigmoid", "tanh"):
        return getattr(graph, activation.name)(y)
    if activation.name == "silu":
        return graph.mul(y, graph.sigmoid(y))
    if activation.name == "gelu":
        return graph.gelu(y)
    if activation.name == "gelu_tanh":
        return graph.gelu_approx_tanh(y)
    if activation.name == "mish":
        return graph.mul(y, graph.tanh(graph.softplus(y)))
    if activation.name == "prelu":  # cuDNN does not have it
        return graph.sub(graph.relu(y), graph.mul(graph.relu(graph.neg(y)), slope))
    if activation.name != "none":
        raise NotImplementedError(activation.name)
    return y


OPERATOR = Operator(
    "topi_ext.conv2d_nhwc",
    lambda cudnn, text, handle: build_graph(cudnn, Problem.from_json(text), handle),
    lambda text: [*numbers(Problem.from_json(text)).values()],
)
