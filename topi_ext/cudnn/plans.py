"""Which of cuDNN's plans computes a problem, such as a convolution.

cuDNN names a dozen for each, the best first by its own estimate. The first one is taken, unless they were
timed on this kind of GPU, inside `timed_by`: then it is the fastest. cuDNN compiles a kernel for each plan,
which takes a third of a second, so the plan is kept with its kernel in the user's cache, by the problem, the
card and the version of cuDNN.

A plan with a workspace is taken only where there is no other, or none nearly as fast: calls that share no
memory may run at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..bootstrap import user_cache

TIMED, FIRST = b"t", b"f"  # how a plan that is kept was found

TOLERATED = 1.5  # times as long as with a workspace, as the host sees it, who takes a while for each call

Run = Callable[[], object]  # one call of a plan, on the current stream


class _Timer(threading.local):
    measure: Callable[[Run], float] | None = None


_timer = _Timer()


@contextlib.contextmanager
def timed_by(measure: Callable[[Run], float]) -> Iterator[None]:
    """In this thread, each problem that is new to it gets its fastest plan, by `measure(run)`."""
    _timer.measure = measure
    try:
        yield
    finally:
        _timer.measure = None


def graph_with_plan(
    cudnn: ModuleType,
    handle: Any,
    key: str,
    build: Callable[[], Any],
    run: Callable[[Any], object],
    seconds: Callable[[Run], float],
) -> Any:
    """A graph with the plan to be taken, ready to be executed; None, if no plan runs here.

    `key` names the problem and the card, `build()` makes its graph, with its operations, `run(graph)` calls
    the selected plan, and `seconds(run)` is about what a call takes.
    """
    key = _entry(cudnn, key)
    kept = user_cache.load(key) or b""
    if kept.startswith(TIMED if _timer.measure else (TIMED, FIRST)):
        with contextlib.suppress(Exception):  # whatever cuDNN has against it, the plan can be made anew
            graph = cudnn.pygraph(handle=handle)
            graph.deserialize(handle, kept[1:])
            return graph
    graph = build()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
    order = _of_library(cudnn, graph)

    @functools.cache
    def duration(index: int) -> float:
        _workspace(cudnn, graph, index)
        try:
            return (_timer.measure or seconds)(lambda: run(graph))
        except Exception:  # as where there is no room for its workspace
            return math.inf

    if _timer.measure is not None:
        sizes = {index: _workspace(cudnn, graph, index) for index in order}
        plain = sorted((index for index in order if sizes[index] == 0), key=duration)
        order = [*(index for index in order if sizes[index]), *plain]
    if not _select(cudnn, graph, order, duration):
        return None
    if _timer.measure is None and (user_cache.load(key) or b"") != kept:
        return graph  # another process has kept a plan meanwhile, which may be the fastest
    with contextlib.suppress(Exception):  # cuDNN cannot write every plan
        user_cache.store(key, (TIMED if _timer.measure else FIRST) + bytes(graph.serialize()))
    return graph


def is_timed(cudnn: ModuleType, key: str) -> bool:
    """Whether the fastest plan for a problem is kept, by the `key` of `graph_with_plan`."""
    return (user_cache.load(_entry(cudnn, key)) or b"").startswith(TIMED)


def _entry(cudnn: ModuleType, key: str) -> str:
    """The name of a problem's plan in the cache."""
    return hashlib.sha256(f"{key}, cuDNN {cudnn.backend_version_string()}".encode()).hexdigest()


def _select(cudnn: ModuleType, graph: Any, order: list[int], duration: Callable[[int], float]) -> bool:
    """Select the first plan that runs here without a workspace, unless the first one with it is much faster.

    cuDNN names plans for every problem whose kernels are far from its best.
    """
    first = None
    for index in order:
        size = _workspace(cudnn, graph, index)
        if size == 0 and (first is None or duration(index) <= TOLERATED * duration(first)):
            return _workspace(cudnn, graph, index) is not None
        if size == 0:
            break
        first = index if first is None and size is not None else first
    return first is not None and _workspace(cudnn, graph, first) is not None


def _of_library(cudnn: ModuleType, graph: Any) -> list[int]:
    """The plans of the library itself.

    Newer frontends also name kernels written in Python, which take long to compile and may allocate.
    """
    indices = range(graph.get_execution_plan_count())
    engine_ids = getattr(getattr(cudnn, "engines", None), "engine_ids", None)
    if engine_ids is None:
        return list(indices)
    return [index for index in indices if not engine_ids.is_python_engine(graph.plans[index].engine_id)]


def _workspace(cudnn: ModuleType, graph: Any, index: int) -> int | None:
    """Build a plan, which selects it: the size of its workspace, or None where it does not run here."""
    try:
        graph.build_plan_at_index(index)
    except cudnn.cudnnGraphNotSupportedError:
        return None
    return int(graph.get_workspace_size())
