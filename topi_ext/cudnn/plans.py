"""Which of cuDNN's plans computes a problem, such as a convolution.

cuDNN names a dozen for each, the best first by its own estimate. The first one is taken, unless all were
timed on this kind of GPU, inside `timed_by`: then it is the fastest, whose name is kept in the user's cache
by the problem, the card and the version of cuDNN.

A plan with a workspace is taken only where there is no other: calls that share no memory may run at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..bootstrap import user_cache

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


def choose(cudnn: ModuleType, graph: Any, problem: str, card: str, run: Run) -> int | None:
    """Build a plan of a graph that has an operation graph, and select it; give the size of its workspace.

    `run` calls the selected plan, without a workspace. None, if there is no plan.
    """
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
    names = {index: str(graph.get_plan_name_at_index(index)) for index in _of_library(cudnn, graph)}
    key = _key(problem, card, cudnn.backend_version_string())
    fastest = (user_cache.load(key) or b"").decode()
    order = sorted(names, key=lambda index: names[index] != fastest)
    if _timer.measure is not None and fastest not in names.values():
        times = {index: _timer.measure(run) for index in names if _workspace(cudnn, graph, index) == 0}
        order = sorted(times, key=times.__getitem__) or order
        if times:
            user_cache.store(key, names[order[0]].encode())
    sizes = {}
    for index in order:
        size = _workspace(cudnn, graph, index)
        if size == 0:
            return 0
        if size is not None:
            sizes[index] = size
    for index in sizes:
        return _workspace(cudnn, graph, index)  # built again, which selects it
    return None


def _of_library(cudnn: ModuleType, graph: Any) -> list[int]:
    """The plans of the library itself.

    Newer frontends also name kernels that are written in Python: they take long to compile, and may allocate.
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


def _key(problem: str, card: str, version: str) -> str:
    return hashlib.sha256(f"{problem} {card} cuDNN {version}".encode()).hexdigest()
