"""What is transposed on CUDA by tiles in registers, on the emulated device or, if there is one, a GPU."""

import re
import shutil

import numpy as np
import pytest

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import numbers
from tests.ops.nvcc import assert_compiles_without_spills

import tvm
from tvm import relay

# By name: what is computed of a tensor of a shape, and whether that is done by tiles.
CASES = {
    "three colours": ((2, 3, 5, 8), lambda x: relay.transpose(x, (0, 2, 3, 1)), False),
    "NCHW to NHWC": ((2, 12, 5, 8), lambda x: relay.transpose(x, (0, 2, 3, 1)), True),
    "NHWC to NCHW": ((2, 5, 8, 12), lambda x: relay.transpose(x, (0, 3, 1, 2)), True),
    "a matrix": ((36, 44), relay.transpose, False),  # by TVM's own tiles in shared memory
    "no block is full": ((3, 8, 20), lambda x: relay.transpose(x, (0, 2, 1)), True),
    "to tokens": ((1, 20, 6, 4), lambda x: relay.transpose(relay.reshape(x, (1, 20, 24)), (0, 2, 1)), True),
    "of tokens": ((1, 24, 20), lambda x: relay.reshape(relay.transpose(x, (0, 2, 1)), (1, 20, 3, 8)), True),
    "layout_transform": ((2, 12, 5, 8), lambda x: relay.layout_transform(x, "NCHW", "NHWC"), True),
    "sum behind": ((8, 12), lambda x: relay.transpose(x) + relay.const(1.5, "float16"), True),
    "with a row": (
        (8, 12),
        lambda x: relay.transpose(x) * relay.take(x, relay.const(3), axis=1, mode="clip"),
        True,
    ),
    "function before": ((8, 12), lambda x: relay.transpose(relay.tanh(x)), True),
    "runs of ten": ((2, 8, 10), lambda x: relay.transpose(relay.nn.relu(x), (0, 2, 1)), True),
    "choice before": (
        (8, 12),
        lambda x: relay.transpose(relay.where(relay.less(x, relay.const(0.5, "float16")), x, x * x)),
        True,
    ),
    "leaky ReLU": ((8, 12), lambda x: relay.transpose(relay.nn.leaky_relu(x, 0.1)), True),
    "of bytes": ((8, 12), lambda x: relay.transpose(relay.cast(relay.cast(x, "int8"), "float16")), True),
    "of a condition": (
        (8, 12),
        lambda x: relay.transpose(relay.cast(relay.less(x, relay.const(0.5, "float16")), "float16")),
        True,
    ),
    "pixel unshuffle": (
        (1, 8, 16, 16),
        lambda x: relay.reshape(
            relay.transpose(relay.reshape(x, (1, 8, 8, 2, 8, 2)), (0, 1, 3, 5, 2, 4)), (1, 32, 8, 8)
        ),
        False,
    ),
    "every other row": (
        (2, 8, 16),
        lambda x: relay.transpose(relay.strided_slice(x, [0], [16], [2], axes=[2]), (0, 2, 1)),
        False,
    ),
    "dilated": ((2, 9, 16), lambda x: relay.transpose(relay.nn.dilate(x, (1, 1, 2)), (0, 2, 1)), False),
    "pad before": (
        (2, 8, 10),
        lambda x: relay.transpose(relay.nn.pad(x, ((0, 0), (1, 3), (1, 1))), (0, 2, 1)),
        True,
    ),
    "half of the rows": (
        (2, 8, 18),
        lambda x: relay.transpose(relay.strided_slice(x, [1], [9], [1], axes=[2]), (0, 2, 1)),
        True,
    ),
    "wider": ((8, 12), lambda x: relay.transpose(relay.cast(x, "float32")), True),
    "runs of nine": ((8, 3, 9), lambda x: relay.transpose(x, (1, 2, 0)), True),
    "rows of nine": ((9, 3, 8), lambda x: relay.transpose(x, (1, 2, 0)), True),
    "runs and rows of two": ((14, 3, 10), lambda x: relay.transpose(x, (1, 2, 0)), True),
    "both of nine": ((9, 3, 9), lambda x: relay.transpose(x, (1, 2, 0)), False),
    "rows stay rows": ((4, 8, 12), lambda x: relay.transpose(x, (1, 0, 2)), False),
    "integers": ((8, 12), lambda x: relay.transpose(relay.cast(x, "int32")), False),
}


@pytest.mark.parametrize("name", CASES)
def test_as_on_a_cpu(emulated_cuda, tmp_path, name):
    shape, build, is_by_tiles = CASES[name]
    x = relay.var("x", shape=shape, dtype="float16")
    function, data = relay.Function([x], build(x)), numbers(*shape, dtype="float16")
    (found,) = emulated_cuda.run_relay(function, data)
    expected = relay.create_executor("graph", tvm.IRModule.from_expr(function)).evaluate()(data).numpy()
    np.testing.assert_allclose(found, expected, 1e-3, 1e-3)
    source = emulated_cuda.sources[-1]
    assert bool(re.search(r"^ *(half|float) \w+_local\[\d+\];", source, re.M)) == is_by_tiles
    if shutil.which("nvcc") and is_by_tiles:
        assert_compiles_without_spills(source, tmp_path)


def test_an_unknown_size_keeps_the_stock_schedule(emulated_cuda):
    x = relay.var("x", shape=(relay.Any(), 8, 12))
    function = relay.Function([x], relay.transpose(x, (0, 2, 1)))
    (found,) = emulated_cuda.run_relay(function, numbers(3, 8, 12), executor="vm")
    np.testing.assert_array_equal(found, numbers(3, 8, 12).transpose(0, 2, 1))
