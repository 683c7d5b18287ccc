"""Operators of torch that read, write or search at places, beside what torch computes."""

import pytest
import torch
import torch.nn.functional as F

from tests.relax.compared_with_torch import assert_as_in_torch, put, random, results_of

X, MATRIX = random(2, 4, 7, 9), random(3, 5)
INTEGERS = torch.tensor([[3, -4, 7], [5, 1, -2]])
PLACES = torch.tensor([[0, 1], [4, 2], [3, 3]])
PLACES_OF_MANY = torch.tensor([[0, 1, 1, 0], [4, 2, 2, 3], [3, 3, 3, 0], [0, 0, 2, 2]])
WITH_NAN = torch.cat([MATRIX, MATRIX.new_tensor([[float("nan"), float("-inf"), 2, float("inf"), 1]])])
INFINITE = torch.tensor(
    [[float("nan"), 1, -1, 0, float("inf"), float("-inf")], [2, float("nan"), 3, -2, 0, 5]]
)
ALL = slice(None)


def change_rows(x):
    changed = x.clone()
    changed[:, -1] = 5
    changed[0] += 1
    return changed, x


CASES = {
    "select_last": (lambda x: x[:, -1], [X]),
    "index_from_the_end": (lambda x, at: x[:, at], [MATRIX, torch.tensor([-1, 0])]),
    "index_two_axes": (lambda x: x[:, [0, 1], [0, -1]], [X]),
    "index_crossed": (lambda x: x[:, :, torch.tensor([[0, -1]]), torch.tensor([[1], [2]])], [X]),
    "index_apart": (lambda x: x[[0, 1], :, [-1, 1]], [X]),
    "index_in_front": (lambda x: x[[0, 1], [-1, 1]], [X]),
    "gather": (lambda x, at: x.gather(1, at), [MATRIX, PLACES]),
    "index_of_no_axes": (
        lambda x, at, others: (
            *(x[at], x[:, at], x[..., at, :, at], x[at, 1:, None], x[None, others, at], x[at, :, others]),
            *(x[at][at], x[x[0, 0, 0].argmax() * 0], x.take(at)),
            *(x.index_select(-1, at.abs()), x[0, 0, 0].gather(0, at.abs()), F.embedding(at.abs(), x[0, 0])),
            x[0, 0, 0, 0].gather(0, at.abs() - 1),
        ),
        [X, torch.tensor(-1), torch.tensor([0, 1])],
    ),
    "take": (lambda x, at: x.take(at), [MATRIX, torch.tensor([0, 7, -1])]),
    "scatter": (
        lambda x, at: x.scatter(1, at, x[:, :2] * 2),
        [MATRIX, torch.tensor([[0, 1], [4, 2], [3, 0]])],
    ),
    "embedding": (lambda x, at: F.embedding(at, x), [MATRIX, torch.tensor([[2, 0], [1, 2]])]),
    "slice": (lambda x: x[:, -3:-1, 1:6:2], [X]),
    "change_rows": (change_rows, [MATRIX]),
    "slice_of_nothing": (lambda x: (x[:, 5:2], x[:, 100:], x[..., -100:3]), [X]),
    "scatter_fewer": (
        lambda x, at: (x.scatter(2, at, 9), x.scatter(2, at, x), x.scatter_add(2, at, x)),
        [X, torch.tensor([0, 3, 6]).reshape(1, 3, 1, 1).expand(2, 3, 1, 5)],
    ),
    "scatter_sums": (
        lambda x, at: (
            x.scatter(1, at, x, reduce="add"),
            x.scatter_add(1, at, x),
            x.scatter_reduce(1, at, x, "sum", include_self=False),
        ),
        [MATRIX, PLACES],
    ),
    "scatter_integers": (
        lambda x, at: (
            x.scatter(1, at, 5),
            x.scatter_add(1, at, x),
            x.bool().scatter(1, at, True),
            (x > 3).scatter_add(1, at, x > 0),
        ),
        [INTEGERS, torch.tensor([[0, 1], [2, 2]])],
    ),
    "scatter_reduced": (
        lambda x, at: [
            each.scatter_reduce(1, at[: len(each)], each.flip(1), how, include_self=is_included)
            for each in (x, x[:3].int(), x.half(), x > 0)
            for how in ("prod", "mean", "amax", "amin")
            for is_included in (True, False)
            if not (how == "mean" and each.dtype == torch.bool)
        ],
        [WITH_NAN, PLACES_OF_MANY],
    ),
    "scatter_reduced_along_others": (
        lambda x, at: (
            x.scatter(0, at, x, reduce="multiply"),
            x.scatter_reduce(0, at, x * 2, "amax"),
            x[0, 0].scatter_reduce(0, at[0, 0], x[0, 1], "amin", include_self=False),
        ),
        [MATRIX, torch.tensor([[0, 1, 2], [2, 2, 0]])],
    ),
    "index_of_rows": (
        lambda x, at: (
            x.index_add(0, at, x[:2], alpha=2),
            x.index_copy(0, at, x[:2]),
            x.index_fill(1, at, 3),
        ),
        [MATRIX, torch.tensor([2, 0])],
    ),
    "put": (
        lambda x, at: (
            put(x, (at,), x[:2] + 1),
            put(x, (ALL, at), x[:, :1]),
            put(x, (at, at), x[0, :2]),
            x.index_put((torch.stack([at, at]), at), x[0, 0], accumulate=True),
        ),
        [MATRIX, torch.tensor([-1, 0])],
    ),
    "put_apart": (
        lambda x, at: (
            put(x, (at, ALL, at), x[:1, :, 0]),
            put(x, (at, ALL, at[:, None]), x[0, :, 0]),
            put(x, (ALL, at, at[:, None]), x[:, :2, :1]),
        ),
        [X, torch.tensor([0, 1])],
    ),
    "put_masked": (
        lambda x: (
            put(x, (x > 0,), 5),
            x.index_put((x > 0,), x[0, 0, 0, :1], accumulate=True),
            put(x, (x[:, :, 0, 0] > 0,), x[0, 0]),
            put(x, (ALL, x[0, :, 0, 0] > 0), 5),
        ),
        [X],
    ),
    "written_at_places": (
        lambda x, at: (
            *(x.put(at, x[0, :2]), x.put(at[0], x[0, 0], accumulate=True)),
            *(
                x.diagonal_scatter(x[0, :3], 1),
                x.diagonal_scatter(x[0, :2], -1),
                torch.permute_copy(x, (1, 0)),
            ),
            x.expand(2, 3, 5).diagonal_scatter(x[:, :2] + 1, 0, 2, 0),
        ),
        [MATRIX, torch.tensor([7, -1])],
    ),
    "put_nothing": (
        lambda x, at, scalar: (
            *(x.put(at, x[:0, 0]), scalar.put(at, x[:0, 0]), x.index_put((at,), x[:0])),
            *(x.index_add(0, at, x[:0]), x.index_fill(1, at, 3), x.index_copy(0, at, x[:0])),
        ),
        [MATRIX, torch.zeros(0, dtype=torch.int64), torch.tensor(3.0)],
    ),
    "put_of_masks": (
        lambda mask, at: (
            *(mask.index_add(0, at, ~mask[:2]), mask.put(at, ~mask[0, :2], accumulate=True)),
            mask.index_put((at, at), ~mask[0, :2], accumulate=True),
        ),
        [MATRIX > 0, torch.tensor([2, 0])],
    ),
    "scattered_by_masks": (
        lambda x: (
            *(x.masked_scatter(x > 0, x.flip(0)), x.masked_scatter(x[0] > 0, x.flip(1))),
            *(x[:1].masked_scatter(x > 0, x), x.int().masked_scatter(x < 0, x.int())),
        ),
        [MATRIX],
    ),
    "filled_of_strides": (
        lambda x, at: (x.t().index_fill(-1, at, 3), x.index_fill(0, at, 3)),
        [MATRIX, torch.tensor([1])],
    ),
    "gathered_of_a_scalar": (lambda x, at: x.sum().gather(0, at), [MATRIX, torch.tensor([0])]),
    "cumulated_extremes": (
        lambda x: (
            *(*x.cummax(1), *x.cummin(0), *x[0, 0].cummax(0), *(x > 1).cummin(1)),
            *(*x.nan_to_num().int().cummax(-1),),
        ),
        [INFINITE],
    ),
    "sorted_places": (
        lambda bounds, x: [
            each
            for right in (False, True)
            for each in (
                torch.bucketize(x, bounds, right=right),
                torch.searchsorted(bounds, x[0, 0], right=right),
                torch.searchsorted(bounds.repeat(2, 1), x, right=right, out_int32=True),
                torch.searchsorted(bounds.int(), 1.5, right=right),
                torch.searchsorted(bounds[:0], x, right=right),
            )
        ],
        [torch.tensor([-1.0, 0, 0, 1, 2]), INFINITE],
    ),
}


@pytest.fixture(scope="module")
def results():
    return results_of(CASES)


@pytest.mark.parametrize("name", CASES)
def test_as_in_torch(results, name):
    assert_as_in_torch(results[name])
