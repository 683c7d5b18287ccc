"""Weights folded with NumPy: the bits that TVM's FoldConstant gives, and nothing else touched."""

import numpy as np
import pytest

from tests.helpers import module, numbers, ops
from tvm_passes.analysis.constants import fold_constants

import tvm
from tvm import relay

X = relay.var("x", shape=(4, 3, 2, 5))


def weights(dtype="float32", seed=1):
    return relay.const(numbers(4, 3, 2, 5, dtype=dtype, seed=seed))


def norm(w):
    """A batch norm, as TVM spells it out, folded into weights."""
    variance = relay.add(relay.multiply(w, w), relay.const(1e-5, w.data.dtype))
    factor = relay.divide(weights(w.data.dtype, seed=2), relay.sqrt(variance))
    return relay.subtract(relay.negative(relay.multiply(w, factor)), factor)


EXPRESSIONS = {
    "norm": norm,
    "broadcast": lambda w: relay.multiply(
        w, relay.expand_dims(relay.const(numbers(4, dtype=w.data.dtype)), 1, 3)
    ),
    "reshape": lambda w: relay.reshape(relay.squeeze(relay.reshape(w, (1, 12, 10)), [0]), (4, 3, 2, 5)),
    "transpose": lambda w: relay.transpose(relay.transpose(w, [2, 0, 3, 1]), [1, 3, 0, 2]),
    "reverse": lambda w: relay.transpose(relay.transpose(w)),
    "layout": lambda w: relay.transpose(relay.layout_transform(w, "OIHW", "HWIO"), [3, 2, 0, 1]),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_bits_of_fold_constant(name, dtype):
    x = relay.var("x", shape=(4, 3, 2, 5), dtype=dtype)
    mod = relay.transform.InferType()(module(x, relay.add(x, EXPRESSIONS[name](weights(dtype)))))
    mine, stock = fold_constants(mod), relay.transform.FoldConstant()(mod)
    assert ops(mine) == ops(stock) == ["add"]
    found, expected = (each["main"].body.args[1].data.numpy() for each in (mine, stock))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_scalars_stay_scalars():
    x = relay.var("x", shape=())
    square = relay.multiply(relay.const(3.0), relay.const(3.0))
    mod = module(x, relay.Tuple([relay.add(x, relay.sqrt(square)), relay.squeeze(relay.const([2.0]))]))
    added, alone = fold_constants(mod)["main"].body.fields
    assert (added.args[1].data.numpy(), added.args[1].data.shape) == (3, ())
    assert (alone.data.numpy(), alone.data.shape) == (2, ())


def test_a_layout_that_splits_channels_is_left_to_tvm():
    w = relay.const(numbers(4, 4, 2, 5))
    mod = module(X, relay.Tuple([X, relay.layout_transform(w, "OIHW", "OIHW4o")]))
    assert ops(fold_constants(mod)) == []


def test_what_depends_on_an_input_stays():
    mod = relay.transform.InferType()(module(X, relay.negative(relay.add(X, weights()))))
    assert tvm.ir.structural_equal(fold_constants(mod), mod)
