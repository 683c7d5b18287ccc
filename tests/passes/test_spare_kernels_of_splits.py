"""SpareKernels where tensors are split: structure, numbers, what stays, and nothing more the second time."""

import pytest

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops
from tvm_passes import SpareKernels

from tvm import relay

SHAPE = 2, 3, 8


def variables(*names):
    return [relay.var(name, shape=SHAPE) for name in names]


def check(mod, expected, *arrays):
    after = assert_same_numbers(SpareKernels(), mod, *arrays)
    assert ops(after) == expected
    assert_no_second_change(SpareKernels(), after)


@pytest.mark.parametrize("axis", [2, -1])
@pytest.mark.parametrize("sections", [2, 4, (3,), (1, 6)])
def test_all_parts_in_order_are_the_whole(axis, sections):
    x, y = variables("x", "y")
    parts = relay.split(x, sections, axis)
    mod = module(x, y, relay.concatenate([y, *parts, relay.exp(y)], -1))
    check(mod, ["exp", "concatenate"], numbers(*SHAPE), numbers(*SHAPE, seed=1))


def test_nothing_but_the_parts():
    (x,) = variables("x")
    check(module(x, relay.exp(relay.concatenate(list(relay.split(x, 4, 2)), 2))), ["exp"], numbers(*SHAPE))


def test_two_splits_side_by_side():
    x, y = variables("x", "y")
    parts = [*relay.split(x, 2, 2), *relay.split(y, 2, 2)]
    check(
        module(x, y, relay.concatenate(parts, 2)), ["concatenate"], numbers(*SHAPE), numbers(*SHAPE, seed=1)
    )


@pytest.mark.parametrize("index", range(3))
def test_one_part_is_a_slice(index):
    (x,) = variables("x")
    part = relay.split(x, (1, 6), 2)[index]
    check(module(x, relay.exp(part) + part), ["strided_slice", "exp", "add"], numbers(*SHAPE))


def test_a_part_that_is_used_apart_from_the_whole():
    (x,) = variables("x")
    first, second = relay.split(x, 2, 2)
    mod = module(x, relay.concatenate([first, second, relay.exp(second)], 2))
    check(mod, ["strided_slice", "exp", "concatenate"], numbers(*SHAPE))


def out_of_order(x, _):
    return relay.concatenate(list(relay.split(x, 2, 2))[::-1], 2)


def along_another_axis(x, _):
    return relay.concatenate(list(relay.split(x, 2, 2)), 1)


def of_two_tensors(x, y):
    return relay.concatenate([relay.split(x, 2, 2)[0], relay.split(x, 2, 2)[1], relay.split(y, 4, 2)[3]], 2)


def some_of_them(x, _):
    return relay.concatenate(list(relay.split(x, 4, 2))[:3], 2)


@pytest.mark.parametrize("make", [out_of_order, along_another_axis, some_of_them])
def test_what_stays(make):
    x, y = variables("x", "y")
    mod = module(x, make(x, y))
    after, _ = apply(SpareKernels(), mod)
    assert after.same_as(mod)


def test_parts_of_different_splits_are_slices():
    x, y = variables("x", "y")
    mod = module(x, y, of_two_tensors(x, y))
    check(mod, ["strided_slice"] * 3 + ["concatenate"], numbers(*SHAPE), numbers(*SHAPE, seed=1))


def test_a_length_that_may_be_any():
    x = relay.var("x", shape=(relay.Any(), 8))
    parts = relay.split(x, 2, 1)
    after, _ = apply(SpareKernels(), module(x, relay.exp(parts[1])))
    assert "split" in ops(after)
