"""Calls of a captured model by torch: what is taken, copied in, cut and handed out."""

import numpy as np
import pytest
import torch

from tests.helpers import numbers
from tvm_passes.runtime.arrays import address_of
from tvm_passes.runtime.replay import Replay
from tvm_passes.runtime.tensors import NUMPY, TORCH

import tvm

SHAPE = (4, 3)


def nothing(_stream, _elsewhere):
    """There is nothing to launch."""


def array(dtype="float32", value=None):
    return tvm.nd.array(np.zeros(SHAPE, dtype) if value is None else value)


@pytest.fixture
def replay():
    return Replay(nothing, [array(), array("bool")], [array(value=numbers(*SHAPE))], (), fresh=True)


def like_it(of=torch):
    return [of.zeros(SHAPE, dtype=of.float32), of.zeros(SHAPE, dtype=bool if of is np else torch.bool)]


class Named(torch.Tensor):
    pass


REFUSED = {
    "another shape": torch.zeros(3, 4),
    "another type": torch.zeros(SHAPE, dtype=torch.float64),
    "sparse": torch.zeros(SHAPE).to_sparse(),
    "on another device": torch.zeros(SHAPE, device="meta"),
    "of a class of its own": torch.zeros(SHAPE).as_subclass(Named),
    "quantized": torch.quantize_per_tensor(torch.zeros(SHAPE), 1.0, 0, torch.qint8),
    "another kind": np.zeros(SHAPE, "float32"),
    "no tensor": 3,
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_left_to_the_other_way(replay, what):
    assert replay.kind_of([REFUSED[what], like_it()[1]]) is None


def test_what_is_taken(replay):
    assert replay.kind_of(like_it()) is TORCH and replay.kind_of(like_it(np)) is NUMPY
    assert replay.kind_of([torch.zeros(3, 4).t(), like_it()[1]]) is TORCH
    assert replay.kind_of(like_it()[:1]) is None
    assert Replay(nothing, [], [array()], (), fresh=True).kind_of([]) is None
    swapped = np.zeros(SHAPE, np.dtype("float32").newbyteorder())
    assert replay.kind_of([swapped, like_it(np)[1]]) is None


def test_inside_a_transform_of_torch(replay):
    seen = []

    def see(x):
        seen.append(replay.kind_of([x, like_it()[1]]))
        return x

    torch.func.vmap(see)(torch.zeros(2, *SHAPE))
    torch.jit.trace(see, torch.zeros(SHAPE), check_trace=False)
    assert seen == [None, None]


@pytest.mark.parametrize("kind", [TORCH, NUMPY], ids=["torch", "numpy"])
def test_inputs_are_copied(kind):
    inputs = [array(), array("bool")]
    replay = Replay(nothing, inputs, [array()], (), fresh=True)
    x = numbers(*SHAPE, seed=1)
    given = [torch.from_numpy(x).requires_grad_(), torch.from_numpy(x > 0)] if kind is TORCH else [x, x > 0]
    assert replay.kind_of(given) is kind
    replay.run(given, kind, 0)
    np.testing.assert_array_equal(inputs[0].numpy(), x)
    np.testing.assert_array_equal(inputs[1].numpy(), x > 0)
    replay.run([each[::1] for each in given], kind, 0)  # buffers stay leaves without a gradient


def run_at(*values, movable, outputs=()):
    """Of each input, whether it is read where it was given; and that it is in the buffer otherwise."""
    inputs, seen = [array() for _ in values], []
    replay = Replay(lambda _, elsewhere: seen.append(elsewhere), inputs, [*outputs], (), True, movable)
    replay.run([*values], TORCH, 0)
    (elsewhere,) = seen
    addresses = [elsewhere.get(place, address_of(buffer)) for place, buffer in enumerate(inputs)]
    in_place = [value.data_ptr() == address for value, address in zip(values, addresses)]
    for value, buffer, is_in_place in zip(values, inputs, in_place):
        assert is_in_place or (buffer.numpy() == value.numpy()).all()
    return in_place


def test_what_is_read_where_it_is():
    x = torch.from_numpy(numbers(*SHAPE, seed=1)).clone()  # which torch aligns
    assert run_at(x, x, movable={1}) == [False, True]
    whole = torch.zeros(40)
    shifted = whole[next(at for at in range(16) if whole[at:].data_ptr() % 64) :][: x.numel()].view(SHAPE)
    assert run_at(shifted, movable={0}) == [False]  # compiled code expects all arrays to be aligned
    assert run_at(torch.ones(3, 4).t(), movable={0}) == [False]


def test_arrays_of_the_host_are_copied():
    """Also to a GPU, which could read the pinned memory that they pass through, but slowly."""
    seen, buffer, x = [], array(), numbers(*SHAPE, seed=1)
    Replay(lambda _, elsewhere: seen.append(elsewhere), [buffer], [], (), True, {0}).run([x], NUMPY, 0)
    assert seen == [{}]  # the buffer's own address
    np.testing.assert_array_equal(buffer.numpy(), x)


def test_what_is_written_is_not_read_where_it_is():
    output = array()
    (before,) = Replay(nothing, [], [output], (), fresh=False).run([], TORCH, 0)
    assert run_at(before, movable={0}, outputs=[output]) == [False]


def test_an_input_that_is_returned_may_be_another_input():
    """It is read before it is overwritten."""
    inputs = [array(value=numbers(*SHAPE)), array()]
    replay = Replay(nothing, inputs, [inputs[0]], (), fresh=False)
    first, second = (torch.from_numpy(numbers(*SHAPE, seed=seed)) for seed in (1, 2))
    (before,) = replay.run([first, torch.zeros(SHAPE)], TORCH, 0)
    replay.run([second, before], TORCH, 0)
    np.testing.assert_array_equal(inputs[0].numpy(), second)
    np.testing.assert_array_equal(inputs[1].numpy(), first)


def test_results_are_as_wide_as_counted():
    rows, number = array(value=numbers(*SHAPE)), tvm.nd.array(np.array([2, 1], "int32"))
    columns = array(value=numbers(*SHAPE)[None, :].astype("float16"))
    replay = Replay(nothing, [], [rows, columns, array("int32"), number], [(0, 0), (1, 1), ()], fresh=False)
    for first in (2, 4, 0):
        number.copyfrom(np.array([first, 1], "int32"))
        found = replay.run([], TORCH, 0)
        assert [tuple(each.shape) for each in found] == [(first, 3), (1, 1, 3), SHAPE]
        np.testing.assert_array_equal(found[0], rows.numpy()[:first])
        assert found[1].dtype is torch.float16


@pytest.mark.parametrize("fresh", [True, False])
def test_results_are_copies_where_asked(fresh):
    output = array()
    replay = Replay(nothing, [], [output], (), fresh=fresh)
    (found,), (as_array,) = replay.run([], TORCH, 0), replay.run([], NUMPY, 0)
    output.copyfrom(np.ones(SHAPE, "float32"))
    assert bool(found.all()) != fresh and not as_array.any()
    (other,) = replay.run([], TORCH, 0)
    other.unsqueeze_(0).requires_grad_()  # what its owner does to it
    (again,) = replay.run([], TORCH, 0)
    assert tuple(again.shape) == SHAPE and not again.requires_grad


def test_inference_mode_at_the_first_call():
    with torch.inference_mode():
        replay = Replay(nothing, [array()], [array()], (), fresh=False)
    replay.run([torch.ones(SHAPE)], TORCH, 0)
    with torch.inference_mode():
        replay.run([torch.ones(SHAPE)], TORCH, 0)


def test_bfloat16():
    replay = Replay(nothing, [array("bfloat16")], [array("bfloat16")], (), fresh=False)
    assert replay.kind_of([torch.zeros(SHAPE, dtype=torch.bfloat16)]) is TORCH
    assert replay.kind_of([np.zeros(SHAPE, "float32")]) is None
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert replay.kind_of([np.zeros(SHAPE, ml_dtypes.bfloat16)]) is None
    assert replay.run([], NUMPY, 0)[0].dtype == np.float32
