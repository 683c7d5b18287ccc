"""Memory of the host and of the GPU that changes hands right after a call."""

import numpy as np
import pytest
import torch

from tests.helpers import module
from tvm_passes import runtime

from tvm import relay

LENGTH = 25_000_000  # 100 MB of float32
pytestmark = pytest.mark.gpu


def sums(cuda_graph):
    a, b = relay.var("a", shape=(LENGTH,)), relay.var("b", shape=(LENGTH,))
    return runtime.compile(module(a, b, a + b), "cuda", cuda_graph=cuda_graph)


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
def test_numpy_is_overwritten_after_the_call(cuda_graph, pinned):
    model = sums(cuda_graph)
    host = torch.ones(LENGTH)
    array = (host.pin_memory() if pinned else host).numpy()
    zeros = torch.zeros(LENGTH, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for value in range(1, 5):
            array[:] = value
            torch.cuda._sleep(50_000_000)  # so that a copy that is not waited for comes too late
            found = model(array, zeros)
            array[:] = -1
            assert found.eq(value).all().item()


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_tensors_are_freed_after_the_call(cuda_graph):
    """On the stream of the call, on which torch gives the memory to the next who asks."""
    model = sums(cuda_graph)
    with torch.cuda.stream(torch.cuda.Stream()):
        results = []
        for value in range(1, 5):
            given = torch.full((LENGTH,), float(value), device="cuda")
            torch.cuda._sleep(50_000_000)
            results.append(model(given, given))
            del given
            torch.full((LENGTH,), -1.0, device="cuda")
        for value, found in enumerate(results, 1):
            assert found.eq(2 * value).all().item()


def test_views_on_gpu():
    x = relay.var("x", shape=(relay.Any(), relay.Any()))
    model = runtime.compile(module(x, x + x), "cuda")
    whole = torch.arange(4096.0, device="cuda").reshape(64, 64)
    for view in (whole.T, whole[::2, 1::3], whole[:1].expand(5, 64), torch._neg_view(whole), whole[3:, 1:]):
        assert torch.equal(model(view), view + view)
    assert np.array_equal(model(whole.cpu().numpy()[:, ::-2]), 2 * whole.cpu().numpy()[:, ::-2])


def test_views_for_a_graph_on_gpu():
    """What is not one piece of memory, or not as it is written there, cannot be copied as bytes."""
    whole = torch.arange(4096.0, device="cuda").reshape(64, 64)
    x = relay.var("x", shape=(64, 64))
    model = runtime.compile(module(x, x + x), "cuda", cuda_graph=True)
    base = torch.arange(8192.0, device="cuda")
    shifted = base[1:4097].reshape(64, 64)
    for view in (whole, whole.T, shifted, whole[:1].expand(64, 64), torch._neg_view(whole), whole.clone()):
        assert torch.equal(model(view), view + view)
    assert np.array_equal(model(whole.cpu().numpy()[:, ::-1]), 2 * whole.cpu().numpy()[:, ::-1])
