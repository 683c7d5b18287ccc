"""Channels that are assigned in place become a concatenation: numbers, and where they must not."""

import numpy as np
import pytest
import torch

from frontends import from_pytorch
from tests.helpers import apply, assert_same_numbers, module, numbers, ops, run
from tests.passes.canonical import check, variable
from tvm_passes import subpixel_pipeline
from tvm_passes.cleanup.canonicalize import Canonicalize

from tvm import relay

RULE = "ConcatenateForWhere"


def assigned(base, part, places, axis=1, rank=4, channels=8):
    """As PyTorch's importer spells it."""
    mask, source = np.zeros(channels, "bool"), np.zeros(channels, "int32")
    mask[places], source[places] = True, range(len(places))
    mask = mask.reshape([-1 if each == axis else 1 for each in range(rank)])
    return relay.where(relay.const(mask), relay.take(part, relay.const(source), axis), base)


@pytest.mark.parametrize(
    "places, parts",
    {(0, 1, 2): 1, (5, 6, 7): 1, (3, 4): 2, (4,): 2}.items(),
)
def test_neighbouring_channels(places, parts):
    base, part = variable(2, 8, 3, 4), variable(2, len(places), 3, 4, name="part")
    mod = module(base, part, assigned(base, part, list(places)))
    arrays = numbers(2, 8, 3, 4), numbers(2, len(places), 3, 4, seed=1)
    check(mod, RULE, ["strided_slice"] * parts + ["concatenate"], *arrays)


def test_all_channels():
    base, part = variable(2, 8, 3, 4), variable(2, 8, 3, 4, name="part")
    mod = module(base, part, assigned(base, part, list(range(8))))
    check(mod, RULE, [], numbers(2, 8, 3, 4), numbers(2, 8, 3, 4, seed=1))


@pytest.mark.parametrize(
    "places, shape",
    [
        ([1, 3, 5], (2, 3, 3, 4)),  # not neighbours
        ([2, 1, 0], (2, 3, 3, 4)),  # in another order
        ([0, 1, 2], (2, 5, 3, 4)),  # of a longer part
        ([0, 1, 2], (1, 3, 3, 4)),  # of one that is repeated
    ],
)
def test_other_channels_stay(places, shape):
    base, part = variable(2, 8, 3, 4), variable(*shape, name="part")
    mod = module(base, part, assigned(base, part, places))
    after = assert_same_numbers(Canonicalize(), mod, numbers(2, 8, 3, 4), numbers(*shape, seed=1))
    assert ops(after) == ["take", "where"]


@pytest.mark.parametrize("shape, axis", [((2, 3, 4, 8), 3), ((2, 8, 3), 1)])
def test_other_axes_stay(shape, axis):
    """Of boxes, whose columns passes look for as they are."""
    base, cut = variable(*shape), [2 if each == axis else size for each, size in enumerate(shape)]
    part = variable(*cut, name="part")
    mod = module(base, part, assigned(base, part, [0, 1], axis, len(shape)))
    after, _ = apply(Canonicalize(), mod)
    assert ops(after) == ["take", "where"]


class PartialKernel(torch.nn.Module):
    """As PLKSR has it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(3, 32, 3, 1, 1), torch.nn.Conv2d(32, 3, 3, 1, 1)
        self.partial = torch.nn.Conv2d(16, 16, 5, 1, 2)

    def forward(self, x):
        x = self.first(x)
        x[:, :16] = self.partial(x[:, :16])
        return self.last(x)


def test_a_network_stays_in_one_layout_and_in_float16():
    torch.manual_seed(0)
    x = torch.rand(1, 3, 6, 8)
    mod, params = from_pytorch(model := PartialKernel().eval(), [x])
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    after = subpixel_pipeline("cuda -arch=sm_90")(mod)
    names = ops(after)
    assert not {"where", "take", "concatenate"} & set(names)
    assert names.count("topi_ext.conv2d_nhwc_in_place") == 1
    assert names.count("layout_transform") == 2 and names.count("cast") == 2  # of input and result
    with torch.no_grad():
        np.testing.assert_allclose(*run(after, x.numpy()), model(x).numpy(), rtol=5e-3, atol=5e-3)
