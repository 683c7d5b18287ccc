"""In-place changes of detections, whose number is known only at run time: boxes scaled, clipped, marked."""

import numpy as np
import pytest
import torch

import frontends
from tests.helpers import apply, quick, runner
from tvm_passes import MakeDetectionStatic

ROWS = 12
ALL, NONE, SOME = torch.ones(ROWS), torch.zeros(ROWS), torch.linspace(0, 1, ROWS)


def scaled(x):
    x[:, :4] /= torch.tensor([2.0, 3, 2, 3])
    return x


def clipped(x):
    x[..., 0].clamp_(0, 20)
    x[..., [1, 3]] -= 3
    x[:, 1::2].clamp_(0, 13)
    return x


def corners(x):
    x[:, 0] = x[:, 2] - x[:, 0]
    x[:, 2:4] = x[:, :2] + x[:, 2:4]
    return x


def as_points(x):
    x[:, :4].view(-1, 2, 2)[:, 0] += 1
    x.t()[5] += 3
    return x


def where_large(x):
    x[:, 0][x[:, 1] > 25] = 0
    x[x[:, 1] > 25, 2] = 1
    return x


def marked(x):
    kept = (x[:, 0] > 10).nonzero().view(-1)
    marks = x.new_zeros(x.size(0), dtype=torch.bool)
    marks[kept] = True
    x[kept, 2] = 7
    x[0:, kept % 6] = -1
    return x, marks


class Detections(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, boxes, scores):
        return self.change(boxes[scores > 0.5])


@pytest.mark.parametrize("change", [scaled, clipped, corners, as_points, where_large, marked])
def test_changes_of_detections_in_place(change):
    network = Detections(change)
    boxes = torch.rand(ROWS, 6, generator=torch.Generator().manual_seed(0)) * 50
    mod, _ = frontends.from_pytorch(network, [boxes, SOME])
    static, _ = apply(MakeDetectionStatic("padded"), mod)
    assert ("num_detections" in static["main"].attrs["output_names"]) == (change is not marked)
    compute, compute_static = runner(mod, quick()), runner(static, quick())
    for scores in (ALL, NONE, SOME):
        results, arrays = network(boxes, scores), (boxes.numpy(), scores.numpy())
        wanted = results if isinstance(results, tuple) else (results,)
        for each, found in zip(wanted, compute(*arrays)):
            assert found.shape == each.shape
            np.testing.assert_allclose(found, each, rtol=1e-6)
        if change is not marked:  # by indices of rows, which padding changes
            found, count = compute_static(*arrays)
            assert count == len(results)
            np.testing.assert_allclose(found[: len(results)], results, rtol=1e-6)


def test_part_of_the_detections_is_refused():
    def first(x):
        x[:2] = 0
        return x

    with pytest.raises(
        frontends.ImportFailure, match="part of an axis whose length is known only at run time"
    ):
        frontends.from_pytorch(Detections(first), [torch.rand(ROWS, 6), SOME])
