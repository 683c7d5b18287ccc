"""Concatenations, and what is fused with them, versus NumPy."""

from functools import partial

import numpy as np
import pytest

from tests.helpers import module, run
from tests.ops.corrected import computed

from tvm import relay


@pytest.mark.parametrize("rows", [1, 40, 0])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_concatenation_and_what_is_fused_with_it(rows, axis):
    """Operands that are computed, one of them twice over, and what follows: with threads and without."""
    array = np.random.default_rng(0).standard_normal((rows, 16, 60)).astype("float32")

    def function(x):
        shifted = relay.exp(relay.transpose(x, [0, 2, 1]))
        parts = [relay.nn.relu(shifted), relay.reshape(x, (-1 if rows else 0, 60, 16)), shifted]
        return relay.add(relay.sigmoid(relay.concatenate(parts, axis)), relay.const(1.0))

    shifted = np.exp(array.transpose(0, 2, 1))
    parts = np.concatenate([shifted, array.reshape(rows, 60, 16), shifted], axis)
    np.testing.assert_allclose(computed(function, array), 1 / (1 + np.exp(-parts)) + 1, rtol=1e-6)


BEHIND_A_CONCATENATION = {
    "nothing": lambda x, of: x,
    "element by element": lambda x, of: of.add(of.sigmoid(x), x),
    "a cast": lambda x, of: of.cast(x, "int32"),
    "other places": lambda x, of: of.transpose(x, [2, 0, 1]),
    "two of them": lambda x, of: of.add(x, of.reverse(x, 1)),
}


@pytest.mark.parametrize("behind", BEHIND_A_CONCATENATION)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_concatenation_in_runs(axis, dtype, behind):
    """Of operands that are computed, and of a size for several threads."""
    array = np.round(np.random.default_rng(0).standard_normal((8, 24, 64)) * 4).astype("float32")
    x = relay.var("x", shape=array.shape)

    def operands():
        given = relay.cast(x, dtype)
        ends = [array.shape[at] // (2 if at == axis else 1) for at in range(3)]
        yield from (given, relay.strided_slice(given * relay.const(2.0, dtype), [0, 0, 0], ends), given)

    follow = partial(BEHIND_A_CONCATENATION[behind], of=relay)
    whole = follow(relay.concatenate([*operands()], axis))
    parts = [relay.cast(each, "float32") for each in operands()]
    alone = np.concatenate([run(module(x, part), array)[0] for part in parts], axis)
    y = relay.var("y", shape=alone.shape)
    (wanted,) = run(module(y, relay.cast(follow(relay.cast(y, dtype)), "float32")), alone)
    (found,) = run(module(x, relay.cast(whole, "float32")), array)
    np.testing.assert_array_equal(found, wanted)


def test_a_concatenation_and_an_addition_of_unknown_length():
    rows, left, right = (
        np.random.default_rng(0).standard_normal(shape) for shape in ((7, 16), (1, 8), (1, 8))
    )
    arrays = [array.astype("float32") for array in (rows, left, right)]
    y = relay.var("y", shape=(relay.Any(), 16))
    a, b = relay.var("a", shape=(1, 8)), relay.var("b", shape=(1, 8))
    (found,) = run(module(y, a, b, relay.concatenate([a, b], 1) + y), *arrays)
    np.testing.assert_allclose(found, np.concatenate(arrays[1:], 1) + arrays[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_concatenation_of_half_precision_that_a_cast_reads(dtype):
    """In one kernel, whose operands are in memory. The values are exact in each type."""
    array = np.arange(-20, 20, dtype="float32").reshape(2, 4, 5)
    x = relay.var("x", shape=array.shape)
    part = relay.annotation.stop_fusion(relay.cast(x, dtype))
    (found,) = run(module(x, relay.cast(relay.concatenate([part, part], 1), "float32")), array)
    np.testing.assert_array_equal(found, np.concatenate([array, array], 1))
