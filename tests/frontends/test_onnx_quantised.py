"""Networks that ONNX Runtime has quantised compute what they do there, to the step."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import tvm_passes
from frontends import ImportFailure, from_onnx
from tests.frontends.onnx_models import (
    assert_matches_reference,
    compiled,
    model_of,
    run,
    tensor_input,
    weights,
)

SHAPE = 1, 3, 12, 12


class Images(CalibrationDataReader):
    def __init__(self):
        values = np.random.default_rng(0)
        self.left = [{"x": values.normal(size=SHAPE).astype("float32")} for _ in range(4)]

    def get_next(self):
        return self.left.pop() if self.left else None


def network(opset):
    """Convolutions, one of them of each channel, what joins and pools them, and a classifier."""
    values = np.random.default_rng(1)
    shapes = {
        "w1": (8, 3, 3, 3),
        "b1": (8,),
        "w2": (8, 1, 3, 3),
        "w3": (8, 8, 1, 1),
        "w4": (72, 5),
        "b4": (5,),
    }
    constants = {name: values.normal(size=shape).astype("float32") / 2 for name, shape in shapes.items()}
    constants["flat"] = np.array([1, 72])
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["conv"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Conv", ["relu", "w2"], ["deep"], pads=[1] * 4, group=8),
        helper.make_node("Add", ["relu", "deep"], ["sum"]),
        helper.make_node("Conv", ["sum", "w3"], ["wide"]),
        helper.make_node("Sigmoid", ["wide"], ["gate"]),
        helper.make_node("Mul", ["wide", "gate"], ["gated"]),
        helper.make_node("MaxPool", ["gated"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["pooled", "flat"], ["row"]),
        helper.make_node("MatMul", ["row", "w4"], ["classes"]),
        helper.make_node("Add", ["classes", "b4"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=1),
    ]
    return model_of(nodes, [tensor_input("x", SHAPE)], ["y"], weights(**constants), opset)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize(
    ("activations", "opset", "per_channel"),
    [(QuantType.QInt8, 13, True), (QuantType.QUInt8, 17, True), (QuantType.QUInt8, 12, False)],
)
def test_a_quantised_network(tmp_path, form, activations, opset, per_channel):
    before, path = tmp_path / "network.onnx", tmp_path / "quantised.onnx"
    onnx.save(network(opset), before)
    quantize_static(
        str(before),
        str(path),
        Images(),
        quant_format=form,
        activation_type=activations,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
        reduce_range=True,  # by a bit, or ONNX Runtime's sums of pairs saturate where a processor has no VNNI
    )
    assert any("Quant" in node.op_type or "QLinear" in node.op_type for node in onnx.load(path).graph.node)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    mod, _ = from_onnx(path)
    compute = tvm_passes.runtime.compile(tvm_passes.default_pipeline()(mod), "llvm")
    (x,) = Images().get_next().values()
    (expected,) = session.run(None, {"x": x})
    assert expected.max() > 2 * expected.min()
    np.testing.assert_allclose(
        np.asarray(compute(x)), expected, atol=1.01 / 255
    )  # a step, where sums nearly tie


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_halves_are_rounded_to_even_and_the_rest_is_clipped(dtype):
    x = np.concatenate([np.arange(-300, 300, 0.5), [1e9, -1e9, np.inf, -np.inf, 2.0**17, 40000.5]])
    x = x.astype("float32")
    model = model_of(
        [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])],
        *([tensor_input("x", x.shape)], ["y"]),
        weights(scale=np.float32(1), zero=np.array(3, dtype)),
        21,
    )
    mod, _ = from_onnx(model)
    limits = np.iinfo(dtype)
    found = np.asarray(tvm_passes.runtime.compile(tvm_passes.default_pipeline()(mod), "llvm")(x))
    np.testing.assert_array_equal(found, np.clip(np.round(x) + 3, limits.min, limits.max))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_each_element_of_an_axis_has_its_scale(axis, dtype):
    x = np.arange(9, dtype=dtype).reshape(3, 3)
    constants = {"scale": np.float32([1, 10, 100]), "zero": np.array([0, 1, 2], dtype)}
    constants = constants if dtype == "int8" else {"scale": constants["scale"]}
    node = helper.make_node("DequantizeLinear", ["x", *constants], ["y"], axis=axis)
    model = model_of([node], [tensor_input("x", (3, 3), dtype)], ["y"], weights(**constants), 21)
    assert_matches_reference(from_onnx(model)[0], model, x)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
def test_each_block_along_an_axis_has_its_scale(operator, axis, zero):
    """The last block is shorter."""
    values = np.random.default_rng(0)
    x = values.integers(-90, 90, (5, 7)).astype("int8" if operator == "DequantizeLinear" else "float32")
    blocks = (3, 7) if axis == 0 else (5, 4)
    constants = {"scale": values.uniform(0.5, 2, blocks).astype("float32")}
    dtype = "int8" if operator == "DequantizeLinear" or zero else "uint8"
    if zero:
        constants["zero"] = values.integers(-9, 9, blocks).astype(dtype)
    node = helper.make_node(operator, ["x", *constants], ["y"], axis=axis, block_size=2)
    model = model_of([node], [tensor_input("x", x.shape, x.dtype)], ["y"], weights(**constants), 21)
    scale, zeros = (
        np.repeat(each, 2, axis)[:5, :7]
        for each in (constants["scale"], constants.get("zero", constants["scale"] * 0))
    )
    limits = np.iinfo(dtype)
    if operator == "DequantizeLinear":
        expected = ((x - zeros.astype("float32")) * scale).astype("float32")
    else:
        expected = np.clip(np.round(x / scale) + zeros, limits.min, limits.max).astype(dtype)
    (found,) = run(from_onnx(model)[0], x)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_quantised_convolution_of_images_whose_size_is_known_only_at_run_time(per_channel):
    x, w = quantised("uint8", 2, 3, 6, 5), quantised("int8", 4, 3, 3, 3, seed=1)
    scale = np.float32([0.02, 0.03, 0.01, 0.05]) if per_channel else np.float32(0.02)
    constants = {**scale_and_zero("x", "uint8", 0.1), "w": w, "w scale": scale}
    constants |= {"w zero": np.zeros(scale.shape, "int8"), **scale_and_zero("y", "uint8", 1.5)}
    node = helper.make_node("QLinearConv", ["x", *constants], ["y"])
    compute = []
    for shape in ("n", 3, "h", "w"), x.shape:
        model = model_of([node], [tensor_input("x", shape, "uint8")], ["y"], weights(**constants))
        compute.append(compiled(from_onnx(model)[0]))
    (found,), (expected,) = (each(x) for each in compute)
    np.testing.assert_array_equal(found, expected)


def quantised(dtype, *shape, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def scale_and_zero(name, dtype, scale):
    return {f"{name} scale": np.float32(scale), f"{name} zero": np.array(4, dtype)}


def assert_as_onnx_runtime_does(operator, arrays, attributes, steps=0, domain="com.microsoft"):
    """`arrays` are the inputs; the first is no constant."""
    (first, x), *others = arrays.items()
    omitted = {name for name, array in others if array is None}
    names = ["" if name in omitted else name for name in arrays]
    node = helper.make_node(operator, names, ["y"], domain=domain, **attributes)
    constants = weights(**{name: array for name, array in others if array is not None})
    domains = [domain] if domain else []
    model = model_of([node], [tensor_input(first, x.shape, x.dtype)], ["y"], constants, domains=domains)
    (found,) = run(from_onnx(model)[0], x)
    model.graph.output[0].CopyFrom(tensor_input("y", None, found.dtype))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {first: x})
    np.testing.assert_allclose(found.astype("float64"), expected, atol=steps, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("layout", [{}, {"channels_last": 0}, {"channels_last": 1}])
def test_a_global_average_of_quantised_numbers(layout, dtype):
    x = {"x": quantised(dtype, 2, 6, 4, 8)}
    # Many of these means are amid two steps.
    arrays = {**x, **scale_and_zero("x", dtype, 0.1), **scale_and_zero("y", dtype, 0.05)}
    assert_as_onnx_runtime_does("QLinearGlobalAveragePool", arrays, layout)


QUANTISED = {  # operator, of how many operands, attributes
    "QLinearAdd": (2, {}),
    "QLinearAveragePool": (1, {"kernel_shape": [2], "channels_last": 1}),
    "QLinearLeakyRelu": (1, {}),
    "QLinearMul": (2, {}),
    "QLinearSigmoid": (1, {}),
}


@pytest.mark.parametrize("operator", QUANTISED)
def test_a_quantised_operator_in_floats(operator):
    """To the step, where a float is amid two."""
    count, attributes = QUANTISED[operator]
    arrays = {}
    for name in "ab"[:count]:
        arrays |= {name: quantised("int8", 2, 30, 4, seed=ord(name)), **scale_and_zero(name, "int8", 0.07)}
    arrays |= scale_and_zero("y", "int8", 0.3)
    assert_as_onnx_runtime_does(operator, arrays, attributes, steps=1)


def test_quantised_numbers_are_joined():
    arrays = {"a": quantised("uint8", 2, 30), **scale_and_zero("a", "uint8", 0.07)}
    arrays |= {"b": quantised("uint8", 2, 20), **scale_and_zero("b", "uint8", 0.11)}
    names = ["y scale", "y zero", *arrays]
    node = helper.make_node("QLinearConcat", names, ["y"], domain="com.microsoft", axis=-1)
    x = arrays.pop("a")
    constants = weights(**arrays, **scale_and_zero("y", "uint8", 0.1))
    model = model_of(
        [node], [tensor_input("a", x.shape, "uint8")], ["y"], constants, domains=["com.microsoft"]
    )
    parts = [(x, 0.07), (arrays["b"], 0.11)]
    expected = np.concatenate([(part - 4.0) * scale / 0.1 for part, scale in parts], 1)
    (found,) = run(from_onnx(model)[0], x)
    np.testing.assert_allclose(found, np.clip(np.round(expected) + 4, 0, 255), atol=1)


def test_one_of_two_quantised_numbers_is_chosen():
    condition = np.random.default_rng(0).random((2, 30)) > 0.5
    arrays = {"condition": condition, "a": quantised("uint8", 2, 30), **scale_and_zero("a", "uint8", 0.07)}
    arrays |= {"b": quantised("uint8", 2, 30, seed=1), **scale_and_zero("b", "uint8", 0.11)}
    arrays |= scale_and_zero("y", "uint8", 0.1)
    assert_as_onnx_runtime_does("QLinearWhere", arrays, {}, steps=1)


@pytest.mark.parametrize("bias", [None, np.float32([100, 200, 300, 400])])
def test_products_that_onnx_runtime_has_fused_with_their_scales(bias):
    b = {"b": quantised("int8", 6, 4), "b scale": np.float32([1, 2, 3, 4]) / 100}
    x = np.random.default_rng(0).normal(size=(2, 6)).astype("float32")
    zero = {"b zero": np.zeros(4, "int8")}
    assert_as_onnx_runtime_does("DynamicQuantizeMatMul", {"x": x, **b, **zero, "bias": bias}, {})
    a = {"a": quantised("uint8", 2, 6), "b": b["b"], "a scale": np.float32(0.02), "b scale": b["b scale"]}
    a |= {"a zero": np.uint8(100), **zero, "bias": bias}
    assert_as_onnx_runtime_does("MatMulIntegerToFloat", a, {})


def test_a_product_of_integers_with_scales_of_float16():
    a = {"a": quantised("uint8", 2, 600), "b": quantised("int8", 600, 4), "a scale": np.float16(0.02)}
    a |= {"b scale": np.float16([1, 2, 3, 4]) / 100, "a zero": np.uint8(100), "b zero": np.zeros(4, "int8")}
    a |= {"bias": np.float16([1, 2, 3, 4])}
    integers = (a["a"] - 100.0) @ a["b"].astype("float64")
    exact = integers * np.float64(a["a scale"]) * a["b scale"] + a["bias"]
    constants = weights(**{name: array for name, array in a.items() if name != "a"})
    node = helper.make_node("MatMulIntegerToFloat", list(a), ["y"], domain="com.microsoft")
    ends = [tensor_input("a", a["a"].shape, "uint8")], ["y"]
    (found,) = run(from_onnx(model_of([node], *ends, constants, domains=["com.microsoft"]))[0], a["a"])
    assert found.dtype == "float16" and abs(integers).max() > np.finfo("float16").max
    np.testing.assert_allclose(found, exact, rtol=1e-3)


@pytest.mark.parametrize(
    "bits, zero",
    [(2, None), (4, None), (4, "packed"), (4, "float"), (8, "packed")],
)
def test_products_with_weights_of_few_bits(bits, zero):
    length, columns, block = 40, 5, 16  # the last block is not full
    random, blocks = np.random.default_rng(0), -(-length // block)
    packed = random.integers(0, 256, (columns, blocks, block * bits // 8)).astype("uint8")
    scales = random.normal(size=columns * blocks).astype("float32") / 2**bits
    zeros = {
        None: None,
        "packed": random.integers(0, 256, columns * -(-blocks * bits // 8)).astype("uint8"),
        "float": random.uniform(0, 16, columns * blocks).astype("float32"),
    }[zero]
    arrays = {"x": random.normal(size=(2, 3, length)).astype("float32"), "w": packed, "scales": scales}
    arrays |= {"zeros": zeros, "order": None, "bias": random.normal(size=columns).astype("float32")}
    attributes = {"K": length, "N": columns, "bits": bits, "block_size": block}
    assert_as_onnx_runtime_does("MatMulNBits", arrays, attributes, steps=1e-4)


def test_blocks_in_another_order_are_refused():
    arrays = {"w": np.zeros((5, 2, 8), "uint8"), "scales": np.ones(10, "float32"), "order": np.zeros(32, "i")}
    names = ["x", "w", "scales", "", "order"]
    attributes = {"K": 32, "N": 5, "bits": 4, "block_size": 16}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attributes)
    ends = [tensor_input("x", (3, 32))], ["y"]
    with pytest.raises(ImportFailure, match="quantize without act_order"):
        from_onnx(model_of([node], *ends, weights(**arrays), domains=["com.microsoft"]))


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
@pytest.mark.parametrize("zero", [True, False])
def test_weights_of_float8_keep_their_fractions(zero, dtype):
    w = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    constants = [helper.make_tensor("w", dtype, w.shape, w.ravel()), *weights(scale=np.float32(0.5))]
    constants += [helper.make_tensor("zero", dtype, (), [0.0])] if zero else []
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", *["zero"] * zero], ["float"]),
        helper.make_node("MatMul", ["x", "float"], ["y"]),
    ]
    model = model_of(nodes, [tensor_input("x", (2, 6))], ["y"], constants, 21)
    x = np.ones((2, 6), "float32")
    (found,) = run(from_onnx(model)[0], x)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=1e-6)


def test_a_bias_of_float16_may_be_an_integer_that_float16_does_not_have():
    x = np.int32([100_000, -7_000_000, 5])
    model = model_of(
        [helper.make_node("DequantizeLinear", ["x", "scale"], ["y"])],
        *([tensor_input("x", x.shape, "int32")], ["y"], weights(scale=np.float16(0.001)), 21),
    )
    (found,) = run(from_onnx(model)[0], x)
    np.testing.assert_array_equal(found, (x * np.float64(np.float16(0.001))).astype("float16"))


def test_a_tensor_quantised_to_float8_is_refused():
    zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, (), [0.0])
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    model = model_of([node], [tensor_input("x", (2,))], ["y"], [*weights(scale=np.float32(0.5)), zero], 21)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN
    with pytest.raises(ImportFailure, match="to float8 is not supported: quantize tensors to int8 or uint8"):
        from_onnx(model)


@pytest.mark.parametrize("result", ["uint8", None])
def test_a_quantised_gemm(result):
    arrays = {"a": quantised("uint8", 3, 4), **scale_and_zero("a", "uint8", 0.02)}
    arrays |= {"b": quantised("int8", 4, 5), "b scale": np.float32([1, 2, 3, 4, 5]) / 100}
    arrays |= {"b zero": np.zeros(5, "int8"), "c": np.arange(-200, 300, 100, dtype="int32")}
    arrays |= scale_and_zero("y", result, 0.4) if result else {}
    assert_as_onnx_runtime_does("QGemm", arrays, {"alpha": 0.5}, steps=0 if result is None else 1)


@pytest.mark.parametrize("axes", [1, 2])
def test_a_quantised_convolution_with_scales_of_filters_and_one_zero_point(axes):
    arrays = {
        "x": quantised("uint8", 1, 4, 6, 5)[..., : 5 if axes == 2 else 1],
        **scale_and_zero("x", "uint8", 0.02),
    }
    arrays |= {"w": quantised("int8", 3, 4, 3, 2)[..., :axes], "w scale": np.float32([1, 2, 3]) / 100}
    if axes == 1:
        arrays["x"], arrays["w"] = arrays["x"][..., 0], arrays["w"][..., 0]
    arrays |= {"w zero": np.int8(2), **scale_and_zero("y", "uint8", 0.2)}
    arrays["bias"] = np.arange(-200, 100, 100, dtype="int32")
    assert_as_onnx_runtime_does("QLinearConv", arrays, {"pads": [1] * 2 * axes}, domain="")


def test_a_quantised_convolution_of_channels_that_come_last():
    """As ONNX Runtime lays them out; the weights are as ONNX has them."""
    arrays = {"x": quantised("uint8", 1, 5, 6, 4), **scale_and_zero("x", "uint8", 0.1)}
    arrays |= {"w": quantised("int8", 3, 4, 3, 3, seed=1), "w scale": np.float32(0.02), "w zero": np.int8(0)}
    arrays |= scale_and_zero("y", "uint8", 2.0)
    assert_as_onnx_runtime_does("QLinearConv", arrays, {"channels_last": 1, "pads": [1, 0, 1, 1]})


@pytest.mark.parametrize("x", [[0, 0], [0.5, 1, 2.5, 255], [-1.5, 2.5, 253.5], [-3, -1]])
def test_numbers_quantised_by_their_own_range(x):
    x = np.array(x, "float32")
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    model = model_of([node], [tensor_input("x", x.shape)], ["y", "scale", "zero"])
    for value, dtype in zip(model.graph.output, ("uint8", "float32", "uint8")):
        value.CopyFrom(tensor_input(value.name, None, dtype))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, expected in zip(run(from_onnx(model)[0], x), session.run(None, {"x": x})):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("scales", [(2,), (2, 20)], ids=["per direction", "per gate"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_an_lstm_of_quantised_weights(scales, dtype):
    """ONNX Runtime rounds the input and the states to 8 bits, too; the LSTM in floats is met exactly."""
    x = np.random.default_rng(0).normal(size=(3, 1, 4)).astype("float32")
    w, r = quantised(dtype, 2, 4, 20), quantised(dtype, 2, 5, 20, seed=1)
    scale = np.random.default_rng(1).uniform(0.002, 0.004, scales).astype("float32")
    offset = 0 if dtype == "int8" else 3  # ONNX Runtime has no others of int8 for each gate
    zero = np.full(scales, offset, dtype)
    bias = np.random.default_rng(2).normal(size=(2, 40)).astype("float32")
    of_weights = {"w scale": scale, "w zero": zero, "r scale": scale * 2, "r zero": zero}
    options = {"hidden_size": 5, "direction": "bidirectional"}

    def outputs(operator, names, constants, domain, compute):
        node = helper.make_node(operator, ["x", *names], ["y", "last", "cell"], domain=domain, **options)
        ends = [tensor_input("x", x.shape)], ["y", "last", "cell"]
        return compute(model_of([node], *ends, weights(**constants), domains=[domain] if domain else []))

    def by_runtime(model):
        providers = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(model.SerializeToString(), providers=providers).run(
            None, {"x": x}
        )

    names = ["w", "r", "bias", "", "", "", "", *of_weights]
    constants = {"w": w, "r": r, "bias": bias, **of_weights}
    quantized = "DynamicQuantizeLSTM", names, constants, "com.microsoft"
    found = outputs(*quantized, lambda model: run(from_onnx(model)[0], x))
    for each, rounded in zip(found, outputs(*quantized, by_runtime)):
        np.testing.assert_allclose(each, rounded, atol=0.05)
    floats = [
        ((each.astype("float32") - offset) * scale.reshape(2, 1, -1) * by).transpose(0, 2, 1)
        for each, by in ((w, 1), (r, 2))
    ]
    floats = dict(zip(("w", "r", "bias"), [*floats, bias]))
    for each, expected in zip(found, outputs("LSTM", [*floats], floats, "", by_runtime)):
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-5)


def test_a_quantised_operator_without_a_converter_is_named():
    inputs = [tensor_input("x", (1, 2)), tensor_input("w", (2, 2), "int8")]
    node = helper.make_node("QLinearReduceMean", ["x", "w"], ["y"], "it", domain="com.microsoft")
    model = model_of([node], inputs, ["y"], domains=["com.microsoft"])
    with pytest.raises(ImportFailure, match=r"no converter .* 'it' \(com.microsoft.QLinearReduceMean\)"):
        from_onnx(model)
