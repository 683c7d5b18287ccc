"""Small networks of `topi_ext.conv2d_nhwc`, calibrated and in int8."""

import functools

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import topi_ext
from tests.helpers import apply, module, numbers, run
from tvm_passes import InInt8
from tvm_passes.engine.graph import Graph, calls_of
from tvm_passes.quantize import Calibration, Observed, calibrate
from tvm_passes.quantize.convolutions import convolutions_of

from tvm import relay

CHANNELS = 8
BOUND = 5.0  # of tensors that are spread like the normal distribution


def image(height=9, width=10, batch=1, name="image"):
    return relay.var(name, shape=(batch, height, width, CHANNELS))


def weights(filters=CHANNELS, channels=CHANNELS, kernel=3, seed=1):
    """Of such a spread that a convolution keeps that of its data."""
    return numbers(filters, kernel, kernel, channels, seed=seed) / np.float32((channels * kernel**2) ** 0.5)


def conv(data, weight=None, seed=1, **options):
    weight = weights(seed=seed) if weight is None else weight
    options = {"padding": weight.shape[1] // 2, "bias": relay.const(numbers(len(weight), seed=9)), **options}
    return topi_ext.conv2d_nhwc(data, relay.const(weight), **options)


def arrays_for(mod, seed=0):
    """An array for each input."""
    shapes = [tuple(map(int, param.checked_type.shape)) for param in mod["main"].params]
    return [numbers(*shape, seed=seed + index) for index, shape in enumerate(shapes)]


def calibrated(mod, **options):
    """The calibration by three batches, of which the first is that of `arrays_for(mod)`."""
    batches = [tuple(arrays_for(mod, seed)) for seed in (0, 10, 20)]
    return calibrate(mod, batches, InInt8(), target="llvm", **{"method": "maximum", **options})


def bounded(mod, *bounds):
    """A calibration without a run: bounds of the results of convolutions, which are 5 if none is given."""
    names = convolutions_of(Graph(mod["main"])).values()
    results = [*bounds, *[BOUND] * (len(names) - len(bounds))]
    return Calibration({name: Observed(BOUND, result, BOUND, 40.0) for name, result in zip(names, results)})


def in_int8(*inputs_and_result, by=bounded):
    """(the module in float32, the one in int8, the report, the calibration that `by` makes of the first)"""
    mod = relay.transform.InferType()(module(*inputs_and_result))
    calibration = by(mod)
    after, report = apply(InInt8(calibration), mod)
    return mod, after, report, calibration


def signal_to_noise(mod, after):
    """For each output, in decibels: the power of what `mod` computes to that of the difference."""
    arrays = arrays_for(mod)
    return [decibels(*pair) for pair in zip(run(mod, *arrays), run(after, *arrays))]


def decibels(expected, found):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    error = max(1e-30, np.square(found.astype("float64") - expected).mean())
    return 10 * np.log10(np.square(expected.astype("float64")).mean() / error)


def dtypes(mod):
    """(of the data, of the result) of each convolution, in the order of the graph."""
    found = calls_of(relay.transform.InferType()(mod), "topi_ext.conv2d_nhwc")
    return [(call.args[0].checked_type.dtype, call.checked_type.dtype) for call in found]


FIRST, BETWEEN, LAST, FLOAT = (
    ("float32", "int8"),
    ("int8", "int8"),
    ("int8", "float32"),
    ("float32", "float32"),
)
relu_conv = functools.partial(conv, activation="relu")


# --- quantized elsewhere

ONNX_SHAPE = 1, CHANNELS, 9, 10
SCALES = {"image": 0.03, "first": 0.02, "sum": 0.04, "pooled": 0.04, "last": 0.004}


def integer_weights(seed):
    """In int8, with the largest number in each filter, as a file has them."""
    found = np.random.default_rng(seed).integers(-60, 61, (CHANNELS, CHANNELS, 3, 3)).astype("int8")
    found[:, 0, 0, 0] = 127
    return found


def write_quantized_network(path, dtype):
    """As ONNX Runtime writes it: convolution, relu, a residual, a max pooling, and a convolution."""
    nodes, constants = [], []

    def constant(name, value):
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(operator, *inputs, **attributes):
        name = f"value{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def rounded(value, name, zero=0):
        point = constant(f"{name}_zero", np.array(zero, dtype))
        of_both_signs = dtype == "int8" or zero
        step = constant(f"{name}_scale", np.float32(SCALES[name] / (1 if of_both_signs else 2)))
        return node("DequantizeLinear", node("QuantizeLinear", value, step, point), step, point)

    def convolution(data, seed):
        steps = (0.0015 * np.arange(1, CHANNELS + 1) / CHANNELS).astype("float32")
        zeros = constant(f"z{seed}", np.zeros(CHANNELS, "int8"))
        given = constant(f"w{seed}", integer_weights(seed)), constant(f"s{seed}", steps), zeros
        bias = constant(f"b{seed}", numbers(CHANNELS, seed=seed) / 10)
        return node("Conv", data, node("DequantizeLinear", *given, axis=0), bias, pads=[1, 1, 1, 1])

    any_sign = 0 if dtype == "int8" else 128
    x = rounded("image", "image", any_sign)
    first = rounded(node("Relu", convolution(x, 1)), "first")
    total = rounded(node("Relu", node("Add", convolution(first, 2), first)), "sum")
    pooled = rounded(node("MaxPool", total, kernel_shape=[2, 2], strides=[2, 2]), "pooled")
    last = rounded(convolution(pooled, 3), "last", any_sign)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("image", ONNX_SHAPE), (last, None))
    ]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), str(path))
