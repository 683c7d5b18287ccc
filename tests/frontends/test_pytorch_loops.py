"""Scripted loops over values: what they carry may grow, and be a constant or a number before them."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frontends import ImportFailure, from_pytorch
from tests.helpers import quick, runner


@torch.jit.script
def soft_nms(boxes: Tensor, scores: Tensor, least: float, most: int):
    """What is kept, and with which scores, those of boxes that overlap a better one reduced."""
    sides = boxes[:, 2:] - boxes[:, :2]
    areas = sides[:, 0] * sides[:, 1]
    kept = torch.zeros([0], dtype=torch.int64)
    best = torch.zeros([0])
    rounds = 0
    while rounds < most and bool(scores.max() > least):
        place = scores.argmax()
        kept, best = torch.cat([kept, place[None]]), torch.cat([best, scores[place][None]])
        corners = torch.minimum(boxes[:, 2:], boxes[place][2:]) - torch.maximum(
            boxes[:, :2], boxes[place][:2]
        )
        common = corners.clamp(min=0).prod(1)
        scores = scores * (-2 * (common / (areas + areas[place] - common)) ** 2).exp()
        scores = torch.where(torch.arange(len(scores)) == place, torch.zeros_like(scores), scores)
        rounds += 1
    return kept, best, torch.tensor(rounds)


class SoftNms(nn.Module):
    def forward(self, boxes, scores):
        kept, best, rounds = soft_nms(boxes, scores, 0.2, 8)
        return boxes[kept], best, rounds


class Halved(nn.Module):
    """A number of rounds that a tensor has, the number of the round, and a float that it carries."""

    def forward(self, x):
        return halved(x * 2, x[:1])


@torch.jit.script
def halved(x: Tensor, rows: Tensor):
    factor = 1.0
    for number in range(int(rows[0, 0])):
        rows = torch.cat([rows, x * factor + number])
        factor = factor / 2
    return rows, x * factor


def compute(model, *example):
    mod, _ = from_pytorch(model, example)
    return runner(mod, quick())


def test_soft_nms():
    torch.manual_seed(0)
    first, scores = torch.rand(16, 2) * 8, torch.rand(16)
    boxes = torch.cat([first, first + 4], 1)
    run = compute(SoftNms(), boxes, scores)
    for each in (scores, scores * 0.3, scores * 0, torch.ones(16)):
        for wanted, found in zip(SoftNms()(boxes, each), run(boxes.numpy(), each.numpy())):
            assert found.dtype == wanted.numpy().dtype
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)


def test_rounds_that_are_counted():
    x = torch.arange(6.0).reshape(2, 3)
    run = compute(Halved(), x + 2)
    for start in (0, 1, 3):
        for wanted, found in zip(Halved()(x + start), run((x + start).numpy())):
            np.testing.assert_array_equal(found, wanted.numpy())


@torch.jit.script
def listed(x: Tensor):
    parts = [x]
    while bool(parts[-1].sum() > 1):
        parts = [x, parts[-1] / 2]
    return parts[0]


@torch.jit.script
def appended(x: Tensor):
    parts = [x]
    while bool(parts[-1].sum() > 1):
        parts.append(parts[-1] / 2)
    return torch.stack(parts)


@pytest.mark.parametrize(
    "function, reason",
    [
        (listed, r"it carries '.*', which is List\[Tensor\].*: .* torch\.cat"),
        (appended, r"no converter for aten::append .*: a loop may carry a tensor that grows, by torch\.cat"),
    ],
)
def test_lists_are_refused(function, reason):
    class Of(nn.Module):
        def forward(self, x):
            return function(x)

    with pytest.raises(ImportFailure, match=reason):
        from_pytorch(Of(), torch.rand(3))
