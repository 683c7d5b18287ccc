"""NVIDIA's MPS: with it, kernels of several processes run on a GPU at once, rather than in turn."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import wait

from ..another_process import python

DAEMON = "nvidia-cuda-mps-control"
SECONDS = 20  # for the daemon
SECONDS_FOR_A_CLIENT = 20  # the first one, which starts the server

# The shell ends the daemon when its input ends, as it does with whoever holds the other end, even if killed.
UNTIL_INPUT_ENDS = f'{DAEMON} -d && echo started; cat > /dev/null; echo quit | {DAEMON}; rm -rf "$1"'
FIRST_CLIENT = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
sys.exit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), {last}))
"""


@contextlib.contextmanager
def shared_gpus() -> Iterator[dict[str, str] | None]:
    """The environment for processes that share GPUs, while this lasts; None where there is no MPS to start.

    Whoever sets CUDA_MPS_PIPE_DIRECTORY has an MPS of his own, or wants none.
    """
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ or not shutil.which(DAEMON):
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            environment = _started(stack)
        except OSError:  # there is no room for its folder
            environment = None
        yield environment


def _started(stack: contextlib.ExitStack) -> dict[str, str] | None:
    folder = tempfile.mkdtemp(prefix="mps-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    of_daemon = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
    }
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        os.mkdir(of_daemon[name])
    of_clients, last = dict(of_daemon), 0
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        # Its clients number these anew; but some of their libraries would count all others, too.
        last = visible.count(",")
        of_clients["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(last + 1)))
    has_started = stack.enter_context(_daemon(of_daemon, folder))
    return of_clients if has_started and _serves(of_clients, last) else None


@contextlib.contextmanager
def _daemon(environment: dict[str, str], folder: str) -> Iterator[bool]:
    """Whether it has started; it ends with this, or with this process, and its folder with it."""
    shell = subprocess.Popen(
        ["sh", "-c", UNTIL_INPUT_ENDS, "sh", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the job
    )
    assert shell.stdin and shell.stdout
    try:
        # Not by `select`, which refuses file descriptors from 1024 on.
        has_answered = bool(wait([shell.stdout.fileno()], SECONDS))
        yield has_answered and shell.stdout.readline() == b"started\n"
    finally:
        shell.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(SECONDS)
        shell.kill()
        shell.stdout.close()
        shell.wait()


def _serves(environment: dict[str, str], last: int) -> bool:
    """Whether a process gets the last of the GPUs in this environment."""
    command = python(FIRST_CLIENT.format(last=last))
    client = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        return client.wait(SECONDS_FOR_A_CLIENT) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        client.kill()
        client.wait()
