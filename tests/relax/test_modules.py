"""Modules of torch in Relax, beside what torch computes."""

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import frontends.relax
from frontends.relax import ImportFailure, batched_nms, nms
from tests.relax.detectors import detector
from tests.relax.modules import QUICK, Of, compiled, run

SEEDED = torch.Generator().manual_seed(4)
IMAGES = torch.rand(2, 3, 8, 10, generator=SEEDED)
BOXES = (torch.rand(30, 2, 2, generator=SEEDED) * 50).cumsum(1).flatten(1)
SCORES, IDS = torch.rand(30, generator=SEEDED), torch.arange(30) % 3
ROIS = torch.cat([torch.arange(30)[:, None] % 2, BOXES / 10], 1)
INTEGERS = torch.tensor([3, 4, 7])


class Edsr(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, 8, 3, 1, 1)
        self.first, self.second = nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.tail = nn.Sequential(nn.Conv2d(8, 12, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, images):
        features = self.head(images)
        return self.tail(features + self.second(self.first(features).relu()) * 0.1)


def espcn():
    layers = nn.Conv2d(3, 8, 5, 1, 2), nn.Tanh(), nn.Conv2d(8, 27, 3, 1, 1), nn.PixelShuffle(3)
    return nn.Sequential(*layers)


def suppress(boxes, scores, ids):
    indices, count = batched_nms(boxes, scores, ids, 0.5, score_threshold=0.1, max_output_size=7)
    return boxes[torch.where(indices < 0, 0, indices)], count, *nms(boxes, scores, 0.3)


def pool(images, rois):
    roi_align = torchvision.ops.roi_align
    return roi_align(images, rois, (3, 2), 0.5, 2), roi_align(images, rois, 2, aligned=True)


class Pyramid(nn.Module):
    """Levels that are not halves of each other."""

    def __init__(self):
        super().__init__()
        self.levels = torchvision.ops.FeaturePyramidNetwork([3, 3, 3], 4)

    def forward(self, images):
        maps = {str(size): nn.functional.adaptive_avg_pool2d(images, size) for size in (7, 4, 3)}
        return self.levels(maps)


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x[:, -1] / 2, lambda x: torch.add(x[:, 0], 0.5, alpha=2), (x,))


def number_beside_integers(x):
    return (
        x + 0.5,
        x / 2,
        x > 3.5,
        torch.where(x > 3.5, x, 0.5),
        torch.where(x > 3, x > 3, 0.5),
        (x > 3) * 1.5,
        x / (x + 1),
        x**-0.5,
    )


CASES = {
    "edsr": (Edsr, [IMAGES]),
    "espcn": (espcn, [IMAGES]),
    "pyramid": (Pyramid, [IMAGES]),
    "suppress": (lambda: Of(suppress), [BOXES, SCORES, IDS]),
    "pool": (lambda: Of(pool), [IMAGES, ROIS]),
    "branch": (lambda: Of(branch), [INTEGERS[None]]),
    "other branch": (lambda: Of(branch), [-INTEGERS[None]]),
    "promote": (lambda: Of(number_beside_integers), [INTEGERS]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_torch(name):
    build, inputs = CASES[name]
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        expected = model(*inputs)
    if isinstance(expected, dict):
        expected = expected.values()
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    executable = compiled(frontends.relax.from_pytorch(model, inputs), QUICK)
    found = run(executable, [each.numpy() for each in inputs])
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.numpy().dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


COUNTED = "which return a fixed number of rows and a count"
REFUSED = {
    "nms": (lambda b, s, i: b[torchvision.ops.nms(b, s, 0.5)], f"torchvision's nms keeps .*{COUNTED}"),
    "nms of many": (  # which torchvision does class by class
        lambda b, s, i: torchvision.ops.batched_nms(b.repeat(40, 1), s.repeat(40), i.repeat(40), 0.5),
        f"depends on data; .*{COUNTED}",
    ),
    "branch": (
        lambda b, s, i: b if s.sum() > 0 else -b,
        f"a shape or a branch of Of depends on data.*{COUNTED}",
    ),
    "nms of a batch": (
        lambda b, s, i: nms(b.reshape(2, 15, 4), s.reshape(2, 15), 0.5),
        r"boxes must be Nx4 and scores N, of one image, not \[2, 15, 4\] and \[2, 15\]",
    ),
    "unknown": (
        lambda b, s, i: torch.linalg.svdvals(b),
        "Relax has no equivalent of .*linalg_svd.*: leave it to torch",
    ),
    "moments": (
        lambda b, s, i: torch.native_batch_norm(b, None, None, s[:4].clone(), s[4:8].clone(), True, 0.1, 0.1),
        "Relax has no moments of native_batch_norm: compute them by torch.var_mean",
    ),
    "wrong": (lambda b, s, i: b @ s, "torch cannot export Of: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_imported_says_why(name):
    function, reason = REFUSED[name]
    with pytest.raises(ImportFailure, match=reason):
        frontends.relax.from_pytorch(Of(function), [BOXES, SCORES, IDS])


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.detector = detector("fcos")

    def forward(self, x):
        return self.detector([x])[0]["boxes"]


UNFIT = {
    "state": (Counter, "Counter changes its buffers as it runs, and Relax has no state: calls"),
    "around": (Around, "Around holds a FCOS: import the detector itself"),
    "nothing": (lambda: Of(lambda x: (x, None)), "result 1 of Of must be a tensor, not None"),
    "number": (lambda: Of(lambda x: (x.shape[0], x)), "result 0 of Of must be a tensor, not 2"),
    "function": (lambda: torch.relu, "must be a torch.nn.Module, not builtin_function_or_method"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_no_function_of_tensors_says_why(name):
    build, reason = UNFIT[name]
    with pytest.raises(ImportFailure, match=reason):
        frontends.relax.from_pytorch(build(), IMAGES)


def test_an_index_out_of_range_stays_inside():
    """torch fails there, and a kernel cannot."""
    rows = torch.arange(5.0)
    executable = compiled(frontends.relax.from_pytorch(Of(lambda x, at: x[at]), [rows, IDS]), QUICK)
    (found,) = run(executable, [rows.numpy(), np.array([5, 1 << 40, -6] * 10)])
    assert set(found) <= set(rows.tolist())


@pytest.mark.parametrize("inputs", ["text", [], [3]])
def test_inputs_are_tensors(inputs):
    with pytest.raises(ImportFailure, match=r"must be a tensor|at least one tensor"):
        frontends.relax.from_pytorch(nn.ReLU(), inputs)
