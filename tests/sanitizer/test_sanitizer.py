"""Kernels that go outside their buffers are caught, and those that do not are not."""

import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import module
from tests.sanitizer import OutOfBounds, asan_environment, sanitized
from tvm_passes import runtime

import tvm
from tvm import relay
from tvm.script import tir as T

LENGTH = 20
A = np.arange(LENGTH, dtype="float32")


def reads(index):
    """b[i] = a[index(i)]"""
    a = tvm.te.placeholder((LENGTH,), name="a")
    b = tvm.te.compute((LENGTH,), lambda i: a[index(i)], name="b")
    return tvm.te.create_schedule(b.op), [a, b]


def vectorized(index):
    schedule, (a, b) = reads(index)
    _, inner = schedule[b].split(b.op.axis[0], 4)
    schedule[b].vectorize(inner)
    return schedule, [a, b]


def run(schedule, arguments, *arrays):
    with sanitized() as sanitizer:
        kernel = tvm.build(schedule, arguments, "llvm", name="kernel")
        kernel(*(tvm.nd.array(array) for array in (*arrays, np.zeros(LENGTH, "float32"))))
        assert sanitizer.checked()


@pytest.mark.parametrize("make", [reads, vectorized])
@pytest.mark.parametrize(
    "index, where",
    [(lambda i: i + 1, "20"), (lambda i: i - 1, "-1"), (lambda i: 1 - i, "-"), (lambda i: i * 2 % 39, "")],
)
def test_reads(make, index, where):
    with pytest.raises(OutOfBounds, match=rf"kernel: reads a\[{where}\d*\] of 20 elements"):
        run(*make(index), A)


@pytest.mark.parametrize("make", [reads, vectorized])
@pytest.mark.parametrize(
    "index",
    [lambda i: i, lambda i: LENGTH - 1 - i, lambda i: i * 7 % LENGTH, lambda i: tvm.tir.const(3)],
)
def test_reads_inside(make, index):
    run(*make(index), A)


def test_what_a_condition_guards():
    a = tvm.te.placeholder((LENGTH,), name="a")
    zero = tvm.tir.const(0, "float32")
    b = tvm.te.compute((LENGTH,), lambda i: tvm.tir.if_then_else(i > 2, a[i - 3], zero), name="b")
    run(tvm.te.create_schedule(b.op), [a, b], A)


@T.prim_func
def through_a_workspace(a: T.Buffer((20,), "float32"), b: T.Buffer((20,), "float32")):
    T.func_attr({"global_symbol": "kernel", "tir.noalias": True})
    workspace = T.decl_buffer((10,), "float32")
    for i in range(20):
        workspace[i] = a[i]
    for i in range(20):
        b[i] = workspace[i % 10]


def test_workspaces():
    with pytest.raises(OutOfBounds, match=r"writes workspace\[10\] of 10 elements \(10 such accesses\)"):
        run(through_a_workspace, None, A)


@pytest.mark.parametrize("length", [3, relay.Any()])
def test_models(length):
    x, indices = relay.var("x", shape=(8, 16)), relay.var("indices", shape=(length,), dtype="int32")
    with sanitized() as sanitizer:
        model = runtime.compile(module(x, indices, relay.take(x, indices, axis=0, mode="fast")), "llvm")
        model(np.zeros((8, 16), "float32"), np.int32([0, 7, 1]))
        sanitizer.check()
        model(np.zeros((8, 16), "float32"), np.int32([0, 77, 1]))
        with pytest.raises(OutOfBounds, match=r"fused_take: reads p0\[\d+\] of 128 elements"):
            sanitizer.check()


# --- in a process under AddressSanitizer


BUILD = """
import numpy as np, sys
from tests.sanitizer import sanitized
from tests.sanitizer.test_sanitizer import A, reads
import tvm
with sanitized() as sanitizer:
    kernel = tvm.build(*reads(lambda i: i), "llvm", name="kernel")
    a, b = tvm.nd.array(A), tvm.nd.array(A)
"""
RUNS = {
    "freed memory": (
        """
kernel(a, b)
print("right so far", flush=True)
view = tvm.get_global_func("runtime.TVMArrayCreateView")(a, tvm.runtime.ShapeTuple(a.shape))
other = tvm.nd.array(A)
view.handle.contents.data, kept = other.handle.contents.data, view.handle.contents.data
del other
kernel(view, b)""",
        "heap-use-after-free",
    ),
    "less memory than the tensor says": (
        """
kernel(a, b)
print("right so far", flush=True)
small = tvm.nd.array(A[:16])
small.handle.contents.shape[0] = 20
kernel(small, b)""",
        "heap-buffer-overflow",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", RUNS)
def test_under_address_sanitizer(what):
    lines, expected = RUNS[what]
    script = BUILD + "".join(f"    {line}\n" for line in lines.strip().splitlines())
    done = subprocess.run(
        [sys.executable, "-c", script], env=asan_environment(), capture_output=True, text=True, timeout=300
    )
    assert expected in done.stderr and "right so far" in done.stdout, done.stderr[-2000:]
