"""Canonicalize: what changes nothing goes, also where it only does so together with what is around it."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, assert_same_numbers, module, numbers, ops
from tests.passes.canonical import ANY, check, constant, rewritten, variable
from tvm_passes.cleanup.canonicalize import Canonicalize

from tvm import relay
from tvm.relay import op


@pytest.mark.parametrize(
    "rule, idle",
    [
        ("TransposeToSameOrder", lambda x: relay.transpose(x, (0, 1))),
        ("TransposeToSameOrder", lambda x: relay.transpose(x, (0, -1))),
        ("ReshapeToSameShape", lambda x: relay.reshape(x, (4, -1))),
        ("CastToSameType", lambda x: relay.cast(x, "float32")),
        ("CastToSameType", lambda x: relay.cast_like(x, relay.const(1.0))),
        ("CastUndone", lambda x: relay.cast(relay.cast(x, "float64"), "float32")),
        ("SliceOfEverything", lambda x: relay.strided_slice(x, (0, 0), (4, 99))),
        ("SliceOfEverything", lambda x: relay.strided_slice(x, (0,), (99,), axes=(1,))),
        ("ConcatenateOfOne", lambda x: relay.concatenate([x], 0)),
        ("SplitIntoOne", lambda x: relay.split(x, 1, 0)[0]),
        ("FieldOfTuple", lambda x: relay.TupleGetItem(relay.Tuple([relay.exp(x), x]), 1)),
    ],
)
def test_what_changes_nothing_goes(rule, idle):
    x = variable(4, 6)
    check(module(x, relay.nn.relu(idle(x))), rule, ["nn.relu"], numbers(4, 6))


def concatenated(*lengths, axis=0):
    """Variables of these lengths along an axis, and their concatenation."""
    parts = [variable(*[3] * axis, length, 2, name=f"part{i}") for i, length in enumerate(lengths)]
    return parts, relay.concatenate(parts, axis)


@pytest.mark.parametrize("axis, of_split", [(0, 0), (1, 1), (1, -2)])
def test_a_split_at_the_seams_of_a_concatenate_takes_its_parts(axis, of_split):
    parts, whole = concatenated(4, 0, 6, 5, axis=axis)
    pieces = relay.split(whole, (4, 10), of_split)
    mod = module(*parts, relay.Tuple([relay.nn.relu(pieces[1]), relay.exp(pieces[2])]))
    data = [i + numbers(*map(int, part.type_annotation.shape)) for i, part in enumerate(parts)]
    after = check(mod, "SplitOfConcatenate", ["nn.relu", "exp"], *data)
    assert [call.args[0].name_hint for call in after["main"].body.fields] == ["part2", "part3"]


@pytest.mark.parametrize("cuts, index", [((3, 10), 0), ((3, 10), 1), ((4, 9), 1), ((10,), 0), ((2, 4), 1)])
def test_a_split_elsewhere_takes_what_it_took(cuts, index):
    parts, whole = concatenated(4, 6, 5)
    pieces = relay.split(whole, cuts, 0)
    mod = module(*parts, pieces[index])
    assert apply(Canonicalize(), mod)[0].same_as(mod)


def levels(x, heads, lengths, swap=True):
    """The values of attention, split by level, each moved to (heads, channels, pixels), and joined again."""
    channels = int(x.type_annotation.shape[2]) // heads
    pieces = relay.split(x, np.cumsum(lengths)[:-1].tolist(), axis=1)
    moved = []
    for piece, length in zip(pieces, lengths):
        if swap:
            piece = relay.transpose(relay.squeeze(piece, [0]), [1, 0])
        piece = relay.reshape(piece, (heads, channels, length, 1))
        moved.append(relay.reshape(piece, (heads, channels, length)))
    return moved


@pytest.mark.parametrize("lengths", [(4, 6), (9, 4, 1)])
def test_parts_that_are_moved_alike_are_moved_as_a_whole(lengths):
    x = variable(1, sum(lengths), 6)
    mod = module(x, relay.concatenate(levels(x, 2, lengths), 2))
    check(mod, "WholeOfMovedParts", ["reshape", "transpose"], numbers(1, sum(lengths), 6))


def test_parts_in_another_order_or_of_which_some_are_left_out_stay():
    x = variable(1, 10, 6)
    first, second, third = levels(x, 2, (2, 5, 3))
    for parts in ([second, first, third], [first, second], [first, first, second, third]):
        mod = module(x, relay.concatenate(parts, 2))
        assert "WholeOfMovedParts" not in rewritten(apply(Canonicalize(), mod)[1])


def test_parts_that_are_no_transpose_of_the_whole_stay():
    """Rows of 5 and 3 pixels are cut at other places than those of all 8."""
    x = variable(1, 8, 6)
    mod = module(x, relay.concatenate(levels(x, 2, (5, 3), swap=False), 2))
    assert "WholeOfMovedParts" not in rewritten(apply(Canonicalize(), mod)[1])


def test_a_split_along_another_axis_stays():
    parts, whole = concatenated(1, 1)
    mod = module(*parts, relay.split(whole, 2, 1)[0])
    assert apply(Canonicalize(), mod)[0].same_as(mod)


@pytest.mark.parametrize(
    "dtype, between, is_undone",
    [
        *(("float16", "float32", True), ("int32", "float64", True), ("uint8", "int16", True)),
        *(("bool", "int8", True), ("int64", "float64", False), ("float32", "float16", False)),
        *(("int32", "float32", False), ("int8", "uint16", False), ("bfloat16", "float32", False)),
    ],
)
def test_a_cast_that_is_undone_goes_where_no_number_is_lost(dtype, between, is_undone):
    x = relay.var("x", shape=(3,), dtype=dtype)
    mod = module(x, relay.tile(relay.cast(relay.cast(x, between), dtype), [2]))
    assert ops(Canonicalize()(mod)) == (["tile"] if is_undone else ["cast", "cast", "tile"])


@pytest.mark.parametrize("axes, axis, count", [([1], 1, 1), ([-2], -2, 1), ([2, 1], 1, 2), ([1, 2], -2, 2)])
def test_a_squeeze_that_is_undone_goes(axes, axis, count):
    x = variable(ANY, 1, *[1] * (count - 1), 4)
    mod = module(x, relay.nn.relu(relay.expand_dims(relay.squeeze(x, axes), axis, count)))
    check(mod, "SqueezeUndone", ["nn.relu"], numbers(3, 1, *[1] * (count - 1), 4))


def test_a_squeeze_of_other_axes_than_come_back_stays():
    x = variable(4, 1, 1)
    mod = module(x, relay.nn.relu(relay.expand_dims(relay.squeeze(x, [1, 2]), 0, 2)))
    assert apply(Canonicalize(), mod)[0].same_as(mod)


@pytest.mark.parametrize(
    "busy",
    [
        lambda x: relay.transpose(x, (1, 0)),
        lambda x: relay.transpose(x),
        lambda x: relay.reshape(x, (2, 3)),
        lambda x: relay.cast(x, "float16"),
        lambda x: relay.strided_slice(x, (0, 0), (3, 1)),
        lambda x: relay.strided_slice(x, (0, 0), (3, 2), (1, 2)),
        lambda x: relay.strided_slice(x, (2, 0), (-4, 2), (-1, 1)),
        lambda x: relay.strided_slice(x, (0, 0), (3, -1)),
        lambda x: relay.strided_slice(x, (0, 0), (3, 1), slice_mode="size"),
        lambda x: relay.concatenate([x, x], 0),
        lambda x: relay.split(x, 2, 1)[0],
    ],
)
def test_what_changes_something_stays(busy):
    x = variable(3, 2)
    mod = module(x, busy(x))
    assert apply(Canonicalize(), mod)[0].same_as(mod)


def places(x):
    """Where a vector is above 0: int64."""
    return relay.cast(relay.squeeze(relay.argwhere(relay.greater(x, relay.const(0.0))), [1]), "int64")


def from_the_end(index):
    """What importers make of an index that may be negative."""
    dtype = relay.transform.InferTypeLocal(index).dtype
    return relay.where(index < relay.const(0, dtype), index + relay.const(6, dtype), index)


def number_of(rows):
    return relay.take(op.shape_of(rows, "int64"), relay.const(0, "int64"), axis=0)


def counted(start, stop, step):
    bounds = (
        relay.const(bound, "int64") if isinstance(bound, int) else bound for bound in (start, stop, step)
    )
    return relay.arange(*bounds, dtype="int64")


def nms_of(x):
    """Of unit squares at (x, 0), all of one class."""
    left = relay.expand_dims(x, 1)
    zeros = relay.zeros_like(left)
    boxes = relay.concatenate([left, zeros, left + relay.const(1.0), zeros + relay.const(1.0)], 1)
    ids = relay.cast(relay.zeros_like(x), "int32")
    nms = topi_ext.batched_nms(boxes, x, ids, 0.5, score_threshold=0.0)
    return relay.TupleGetItem(nms, 0), relay.TupleGetItem(nms, 1)


def first_of(indices, count):
    return relay.strided_slice(indices, relay.const([0]), relay.expand_dims(count, 0), slice_mode="size")


def kept_places(x):
    return first_of(*nms_of(x))


NEVER_NEGATIVE = {
    "argwhere": places,
    "top-k": lambda x: relay.topk(x, 3)[1],
    "sum": lambda x: places(x) + relay.const(90, "int64"),
    "product": lambda x: counted(0, number_of(places(x)), 1) * constant(91),
    "row and column": lambda x: relay.take(constant(0, 3, 9, 4, 1, 7), places(x)) + places(x) * constant(91),
    "greater": lambda x: relay.maximum(relay.cast(x, "int64"), places(x) * constant(0) + constant(0)),
    "as many as an NMS keeps": kept_places,
    "broadcast": lambda x: relay.broadcast_to(relay.topk(x, 3)[1], (2, 3)),
}
PERHAPS_NEGATIVE = {
    "data": lambda x: relay.cast(x, "int32"),
    "constant": lambda x: relay.take(constant(0, -1, 9, 4, 1, 7), places(x)),
    "difference": lambda x: relay.topk(x, 3)[1] - constant(1, dtype="int32"),
    "product that wraps around": lambda x: relay.topk(x, 3)[1] * constant(2, dtype="int32"),
    "sum that wraps around": lambda x: places(x) + constant(2**63 - 1),
    "backwards": lambda x: counted(number_of(places(x)), -3, -1),
    "less": lambda x: relay.minimum(relay.cast(x, "int64"), constant(1)),
    "all that an NMS returns": lambda x: nms_of(x)[0],
    "more than an NMS keeps": lambda x: first_of(nms_of(x)[0], nms_of(x)[1] + relay.const(1)),
    "as many as another NMS keeps": lambda x: first_of(nms_of(x)[0], nms_of(relay.negative(x))[1]),
}


def test_zeros_that_change_no_integer():
    x = variable(6, dtype="int64")
    number = relay.shape_of(places(relay.cast(x, "float32")), "int64")
    mod = module(x, number * constant(0) + x)
    after, report = apply(Canonicalize(), mod)
    assert {"TimesZero", "PlusZero"} <= set(rewritten(report)) and not ops(after)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + constant(0.0, dtype="float32"),  # -0.0 becomes 0.0
        lambda x: x * constant(0.0, dtype="float32"),  # NaN stays
        lambda x: (
            relay.cast(x, "int64") + relay.const(np.zeros((2, 1), "int64"), "int64")
        ),  # of another shape
        lambda x: relay.cast(x, "int64") * constant(0, 1, 0, 0, 0, 0),
    ],
)
def test_zeros_that_change_something(function):
    x = variable(6)
    mod = module(x, function(x))
    _, report = apply(Canonicalize(), mod)
    assert not {"TimesZero", "PlusZero"} & set(rewritten(report))


@pytest.mark.parametrize("index", NEVER_NEGATIVE)
def test_a_choice_for_negative_indices_goes_where_none_is_negative(index):
    x = variable(6)
    mod = module(x, from_the_end(NEVER_NEGATIVE[index](x)))
    after, report = apply(Canonicalize(), mod)
    assert "WhereNever" in rewritten(report) and "where" not in ops(after)
    assert_same_numbers(Canonicalize(), mod, numbers(6))


@pytest.mark.parametrize("index", PERHAPS_NEGATIVE)
def test_a_choice_for_negative_indices_stays_where_one_may_be(index):
    x = variable(6)
    after, _ = apply(Canonicalize(), module(x, from_the_end(PERHAPS_NEGATIVE[index](x))))
    assert "where" in ops(after)
