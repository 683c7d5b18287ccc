"""Small models of torch, and what their imports compute."""

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from frontends import from_pytorch
from tests.helpers import run

import tvm
from tvm import relay


class Plain(nn.Module):
    """What most networks are made of; `forward` has a parameter that is no tensor."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        self.dense = nn.Linear(4 * 4 * 4, 5)

    def forward(self, image, scale: float = 2.0):
        features = nn.functional.max_pool2d(torch.relu_(self.norm(self.conv(image))), 2)
        return self.dense(self.dropout(features).flatten(1)) * scale


class Returning(nn.Module):
    """A model that is given by what it returns."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Branching(nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):
            low, high = x - 1, x * 2
        else:
            low, high = x - 3, x * 4
        return {"low": low, "high": high}


class Scripted(nn.Module):
    """With what TVM's importer does not take as it comes from the scripting compiler."""

    def __init__(self):
        super().__init__()
        self.plain = Plain()

    def forward(self, x):
        out = self.plain(x)
        if bool(out.sum() > 0):  # noqa: SIM108  (this is what is tested)
            out = out + x.shape[1]
        else:
            out = out - x.shape[2]
        return out


def numbers(mod, params, *tensors):
    bound = relay.build_module.bind_params_by_name(mod["main"], params)
    return run(tvm.IRModule.from_expr(bound), *(tensor.numpy() for tensor in tensors))


def names(mod):
    attributes = mod["main"].attrs
    return [str(name) for name in attributes["input_names"]], [
        str(name) for name in attributes["output_names"]
    ]


def assert_computes(model, *tensors, others=(), rtol=1e-4, atol=1e-5):
    """Assert that the import computes what torch does, on the example and on other inputs."""
    mod, params = from_pytorch(model, tensors)
    with torch.no_grad():
        for inputs in (tensors, *others):
            expected = model.eval()(*inputs)
            expected = expected.values() if isinstance(expected, dict) else expected
            expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
            found = numbers(mod, params, *inputs)
            assert len(found) == len(expected)
            for ours, theirs in zip(found, expected):
                assert ours.dtype == theirs.numpy().dtype
                np.testing.assert_allclose(ours, theirs.numpy(), rtol=rtol, atol=atol)
    return mod, params


def assert_all(functions, *tensors, rtol=1e-4, atol=1e-5):
    """Assert that the functions of the tensors compute what they do in torch, imported as one model."""
    return assert_computes(_Each(functions), *tensors, rtol=rtol, atol=atol)


class _Each(nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *tensors):
        return tree_leaves([function(*tensors) for function in self.functions])
