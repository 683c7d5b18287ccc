"""Devices for all tests: the fixture `emulated_cuda` on any machine, the mark `gpu` for a real one.

And what is kept of kernels for them: `kernel_cache`.
"""

import contextlib

import pytest

from tests.cuda_on_cpu import CannotEmulate, emulate_cuda
from topi_ext.bootstrap import user_cache
from topi_ext.conv2d_nhwc import choose_kernel, onednn

import tvm


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture
def emulated_cuda():
    """The target "cuda" on a device that the CPU emulates; see tests/cuda_on_cpu."""
    with contextlib.ExitStack() as stack:
        try:
            cuda = stack.enter_context(emulate_cuda())
        except CannotEmulate as reason:
            pytest.skip(str(reason))
        yield cuda


@pytest.fixture(autouse=True, scope="module")
def packed_weights():
    """Those that oneDNN packed for the networks of a file are freed after it: a process keeps up to 4 GB."""
    yield
    onednn._of_thread = onednn._OfThread()


@pytest.fixture
def small_by_cudnn(monkeypatch):
    """Small images, and few channels, go to cuDNN, as more of both do."""
    monkeypatch.setattr(choose_kernel, "_is_own_better", lambda plan: False)
    monkeypatch.setattr(choose_kernel, "_is_own_better_in_int8", lambda plan: False)
    monkeypatch.setattr(choose_kernel, "WIDE_IN_INT8", 0)


def _has_gpu():
    return tvm.cuda(0).exist


@pytest.fixture
def kernel_cache(tmp_path, monkeypatch):
    """A cache of the test's own, which is empty."""
    monkeypatch.setenv(user_cache.SWITCH, str(tmp_path))
    return tmp_path
