"""SumInParts: structure, numbers, what stays, and nothing more the second time."""

import pytest

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops
from tvm_passes import SumInParts

from tvm import relay


def product(shapes, dtype="float32", result="float32", **transposed):
    left, right = (relay.var(name, shape=shape, dtype=dtype) for name, shape in zip("xy", shapes))
    return module(left, right, relay.nn.batch_matmul(left, right, out_dtype=result, **transposed))


def operands(shapes, dtype="float32"):
    return [(numbers(*shape, seed=seed) / 8).astype(dtype) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize(
    "shapes, transposed",
    [
        (((2, 3, 2048), (2, 5, 2048)), {}),
        (((2, 3, 2048), (2, 2048, 5)), {"transpose_b": False}),
        (((1, 2048, 3), (1, 2048, 5)), {"transpose_a": True, "transpose_b": False}),
        (((1, 1584, 3), (1, 5, 1584)), {"transpose_a": True, "transpose_b": True}),
    ],
)
def test_long_sums(shapes, transposed):
    after = assert_same_numbers(
        SumInParts(), product(shapes, **transposed), *operands(shapes), rtol=1e-4, atol=1e-4
    )
    assert "sum" in ops(after)
    assert_no_second_change(SumInParts(), after)


def test_the_parts_are_added_in_float32():
    shapes = ((1, 3, 4096), (1, 5, 4096))
    mod = product(shapes, "float16", "float16")
    after, _ = apply(SumInParts(), mod)
    text = str(after)
    assert 'out_dtype="float32"' in text and ops(after)[-1] == "cast"
    arrays = operands(shapes, "float16")
    assert_same_numbers(SumInParts(), mod, *arrays, rtol=5e-3, atol=5e-2)


@pytest.mark.parametrize(
    "shapes, given",
    [
        (((1, 3, 1000), (1, 5, 1000)), {}),  # too short
        (((1, 3, 2056), (1, 5, 2056)), {}),  # of no parts that tensor cores multiply
        (((1, 700, 2048), (1, 900, 2048)), {}),  # of enough results
        (((200, 3, 2048), (200, 5, 2048)), {}),
        (((2, 3, 2048), (1, 5, 2048)), {}),  # one for all
        (((2, 3, relay.Any()), (2, 5, relay.Any())), {}),
        (((2, 3, 2048), (2, 5, 2048)), {"dtype": "int32", "result": "int32"}),
        (((2, 0, 2048), (2, 5, 2048)), {}),
    ],
    ids=str,
)
def test_what_stays(shapes, given):
    after, _ = apply(SumInParts(), product(shapes, **given))
    assert ops(after) == ["nn.batch_matmul"]
