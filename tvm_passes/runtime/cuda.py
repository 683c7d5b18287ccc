"""CUDA features that TVM's runtime lacks: ordering between streams, and captured graphs.

They call the driver. Streams are given by address; the default stream is 0.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass, replace
from typing import Any

from topi_ext.cudnn import session  # topi_ext comes before tvm

import tvm

from .arrays import Array, address_of, bytes_of, current_stream, is_cuda, ordinal_of
from .arrays import use_stream as _use_stream
from .cuda_driver import HANDLE, CudaError, driver
from .input_readers import Reader, readers_of

EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING = 2, 1
# A call that cannot be part of a graph then fails. In "relaxed" mode it would run during capture only.
CAPTURE_MODE_THREAD_LOCAL = 1
SET_CAPTURE_DEPENDENCIES = 1
TIMED_CALLS, TIMED_LAUNCHES = 20, 10  # of what is timed in a graph, and of a graph


@functools.cache
def _context(ordinal: int) -> int | None:
    """The device's primary context, which TVM and torch use."""
    device = c_int()
    driver()("cuDeviceGet", byref(device), ordinal)
    return driver().made("cuDevicePrimaryCtxRetain", device)


@contextlib.contextmanager
def on_device(device: tvm.runtime.Device) -> Iterator[None]:
    """Make this device current inside the block; TVM changes the current device and does not restore it."""
    if not is_cuda(device):
        yield
        return
    driver()("cuCtxPushCurrent_v2", _context(ordinal_of(device)))
    try:
        yield
    finally:
        driver().made("cuCtxPopCurrent_v2")


def free_bytes(device: tvm.runtime.Device) -> int:
    """The memory of a device that no process has taken."""
    free, total = c_size_t(), c_size_t()
    with on_device(device):
        driver()("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value


def _destroy_with(owner: object, name: str, handle: int | None) -> None:
    def destroy() -> None:
        with contextlib.suppress(CudaError):  # at the end of the process it may be gone already
            driver()(name, handle)

    weakref.finalize(owner, destroy)


class _Event:
    def __init__(self) -> None:
        self._handle = driver().made("cuEventCreate", EVENT_DISABLE_TIMING)
        _destroy_with(self, "cuEventDestroy_v2", self._handle)

    def record(self, stream: int) -> None:
        driver()("cuEventRecord", self._handle, stream)

    def hold(self, stream: int) -> None:
        """All work queued on the stream from now on waits for the last recorded event."""
        if not driver().holds("cuEventQuery", self._handle):  # a wait takes longer, also for what is done
            driver()("cuStreamWaitEvent", stream, self._handle, 0)


_this_thread = threading.local()  # by device, the event at the end of the last turn that used its workspaces


class Turns:
    """Keeps calls of a model on different streams in order.

    Each call waits, on the device, for the model's previous call, whose buffers it reuses, and, unless the
    model has its own workspaces, for the previous call of any model in this thread: TVM has one pool of
    workspaces per thread.
    """

    def __init__(self, device: tvm.runtime.Device, only_on_default: bool) -> None:
        self._device, self._only_on_default = device, only_on_default
        with on_device(device):
            self._done = _Event()

    @contextlib.contextmanager
    def turn(self, stream: int, own_workspaces: bool) -> Iterator[None]:
        """Make TVM use the stream inside the block, unless it launches what has workspaces of its own."""
        shared: dict[Any, Any] = {} if own_workspaces else vars(_this_thread)
        with on_device(self._device):
            for event in {self._done, shared.get(ordinal_of(self._device), self._done)}:
                event.hold(stream)
            try:
                with contextlib.nullcontext() if own_workspaces else self._used(stream):
                    yield
            finally:
                self._done.record(stream)
                if self._only_on_default:
                    self._done.hold(0)  # where the memory that outputs had is used again
                shared[ordinal_of(self._device)] = self._done

    @contextlib.contextmanager
    def _used(self, stream: int) -> Iterator[None]:
        before = current_stream(self._device)
        _use_stream(self._device, stream)
        try:
            yield
        finally:
            _use_stream(self._device, before)

    @contextlib.contextmanager
    def running(self, stream: int) -> Iterator[None]:
        """For executors tied to the default stream: run the block there, ordered within the work on `stream`.

        TVM's virtual machine copies sizes to the host on the default stream, whichever stream is set.
        """
        if not self._only_on_default or not stream:
            yield
            return
        self._done.record(stream)
        self._done.hold(0)
        _use_stream(self._device, 0)
        yield
        _use_stream(self._device, stream)
        self._done.record(0)
        self._done.hold(stream)


class NoTurns:
    """The counterpart for devices without streams."""

    def turn(self, _stream: int, own_workspaces: bool) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def running(self, _stream: int) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


class CannotCapture(CudaError):
    """A run does something that cannot be captured in a graph."""


@dataclass(frozen=True)
class Launch:
    """A part of a run: what queues its kernels, in which thread, and the earlier parts that it waits for.

    `inputs`: the places of those inputs of the run that it reads, and that nothing else does but such parts.
    """

    run: Callable[[], object]
    lane: int = 0
    waits: AbstractSet[int] = frozenset()
    inputs: AbstractSet[int] = frozenset()


@dataclass
class _Graph:
    """What can be launched; for each input that can be read elsewhere, the kernels that read it."""

    executable: int | None
    template: int | None  # whose nodes the readers are
    readers: dict[int, list[Reader]]

    def destroy(self) -> None:
        driver()("cuGraphExecDestroy", self.executable)
        driver()("cuGraphDestroy", self.template)


class CapturedRun:
    """The kernels of one run on a device, to be launched again at once on the same memory.

    `inputs` are its inputs, of which those in `movable` can be elsewhere for a launch.

    Parts that do not wait for each other run at the same time, unless one after the other is faster, as for
    short kernels in a long chain: a graph with branches costs more a kernel. Both are timed.

    They are captured in dedicated threads, one for each lane, that live as long as the graph, so that TVM's
    workspaces of these threads belong to the graph; in a shared thread, TVM frees them when a larger one is
    needed.
    """

    def __init__(
        self, device: tvm.runtime.Device, launches: Sequence[Launch], stream: int, inputs: Sequence[Array]
    ) -> None:
        driver()("cuStreamSynchronize", stream)  # the inputs are there
        self._device, self._launches = device, launches
        self._own = [address_of(array) for array in inputs]
        self._sizes = [bytes_of(array) for array in inputs]
        self._addresses = [*self._own]  # from which the next launch reads
        lanes = 1 + max(launch.lane for launch in launches)
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix="tvm_passes.runtime") for _ in range(lanes)]
        self._graph = self._captured()
        self.movable = self._graph.readers.keys()
        _destroy_with(self, "cuGraphExecDestroy", self._graph.executable)
        _destroy_with(self, "cuGraphDestroy", self._graph.template)

    def launch(self, stream: int, elsewhere: Mapping[int, int] | None = None) -> None:
        """Queue it, with the inputs at these places at these addresses, and all others at their own."""
        for place, readers in self._graph.readers.items():
            address = (elsewhere or {}).get(place, self._own[place])
            if address != self._addresses[place]:
                for reader in readers:
                    reader.read(self._graph.executable, address)
                self._addresses[place] = address
        driver()("cuGraphLaunch", self._graph.executable, stream)

    def _captured(self) -> _Graph:
        for lane in range(len(self._threads)):
            self._in(lane, driver(), "cuCtxPushCurrent_v2", _context(ordinal_of(self._device)))
        stream = self._in(0, driver().made, "cuStreamCreate", STREAM_NON_BLOCKING)
        try:
            self._use(stream)
            # The first run loads kernels, allocates workspaces and builds plans, and a second one may do so
            # again where a workspace has to grow. After that, everything a run does can be captured.
            for _ in range(2):
                shares = [self._in(launch.lane, _shares_memory, launch.run) for launch in self._launches]
            self._in(0, driver(), "cuStreamSynchronize", stream)
            orders = [_one_by_one(self._launches, shares), _in_order(self._launches)]
            return self._fastest(orders if len(self._launches) > 1 else orders[:1], stream)
        finally:
            self._use(0)
            self._in(0, driver(), "cuStreamDestroy_v2", stream)

    def _in(self, lane: int, call: Callable[..., Any], *args: Any) -> Any:
        return self._threads[lane].submit(call, *args).result()

    def _use(self, stream: int | None) -> None:
        for lane in range(len(self._threads)):
            self._in(lane, _use_stream, self._device, stream)

    def _fastest(self, orders: Sequence[Sequence[Launch]], stream: int | None) -> _Graph:
        """The graph that takes the least time, of these orders of the launches."""
        graphs = [self._graph_of(order, stream) for order in orders]
        times = [math.inf] * len(graphs)
        for _ in range(TIMED_LAUNCHES if len(graphs) > 1 else 0):
            for place, graph in enumerate(graphs):  # in turn: whatever else disturbs them comes and goes
                times[place] = min(times[place], _seconds_of(graph.executable, stream))
        fastest = graphs.pop(times.index(min(times)))
        for graph in graphs:
            graph.destroy()
        return fastest

    def _graph_of(self, launches: Sequence[Launch], stream: int | None) -> _Graph:
        self._in(0, driver(), "cuStreamBeginCapture_v2", stream, CAPTURE_MODE_THREAD_LOCAL)
        try:
            readers = self._capture(launches, stream)
        except Exception as reason:
            with contextlib.suppress(CudaError):
                self._in(0, _end_capture, stream)
            raise CannotCapture(str(reason).strip().splitlines()[-1]) from reason
        try:
            graph = self._in(0, _end_capture, stream)
            executable = driver().made("cuGraphInstantiateWithFlags", graph, 0)
        except CudaError as reason:
            raise CannotCapture(str(reason)) from reason
        return _Graph(executable, graph, readers)

    def _capture(self, launches: Sequence[Launch], stream: int | None) -> dict[int, list[Reader]]:
        """Queue all parts, each after the last nodes of those that it waits for."""
        if len(launches) == 1:
            self._in(0, launches[0].run)
            return {}
        ends: list[set[int]] = []
        readers: dict[int, list[Reader | None]] = {}
        for launch in launches:
            waited: set[int] = set().union(*(ends[place] for place in launch.waits))
            _wait_for(stream, waited)
            self._in(launch.lane, launch.run)
            ends.append(_last_nodes(stream))
            inputs = [(self._own[place], self._sizes[place]) for place in launch.inputs]
            for place, reader in zip(launch.inputs, readers_of(ends[-1], waited, inputs)):
                readers.setdefault(place, []).append(reader)
        _wait_for(stream, set().union(*ends))  # a capture ends with what nothing was waiting for
        found = {place: [each for each in of if each] for place, of in readers.items()}
        return {place: of for place, of in found.items() if len(of) == len(readers[place])}


def milliseconds(device: tvm.runtime.Device, run: Callable[[], object]) -> float:
    """What a call takes of the device, that queues kernels on TVM's stream and waits for nothing.

    Several are captured in a graph, so that the host does not count.
    """
    before = current_stream(device)
    with on_device(device):
        stream = driver().made("cuStreamCreate", STREAM_NON_BLOCKING)
        try:
            _use_stream(device, stream)
            run()  # which may load kernels
            driver()("cuStreamSynchronize", stream)
            driver()("cuStreamBeginCapture_v2", stream, CAPTURE_MODE_THREAD_LOCAL)
            for _ in range(TIMED_CALLS):
                run()
            graph = _end_capture(stream)
            executable = driver().made("cuGraphInstantiateWithFlags", graph, 0)
            times = [_seconds_of(executable, stream) for _ in range(1 + TIMED_LAUNCHES)][1:]
            driver()("cuGraphExecDestroy", executable)
            driver()("cuGraphDestroy", graph)
            return min(times) / TIMED_CALLS * 1e3
        finally:
            _use_stream(device, before)
            driver()("cuStreamDestroy_v2", stream)


def _seconds_of(executable: int | None, stream: int | None) -> float:
    start = time.perf_counter()
    driver()("cuGraphLaunch", executable, stream)
    driver()("cuStreamSynchronize", stream)
    return time.perf_counter() - start


def _shares_memory(run: Callable[[], object]) -> bool:
    """Run a part, and tell whether it used cuDNN's workspace."""
    before = session.workspaces_used()
    run()
    return session.workspaces_used() != before


def _one_by_one(launches: Sequence[Launch], shares: Sequence[bool]) -> list[Launch]:
    """The launches, of which those that share memory wait for each other."""
    found: list[Launch] = []
    last: set[int] = set()
    for place, (launch, is_shared) in enumerate(zip(launches, shares)):
        found.append(replace(launch, waits=launch.waits | last) if is_shared else launch)
        last = {place} if is_shared else last
    return found


def _in_order(launches: Sequence[Launch]) -> list[Launch]:
    """The launches, each of which waits for the one before it."""
    return [replace(launch, waits=set(range(place)[-1:])) for place, launch in enumerate(launches)]


def _wait_for(stream: int | None, nodes: AbstractSet[int]) -> None:
    """Make what is captured next wait for these nodes of the graph, and for no others."""
    array = (c_void_p * len(nodes))(*nodes)
    driver()("cuStreamUpdateCaptureDependencies", stream, array, len(nodes), SET_CAPTURE_DEPENDENCIES)


def _last_nodes(stream: int | None) -> set[int]:
    """The nodes that what is captured next would wait for."""
    status, nodes, count = c_int(), HANDLE(), c_size_t()
    driver()("cuStreamGetCaptureInfo_v2", stream, byref(status), None, None, byref(nodes), byref(count))
    return {nodes[index] for index in range(count.value)}


def _end_capture(stream: int | None) -> int | None:
    graph = c_void_p()
    driver()("cuStreamEndCapture", stream, byref(graph))
    return graph.value
