"""What operators by cuDNN have in common: the call in compiled code, handles, plans and workspaces.

Compiled code calls a packed function, as with TVM's own bindings of cuDNN, and passes the problem as text: so
the code can be saved, and it runs wherever `topi_ext` is imported. The first call for a problem builds its
plan. Later calls neither allocate nor wait, so a CUDA graph can capture them.

The Python package `nvidia-cudnn-frontend` is imported only when an operator runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import tvm

from .._tvm import TVMError, address_of, empty, gpu_of, register_function, stream_of, synchronize, te, tir
from ..bootstrap.find_libraries import load_cudnn
from . import plans

# Its name in the target: `cuda -libs=cudnn-frontend`. Plain "cudnn" is TVM's own binding: with it, TVM
# compiles softmax and nn.conv2d to functions that a TVM built without cuDNN does not have.
LIBRARY = "cudnn-frontend"
TIMED_CALLS = 5  # of a plan, to compare it with another
ALIGNMENT = 8  # of extents: cuDNN's tensor core kernels copy 16 bytes at once
INSTALL = 'pip install "tvm-vision-passes[cudnn]"'

# The graph of a problem, by (the module cudnn, the problem as text, a handle). Uids of its tensors count
# from 1: the arguments in order, then the result.
BuildGraph = Callable[[ModuleType, str, Any], Any]
# Numbers of the problem in float32, which cuDNN reads from the host's memory at each call; their uids follow.
Numbers = Callable[[str], Sequence[float]]
Body = Callable[..., tir.Stmt]


class Operator:
    """An operator that cuDNN computes, by a packed function of its own."""

    def __init__(self, name: str, build_graph: BuildGraph, numbers: Numbers = lambda _text: ()) -> None:
        self.name, self.packed_function = name, f"{name}.cudnn"
        self.build_graph, self.numbers = build_graph, numbers
        # TVM keeps the function if the module is imported again.
        register_function(self.packed_function)(partial(_run, self))

    def call(
        self,
        text: str,
        inputs: Sequence[te.Tensor],
        shape: Sequence[int],
        dtype: str,
        body: Body | None = None,
    ) -> te.Tensor:
        """The result of a problem, of this shape and type, in the code that is compiled.

        `body(call, *tensors)` is the statement, by default the call with all inputs and the result.
        """
        if importlib.util.find_spec("cudnn") is None:
            raise TVMError(
                f"{self.name}: the target has -libs={LIBRARY}, and the package it needs is missing: "
                f"{INSTALL}, or remove it from the target to use other kernels"
            )
        name, call = self.name.split(".")[-1], partial(tir.call_packed, self.packed_function, text)
        return te.extern(
            shape,
            list(inputs),
            lambda ins, outs: body(call, *ins, *outs) if body else call(*ins, *outs),
            dtype=dtype,
            name=name,
            tag=f"{name}_cudnn",
        )


class Call(NamedTuple):
    """What an operator was called with."""

    packed_function: str
    text: str  # the problem
    tensors: tuple[tuple[tuple[int, ...], str], ...]  # shape and type of each argument, then of the result

    def to_json(self) -> str:
        """As one line of text."""
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Call:
        """The inverse of `to_json`."""
        packed_function, problem, tensors = json.loads(text)
        return cls(packed_function, problem, tuple((tuple(shape), dtype) for shape, dtype in tensors))

    def has_timed_plan(self, device: tvm.runtime.Device) -> bool:
        """Whether the fastest plan on this card is kept."""
        return plans.is_timed(import_cudnn(), _key(self.packed_function, self.text, device))


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


def data_types(cudnn: ModuleType) -> dict[str, Any]:
    """cuDNN's names of types."""
    types = cudnn.data_type
    return {"float16": types.HALF, "bfloat16": types.BFLOAT16, "float32": types.FLOAT, "int8": types.INT8}


def new_graph(cudnn: ModuleType, dtype: str, handle: Any) -> Any:
    """A graph without operations, of tensors of a type, that computes in float32."""
    return cudnn.pygraph(
        handle=handle,
        io_data_type=data_types(cudnn)[dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )


def forget_plans() -> None:
    """Choose plans anew in this thread."""
    _sessions.by_device.clear()


@contextlib.contextmanager
def recorded() -> Iterator[list[Call]]:
    """The distinct calls of operators in this thread, in order."""
    calls: list[Call] = []
    _sessions.calls = calls
    try:
        yield calls
    finally:
        _sessions.calls = None


def workspaces_used() -> int:
    """How often a call of this thread has used the workspace that calls share, which must not overlap."""
    return _sessions.workspaces_used


# --- at run time


def _run(operator: Operator, text: str, *tensors: Any) -> None:
    if _sessions.calls is not None:
        _record(_sessions.calls, operator, text, tensors)
    device = gpu_of(tensors[0])
    on_device = _sessions.by_device.get(device)
    if on_device is None:
        on_device = _sessions.by_device[device] = _Session(tvm.cuda(device))
    on_device.run(operator, text, [address_of(tensor) for tensor in tensors])


def _record(calls: list[Call], operator: Operator, text: str, tensors: Sequence[Any]) -> None:
    types = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors)
    call = Call(operator.packed_function, text, types)
    if call not in calls:
        calls.append(call)


def _key(packed_function: str, text: str, device: tvm.runtime.Device) -> str:
    """What a plan is kept by: the problem and the card."""
    return f"{packed_function} {text} on {device.device_name}"


class _Sessions(threading.local):
    """One set per thread: neither a cuDNN handle nor TVM's current stream is shared between threads."""

    def __init__(self) -> None:
        self.by_device: dict[int, _Session] = {}
        self.workspaces_used = 0
        self.calls: list[Call] | None = None  # those recorded


_sessions = _Sessions()


class _Plan(NamedTuple):
    """A graph with a selected plan, and what it is executed with."""

    graph: Any
    workspace: int  # its address, 0 for none
    numbers: list[int]  # addresses on the host


class _Session:
    """The plans of a thread for one device, each built once."""

    def __init__(self, device: tvm.runtime.Device) -> None:
        self.cudnn = import_cudnn()
        self.device = device
        self.handle = self.cudnn.create_handle()
        self.stream = 0
        self.current_stream = stream_of(device)
        # Of neither is any freed: a captured CUDA graph, or a plan, may contain its address.
        self.workspaces: list[Any] = []
        self.numbers: list[ctypes.c_float] = []
        self.plans: dict[tuple[Operator, str], _Plan] = {}  # by operator and problem

    def run(self, operator: Operator, text: str, addresses: list[int]) -> None:
        plan = self.plans.get((operator, text))
        if plan is None:
            plan = self.plans[operator, text] = self._build(operator, text, addresses)
        self._execute(plan, addresses)

    def _execute(self, plan: _Plan, addresses: list[int]) -> None:
        stream = self.current_stream()
        if stream != self.stream:
            self.cudnn.set_stream(self.handle, stream)
            self.stream = stream
        if plan.workspace:
            _sessions.workspaces_used += 1
        pointers = dict(enumerate([*addresses, *plan.numbers], 1))
        plan.graph.execute(pointers, plan.workspace, self.handle)

    def _build(self, operator: Operator, text: str, addresses: list[int]) -> _Plan:
        cudnn, numbers = self.cudnn, [ctypes.c_float(number) for number in operator.numbers(text)]
        self.numbers += numbers
        by_value = [ctypes.addressof(number) for number in numbers]

        def build() -> Any:
            graph = operator.build_graph(cudnn, text, self.handle)
            graph.validate()
            graph.build_operation_graph()
            return graph

        def plan_of(graph: Any) -> _Plan:
            return _Plan(graph, self._workspace(int(graph.get_workspace_size())), by_value)

        def run(graph: Any) -> None:
            self._execute(plan_of(graph), addresses)

        graph, why = None, ""
        used, kept = _sessions.workspaces_used, len(self.workspaces)
        try:
            key = _key(operator.packed_function, text, self.device)
            graph = plans.graph_with_plan(cudnn, self.handle, key, build, run, self._seconds)
        except cudnn.cudnnGraphNotSupportedError as reason:
            why = str(reason)
        finally:  # of plans that were only tried, all of whose calls have ended
            _sessions.workspaces_used = used
            del self.workspaces[kept:]
        if graph is None:
            raise TVMError(
                f"{operator.name}: cuDNN {cudnn.backend_version_string()} has no plan for {text} on "
                f"{self.device.device_name}: compile for a target without -libs={LIBRARY}. {why}"
            )
        return plan_of(graph)

    def _seconds(self, run: Callable[[], object]) -> float:
        """About what a call takes: no less than the host needs for it."""
        stream = self.current_stream()
        run()  # which may load a kernel
        synchronize(self.device, stream)
        times = []
        for _ in range(TIMED_CALLS):
            start = time.perf_counter()
            run()
            synchronize(self.device, stream)
            times.append(time.perf_counter() - start)
        return min(times)  # what other processes do on the GPU comes and goes

    def _workspace(self, size: int) -> int:
        """The address of at least `size` bytes, which plans share; 0 for none."""
        if not size:
            return 0
        if not self.workspaces or self.workspaces[-1].shape[0] < size:
            self.workspaces.append(empty((size,), "uint8", self.device))
        return address_of(self.workspaces[-1])
