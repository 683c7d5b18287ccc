"""Functions of torch, which are one model, since it takes half a second to import one."""

import numpy as np
import torch
from torch import nn

import frontends.relax
from tests.relax.modules import QUICK, compiled, run

SEEDED = torch.Generator().manual_seed(3)


def random(*shape):
    return torch.randn(shape, generator=SEEDED)


def put(x, at, values):
    changed = x.clone()
    changed[at] = values
    return changed


class All(nn.Module):
    """Gives each case, a function and its inputs, these, and returns the results of all."""

    def __init__(self, cases):
        super().__init__()
        self.cases = cases

    def forward(self, *tensors):
        tensors = iter(tensors)
        return [list(of_one(function(*[next(tensors) for _ in inputs]))) for function, inputs in self.cases]


def of_one(results):
    return [results] if isinstance(results, torch.Tensor) else results


def results_of(cases):
    """By name, what torch and Relax compute of each case."""
    inputs = [each for _, inputs in cases.values() for each in inputs]
    model = All(list(cases.values()))
    with torch.no_grad():
        expected = model(*inputs)
    executable = compiled(frontends.relax.from_pytorch(model, inputs), QUICK)
    found = iter(run(executable, [each.numpy() for each in inputs]))
    return {name: [(theirs, next(found)) for theirs in each] for name, each in zip(cases, expected)}


def assert_as_in_torch(results):
    for theirs, mine in results:
        assert mine.dtype == theirs.numpy().dtype
        tolerance = 2e-3 if theirs.dtype == torch.float16 else 2e-5
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
