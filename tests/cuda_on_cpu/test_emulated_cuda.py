"""The emulated device comes and goes without a trace."""

import numpy as np
import pytest

from tests.cuda_on_cpu import CannotEmulate, compile_source, emulate_cuda

import tvm
from tvm import te

NAMES = ["target.build.cuda", "tvm_callback_cuda_compile", "profiling.timer.cuda"]


def doubled(emulated_cuda):
    a = te.placeholder((te.var("n"),), name="a")
    b = te.compute(a.shape, lambda i: a[i] * 2)
    schedule = te.create_schedule(b.op)
    outer, inner = schedule[b].split(b.op.axis[0], factor=64)
    schedule[b].bind(outer, te.thread_axis("blockIdx.x"))
    schedule[b].bind(inner, te.thread_axis("threadIdx.x"))
    return emulated_cuda.build(schedule, [a, b])


def test_schedule_and_timing(emulated_cuda):
    function = doubled(emulated_cuda)
    a, b = (tvm.nd.array(np.arange(100, dtype="float32"), emulated_cuda.device) for _ in range(2))
    function(a, b)
    np.testing.assert_array_equal(b.numpy(), np.arange(100) * 2)
    assert "threadIdx.x" in emulated_cuda.sources[0]
    assert function.time_evaluator(function.entry_name, emulated_cuda.device, number=1)(a, b).mean > 0


def test_everything_is_undone():
    def functions():
        return [tvm.get_global_func(name).handle.value for name in NAMES]

    before = functions()
    for _ in range(2):
        try:
            with emulate_cuda() as cuda:
                assert tvm.cuda(0).exist
                array = tvm.nd.array(np.ones(3), cuda.device)
                assert functions() != before
        except CannotEmulate as reason:
            pytest.skip(str(reason))
        assert not tvm.cuda(0).exist
        del array  # outlived the device, and is still freed by it
    with pytest.raises(tvm.TVMError):
        tvm.nd.empty((3,), device=tvm.cuda(0))


def test_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CannotEmulate, match=r"needs g\+\+"):
        compile_source._compiler.__wrapped__()


def test_what_cannot_be_compiled(emulated_cuda):
    source = '__global__ void kernel() { asm volatile("bar.sync 0;"); no_such_function(); }'
    with pytest.raises(RuntimeError, match="no_such_function"):
        emulated_cuda.run_kernel(source, "kernel", 1, 1, [])
    with pytest.raises(ValueError, match=r"unknown form of shared memory"):
        emulated_cuda.run_kernel("__global__ void k() { __shared__ int a, b; }", "k", 1, 1, [])
    with pytest.raises(ValueError, match=r"no kernel 'other'"):
        emulated_cuda.run_kernel("__global__ void k() {}", "other", 1, 1, [])
