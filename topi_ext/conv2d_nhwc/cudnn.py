"""The convolution on CUDA by cuDNN: its graph API fuses bias, activations and residual into one kernel.

Compiled code calls a packed function, as with TVM's own bindings of cuDNN, and passes the problem as text: so
the code can be saved, and it runs wherever `topi_ext` is imported. The first call for a problem builds its
plan. Later calls neither allocate nor wait, so a CUDA graph can capture them.

The Python package `nvidia-cudnn-frontend` is imported only when a convolution runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tvm
from tvm import te, tir

from ..bootstrap.find_libraries import load_cudnn
from .address import address_of
from .cuda import schedule, supported_arch  # noqa: F401  a packed function needs no other schedule
from .cudnn_plans import graph_with_plan
from .plan import plan_for
from .problem import Activation, Problem

# Its name in the target: `cuda -libs=cudnn-frontend`. Plain "cudnn" is TVM's own binding: with it, TVM
# compiles softmax and nn.conv2d to functions that a TVM built without cuDNN does not have.
LIBRARY = "cudnn-frontend"
PACKED_FUNCTION = "topi_ext.conv2d_nhwc.cudnn"
ALIGNMENT = 8  # of channels and filters: cuDNN's tensor core kernels copy 16 bytes at once
FEW_CHANNELS = 64
LACKING = {"hard_swish"}  # of the activations
INSTALL = 'pip install "tvm-vision-passes[cudnn]"'


def is_better(problem: Problem, target: tvm.target.Target) -> bool:
    """Whether to prefer cuDNN to this project's own kernel.

    Measured, the own kernel is faster for few channels without strides, as long as the weights stay in shared
    memory; and only the own kernel does depth to space.
    """
    arch = supported_arch(problem, target)
    if arch is None or not is_capable(problem):
        return False
    plain = problem.channels <= FEW_CHANNELS and problem.strides == (1, 1)
    return not plain or not plan_for(problem, arch).resident


def is_capable(problem: Problem) -> bool:
    """Whether cuDNN computes the problem: a type of tensor cores, aligned channels, no depth to space."""
    aligned = problem.channels % ALIGNMENT == 0 and problem.filters % ALIGNMENT == 0
    activations = {problem.activation.name, problem.final_activation.name}
    has_all = problem.block == 1 and problem.groups == 1 and not activations & LACKING
    return problem.dtype != "float32" and aligned and has_all


def conv2d_nhwc(
    problem: Problem,
    data: te.Tensor,
    weight: te.Tensor,
    bias: te.Tensor | None,
    residual: te.Tensor | None,
    slope: te.Tensor | None,
    _target: tvm.target.Target,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`."""
    if importlib.util.find_spec("cudnn") is None:
        raise tvm.TVMError(
            f"topi_ext.conv2d_nhwc: the target has -libs={LIBRARY}, and the package it needs is missing: "
            f"{INSTALL}, or remove it from the target to use this project's own kernels"
        )
    inputs = [tensor for tensor in (data, weight, bias, residual, slope) if tensor is not None]
    return te.extern(
        problem.shape,
        inputs,
        lambda ins, outs: tir.call_packed(PACKED_FUNCTION, problem.to_json(), *ins, *outs),
        dtype=problem.dtype,
        name="conv2d_nhwc",
        tag="conv2d_nhwc_cudnn",
    )


# --- at run time


def import_cudnn() -> ModuleType:
    """Import the module `cudnn` and load the library that it wraps; an ImportError says what to install."""
    if importlib.util.find_spec("cudnn") is None:
        raise ImportError(f"the package nvidia-cudnn-frontend is missing: {INSTALL}")
    load_cudnn()
    try:
        import cudnn

        cudnn.backend_version()
    except (OSError, RuntimeError) as reason:  # which one depends on the version
        raise ImportError(
            "the library libcudnn.so.9 is missing: pip install nvidia-cudnn-cu12, or nvidia-cudnn-cu13 where "
            f"the driver supports CUDA 13 ({reason})"
        ) from reason
    return cudnn


@tvm.register_func(PACKED_FUNCTION, override=True)  # TVM keeps the function if this module is imported again
def _run(text: str, *tensors: tvm.nd.NDArray) -> None:
    device = tensors[0].handle.contents.device.device_id
    on_device = _sessions.by_device.get(device)
    if on_device is None:
        on_device = _sessions.by_device[device] = _Session(tvm.cuda(device))
    on_device.run(text, [address_of(tensor) for tensor in tensors])


class _Sessions(threading.local):
    """One set per thread: neither a cuDNN handle nor TVM's current stream is shared between threads."""

    def __init__(self) -> None:
        self.by_device: dict[int, _Session] = {}
        self.workspaces_used = 0


_sessions = _Sessions()


def forget_plans() -> None:
    """Choose plans anew in this thread."""
    _sessions.by_device.clear()


def workspaces_used() -> int:
    """How often a call of this thread has used the workspace that calls share, which must not overlap."""
    return _sessions.workspaces_used


class _Session:
    """The plans of a thread for one device, each built once."""

    def __init__(self, device: tvm.runtime.Device) -> None:
        self.cudnn = import_cudnn()
        self.device = device
        self.handle = self.cudnn.create_handle()
        self.stream = 0
        self.current_stream = tvm.get_global_func("runtime.get_cuda_stream")
        self.workspaces: list[
            tvm.nd.NDArray
        ] = []  # none is freed: a captured CUDA graph may contain its address
        self.plans: dict[str, tuple[Any, int]] = {}  # with their workspaces, 0 for none

    def run(self, text: str, addresses: list[int]) -> None:
        plan = self.plans.get(text)
        if plan is None:
            plan = self.plans[text] = self._build(Problem.from_json(text), addresses)
        self._execute(*plan, addresses)

    def _execute(self, graph: Any, workspace: int, addresses: list[int]) -> None:
        stream = self.current_stream().value or 0
        if stream != self.stream:
            self.cudnn.set_stream(self.handle, stream)
            self.stream = stream
        if workspace:
            _sessions.workspaces_used += 1
        graph.execute(dict(enumerate(addresses, 1)), workspace, self.handle)

    def _build(self, problem: Problem, addresses: list[int]) -> tuple[Any, int]:
        cudnn, card = self.cudnn, self.device.device_name

        def build() -> Any:
            graph = build_graph(cudnn, problem, self.handle)
            graph.validate()
            graph.build_operation_graph()
            return graph

        def run(graph: Any) -> None:
            self._execute(graph, 0, addresses)

        graph = None
        with contextlib.suppress(cudnn.cudnnGraphNotSupportedError):
            graph = graph_with_plan(cudnn, self.handle, f"{problem.to_json()} on {card}", build, run)
        if graph is None:
            raise tvm.TVMError(
                f"topi_ext.conv2d_nhwc: cuDNN {cudnn.backend_version_string()} has no plan for {problem} on "
                f"{card}: compile for a target without -libs={LIBRARY}"
            )
        return graph, self._workspace(int(graph.get_workspace_size()))

    def _workspace(self, size: int) -> int:
        """The address of at least `size` bytes, which plans share; 0 for none."""
        if not size:
            return 0
        if not self.workspaces or self.workspaces[-1].shape[0] < size:
            self.workspaces.append(tvm.nd.empty((size,), "uint8", self.device))
        return address_of(self.workspaces[-1])


def build_graph(cudnn: ModuleType, problem: Problem, handle: Any) -> Any:
    """The graph of a problem. Uids of its tensors count from 1: the arguments in order, then the result."""
    types = {
        "float16": cudnn.data_type.HALF,
        "bfloat16": cudnn.data_type.BFLOAT16,
        "float32": cudnn.data_type.FLOAT,
    }
    graph = cudnn.pygraph(
        handle=handle,
        io_data_type=types[problem.dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    result = problem.batch, *problem.out_size, problem.filters
    arguments = {
        "data": ((problem.batch, *problem.size, problem.channels), problem.dtype),
        "weight": ((problem.filters, *problem.kernel, problem.channels), problem.dtype),
        "bias": ((1, 1, 1, problem.filters), problem.bias),
        "residual": (result, problem.residual and problem.dtype),
        "slope": ((1, 1, 1, problem.filters), problem.slope),
    }
    tensors = {}
    for name, (shape, dtype) in arguments.items():
        if dtype:
            dim, stride = _layout(shape)
            tensors[name] = graph.tensor(name=name, dim=dim, stride=stride, data_type=types[dtype])
            tensors[name].set_uid(len(tensors))
    y = graph.conv_fprop(
        image=tensors["data"],
        weight=tensors["weight"],
        pre_padding=list(problem.padding[:2]),
        post_padding=list(problem.padding[2:]),
        stride=list(problem.strides),
        dilation=list(problem.dilation),
    )
    if problem.bias:
        y = graph.add(y, tensors["bias"])
    y = _activate(graph, problem.activation, y, tensors.get("slope"))
    if problem.residual:
        y = graph.add(y, tensors["residual"])
    y = _activate(graph, problem.final_activation, y)
    dim, stride = _layout(result)
    y.set_output(True).set_data_type(types[problem.dtype]).set_dim(dim).set_stride(stride)
    y.set_uid(len(tensors) + 1)
    return graph


def _layout(shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """Extents and strides of NHWC data, in the order that cuDNN expects: NCHW."""
    batch, height, width, channels = shape
    return (
        [batch, channels, height, width],
        [height * width * channels, 1, width * channels, channels],
    )


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
