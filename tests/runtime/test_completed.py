"""Modules that are written by hand, without the attributes that importers write, compile as others do."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import module
from tvm_passes import ConvertToNHWC, runtime

from tvm import relay


@pytest.mark.parametrize("in_nhwc", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("target", ["llvm", topi_ext.cpu_target()], ids=["any", "native"])
def test_a_convolution_without_the_size_of_its_kernel(dtype, groups, in_nhwc, target):
    random = np.random.default_rng(0)
    data = random.integers(0, 100, (1, 8, 5, 6)).astype(dtype)
    weight = random.integers(-9, 9, (4, 8 // groups, 3, 2)).astype("int8")
    x = relay.var("x", shape=data.shape, dtype=dtype)
    mod = module(x, relay.nn.conv2d(x, relay.const(weight), out_dtype="int32", groups=groups))
    mod = ConvertToNHWC()(mod) if in_nhwc else mod
    windows = np.lib.stride_tricks.sliding_window_view(data[0].astype(int), (3, 2), (1, 2))  # CHWhw
    expected = np.concatenate(
        [
            np.einsum("chwij,kcij->khw", part, filters)
            for part, filters in zip(np.split(windows, groups), np.split(weight.astype(int), groups))
        ]
    )
    np.testing.assert_array_equal(runtime.compile(mod, target)(data)[0], expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("target", ["llvm", topi_ext.cpu_target()], ids=["any", "native"])
def test_a_convolution_without_the_type_of_its_result(dtype, target):
    """It is that of the data, around which sums wrap."""
    x = relay.var("x", shape=(1, 8, 5, 6), dtype=dtype)
    weight = np.full((4, 8, 3, 3), 3, dtype)
    mod = module(x, relay.nn.conv2d(x, relay.const(weight), channels=4, kernel_size=(3, 3)))
    found = runtime.compile(mod, target)(np.full((1, 8, 5, 6), 5, dtype))
    expected = np.full((1, 4, 3, 4), 8 * 3 * 3 * 3 * 5).astype(dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


def test_a_gather_at_unknown_sizes_without_the_number_of_indices():
    """It ended the process."""
    x = relay.var("x", shape=(relay.Any(), 4, 3))
    indices = relay.var("indices", shape=(2, relay.Any()), dtype="int64")
    mod = module(x, indices, relay.gather_nd(x, indices))
    model = runtime.compile(mod, "llvm")
    data = np.random.default_rng(0).random((5, 4, 3), "float32")
    rows, columns = np.array([[0, 4, 2], [3, 0, 1]])
    np.testing.assert_array_equal(model(data, np.stack([rows, columns])), data[rows, columns])
    with pytest.raises(
        Exception, match="gather_nd of a size that is known only at run time needs index_rank="
    ):
        relay.vm.compile(mod, "llvm")
