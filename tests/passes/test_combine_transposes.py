"""CombineTransposes: structure, numbers, and nothing more the second time."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops
from tvm_passes import CombineTransposes

from tvm import relay

N = relay.Any()
SHAPE = (2, 3, 4, 5)
PRIMES = {1: [], 2: [2], 3: [3], 4: [2, 2], 6: [2, 3]}


def to_nhwc(x):
    return relay.layout_transform(x, "NCHW", "NHWC")


def to_nchw(x):
    return relay.layout_transform(x, "NHWC", "NCHW")


@pytest.mark.parametrize(
    "spell, left",
    [
        (lambda x: to_nchw(to_nhwc(x)), []),
        (lambda x: relay.transpose(to_nhwc(x), [0, 3, 1, 2]), []),
        (lambda x: to_nhwc(relay.transpose(x, [1, 0, 2, 3])), ["transpose"]),
        (lambda x: relay.transpose(relay.transpose(relay.transpose(x), [3, 2, 0, 1])), ["transpose"]),
        (lambda x: relay.transpose(to_nchw(to_nhwc(x)), [0, -1, 1, 2]), ["transpose"]),
    ],
)
def test_in_a_row(spell, left):
    x = relay.var("x", shape=SHAPE)
    after = assert_same_numbers(CombineTransposes(), module(x, relay.nn.relu(spell(x))), numbers(*SHAPE))
    assert ops(after) == [*left, "nn.relu"]
    assert_no_second_change(CombineTransposes(), after)


@pytest.mark.parametrize("shape, left", [((2, 1, 4, 5), "reshape"), ((2, 3, 1, 1), "reshape"), (SHAPE, None)])
def test_axes_of_extent_one(shape, left):
    x = relay.var("x", shape=shape)
    after = assert_same_numbers(CombineTransposes(), module(x, to_nhwc(x)), numbers(*shape))
    assert ops(after) == [left or "layout_transform"]


@pytest.mark.parametrize("shape, left", [((N, 3, 1, 1), "reshape"), ((1, N, 1, N), "layout_transform")])
def test_axes_of_extent_one_beside_unknown_ones(shape, left):
    x = relay.var("x", shape=shape)
    array = numbers(*(each if isinstance(each, int) else 4 for each in shape))
    after = assert_same_numbers(CombineTransposes(), module(x, to_nhwc(x)), array)
    assert ops(after) == [left]
    assert_no_second_change(CombineTransposes(), after)


def test_an_empty_tensor():
    x = relay.var("x", shape=(1, 0, 5))
    mod = module(x, relay.transpose(x, [1, 0, 2]))
    after, _ = apply(CombineTransposes(), mod)
    assert after.same_as(mod)


def test_a_shared_inner_one_stays_for_its_user():
    x = relay.var("x", shape=SHAPE)
    y = to_nhwc(x)
    mod = module(x, relay.Tuple([relay.nn.relu(y), relay.nn.relu(to_nchw(y))]))
    after = assert_same_numbers(CombineTransposes(), mod, numbers(*SHAPE))
    assert sorted(ops(after)) == ["layout_transform", "nn.relu", "nn.relu"]


def test_a_shared_inner_one_is_not_made_again_by_one_that_moves_nothing():
    x = relay.var("x", shape=(1, 8, 4, 5))
    inner = relay.transpose(x, [0, 2, 3, 1])
    moved = relay.transpose(relay.reshape(inner, (20, 8, 1)), [2, 0, 1])
    mod = module(x, relay.Tuple([relay.nn.relu(inner), relay.exp(moved)]))
    after = assert_same_numbers(CombineTransposes(), mod, numbers(1, 8, 4, 5))
    assert ops(after).count("transpose") == 1


def test_split_axes_are_no_match():
    x = relay.var("x", shape=(1, 8, 4, 5))
    blocked = relay.layout_transform(x, "NCHW", "NCHW4c")
    mod = module(x, relay.layout_transform(blocked, "NCHW4c", "NCHW"))
    after, report = apply(CombineTransposes(), mod)
    assert after.same_as(mod) and report.passes[0].matches == []


def heads(x, parts, axes):
    """Behind a convolution in NHWC: back to NCHW, the axes split or merged, and moved."""
    return relay.transpose(relay.reshape(to_nchw(x), parts), axes)


@pytest.mark.parametrize(
    "shape, parts, axes, transposes",
    [
        ((2, 4, 5, 12), (2, 3, 4, 4, 5), [0, 3, 4, 1, 2], 0),  # as in RetinaNet
        ((1, 4, 5, 12), (1, 3, 4, 4, 5), [0, 3, 4, 1, 2], 0),
        ((2, 4, 5, 12), (2, 4, 3, 4, 5), [0, 3, 4, 2, 1], 1),
        ((2, 4, 6, 12), (2, 12, 2, 2, 6), [0, 2, 3, 4, 1], 0),  # the rows are split
        ((2, 4, 5, 1), (2, 1, 1, 4, 5), [0, 3, 4, 1, 2], 0),
        ((2, 4, 5, 3), (2, 3, 4, 5, 1, 1), [0, 2, 5, 3, 4, 1], 0),
        ((1, 1, 1, 1), (1, 1, 1), [2, 1, 0], 0),
        ((2, 4, 5, 12), (2, 12, 20), [0, 2, 1], 0),  # height and width become one axis, as in YOLO
        ((2, 4, 5, 12), (24, 20), [1, 0], 1),  # images and channels do
        ((2, 4, 5, 12), (2, 3, 4, 20), [0, 3, 2, 1], 1),  # and the channels are split
    ],
)
def test_across_a_reshape(shape, parts, axes, transposes):
    x = relay.var("x", shape=shape)
    mod = module(x, relay.nn.relu(heads(x, parts, axes)))
    after = assert_same_numbers(CombineTransposes(), mod, numbers(*shape))
    assert ops(after).count("transpose") == transposes and "layout_transform" not in ops(after)
    assert_no_second_change(CombineTransposes(), after)


@pytest.mark.parametrize("index, mode", [(0, "clip"), (-1, "wrap"), (7, "clip")])
def test_across_the_only_image_and_a_squeeze(index, mode):
    x = relay.var("x", shape=(1, 4, 5, 12))
    image = relay.take(to_nchw(x), relay.const(index), axis=0, mode=mode)
    columns = relay.squeeze(relay.reshape(image, (12, 20, 1)), [2])
    mod = module(x, relay.nn.relu(relay.transpose(columns)))
    after = assert_same_numbers(CombineTransposes(), mod, numbers(1, 4, 5, 12))
    assert ops(after) == ["reshape", "nn.relu"]
    assert_no_second_change(CombineTransposes(), after)


@pytest.mark.parametrize(
    "between",
    [
        lambda x: relay.reshape(x, (2, 8, 6, 6)),  # parts of channels and height become one axis, not factors
        lambda x: relay.take(x, relay.const(0), axis=0),  # one image of several
        lambda x: relay.take(x, relay.const([0, 1]), axis=0),
        relay.nn.relu,
    ],
)
def test_what_moves_or_changes_elements_is_no_match(between):
    x = relay.var("x", shape=(2, 4, 6, 12))
    mod = module(x, relay.nn.relu(relay.transpose(between(to_nchw(x)))))
    after, report = apply(CombineTransposes(), mod)
    assert after.same_as(mod) and report.passes[0].matches == []


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_reshape_between_any_transposes(data):
    """Whatever it makes of them, the numbers stay, and no transpose is added."""
    extents = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    axes = data.draw(st.permutations(range(len(extents))))
    factors = [prime for extent in extents for prime in PRIMES[extent]]
    parts = data.draw(st.permutations(factors))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=3)))
    shape = [math.prod(parts[a:b]) for a, b in zip([0, *cuts], [*cuts, len(parts)])]
    order = data.draw(st.permutations(range(len(shape))))
    x = relay.var("x", shape=extents)
    y = relay.transpose(relay.reshape(relay.transpose(x, axes), shape), order)
    mod = module(x, relay.nn.relu(y))
    after = assert_same_numbers(CombineTransposes(), mod, numbers(*extents))
    assert ops(after).count("transpose") <= 2
    assert_no_second_change(CombineTransposes(), after)


def queries_keys_values(before, indices=(0, 1, 2), between=None):
    """What is taken of the results of a matrix product, in the order of heads."""
    x = relay.var("x", shape=(10, 8))
    rows = before(relay.nn.dense(x, relay.const(numbers(24, 8, seed=1))))
    moved = relay.transpose(relay.reshape(rows, (2, 5, 3, 2, 4)), (2, 0, 3, 1, 4))
    moved = between(moved) if between else moved
    parts = [relay.exp(relay.take(moved, relay.const(index), axis=0)) for index in indices]
    return module(x, relay.Tuple(parts))


@pytest.mark.parametrize("between", [None, lambda moved: relay.reshape(moved, (3, 4, 5, 4))])
@pytest.mark.parametrize("before", [lambda rows: rows, lambda rows: relay.add(rows, relay.const(1.0))])
def test_parts_are_taken_first(before, between):
    mod = queries_keys_values(before, between=between)
    after = assert_same_numbers(CombineTransposes(), mod, numbers(10, 8))
    names = [name for name in ops(after) if name in ("take", "transpose")]
    assert names == ["take", "transpose"] * 3
    assert_no_second_change(CombineTransposes(), after)


@pytest.mark.parametrize(
    "given",
    [
        {"before": lambda rows: rows, "indices": (1,)},  # nothing else is copied
        {"before": lambda rows: relay.reverse(rows, 0)},  # which is copied anyway
        {"before": lambda rows: rows, "between": lambda moved: relay.reshape(moved, (6, 2, 5, 4))},
    ],
)
def test_parts_that_are_taken_last(given):
    after, _ = apply(CombineTransposes(), queries_keys_values(**given))
    assert ops(after).count("transpose") == 1


def test_a_transpose_that_is_read_as_a_whole_stays():
    x = relay.var("x", shape=(10, 8))
    rows = relay.nn.dense(x, relay.const(numbers(24, 8, seed=1)))
    moved = relay.transpose(relay.reshape(rows, (2, 5, 3, 8)), (2, 0, 1, 3))
    parts = [relay.take(moved, relay.const(index), axis=0) for index in (0, 1)]
    after, _ = apply(CombineTransposes(), module(x, relay.Tuple([*parts, relay.exp(moved)])))
    assert ops(after).count("transpose") == 1


def test_parts_without_elements_stay():
    """In the shape that a reshape gives, 0 means an extent that is kept."""
    x = relay.var("x", shape=(2, 3, 0, 4))
    moved = relay.transpose(relay.exp(x), (1, 0, 2, 3))
    moved = relay.reshape(moved, (3, 0, 2, 4), allowzero=True)
    mod = module(x, relay.Tuple([relay.take(moved, relay.const(index), axis=0) for index in (0, 1)]))
    after, _ = apply(CombineTransposes(), mod)
    assert ops(after) == ops(mod)
