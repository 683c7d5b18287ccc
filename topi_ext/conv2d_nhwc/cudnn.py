"""The convolution on CUDA by cuDNN: its graph API fuses bias, activations and residual into one kernel.

`topi_ext.cudnn` calls it.
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
from .choose_plan import plan_for
from .cuda import (  # a packed function needs no other schedule
    schedule,  # noqa: F401
    schedule_function,  # noqa: F401
    supported_arch,
)
from .plan import Plan
from .problem import Activation, Part, Problem

# Up to these, measured on an H200, the own kernel is faster.
SMALL_BLOCK = 2048  # results of a block, if an image is divided so finely and yet too small to fill the GPU
CHANNELS_OF_PAIRS = 8  # of two pixels of an image, on which cuDNN takes 1.1 to 4.5 times as long
FEWEST_FILTERS = 16  # even where weights are loaded again and again: cuDNN takes twice as long
FEW_FILTERS, SOME_FILTERS = 32, 64  # of several taps: for any depth, or where the conditions below are met
STRIDED = 64  # channels of several taps with strides
DEEP, DEEPER = 96, 128  # channels of several taps: always, or where the conditions below are met
FEW_RESULTS, SOME_RESULTS, MANY_RESULTS = 10_000, 20_000, 30_000  # of a multiprocessor
DEPTH_AT_ONCE = 128  # channels that cuDNN multiplies at once: it takes as long for a part of them
WEIGHTS_OF_ONE_TAP = 2**15
OF_ONE_TAP = 128  # channels
SHALLOW = 256  # channels of one tap: up to these, for many results, cuDNN takes 1.1 to 2 times as long
BEFORE_SILU = 384  # channels of one tap: SiLU takes cuDNN up to twice as long as all else
WIDE_IN_INT8 = 128  # channels and filters: with half as many, cuDNN takes 1.3 to 3 times as long
# Of GPUs before Hopper, whose blocks have no teams, not much is known.
FEW_CHANNELS, SOME_CHANNELS = 32, 64  # always, or where there is little to multiply or there are many tiles
MANY_TILES = 4  # for each block, which hide the time in which weights are loaded
LACKING = {"hard_swish"}  # of the activations
BYTES_AT_ONCE = 16  # which cuDNN's kernels for tensor cores copy


def is_better(problem: Problem, target: tvm.target.Target) -> bool:
    """Whether to prefer cuDNN to this project's own kernel; only the own one does depth to space."""
    arch = supported_arch(problem.dtype, target)
    if arch is None or not is_capable(problem):
        return False
    if problem.groups > 1:
        return False  # in int8 it is slower; in float16 it is faster only with strides, but may have no plan
    plan = plan_for(problem, arch)
    if problem.dtype == INT8:
        is_wide = min(problem.channels, problem.filters) >= WIDE_IN_INT8
        return is_wide and not _is_own_better_in_int8(plan)
    return not _is_own_better(plan)


def _is_own_better_in_int8(plan: Plan) -> bool:
    """Measured: where the weights stay with the block, few pixels are read, or writing takes the longest."""
    problem = plan.problem
    if not plan.resident or (plan.taps == 1 and problem.strides != (1, 1)):
        return False  # of pixels that it skips, ours reads all
    if plan.taps > 1 and problem.channels <= WIDE_IN_INT8:
        return True
    is_wide = plan.taps == 1 or plan.columns >= WIDE_IN_INT8
    return is_wide and problem.channels <= SHALLOW and plan.results >= MANY_RESULTS


def _is_own_better(plan: Plan) -> bool:
    """Measured: where few results are left for a block, or few channels, and the weights stay with it."""
    problem = plan.problem
    if not plan.resident:
        return plan.is_async and (problem.filters <= FEWEST_FILTERS or _has_odd_depth(plan))
    if problem.channels <= CHANNELS_OF_PAIRS:
        return True
    if plan.pixels * plan.columns <= SMALL_BLOCK:
        return plan.taps > 1 or problem.channels * problem.filters <= WEIGHTS_OF_ONE_TAP
    if not plan.is_async:
        return problem.strides == (1, 1) and _is_own_better_before_hopper(plan)
    return _is_own_better_of_one_tap(plan) if plan.taps == 1 else _is_own_better_of_taps(plan)


def _has_odd_depth(plan: Plan) -> bool:
    """Of some results of few filters, cuDNN takes as long for 192 channels as for 256."""
    problem = plan.problem
    is_odd = problem.strides == (1, 1) and problem.channels % DEPTH_AT_ONCE != 0
    return is_odd and problem.filters <= SOME_FILTERS and plan.results >= SOME_RESULTS


def _is_own_better_of_taps(plan: Plan) -> bool:
    problem = plan.problem
    if problem.strides != (1, 1):
        return problem.channels <= STRIDED
    if problem.filters <= FEW_FILTERS:
        return True
    if problem.filters > SOME_FILTERS and plan.teams == 1 and plan.results > FEW_RESULTS:
        return problem.channels <= DEEP
    return problem.channels <= DEEPER


def _is_own_better_of_one_tap(plan: Plan) -> bool:
    problem = plan.problem
    if problem.strides != (1, 1):
        return False  # of pixels that it skips, ours reads all
    if "silu" in (problem.activation.name, problem.final_activation.name):
        return problem.channels <= BEFORE_SILU
    is_mostly_memory = problem.residual is not None or problem.filters <= OF_ONE_TAP
    if is_mostly_memory and plan.teams > 1 and plan.results >= MANY_RESULTS:  # teams hide what writing takes
        return problem.channels <= SHALLOW
    return problem.channels <= OF_ONE_TAP


def _is_own_better_before_hopper(plan: Plan) -> bool:
    problem = plan.problem
    if problem.channels > SOME_CHANNELS:
        return False
    is_mostly_memory = plan.taps == 1 and problem.residual is not None
    return problem.channels <= FEW_CHANNELS or is_mostly_memory or plan.all_tiles >= MANY_TILES * plan.workers


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
