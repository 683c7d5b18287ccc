"""How many threads TVM has, that the user's environment decides, and that oneDNN has the same ones."""

import os
import subprocess
import sys

import pytest

from topi_ext.bootstrap.threads import SHARED_THREADS
from topi_ext.onednn.library import library

SET = "TVM_NUM_THREADS", "TVM_BIND_THREADS", "TVM_THREAD_POOL_SPIN_COUNT"
CORES = str(len(os.sched_getaffinity(0)))
SCRIPT = f"import os, topi_ext; print(*(os.environ[name] for name in {SET}))"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [CORES, "0", "0"]),
        ({"OMP_NUM_THREADS": "3"}, ["3", "0", "0"]),
        ({"OMP_NUM_THREADS": "3", "TVM_NUM_THREADS": "1", "TVM_BIND_THREADS": "1"}, ["1", "1", "0"]),
    ],
)
def test_what_the_environment_leaves_open(given, expected):
    environment = {name: value for name, value in os.environ.items() if name not in (*SET, "OMP_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environment, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == expected


CALLS = """
import os, signal, sys
import numpy as np
import topi_ext
import tvm
from topi_ext import bootstrap
from tests.helpers import runner
from tvm import relay

def threads():
    return len(os.listdir("/proc/self/task"))

image = relay.var("image", shape=(1, 64, 64, 32))
filters = relay.const(np.ones((64, 3, 3, 32), "float32"))
both = relay.exp(topi_ext.conv2d_nhwc(relay.log(image), filters, padding=1))
call = runner(tvm.IRModule.from_expr(both), topi_ext.cpu_target(), tvm.cpu())
one = np.ones((1, 64, 64, 32), "float32")
before = threads()
np.testing.assert_array_equal(call(one)[0], np.ones((1, 64, 64, 64), "float32"))
print(bootstrap.tvm_in_use.shares_threads, threads() - before, flush=True)
if not bootstrap.tvm_in_use.shares_threads:
    sys.exit()  # a forked process would wait for threads that only its parent has
child = os.fork()
if not child:
    signal.alarm(60)
    np.testing.assert_array_equal(call(one)[0], np.ones((1, 64, 64, 64), "float32"))
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "True 2"),
        ({"TVM_NUM_THREADS": "1"}, "True 2"),
        ({"OMP_NUM_THREADS": "1"}, "True 0"),
        ({"TVM_PASSES_SHARED_THREADS": "0"}, "False 4"),
    ],
)
def test_one_pool(given, expected):
    """Beside the thread that is there, TVM and oneDNN share two; a forked process does not wait for those."""
    if library() is None:
        pytest.skip("oneDNN is not installed")
    if not SHARED_THREADS.exists():
        pytest.skip("the compiler has no OpenMP")
    environment = {name: value for name, value in os.environ.items() if name not in SET}
    environment.update({"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"}, **given)
    done = subprocess.run(
        [sys.executable, "-c", CALLS], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout.strip(), done.returncode) == (expected, 0), done.stderr


FORKS = """
import os, signal, sys, threading
import numpy as np
from tvm_passes import runtime
from tests.helpers import module
from tvm import relay

x = relay.var("x", shape=(3,))
model = runtime.compile(module(x, x + relay.const(1.0)), "llvm")
bind, is_inside, may_end = model._executor.bind, threading.Event(), threading.Event()

def held(arrays):
    is_inside.set()
    may_end.wait()
    bind(arrays)

model._executor.bind = held
thread = threading.Thread(target=model, args=(np.zeros(3, "float32"),))
thread.start()
is_inside.wait()
child = os.fork()
if not child:
    signal.alarm(30)
    model._executor.bind = bind
    np.testing.assert_array_equal(model(np.zeros(3, "float32")), np.ones(3))
    os._exit(0)
code = os.waitpid(child, 0)[1]
may_end.set()
thread.join()
sys.exit(code)
"""


def test_a_process_that_is_forked_while_another_thread_calls_a_model():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
