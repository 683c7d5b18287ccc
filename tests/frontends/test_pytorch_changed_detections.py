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


def leading(x):
    x[:2] = 0
    x[1, 2] = x[0, 1]
    return x


def trailing(x):
    x[-2:, 1] = 7
    x[-1] = 9
    x[1:-1] += 5
    return x


def outside(x):
    x[3:1] = 9
    x[100:] = 8
    x[-100:2] = 4
    return x


def sums_of_pillars(x):
    """As lift-splat networks sum: a cumulative sum, taken where the next point is of another pillar."""
    pillars = (x[:, 0] / 10).long()
    is_last = torch.ones(x.shape[0], dtype=torch.bool)
    is_last[:-1] = pillars[1:] != pillars[:-1]
    return x.cumsum(0)[is_last]


def in_a_longer_batch(x):
    batch = x.new_zeros(2, x.shape[0] + 2, 6)
    batch[1, : x.shape[0]] = x
    batch[0, x.shape[0] :] = -1
    return batch


def from_a_number_to_another(x):
    count, numbers = x.shape[0], torch.arange(20.0)
    x[count // 3 : count // 2, 2:4] = torch.tensor([1.0, 2])
    numbers[count // 3 : count - 1] = 3
    numbers[:count] += x[:, 0]
    return x, numbers


def at_the_end_of_more(x):
    count, more, behind = x.shape[0], torch.zeros(ROWS, 6), x.clone()
    more[ROWS - count :] = x
    behind[1:] = x[:-1] * 2
    return more, behind


def blocks_of_a_mask(x):
    count = x.shape[0]
    mask = torch.zeros(count, count)
    mask[1 : count - 1, 2:count] = 1
    mask[count // 2, 1:3] = 4
    return mask


@pytest.mark.parametrize(
    "change",
    [
        *(leading, trailing, outside, sums_of_pillars),
        *(in_a_longer_batch, from_a_number_to_another, blocks_of_a_mask, at_the_end_of_more),
    ],
)
def test_part_of_the_detections_is_changed(change):
    network, boxes = Detections(change), torch.rand(ROWS, 6, generator=torch.Generator().manual_seed(0)) * 50
    compute = runner(frontends.from_pytorch(network, [boxes, SOME])[0], quick())
    for scores in (
        (ALL, SOME)
        if change in (leading, trailing, blocks_of_a_mask, at_the_end_of_more)
        else (ALL, SOME, NONE)
    ):
        results = network(boxes, scores)
        wanted = results if isinstance(results, tuple) else (results,)
        for each, computed in zip(wanted, compute(boxes.numpy(), scores.numpy())):
            assert computed.shape == each.shape
            np.testing.assert_allclose(computed, each, rtol=1e-6)
