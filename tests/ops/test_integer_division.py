"""Divisions of integers have NumPy's results, also where a processor has none."""

import numpy as np
import pytest

from tests.helpers import run
from tests.ops.corrected import computed

import tvm
from tvm import relay

DIVISIONS = {
    "divide": lambda x, y: np.floor_divide(x - np.fmod(x, y), y),
    "floor_divide": np.floor_divide,
    "floor_mod": np.mod,
    "mod": np.fmod,
    "trunc_divide": lambda x, y: np.floor_divide(x - np.fmod(x, y), y),
    "trunc_mod": np.fmod,
}


def pairs_of_integers(dtype):
    info = np.iinfo(dtype)
    values = {info.min, info.min + 1, 0, 1, 2, 7, info.max - 1, info.max} | (
        {-1, -2, -7} if info.min else set()
    )
    return [each.ravel() for each in np.meshgrid(*[np.array(sorted(values), dtype)] * 2)]


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:overflow")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_every_division_of_integers_has_a_result(emulated_cuda, dtype):
    """By zero, and of the least one by -1, which ended the process: what NumPy gives."""
    left, right = pairs_of_integers(dtype)
    x, y = (relay.var(name, shape=left.shape, dtype=dtype) for name in "xy")
    function = relay.Function([x, y], relay.Tuple([getattr(relay, name)(x, y) for name in DIVISIONS]))
    expected = [divide(left, right) for divide in DIVISIONS.values()]
    for found in (
        run(tvm.IRModule.from_expr(function), left, right),
        emulated_cuda.run_relay(function, left, right),
    ):
        for name, ours, theirs in zip(DIVISIONS, found, expected):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:overflow")
@pytest.mark.parametrize("divisor", [0, -1, 3])
def test_division_of_integers_by_a_constant(divisor):
    left = np.array([-128, -7, 0, 5, 127], "int8")
    for name, divide in DIVISIONS.items():
        found = computed(lambda x: getattr(relay, name)(x, relay.const(divisor, "int8")), left)  # noqa: B023
        np.testing.assert_array_equal(found, divide(left, np.int8(divisor)), err_msg=name)


@pytest.mark.parametrize("divide", ["floor_divide", "floor_mod"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_floor_division_of_a_sum(emulated_cuda, dtype, divide):
    """TVM's lowering adds to a dividend whose least number it knows, and overflows."""
    numbers = np.array([-120, -23, -1, 0, 1, 22, 111, 120], dtype)
    x, number = relay.var("x", shape=numbers.shape, dtype=dtype), np.dtype(dtype).type
    for first in (4, -4):
        for divisor in (3, 100, -7):
            function = relay.Function(
                [x],
                getattr(relay, divide)(relay.const(first, dtype) - x, relay.const(divisor, dtype)),
            )
            expected = DIVISIONS[divide](number(first) - numbers, number(divisor))
            for found in (
                run(tvm.IRModule.from_expr(function), numbers)[0],
                emulated_cuda.run_relay(function, numbers),
            ):
                np.testing.assert_array_equal(np.ravel(found), expected, err_msg=f"{first} {divisor}")
