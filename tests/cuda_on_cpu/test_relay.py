"""Whole graphs on the emulated device give the numbers of LLVM, in both executors."""

import numpy as np
import pytest

import tvm
from tvm import relay
from tvm.contrib import graph_executor


def small_network():
    data = relay.var("data", shape=(1, 8, 14, 14))
    weight = relay.var("weight", shape=(16, 8, 3, 3))
    out = relay.nn.relu(relay.nn.conv2d(data, weight, padding=(1, 1)))
    out = relay.nn.softmax(relay.nn.batch_flatten(relay.nn.max_pool2d(out, (2, 2), (2, 2))))
    return relay.Function([data, weight], relay.Tuple([out, relay.sum(out, axis=0), relay.argsort(out)]))


def on_llvm(function, *inputs):
    module = graph_executor.GraphModule(
        relay.build(tvm.IRModule.from_expr(function), "llvm")["default"](tvm.cpu())
    )
    for i, value in enumerate(inputs):
        module.set_input(i, value)
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


@pytest.mark.parametrize("executor", ["graph", "vm"])
@pytest.mark.parametrize("sanitize", [None, "address", "thread"])
def test_graph_gives_the_numbers_of_llvm(emulated_cuda, executor, sanitize):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape, dtype="float32") for shape in [(1, 8, 14, 14), (16, 8, 3, 3)]]
    emulated_cuda.sanitize = sanitize
    outputs = emulated_cuda.run_relay(small_network(), *inputs, executor=executor)
    for value, expected in zip(outputs, on_llvm(small_network(), *inputs)):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


def test_half(emulated_cuda):
    x = relay.var("x", shape=(4, 100), dtype="float16")
    function = relay.Function([x], relay.nn.softmax(relay.exp(x) * relay.const(0.5, "float16")))
    data = np.random.default_rng(0).standard_normal((4, 100)).astype("float16")
    (out,) = emulated_cuda.run_relay(function, data)
    y = np.exp(data.astype("float64")) / 2
    y = np.exp(y - y.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, y / y.sum(axis=1, keepdims=True), rtol=2e-2, atol=1e-4)


def test_convolution_on_tensor_cores(emulated_cuda):
    x = relay.var("x", shape=(16, 4, 4, 16), dtype="float16")
    w = relay.var("w", shape=(3, 3, 16, 32), dtype="float16")
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_dtype": "float32"}
    conv = relay.nn.conv2d(x, w, channels=32, kernel_size=(3, 3), **layouts)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype("float16") for shape in [(16, 4, 4, 16), (3, 3, 16, 32)])
    (out,) = emulated_cuda.run_relay(relay.Function([x, w], conv), a, b)
    assert "wmma::mma_sync" in emulated_cuda.sources[0]
    windows = np.lib.stride_tricks.sliding_window_view(a.astype("int"), (3, 3), axis=(1, 2))
    np.testing.assert_array_equal(out, np.einsum("nyxcij,ijco->nyxo", windows, b.astype("int")))
