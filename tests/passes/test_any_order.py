"""Passes in random subsets and orders, as users may choose their own: well-typed, and the same results."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tvm_passes
from frontends import from_pytorch
from tests.helpers import numbers, quick, run
from tvm_passes.analysis.constants import with_weights
from tvm_passes.engine.module_pass import Pass

import tvm
from tvm import relay

OTHER_RESULTS = {"ReturnRawMasks", "ReturnEncodedMasks"}
LESS_EXACT = {"InInt8", "InMixedPrecision"}
BASES = {"RulePass"}
IN_NHWC = ["ConvertToNHWC", "CombineTransposes", "FuseConv2dNHWC"]  # without which many have nothing to do
SHAPE = 1, 8, 4, 5


class Network(nn.Module):
    """Something for many passes: branches, a residual, a shuffle, a norm, a pooling, resizing and rows."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.up = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(16, 16, 1)
        self.norm, self.layers, self.rows = nn.BatchNorm2d(16), nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        x = torch.cat([torch.relu(self.left(x)), torch.relu(self.right(x)) + x], 1)
        x = F.avg_pool2d(F.pixel_shuffle(self.up(torch.relu(self.norm(x))), 2), 2)
        return self.rows(self.layers(x.flatten(2).transpose(1, 2))), F.interpolate(x, scale_factor=2.0)


@functools.lru_cache(None)
def network():
    torch.manual_seed(0)
    mod, params = from_pytorch(Network().eval(), torch.zeros(SHAPE))
    mod = relay.transform.InferType()(with_weights(mod, params))
    x = numbers(*SHAPE)
    return mod, x, run(mod, x, target=quick())


def passes():
    names = set(tvm_passes.__all__) - OTHER_RESULTS - LESS_EXACT - BASES
    found = {name: getattr(tvm_passes, name) for name in sorted(names)}
    return {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, Pass)}


@pytest.mark.parametrize("seed", range(2))
def test_a_random_order(seed):
    of_name, chosen = passes(), random.Random(seed)
    names = chosen.sample(list(of_name), len(of_name) // (1 + seed % 2))
    place = chosen.randrange(len(names))
    names[place:place] = IN_NHWC
    sequence = [
        of_name[name](also_float32=True) if name == "FuseConv2dNHWC" else of_name[name]() for name in names
    ]
    mod, x, expected = network()
    after = relay.transform.InferType()(tvm.transform.Sequential(sequence)(mod))
    for each, found in zip(expected, run(after, x, target=quick())):
        np.testing.assert_allclose(found, each, atol=1e-5, err_msg=str(names))
