"""Find the fastest of cuDNN's plans for each convolution of a model, once for a kind of GPU.

A plan is compiled on one core, and meanwhile cuDNN's Python package lets no other thread run. So processes,
`tuning_worker`, share the problems: they compile at the same time, and take turns at timing.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import IO

from topi_ext.bootstrap import user_cache
from topi_ext.bootstrap.threads import cores
from topi_ext.cudnn import session
from topi_ext.cudnn.session import Call

import tvm

from ..another_process import python
from ..progress import progress_bar
from . import cuda
from .model import Model
from .tensors import Tensor

MAX_PROCESSES = 16
BYTES_PER_PROCESS = 1 << 30  # of the GPU: a context, kernels, and the tensors of a problem
LAST_LINES = 10  # of what a process said before it failed

_tuning = threading.Lock()  # one model after the other: each takes all cores


def tune(model: Model, *inputs: Tensor, processes: int | None = None) -> None:
    """Time all of cuDNN's plans for each convolution of a model on CUDA, in one call on these inputs.

    This compiles a dozen kernels for each convolution, on all cores: in as many `processes`, by default one
    for each core, but at most 16, nor more than there are free GiB on the GPU. The fastest plans are kept in
    the user's cache, by the card and the version of cuDNN, and models that are made from then on use them;
    without it, they use the plan that cuDNN takes for the fastest. What is kept already is not timed again.
    Results of other plans differ by rounding. Without `-libs=cudnn-frontend` in the target, there is nothing
    to choose.

    >>> model = runtime.compile(mod, "cuda -arch=sm_90 -libs=cudnn-frontend")  # doctest: +SKIP
    >>> runtime.tune(model, image)  # doctest: +SKIP
    >>> model = runtime.compile(mod, "cuda -arch=sm_90 -libs=cudnn-frontend")  # doctest: +SKIP
    """
    if model.device.device_type != model.device.kDLCUDA:
        raise ValueError(f"tune: the model is on {model.device}, where cuDNN is not used: give one on CUDA")
    if processes is not None and processes < 1:
        raise ValueError(f"tune: processes must be at least 1, not {processes}")
    if not user_cache.keeps_kernels():
        raise ValueError(f"tune: there is no cache to keep plans in, by {user_cache.SWITCH}: unset it")
    with _tuning:
        calls = [call for call in _calls_of(model, inputs) if not call.has_timed_plan(model.device)]
        if calls:
            _share(calls, model.device, min(len(calls), processes or _processes(model.device)))
    lost = sum(not call.has_timed_plan(model.device) for call in calls)
    if lost:
        warnings.warn(
            f"tune: {lost} of {len(calls)} plans are not in {user_cache.folder()}, so that models do not use "
            "them: its disk may be full, or this process has loaded another cuDNN than others do",
            stacklevel=2,
        )
    session.forget_plans()


def _calls_of(model: Model, inputs: tuple[Tensor, ...]) -> list[Call]:
    """What a run of the model calls of cuDNN; without a CUDA graph, which is run by other threads."""
    twin = Model(model.lib, model.device, copy_weights=False, cuda_graph=False)
    with session.recorded() as calls:
        twin(*inputs)
    return calls


def _processes(device: tvm.runtime.Device) -> int:
    """How many run well at the same time."""
    by_memory = cuda.free_bytes(device) // BYTES_PER_PROCESS
    return max(1, min(MAX_PROCESSES, cores(), by_memory))


def _share(calls: Sequence[Call], device: tvm.runtime.Device, processes: int) -> None:
    """Give each process a call, and the next one when it has answered."""
    left = iter(calls)
    with (
        progress_bar("Timing cuDNN's plans", len(calls)) as advance,
        contextlib.ExitStack() as stack,
        selectors.DefaultSelector() as busy,
    ):
        for call in itertools.islice(left, processes):
            worker = stack.enter_context(_worker(device))
            worker.begin(call)
            busy.register(worker.answers, selectors.EVENT_READ, worker)
        while busy.get_map():
            for key, _ in busy.select():
                key.data.finish()
                advance()
                following = next(left, None)
                if following is None:
                    busy.unregister(key.fileobj)
                    key.data.end()
                else:
                    key.data.begin(following)


@contextlib.contextmanager
def _worker(device: tvm.runtime.Device) -> Iterator[_Worker]:
    """A process, which does not outlast the block: what it has found by then is kept."""
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(_command(device), bufsize=0, stdin=pipe, stdout=pipe, stderr=said) as process,
    ):
        worker = _Worker(process, said)
        try:
            yield worker
        finally:
            worker.end()


def _command(device: tvm.runtime.Device) -> list[str]:
    return python(f"from tvm_passes.runtime import tuning_worker; tuning_worker.main({device.device_id})")


class _Worker:
    """A process that tunes one problem after another, and a file of what it said."""

    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
        assert process.stdin and process.stdout
        self._process, self._said = process, said
        self._questions, self.answers = process.stdin, process.stdout
        self._call: Call | None = None

    def begin(self, call: Call) -> None:
        self._call = call
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its answer says
            self._questions.write(f"{call.to_json()}\n".encode())

    def end(self) -> None:
        """Do not wait for it: it takes a while to give back the GPU."""
        self._process.kill()

    def finish(self) -> None:
        """Read the answer."""
        if self.answers.readline():
            return
        assert self._call
        status = self._process.wait()
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        raise RuntimeError(
            f"tune: a process ended with status {status} at {self._call.packed_function} {self._call.text}; "
            "plans found before are kept, and another call goes on with the others. "
            + "\n".join(["Its last lines:", *last] if last else ["It said nothing."])
        )
