"""NumPy in the place of TVM: every entry of the table against the code that TVM compiles for the operator."""

import numpy as np
import pytest

import topi_ext  # noqa: F401  (before tvm)
from tvm_passes.analysis.convolution import as_constant
from tvm_passes.analysis.evaluate import TABLE, NotFolded, evaluate, value_of
from tvm_passes.engine.expressions import scalar, type_of

import tvm
from tvm import relay

FLOATS = np.array([[-1.5, 0.0, 2.5], [3.5, -4.0, 0.25]], "float32")
INTEGERS = np.array([[-7, 0, 2], [5, -3, 4]], "int64")
DIVISORS = np.array([[2, 3, -2], [-2, 2, 7]], "int64")
BOOLEANS = np.array([[True, False, True], [False, False, True]])


def calls():
    def const(array):
        return relay.const(array, array.dtype.name)

    f, i, d, b = map(const, (FLOATS, INTEGERS, DIVISORS, BOOLEANS))
    op, index = relay.op, const(np.array([2, 0], "int64"))
    yield from (op.abs(f), op.negative(i), op.floor(f), op.ceil(f), op.sqrt(op.const(2.0)), op.copy(f))
    for binary in (op.add, op.subtract, op.multiply, op.divide, op.minimum, op.maximum):
        yield from (binary(f, const(FLOATS + 9)), binary(i, d))
    yield from (
        op.floor_divide(i, d),
        op.floor_mod(i, d),
        op.mod(i, d),
    )
    least, divisors = const(np.full(5, -128, "int8")), const(np.array([-1, 0, 2, 3, -128], "int8"))
    for division in (op.divide, op.floor_divide, op.floor_mod, op.mod):
        yield division(least, divisors)
    for comparison in (op.equal, op.not_equal, op.less, op.less_equal, op.greater, op.greater_equal):
        yield from (comparison(i, d), comparison(f, const(FLOATS[::-1].copy())))
    yield from (op.logical_and(b, b), op.logical_or(b, b), op.logical_xor(b, b), op.logical_not(b))
    for reduce in (op.max, op.min, op.sum, op.prod):
        yield from (reduce(i), reduce(i, axis=[1], keepdims=True), reduce(i, axis=0))
    yield from (op.cast(f, "int32"), op.cast(i, "bool"), op.cast(f, "bool"), op.cast_like(f, i))
    not_all = const(np.float32([np.nan, -0.0, np.inf, -np.inf, 0.5]))
    yield from (op.clip(not_all, *ends) for ends in ((0, 1), (2, -2)))
    yield from (op.clip(i, -3, 4), op.reinterpret(f, "int32"))
    yield from (op.reshape(f, [3, -1]), op.expand_dims(f, 1, 2), op.squeeze(op.const([[1]]), [0]))
    yield from (
        op.transpose(f),
        op.transpose(f, [1, 0]),
        op.broadcast_to(f, [2, 2, 3]),
        op.tile(f, [2, 1]),
    )
    yield from (op.repeat(f, 2, 0), op.repeat(i, 3, -1), op.nn.pad(f, [[0, 1], [2, 0]], 7.5))
    yield from (op.meshgrid([index, index], "ij").astuple(), op.meshgrid([index, index], "xy").astuple())
    yield from (
        op.take(i, index, 1),
        op.take(i, index, mode="wrap"),
        op.gather(f, 1, const(INTEGERS % 3)),
    )
    yield from (op.concatenate([i, d], 1), op.stack([i, d], 1), op.where(b, i, d))
    yield op.scatter_elements(i, const(INTEGERS[:, :2] % 3), const(DIVISORS[:, :2]), axis=1)
    yield from (op.split(i, 3, 1).astuple(), op.split(i, [1], 1).astuple())
    yield op.strided_slice(i, [0, -1], [2, -4], [1, -2])
    yield op.strided_slice(i, [1], [2**31 - 1], axes=[1])
    yield from (op.slice_like(i, op.const([[1, 2]])), op.reshape_like(i, op.const([[1] * 6])))
    yield from (
        op.broadcast_to_like(op.const([[1, 2, 3]], "int64"), i),
        op.full(op.const(3), [2, 2], "int32"),
    )
    yield from (
        op.zeros([2], "int64"),
        op.ones([2], "bool"),
        op.arange(op.const(1), op.const(9), op.const(3), "int32"),
    )
    yield from (op.argwhere(b), op.annotation.stop_fusion(f))
    yield op.layout_transform(const(FLOATS.reshape(1, 2, 3, 1)), "NCHW", "NHWC")


def test_every_entry():
    seen = set()
    for expr in calls():
        call = expr.tuple_value if isinstance(expr, relay.TupleGetItem) else expr
        seen.add(call.op.name)
        found = evaluate(call, type_of(call))
        mod = tvm.IRModule.from_expr(relay.Function([], call))
        expected = relay.create_executor("vm", mod=mod, target="llvm").evaluate()()
        expected = [expected] if isinstance(expected, tvm.nd.NDArray) else list(expected)
        for ours, theirs in zip(found if isinstance(found, list) else [found], expected):
            assert ours.dtype == theirs.numpy().dtype, call.op.name
            np.testing.assert_array_equal(ours, theirs.numpy(), err_msg=str(call))
    assert seen == set(TABLE)


@pytest.mark.parametrize(
    "refused",
    [
        relay.exp(relay.const([1.0])),
        relay.sum(relay.const([1.0, 2.0])),
        relay.full(relay.const(0.0), [1000, 1000], "float32"),
        relay.scatter_elements(relay.const([1]), relay.const([0]), relay.const([2]), reduction="add"),
        relay.scatter_elements(relay.const([[1], [1]]), relay.const([[0]]), relay.const([[2]]), axis=1),
    ],
    ids=["not in the table", "rounding", "large", "combining", "some rows"],
)
def test_refuses(refused):
    with pytest.raises(NotFolded):
        evaluate(refused, type_of(refused))


def test_the_value_of_constants_through_tuples():
    index = relay.const(np.array([2, 0, 5], "int64"))
    parts = relay.meshgrid([index, index], "ij")
    total = relay.stack([parts[0], relay.repeat(relay.expand_dims(index, 0), 3, 0)], -1)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(total))
    rows, columns = np.meshgrid([2, 0, 5], [2, 0, 5], indexing="ij")
    np.testing.assert_array_equal(value_of(mod["main"].body), np.stack([rows, columns], -1))


def test_what_depends_on_an_input_has_no_value():
    x = relay.var("x", shape=(3,), dtype="int64")
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(x + relay.const(1, "int64")))
    assert value_of(mod["main"].body) is None


def test_bfloat16_has_its_values_and_not_its_bits():
    half = as_constant(np.array([-1.5, 0.0, 2.5], "float32"), "bfloat16")
    wide = relay.transform.InferType()(tvm.IRModule.from_expr(relay.cast(half, "float32")))
    np.testing.assert_array_equal(value_of(wide["main"].body), [-1.5, 0.0, 2.5])
    whole = relay.transform.InferType()(tvm.IRModule.from_expr(relay.cast(half, "int32")))
    np.testing.assert_array_equal(value_of(whole["main"].body), [-1, 0, 2])
    assert scalar(as_constant(np.float32(0.5), "bfloat16")) == 0.5
