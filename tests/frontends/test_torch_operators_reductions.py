"""Reductions and orders of PyTorch, which TVM's importer gets wrong or does not know."""

import math
import warnings

import pytest
import torch

from tests.frontends.torch_functions import assert_right

NAN, INF = math.nan, math.inf

X = torch.tensor([[3.0, -1.0, 2.0, 2.0], [0.5, 7.0, -4.0, 7.0], [1.0, 1.0, 1.0, -2.0]])
WITH_NAN = torch.tensor([[3.0, math.nan, 2.0, math.nan], [0.5, 7.0, -4.0, 7.0]])


def test_sums():
    assert_right(
        {
            "sum of bool": lambda x: (x > 0).sum(),
            "sum of bool along an axis": lambda x: (x > 0).sum(1, keepdim=True),
            "mean of bool": lambda x: (x > 0).sum(0, dtype=torch.float32),
            "sum of integers": lambda x: x.int().sum(),
            "prod": lambda x: x.int().prod(1),
            "cumsum of bool": lambda x: (x > 0).cumsum(1),
            "cumprod": lambda x: x.cumprod(0),
            "any": lambda x: (x > 3).any(1),
            "all of uint8": lambda x: (x > -3).to(torch.uint8).all(0),
            "count_nonzero": lambda x: torch.count_nonzero(x > 1, 0),
            "std": lambda x: x.std(),
            "std with correction": lambda x: torch.std(x, 1, correction=2, keepdim=True),
            "var without": lambda x: torch.var(x, [0, 1], unbiased=False),
            "var_mean": lambda x: torch.var_mean(x, 0, correction=0),
            "std_mean": lambda x: torch.std_mean(x, 1),
            "logsumexp": lambda x: torch.logsumexp(x, (0, 1)),
            "norms": lambda x: [
                torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3.5, math.inf, -math.inf)
            ],
            "norm": lambda x: torch.norm(x),
            "nansum": lambda x: torch.nansum(x, 0),
            "cdist": lambda x: torch.cdist(x, x[:2], 1.5),
            "cosine_similarity": lambda x: torch.cosine_similarity(x, x.flip(0), 1),
            "cosine_similarity with one number": lambda x: torch.cosine_similarity(x, x[:, :1], 1),
            "cosine_similarity with a vector": lambda x: torch.cosine_similarity(x, x[0], -1),
        },
        X,
        rtol=1e-4,
        atol=1e-5,
    )


def test_extremes():
    assert_right(
        {
            "max": lambda x: x.max(),
            "max along an axis": lambda x: tuple(x.max(1)),
            "min along an axis": lambda x: tuple(x.min(0, keepdim=True)),
            "amax": lambda x: x.amax((0, 1)),
            "aminmax": lambda x: tuple(torch.aminmax(x, dim=1)),
            "argmax": lambda x: x.argmax(),
            "argmin with axes kept": lambda x: x.argmin(keepdim=True),
            "argmax along an axis": lambda x: x.argmax(-1),
            "argmax of bool": lambda x: (x > 2).int().argmax(1),
            "max of bool": lambda x: (x > 2).max(),
            "median": lambda x: x.median(),
            "median along an axis": lambda x: x.median(1).values,
            "kthvalue": lambda x: x.kthvalue(2, 0).values,
        },
        X,
    )


def test_extremes_of_nan():
    assert_right(
        {
            "max": lambda x: tuple(x.max(1)),
            "amin": lambda x: x.amin(0),
            "argmin": lambda x: x.argmin(1),
            "median": lambda x: tuple(x.median(1)),
        },
        WITH_NAN,
    )


def test_orders():
    assert_right(
        {
            "sort along the first axis": lambda x: tuple(torch.sort(x, dim=0, stable=True)),
            "argsort stable, descending": lambda x: torch.argsort(x, dim=1, descending=True, stable=True),
            "sort descending": lambda x: x.sort(-1, descending=True).values,
            "msort": lambda x: torch.msort(x),
            "topk of the smallest": lambda x: x.topk(2, 0, largest=False).values,
            "sort of one number": lambda x: tuple(x[0, 0].sort()),
            "searchsorted": lambda x: torch.searchsorted(x.sort(1).values, x, side="right"),
            "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 1.0, 2.0]), right=True),
        },
        X,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nan_is_searched_behind_all(dtype):
    x = torch.tensor([[math.nan, -math.inf, 0.5], [math.inf, -math.nan, 2]], dtype=dtype)
    bounds = torch.tensor([-1.0, 1.0, 2.0])
    of_rows, falling = torch.stack([bounds, 2 * bounds]), bounds.flip(0)
    assert_right(
        {
            "bucketize": lambda x: torch.bucketize(x, bounds.to(x.dtype)),
            "bucketize, right": lambda x: torch.bucketize(x, bounds.to(x.dtype), right=True, out_int32=True),
            "searchsorted by row": lambda x: torch.searchsorted(of_rows.to(x.dtype), x),
            "searchsorted of one": lambda x: torch.searchsorted(bounds.to(x.dtype), x[0, 0]),
            "sorter": lambda x: torch.searchsorted(falling.to(x.dtype), x, sorter=torch.tensor([2, 1, 0])),
        },
        x,
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_orders_of_integers(dtype):
    least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([[3, greatest, least, 3], [least, 7, 0, 7], [1, 1, greatest, 1]], dtype=dtype)
    assert_right(
        {
            "sort": lambda x: tuple(x.sort(dim=1, stable=True)),
            "sort descending": lambda x: tuple(torch.sort(x, dim=0, descending=True, stable=True)),
            "argsort": lambda x: x.argsort(dim=1, stable=True),
            "topk": lambda x: x.topk(2).values,
            "topk of the smallest": lambda x: x.topk(2, 0, largest=False).values,
            "median": lambda x: x.median(),
            "median along an axis": lambda x: x.median(1).values,
            "kthvalue": lambda x: x.kthvalue(2, 1).values,
        },
        x,
    )


def test_so_far():
    """NaN is the extreme from where it is on, and of equal ones the last counts."""
    x = torch.tensor(
        [
            [1.0, -INF, -INF, 3.0, 2.0, 3.0, NAN, 1.0, NAN],
            [-INF, -INF, INF, 1.0, INF, 2.0, 3.0, 3.0, 0.0],
            [0.0, -0.0, 1e-8, -50.0, 100.0, 100.0, -100.0, 2.0, 3.0],
        ]
    )
    assert_right(
        {
            "cummax": lambda x: x.cummax(1),
            "cummin": lambda x: x.cummin(-1),
            "cummax of integers": lambda x: x.clamp(-9, 9).nan_to_num().long().cummax(0),
            "cummax of bool": lambda x: (x > 1).cummax(1),
            "logcumsumexp": lambda x: x.logcumsumexp(1),
            "logcumsumexp of columns": lambda x: x.logcumsumexp(0),
        },
        x,
    )


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
def test_quantiles(interpolation):
    x = torch.tensor([[1.0, -INF, 3.0, NAN, 2.0], [5.0, -2.0, 4.0, 1.0, 6.0], [NAN] * 5])
    given = {"interpolation": interpolation}
    assert_right(
        {
            "of all": lambda x, q: torch.quantile(x.nan_to_num(0, 9, -9), 0.3, **given),
            "of all, all axes kept": lambda x, q: torch.quantile(x[1:2], 0.3, keepdim=True, **given),
            "of rows": lambda x, q: torch.quantile(x, q, 1, **given),
            "of columns": lambda x, q: torch.quantile(x, q[0], 0, True, **given),
            "known ones of rows": lambda x, q: torch.nanquantile(
                x, torch.tensor([0.3, 0.6]), 1, True, **given
            ),
        },
        x,
        torch.tensor([0.2, 0.5, 1.0]),
    )


def test_equal_elements():
    x = torch.tensor([[3, 1, 1, 5], [5, 5, 0, 3]])
    assert_right(
        {
            "unique": lambda x: torch.unique(x),
            "unique floats": lambda x: torch.unique(x / 2, return_inverse=True, return_counts=True),
            "unique bytes": lambda x: torch.unique(x.to(torch.uint8), return_counts=True),
            "unique bool": lambda x: torch.unique(x > 2, return_inverse=True),
            "unique of some": lambda x: torch.unique(x[x > 2], return_inverse=True, return_counts=True),
            "unique of none": lambda x: torch.unique(x[x > 9], return_inverse=True, return_counts=True),
            "consecutive": lambda x: torch.unique_consecutive(x, True, True),
            "bincount": lambda x: torch.bincount(x.flatten()),
            "bincount with a length": lambda x: torch.bincount(x.flatten(), minlength=9),
            "bincount with too small a length": lambda x: torch.bincount(x.flatten().int(), minlength=2),
            "bincount with weights": lambda x: (
                torch.bincount(x[0], x[1] / 2, 9),
                torch.bincount(x[0], x[1]),
            ),
        },
        x,
    )


def test_medians_of_what_is_known():
    assert_right(
        {
            "of all": lambda x: x.nanmedian(),
            "along an axis": lambda x: tuple(x.nanmedian(1, keepdim=True)),
            "where all are unknown": lambda x: x[:, 1::2].nanmedian(-1).values,
            "of integers": lambda x: x.nan_to_num().int().nanmedian(0).values,
        },
        WITH_NAN,
    )


def test_covariances():
    assert_right(
        {
            "of rows": lambda x: torch.cov(x),
            "of all observations": lambda x: torch.cov(x, correction=0),
            "of a vector": lambda x: torch.cov(x[0]),
            "of integers": lambda x: torch.cov(x.int()),
            "correlations": lambda x: torch.corrcoef(x),
            "of a vector with itself": lambda x: torch.corrcoef(x[0]),
        },
        X,
        rtol=1e-5,
    )


def test_histograms():
    assert_right(
        {
            "of all": lambda x: torch.histc(x),
            "within limits": lambda x: torch.histc(x, 7, -2, 3),
            "of numbers at edges": lambda x: torch.histc(x.round(), 4, -4, 4),
            "of one number": lambda x: torch.histc(x[2, :2], 3),
            "in half precision": lambda x: torch.histc(x.half(), 5),
        },
        X,
    )


def test_rows_that_differ():
    assert_right(
        {
            "rows": lambda x: torch.unique(x, dim=0),
            "of an unknown number": lambda x: torch.unique(x[x[:, 0] > 0], dim=0, return_counts=True),
            "columns": lambda x: torch.unique(x, dim=-1, return_inverse=True, return_counts=True),
            "masks": lambda x: torch.unique(x > 1, dim=0, return_inverse=True),
            "slices": lambda x: torch.unique(x.reshape(2, 5, 2), dim=1, return_inverse=True),
        },
        torch.tensor([[1, 2], [0, 3], [1, 2], [-1, 5], [1, 0], [0, 3], [1, 2], [0, 2], [2, 2], [1, 2]]),
    )


def test_means_of_no_numbers():
    empty = {
        "mean": lambda x: x.mean(),
        "mean of rows": lambda x: x.mean(1),
        "var": lambda x: x.var(0),
        "std": lambda x: x.std(),
        "einsum": lambda x: torch.einsum("bij,bjk->bik", x, x),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no degree of freedom is left
        assert_right(empty, torch.rand(0, 3, 3))
