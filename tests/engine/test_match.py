"""Matching: every kind of pattern a rule can hold, and agreement with TVM's own matcher."""

import pytest

from tests.helpers import module
from tvm_passes.engine.match import match, root_ops

from tvm import relay
from tvm.relay import dataflow_pattern as dfp

X = relay.var("x", shape=(2, 3))
Y = relay.var("y", shape=(2, 3))
A, B = dfp.wildcard(), dfp.wildcard()
SAME = dfp.wildcard()


def typed(expr):
    return relay.transform.InferType()(module(*relay.analysis.free_vars(expr), expr))["main"].body


@pytest.mark.parametrize(
    "pattern, expr",
    [
        (A, X),
        (dfp.is_var("x"), X),
        (dfp.is_var("y"), X),
        (dfp.is_var(), X),
        (dfp.is_constant(), relay.const(1.0)),
        (dfp.is_constant(), X),
        (dfp.is_op("add")(A, B), X + Y),
        (dfp.is_op("add")(A, B), X * Y),
        (dfp.is_op("add")(dfp.is_var("y"), dfp.is_var("x")), X + Y),
        (dfp.is_op("subtract")(dfp.is_var("y"), dfp.is_var("x")), X - Y),
        (dfp.is_op("add")(SAME, SAME), X + X),
        (dfp.is_op("add")(SAME, SAME), X + Y),
        (dfp.is_op("add")(None), X + Y),
        (dfp.is_op("exp")(A) | dfp.is_op("tanh")(A), relay.tanh(X)),
        (dfp.is_op("exp")(A) | dfp.is_op("tanh")(A), relay.nn.relu(X)),
        (dfp.is_tuple([A, B]), relay.Tuple([X, Y])),
        (dfp.is_tuple([A]), relay.Tuple([X, Y])),
        (dfp.is_tuple(None), relay.Tuple([X, Y])),
        (dfp.is_tuple_get_item(A, 1), relay.TupleGetItem(relay.Tuple([X, Y]), 1)),
        (dfp.is_tuple_get_item(A, 0), relay.TupleGetItem(relay.Tuple([X, Y]), 1)),
        (dfp.is_tuple_get_item(A), relay.TupleGetItem(relay.Tuple([X, Y]), 1)),
        (dfp.is_op("sum")(A).has_attr({"keepdims": True}), relay.sum(X, keepdims=True)),
        (dfp.is_op("sum")(A).has_attr({"keepdims": True}), relay.sum(X)),
        (dfp.is_op("nn.relu")(A).has_attr({"none": 1}), relay.nn.relu(X)),
        (dfp.has_dtype("float32", A), relay.exp(X)),
        (dfp.has_dtype("float16", A), relay.exp(X)),
        (dfp.has_shape((2, 3), A), relay.exp(X)),
        (dfp.has_shape((3, 2), A), relay.exp(X)),
        (dfp.has_type(relay.TensorType((2, 3)), A), relay.exp(X)),
        (dfp.is_if(A, dfp.is_var("x"), B), relay.If(relay.const(True), X, Y)),
        (dfp.is_if(A, dfp.is_var("y"), B), relay.If(relay.const(True), X, Y)),
    ],
)
def test_agrees_with_tvm(pattern, expr):
    expr = typed(expr)
    assert (match(pattern, expr) is not None) == pattern.match(expr)


def test_bindings_name_what_was_matched():
    expr = typed(relay.exp(X) * Y)
    inner = dfp.is_op("exp")(A)
    bound = match(dfp.is_op("multiply")(B, inner), expr)
    assert bound[inner].same_as(expr.args[0]) and bound[B].same_as(expr.args[1])


def test_an_alternative_that_fails_leaves_no_bindings():
    expr = typed(relay.exp(X) + Y)
    pattern = dfp.is_op("add")(dfp.is_op("exp")(A), dfp.is_op("tanh")(B)) | dfp.is_op("add")(B, A)
    bound = match(pattern, expr)
    assert bound[A].same_as(expr.args[1]) and bound[B].same_as(expr.args[0])


def test_an_unsupported_pattern_is_an_error():
    with pytest.raises(TypeError, match="DominatorPattern"):
        match(dfp.dominates(A, dfp.is_op("exp")(B), dfp.is_op("tanh")(SAME)), typed(relay.tanh(X)))


def test_root_ops():
    assert root_ops(dfp.is_op("exp")(A) | dfp.is_op("tanh")(A).has_attr({"a": 1})) == {"exp", "tanh"}
    assert root_ops(dfp.is_op("exp")(A) | A) is None
    assert root_ops(dfp.is_tuple_get_item(A)) is None
