"""Canonicalize: each rule's structure and numbers, and where it must not apply."""

import numpy as np
import pytest

from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    numbers,
    ops,
    refusals,
    run,
)
from tests.passes.canonical import ANY, check, constant, rewritten, rows_of, variable
from tvm_passes.analysis.shape_values import Clamped, Dim, Minimum, Total, shape_values
from tvm_passes.cleanup.canonicalize import Canonicalize
from tvm_passes.engine.graph import Graph

from tvm import relay
from tvm.relay import op


def test_shape_arithmetic_on_a_static_shape_is_a_constant():
    x = variable(4, 6)
    columns = relay.take(op.shape_of(x, "int64"), relay.const(1), axis=0)
    mod = module(x, relay.reshape(relay.concatenate([rows_of(x), relay.expand_dims(columns, 0)], 0), (2,)))
    after = check(mod, "FoldShapeArithmetic", [], numbers(4, 6))
    np.testing.assert_array_equal(after["main"].body.data.numpy(), [4, 6])
    assert after["main"].body.data.dtype == "int64"


def test_arithmetic_that_would_wrap_around_is_not_folded():
    most = relay.const(np.int32(2**31 - 1), "int32")
    mod = module(relay.add(most, relay.const(np.int32(1), "int32")))
    assert ops(apply(Canonicalize(), mod)[0]) == ["add"]


def test_floats_and_large_tensors_are_not_folded():
    mod = module(relay.Tuple([relay.zeros((3,), "float32"), relay.zeros((1000,), "int32")]))
    assert apply(Canonicalize(), mod)[0].same_as(mod)


def test_elements_of_a_dynamic_shape():
    x = variable(ANY, 6)
    mixed = relay.concatenate([rows_of(x), constant(364)], 0)
    clamped = relay.minimum(op.shape_of(x, "int64"), constant(2, 0))
    mod = relay.transform.InferType()(module(x, relay.Tuple([mixed, clamped])))
    graph, (first, second) = Graph(mod["main"]), mod["main"].body.fields
    x = mod["main"].params[0]
    assert list(shape_values(graph, first)) == [Dim(x, 0), 364]
    assert list(shape_values(graph, second)) == [Clamped(2, Dim(x, 0)), 0]


def test_lengths_that_follow_from_several():
    inputs = [variable(ANY, 6, name=name) for name in "xyz"]
    first, second, third = map(rows_of, inputs)
    results = [first + second + third, relay.minimum(first + second, third), first + constant(1)]
    results += [
        relay.less(first + second, constant(0)),
        relay.maximum(relay.minimum(first + second, third), constant(0)),
    ]
    mod = relay.transform.InferType()(module(*inputs, relay.Tuple(results)))
    graph = Graph(mod["main"])
    total, least, unknown, is_negative, positive = (
        shape_values(graph, result).item() for result in mod["main"].body.fields
    )
    x, y, z = (Dim(variable, 0) for variable in mod["main"].params)
    assert total == Total((x, y, z)) and least == Minimum(Total((x, y)), z)
    assert unknown is None and is_negative == 0 and positive == least


def dynamic_slice(x, begin, end, strides):
    """A slice as PyTorch's importer spells it, its bounds counted from the end and clamped by operators."""
    dynamic_begin = relay.add(constant(*begin, dtype="int32"), constant(*(0 for _ in begin), dtype="int32"))
    return relay.strided_slice(x, dynamic_begin, end, constant(*strides, dtype="int32"))


def test_dynamic_slice_of_everything_goes():
    x = variable(ANY, 4)
    sliced = dynamic_slice(x, (0, 0), op.shape_of(x, "int64"), (1, 1))
    check(module(x, relay.nn.relu(sliced)), "StaticSlice", ["nn.relu"], numbers(3, 4))


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_dynamic_slice_of_known_axes_becomes_static_and_fuses(rows):
    x, y = variable(ANY, 8), variable(ANY, 1, name="y")
    sliced = dynamic_slice(x, (0, 1), op.shape_of(x, "int64"), (1, 4))
    mod = module(x, y, relay.divide(sliced, y))
    check(mod, "StaticSlice", ["strided_slice", "divide"], numbers(rows, 8), numbers(rows, 1))


@pytest.mark.parametrize("begin, end", [((2, 1), 9), ((0, 1), 3)])
@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_dynamic_slice_that_cuts_an_axis_of_unknown_length_is_refused(begin, end, rows):
    x = variable(ANY, 8)
    end = relay.minimum(op.shape_of(x, "int64"), constant(end, 9))
    mod = module(x, dynamic_slice(x, begin, end, (1, 4)))
    after, report = apply(Canonicalize(), mod)
    assert "dyn.strided_slice" in ops(after)
    assert refusals(report) == ["the slice cuts an axis of unknown length"]
    assert_same_numbers(Canonicalize(), mod, numbers(rows, 8))


def test_a_slice_to_the_length_of_another_tensor_stays_dynamic():
    x, y = variable(ANY), variable(ANY, name="y")
    sliced = relay.strided_slice(x, constant(0), op.shape_of(y, "int64"), constant(1))
    mod = module(x, y, sliced)
    assert "dyn.strided_slice" in ops(apply(Canonicalize(), mod)[0])


def test_a_slice_from_what_the_run_decides_stays_dynamic():
    x, start = variable(8), variable(1, dtype="int64", name="start")
    mod = module(x, start, relay.strided_slice(x, start, constant(8), constant(1)))
    after = assert_same_numbers(Canonicalize(), mod, numbers(8), np.array([3]))
    assert "dyn.strided_slice" in ops(after)


def test_a_slice_backwards_becomes_static_as_tvm_does_it():
    x = variable(2, 5)
    any_bounds = [relay.var(name, shape=(2,), dtype="int64") for name in "bes"]
    dynamic = relay.strided_slice(x, *any_bounds)
    bounds = [constant(1, 4), constant(-3, -6), constant(-1, -2)]
    mod = module(x, relay.Call(dynamic.op, [x, *bounds], dynamic.attrs))
    check(mod, "StaticOperator", ["strided_slice"], numbers(2, 5))


def test_reshape_with_one_unknown_dimension_becomes_static():
    x = variable(ANY, 6)
    shape = relay.concatenate([rows_of(x), constant(2), constant(3)], 0)
    after = check(module(x, relay.reshape(x, shape)), "StaticReshape", ["reshape"], numbers(5, 6))
    assert [int(dim) for dim in after["main"].body.attrs.newshape] == [-1, 2, 3]


def test_reshape_with_two_unknown_dimensions_stays():
    x, y = variable(ANY, 6), variable(ANY, name="y")
    shape = relay.concatenate([rows_of(x), rows_of(y), constant(-1)], 0)
    assert "dyn.reshape" in ops(apply(Canonicalize(), module(x, y, relay.reshape(x, shape)))[0])


def test_full_and_topk_with_constants_become_static():
    x = variable(3, 9)
    k = relay.take(op.shape_of(x, "int64"), relay.const(0), axis=0)
    best = relay.topk(x, k=k, ret_type="values")
    full = relay.full(relay.const(2.0), op.shape_of(x, "int64"), "float32")
    mod = module(x, relay.Tuple([best, full]))
    check(mod, "StaticOperator", ["topk", "full"], numbers(3, 9))


def test_rows_by_adv_index_are_taken():
    x, rows = variable(5, 2), variable(3, dtype="int64", name="rows")
    mod = module(x, rows, relay.adv_index([x, rows]))
    check(mod, "TakeForAdvIndex", ["take"], numbers(5, 2), np.array([4, 0, 4]))


def test_adv_index_by_two_lists_stays():
    x, rows = variable(5, 2), variable(3, dtype="int64", name="rows")
    mod = module(x, rows, relay.adv_index([x, rows, rows]))
    assert apply(Canonicalize(), mod)[0].same_as(mod)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_a_sum_of_equals_is_the_double(dtype):
    """Which TVM fails to compile by itself: its own rule for it loses the parameters."""
    x = relay.var("x", shape=(3, 4), dtype=dtype)
    same = [relay.maximum(x, relay.const(100, dtype)) for _ in range(2)]
    other = relay.minimum(x, relay.const(100, dtype))
    mod = module(x, relay.Tuple([relay.add(*same), relay.add(same[0], other)]))
    folded = Canonicalize()(mod)
    double, plain = folded["main"].body.fields
    assert double.op.name == "multiply" and plain.op.name == "add"
    array = np.arange(60, 72).reshape(3, 4).astype(dtype) * 2
    high, low = np.maximum(array, 100), np.minimum(array, 100)
    for found, expected in zip(run(folded, array), (high * 2, high + low)):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_there_are_no_places_in_nothing(shape):
    x = relay.var("x", shape=shape, dtype="bool")
    mod = module(x, relay.argwhere(x))
    assert ops(Canonicalize()(mod)) == []
    assert_same_numbers(Canonicalize(), mod, np.zeros(shape, "bool"))


def test_a_difference_of_equals_is_computed():
    """TVM takes it for 0, and fails to compile what is divided by it."""
    x = variable(4)
    mod = module(x, relay.Tuple([relay.exp(x) - relay.exp(x), relay.divide(x, x - x)]))
    array = np.array([1, -1, np.inf, np.nan], "float32")
    found = run(Canonicalize()(mod), array)
    np.testing.assert_array_equal(found[0], [0, 0, np.nan, np.nan])
    np.testing.assert_array_equal(found[1], [np.inf, -np.inf, np.nan, np.nan])
    whole = relay.var("x", shape=(3,), dtype="int32")
    assert ops(Canonicalize()(module(whole, whole - whole))) == ["subtract"]


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("spelling", ["constant", "full", "cast"])
def test_what_a_zero_takes_part_in_is_computed(zero, dtype, spelling):
    scalar = relay.const(zero, dtype)
    if spelling == "full":
        scalar = relay.full(scalar, (), dtype)
    elif spelling == "cast":
        scalar = relay.cast(relay.const(zero, "float32"), dtype)
    x, one = variable(6, dtype=dtype), relay.var("one", shape=(), dtype=dtype)
    results = [x * scalar, scalar * x, x / scalar, scalar / x, one / scalar]
    mod = module(x, one, relay.Tuple(results))
    after = apply(Canonicalize(), mod)[0]
    assert_no_second_change(Canonicalize(), after)
    array, single = np.array([1, -1, 0, np.inf, -np.inf, np.nan], dtype), np.array(-2, dtype)
    with np.errstate(all="ignore"):
        of = array.dtype.type(zero)
        expected = [array * of, of * array, array / of, of / array, single / of]
    for found, right in zip(run(after, array, single), expected):
        assert found.dtype == dtype and found.shape == right.shape
        np.testing.assert_array_equal(found, right)
        np.testing.assert_array_equal(
            np.signbit(found[~np.isnan(found)]), np.signbit(right[~np.isnan(right)])
        )


def test_an_integer_times_zero_is_zero():
    x = variable(3, dtype="int32")
    mod = module(x, relay.multiply(x, relay.const(0, "int32")))
    after, report = apply(Canonicalize(), mod)
    assert rewritten(report) == {"TimesZero"}
    (found,) = run(after, np.int32([1, -5, 2**31 - 1]))
    np.testing.assert_array_equal(found, np.zeros(3, "int32"))


def test_a_sum_of_truths_stays():
    x = relay.var("x", shape=(3,), dtype="bool")
    assert Canonicalize()(module(x, relay.add(x, x)))["main"].body.op.name == "add"


@pytest.mark.parametrize("rows, taken", [(4, "exp"), (5, "tanh")])
def test_a_dead_branch_goes(rows, taken):
    x = variable(rows, 2)
    has_four = relay.equal(relay.take(op.shape_of(x), relay.const(0), axis=0), relay.const(4))
    mod = module(x, relay.If(has_four, relay.exp(x), relay.tanh(x)))
    check(mod, "PruneBranch", [taken], numbers(rows, 2))


def test_a_branch_that_depends_on_the_data_stays():
    x = variable(ANY, 2)
    empty = relay.equal(relay.ndarray_size(x), relay.const(0))
    mod = module(x, relay.If(empty, relay.exp(x), relay.tanh(x)))
    assert apply(Canonicalize(), mod)[0].same_as(mod)


def filled(rows, columns, number=0.0):
    """Rows of a number, as many as a tensor of one element says."""
    shape = relay.concatenate([rows, constant(columns)], 0)
    full = op.transform.full(relay.const(number, "float32"), shape, "float32")
    return relay.reshape(full, [0, columns])


def test_rows_that_are_filled_up_are_a_pad():
    x, missing = variable(ANY, 3), variable(1, dtype="int64", name="missing")
    mod = module(x, missing, relay.concatenate([x, filled(missing, 3, 2.0)], 0))
    after, report = apply(Canonicalize(), mod)
    assert "PadWithFilled" in rewritten(report) and "dyn.nn.pad" in ops(after)
    assert after["main"].body.checked_type.shape[1] == 3
    assert_same_numbers(Canonicalize(), mod, numbers(4, 3), np.array([2]))
    assert_no_second_change(Canonicalize(), after)


def test_what_is_filled_too_is_not_padded():
    few, more = (variable(1, dtype="int64", name=name) for name in ("few", "more"))
    mod = module(few, more, relay.concatenate([filled(few, 3, 1.0), filled(more, 3, 2.0)], 0))
    assert "PadWithFilled" not in rewritten(apply(Canonicalize(), mod)[1])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_power_of_two_is_a_product(dtype):
    x = variable(3, 4, dtype=dtype)
    mod = module(x, relay.power(x, relay.const(2, dtype)))
    check(mod, "SquareForPower", ["multiply"], (4 * numbers(3, 4)).astype(dtype))


@pytest.mark.parametrize("exponent", [3.0, 0.5, [2.0, 2.0, 2.0, 1.0], [[2.0]] * 3])
def test_other_powers_stay(exponent):
    x = variable(1, 4)
    mod = module(x, relay.power(x, relay.const(np.array(exponent, "float32"))))
    assert ops(apply(Canonicalize(), mod)[0]) == ["power"]


@pytest.mark.parametrize(
    "like, forms",
    [
        (lambda x, y: relay.broadcast_to_like(x, y), ["broadcast_to", "add"]),
        (lambda x, y: relay.reshape_like(y, relay.reshape(y, (6, 4))), ["reshape", "add"]),
        (lambda x, y: relay.reshape_like(y, relay.reshape(y, (6, 4)), 0, 2, 0, 1), ["reshape", "add"]),
        (lambda x, y: relay.slice_like(y, x), ["strided_slice", "add"]),
        (lambda x, y: relay.slice_like(y, x, axes=[-1]), ["strided_slice", "add"]),
        (lambda x, y: relay.slice_like(y, y), ["add"]),
        (lambda x, y: relay.collapse_sum_like(y, x), ["sum", "add"]),
        (lambda x, y: relay.collapse_sum_like(y, relay.nn.relu(relay.sum(x))), ["sum", "reshape", "add"]),
    ],
)
def test_what_is_like_a_known_shape_has_it_as_an_attribute(like, forms):
    x, y = variable(1, 3, 1), variable(2, 3, 4, name="y")
    expected = like(x, y)
    mod = module(x, y, expected + relay.const(1.0))
    check(mod, "LikeKnownShape", forms, numbers(1, 3, 1), numbers(2, 3, 4))


def test_what_is_like_an_unknown_shape_stays():
    x, y = variable(3, 1), variable(ANY, 4, name="y")
    assert ops(apply(Canonicalize(), module(x, y, relay.broadcast_to_like(x, y)))[0]) == ["broadcast_to_like"]


def test_operators_whose_results_have_no_elements_compute_nothing():
    x, weight = variable(0, 4, 8, 8), relay.const(np.ones((4, 2, 3, 3), "float32"))
    convolved = relay.nn.conv2d(x, weight, kernel_size=(3, 3), padding=(1, 1), groups=2)
    after, report = apply(Canonicalize(), module(x, relay.Tuple([convolved, relay.sum(convolved)])))
    assert "NothingIsMade" in rewritten(report) and set(ops(after)) == {"zeros", "sum"}
    empty, total = run(after, numbers(0, 4, 8, 8))
    assert empty.shape == (0, 4, 8, 8) and total == 0
    assert_no_second_change(Canonicalize(), after)


def test_means_of_nothing_are_not_a_number():
    x = variable(0, 3)
    means = [relay.mean(x), relay.mean(x, 0), relay.variance(x, 0, keepdims=True)]
    after, report = apply(Canonicalize(), module(x, relay.Tuple(means)))
    assert "MeanOfNothing" in rewritten(report) and set(ops(after)) == {"full"}
    found = run(after, numbers(0, 3))
    assert [each.shape for each in found] == [(), (3,), (1, 3)] and all(map(np.all, map(np.isnan, found)))
