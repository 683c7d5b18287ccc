"""Slices at bounds that are computed from lengths, versus NumPy's."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import module, numbers, quick, runner
from topi_ext.slice_by_lengths import reference

import tvm
from tvm import relay


def length(tensor, axis):
    return "length", tensor, axis


HEIGHT, WIDTH = length(1, 2), length(1, 3)
TO_A_MULTIPLE = ("floor_mod", ("subtract", 8, ("floor_mod", HEIGHT, 8)), 8)
CASES = {
    "shifted": ({2: (1, ("add", HEIGHT, 1), 1)}, lambda x, h, w: x[:, :, 1 : h + 1]),
    "both axes, and steps": (
        {2: (0, HEIGHT, 2), 3: (1, WIDTH, 3)},
        lambda x, h, w: x[:, :, 0:h:2, 1:w:3],
    ),
    "from the end": ({3: (("subtract", 2, WIDTH), -1, 1)}, lambda x, h, w: x[:, :, :, 2 - w : -1]),
    "numbers": ({2: (-3, 2**63 - 1, 1)}, lambda x, h, w: x[:, :, -3:]),
    "padding": ({2: (TO_A_MULTIPLE, length(0, 2), 1)}, lambda x, h, w: x[:, :, (8 - h % 8) % 8 :]),
    "quotients": (
        {2: (("divide", ("subtract", HEIGHT, 9), 2), ("mod", ("subtract", HEIGHT, 9), -4), 1)},
        lambda x, h, w: x[:, :, int((h - 9) / 2) : int(np.fmod(h - 9, -4))],
    ),
    "comparisons in a sum": (
        {2: (("add", ("less", HEIGHT, 5), ("greater", WIDTH, 2)), HEIGHT, 1)},
        lambda x, h, w: x[:, :, int(h < 5) + int(w > 2) : h],
    ),
    "a choice by a number": (
        {2: (("where", ("floor_mod", HEIGHT, 2), 1, 0), 9, 1), 3: (("less_equal", WIDTH, 9), -1, 1)},
        lambda x, h, w: x[:, :, h % 2 :, int(w <= 9) : -1],
    ),
    "bounds far away": ({2: (2**63 - 1, -5, 1), 3: (1, -(2**63), 1)}, lambda x, h, w: x[:, :, :0, :0]),
    "nothing": ({3: (0, 0, 1)}, lambda x, h, w: x[:, :, :, :0]),
    "none of any": ({3: (WIDTH, ("minimum", WIDTH, 0), 1)}, lambda x, h, w: x[:, :, :, w:0]),
    "a choice": (
        {3: (0, ("where", ("less", WIDTH, 6), ("minimum", WIDTH, 3), ("maximum", WIDTH, 7)), 1)},
        lambda x, h, w: x[:, :, :, : min(w, 3) if w < 6 else max(w, 7)],
    ),
}
SHAPES = ((9, 10), (5, 6)), ((3, 10), (5, 3)), ((4, 4), (4, 9)), ((1, 7), (1, 1))


def sliced(bounds, shapes):
    x, other = (relay.var(name, shape=(1, 4, *shape)) for name, shape in zip(("x", "other"), shapes))
    slice_ = topi_ext.slice_by_lengths(x, [other], bounds)
    return tvm.IRModule.from_expr(relay.Function([x, other], relay.nn.relu(slice_)))


@pytest.mark.parametrize("case", CASES)
def test_any_lengths(case):
    bounds, expected = CASES[case]
    mod = sliced(bounds, [(relay.Any(), relay.Any())] * 2)
    arrays = [
        [numbers(1, 4, *shape, seed=seed) + 1 for seed, shape in enumerate(shapes)] for shapes in SHAPES
    ]
    call = runner(mod, quick())
    results = [call(*given)[0] for given in arrays]
    for (x, other), result in zip(arrays, results):
        of_numpy = expected(x, *other.shape[2:])
        np.testing.assert_array_equal(reference.slice_by_lengths(x, [other], bounds), of_numpy)
        np.testing.assert_array_equal(result, np.maximum(of_numpy, 0))


@pytest.mark.parametrize("start, stop", [(0, length(1, 0)), (("minimum", length(1, 0), 3), 7)], ids=str)
def test_a_part_of_an_axis_that_is_shorter_than_vectors(start, stop):
    """Of which TVM knows that it has no whole vector."""
    x, other = relay.var("x", shape=(relay.Any(), 7)), relay.var("other", shape=(relay.Any(),))
    part = topi_ext.slice_by_lengths(x, [other], {1: (start, stop, 1)})
    call = runner(tvm.IRModule.from_expr(relay.Function([x, other], relay.nn.relu(part) + part)), quick())
    for n in (0, 2, 9):
        data = numbers(5, 7)
        expected = data[:, :n] if start == 0 else data[:, min(n, 3) :]
        (found,) = call(data, np.zeros(n, "float32"))
        np.testing.assert_array_equal(found, np.maximum(expected, 0) + expected)


def test_known_lengths():
    bounds, _ = CASES["shifted"]
    mod = relay.transform.InferType()(sliced(bounds, [(9, relay.Any()), (5, 6)]))
    shape = mod["main"].ret_type.shape
    assert [int(extent) for extent in shape[:3]] == [1, 4, 5] and isinstance(shape[3], tvm.tir.Any)


def test_refusals():
    x = relay.var("x", shape=(4, relay.Any()))
    for bounds, reason in (
        ({0: (0, 4, 0)}, "a step must be a number above 0, not 0"),
        (
            {0: (0, ("floor_mod", ("length", 0, 1), ("length", 0, 0)), 1)},
            "a divisor is a number other than 0",
        ),
        ({0: (0, ("length", 1, 0), 1)}, "no tensor 1 beside 0 others"),
        ({0: (0, ("power", 2, 3), 1)}, "a bound is a number, a length, or computed of these"),
        ({0: (0, ("add", 2), 1)}, "add has 2 operands"),
        ({-1: (0, 1, 1)}, "axes are numbers from 0"),
    ):
        with pytest.raises(ValueError, match=reason):
            topi_ext.slice_by_lengths(x, [], bounds)
    for bounds in ({2: (0, 1, 1)}, {0: (0, ("length", 0, 2), 1)}):
        with pytest.raises(tvm.TVMError, match=r"no axis 2|has not"):
            relay.transform.InferType()(module(x, topi_ext.slice_by_lengths(x, [], bounds)))


def test_computed_on_cuda(emulated_cuda):
    bounds, expected = CASES["both axes, and steps"]
    function = sliced(bounds, [(relay.Any(), relay.Any())] * 2)["main"]
    x, other = numbers(1, 4, 9, 10), numbers(1, 4, 5, 6)
    (result,) = emulated_cuda.run_relay(function, x, other, executor="vm")
    np.testing.assert_array_equal(result, np.maximum(expected(x, 5, 6), 0))
