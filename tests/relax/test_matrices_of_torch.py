"""Operators of torch on small matrices and on points, beside what torch computes."""

import pytest
import torch

import frontends.relax
from frontends.relax import ImportFailure
from tests.relax.compared_with_torch import assert_as_in_torch, random, results_of
from tests.relax.modules import Of

SQUARES, SQUARE = random(2, 4, 4), random(3, 3)
AXES = torch.tensor([[0.0, 1, 0], [0, 0, 2], [3, 0, 0]])  # which no pivot of the first column begins
SINGULAR = torch.stack([torch.zeros(3, 3), torch.ones(3, 3), torch.eye(3)])
CASES = {
    "determinants of 0": (
        lambda x, y: [torch.det(each) for each in (x, y)],
        [SINGULAR, SINGULAR[:2, 1:, :2]],
    ),
    "inverse": (lambda x, y, z: [torch.linalg.inv(each) for each in (x, y, z)], [SQUARES, SQUARE, AXES]),
    "determinant": (lambda x, y, z: [torch.det(each) for each in (x, y, z)], [SQUARES, SQUARE, AXES]),
    "solutions": (
        lambda x, y: (
            *(torch.linalg.solve(x, x[..., :2]), torch.linalg.solve(x, x[0, :, :3])),
            *(torch.linalg.solve(y, y[0]), torch.linalg.solve(y, x[:, :, :3], left=False)),
        ),
        [SQUARES, SQUARE],
    ),
    "distances": (
        lambda x, y: (*(torch.cdist(x, y), torch.cdist(y, x, 1.0)), torch.cdist(x, y.repeat(8, 1))),
        [random(6, 3), random(5, 3)],
    ),
    "hypot": (
        lambda x, y: torch.hypot(x, y),
        [
            torch.tensor([0, 3, -3e30, torch.inf, torch.nan, -torch.inf, 1]),
            torch.tensor([0, 4, 4e30, 1, 2, 3, 1]),
        ],
    ),
}


@pytest.fixture(scope="module")
def results():
    return results_of(CASES)


@pytest.mark.parametrize("name", CASES)
def test_as_in_torch(results, name):
    assert_as_in_torch(results[name])


def test_matrices_with_many_rows_are_refused():
    with pytest.raises(ImportFailure, match="of 9 rows, only of floats of up to 8: leave it to torch"):
        frontends.relax.from_pytorch(Of(torch.linalg.inv), random(9, 9))


def test_what_depends_on_data_says_what_to_do():
    with pytest.raises(ImportFailure, match=r"the shape of .*unique.* depends on data.*keep all elements"):
        frontends.relax.from_pytorch(Of(torch.unique), random(3, 4))
