"""Many functions of torch in one model, which is imported and compiled once, and compared one by one."""

import numpy as np
from torch import nn
from torch.utils._pytree import tree_leaves

import tvm_passes
from frontends import from_pytorch
from tests.helpers import runner


class Functions(nn.Module):
    """All functions of the same tensors; `names` tells which one each output is of."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions
        self.names = []

    def forward(self, *tensors):
        results = [(name, leaf) for name, f in self.functions.items() for leaf in tree_leaves(f(*tensors))]
        self.names = [name for name, _ in results]
        return [leaf for _, leaf in results]


def assert_right(functions, *tensors, rtol=1e-5, atol=1e-6):
    """Assert that the import of each function gives shape, dtype, numbers and NaN of torch."""
    model = Functions(functions)
    expected = model(*tensors)
    mod, params = from_pytorch(model, tensors)
    assert not params
    found = runner(tvm_passes.default_pipeline()(mod))(*(tensor.numpy() for tensor in tensors))
    assert len(found) == len(expected) == len(model.names)
    for name, ours, theirs in zip(model.names, found, expected):
        assert (ours.dtype, ours.shape) == (theirs.numpy().dtype, theirs.numpy().shape), name
        np.testing.assert_allclose(ours, theirs.numpy(), rtol, atol, err_msg=name)
