"""Small models that mutations start from: each has what the others lack."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from tests.frontends.onnx_models import convolution, model_of, tensor_input, weights

NODE_TESTS = (
    "test_averagepool_2d_pads",
    "test_batchnorm_example",
    "test_bitshift_left_uint8",
    "test_castlike_FLOAT_to_DOUBLE",
    "test_clip_example",
    "test_convtranspose_with_kernel",
    "test_cumsum_2d_axis_0",
    "test_depthtospace_crd_mode_example",
    "test_dynamicquantizelinear",
    "test_einsum_batch_matmul",
    "test_expand_dim_changed",
    "test_gather_elements_0",
    "test_gathernd_example_int32",
    "test_gemm_all_attributes",
    "test_gridsample",
    "test_gru_defaults",
    "test_instancenorm_example",
    "test_layer_normalization_2d_axis0",
    "test_logsoftmax_axis_1",
    "test_lrn",
    "test_lstm_defaults",
    "test_matmulinteger",
    "test_maxpool_2d_ceil",
    "test_nonzero_example",
    "test_onehot_with_axis",
    "test_prelu_broadcast",
    "test_qlinearconv",
    "test_qlinearmatmul_2D_uint8_float32",
    "test_range_float_type_positive_delta",
    "test_reduce_l2_do_not_keepdims_example",
    "test_reshape_zero_dim",
    "test_resize_upsample_scales_nearest",
    "test_reversesequence_batch",
    "test_roialign_aligned_false",
    "test_scan_sum",
    "test_scatter_elements_with_axis",
    "test_scatternd",
    "test_slice",
    "test_split_variable_parts_1d_opset13",
    "test_tile",
    "test_top_k",
    "test_trilu_lower",
    "test_unique_not_sorted_without_axis",
    "test_where_example",
)


def seed_models() -> dict[str, onnx.ModelProto]:
    """The models by name."""
    models = {name: make() for name, make in MADE_HERE.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        for case in load_model_tests(kind="node"):
            if case.name in NODE_TESTS:
                models[case.name] = onnx.load(f"{case.model_dir}/model.onnx")
    return models


def network() -> onnx.ModelProto:
    """Convolution, normalization, pooling, a residual, a classifier."""
    values = np.random.default_rng(0)

    def filters(*shape: int) -> np.ndarray:
        return values.normal(size=shape).astype("float32")

    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c1", "s", "b", "m", "v"], ["n1"], "norm", epsilon=1e-3),
        helper.make_node("Relu", ["n1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "grouped", group=4, pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["a"], "residual"),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten", axis=1),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], "fc", transB=1),
        helper.make_node("Softmax", ["g"], ["scores"], "softmax", axis=1),
    ]
    return model_of(
        nodes,
        [tensor_input("image", (1, 3, 8, 8))],
        ["scores"],
        weights(
            w1=filters(4, 3, 3, 3),
            w2=filters(4, 1, 3, 3),
            w3=filters(5, 16),
            b3=filters(5),
            s=filters(4),
            b=filters(4),
            m=filters(4),
            v=np.abs(filters(4)),
        ),
    )


def detector() -> onnx.ModelProto:
    """Boxes and scores to detections, as exporters write it."""
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["kept"], "nms"),
        helper.make_node("Slice", ["kept", "two", "three", "one"], ["column"], "column"),
        helper.make_node("Squeeze", ["column", "one"], ["index"], "index"),
        helper.make_node("Squeeze", ["boxes", "zero"], ["rows"], "rows"),
        helper.make_node("Gather", ["rows", "index"], ["found"], "found", axis=0),
        helper.make_node("Shape", ["found"], ["shape"], "shape"),
        helper.make_node("Gather", ["shape", "first"], ["count"], "count"),
    ]
    return model_of(
        nodes,
        [tensor_input("boxes", (1, 6, 4)), tensor_input("scores", (1, 2, 6))],
        ["found", "count"],
        weights(
            most=np.int64([3]),
            iou=np.float32([0.5]),
            least=np.float32([0.1]),
            zero=np.int64([0]),
            one=np.int64([1]),
            two=np.int64([2]),
            three=np.int64([3]),
            first=np.int64(0),
        ),
    )


def shape_arithmetic() -> onnx.ModelProto:
    """A reshape to sizes that are computed, a resize, pads, slices, splits."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("Slice", ["shape", "zero", "two"], ["front"], "front"),
        helper.make_node("Concat", ["front", "rest"], ["wanted"], "wanted", axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"], "flat"),
        helper.make_node("Transpose", ["x"], ["turned"], "turned", perm=[0, 1, 3, 2]),
        helper.make_node("Pad", ["turned", "pads", "fill"], ["padded"], "padded", mode="constant"),
        helper.make_node("Resize", ["padded", "", "scales"], ["resized"], "resized", mode="linear"),
        helper.make_node("Split", ["resized", "parts"], ["upper", "lower"], "halves", axis=2),
        helper.make_node("ReduceMean", ["upper"], ["mean"], "mean", axes=[2, 3], keepdims=0),
        helper.make_node("ConstantOfShape", ["wanted"], ["ones"], "ones"),
        helper.make_node("Tile", ["mean", "repeats"], ["tiled"], "tiled"),
        helper.make_node("Expand", ["mean", "larger"], ["expanded"], "expanded"),
    ]
    return model_of(
        nodes,
        [tensor_input("x", (1, 2, 4, 6))],
        ["flat", "lower", "ones", "tiled", "expanded"],
        weights(
            zero=np.int64([0]),
            two=np.int64([2]),
            rest=np.int64([-1]) * -24,
            pads=np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
            fill=np.float32(0.5),
            scales=np.float32([1, 1, 2, 2]),
            parts=np.int64([8, 8]),
            repeats=np.int64([2, 3]),
            larger=np.int64([3, 1, 2]),
        ),
    )


def branches(nested: int = 2) -> onnx.ModelProto:
    """An If inside another, in both branches of which something outside is read."""

    def output(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])

    def graph(op: str, depth: int) -> onnx.GraphProto:
        name = f"{op}{depth}"
        nodes = [helper.make_node(op, ["x", "one"], [name], name)]
        if depth:
            inner = {f"{kind}_branch": graph(op, depth - 1) for kind in ("then", "else")}
            nodes.append(helper.make_node("If", ["condition"], [f"{name}_if"], f"{name}_if", **inner))
        return helper.make_graph(nodes, name, [], [output(nodes[-1].output[0])])

    choice = {"then_branch": graph("Add", nested), "else_branch": graph("Sub", nested)}
    return model_of(
        [helper.make_node("If", ["condition"], ["y"], "if", **choice)],
        [tensor_input("x", (3,)), tensor_input("condition", (), "bool")],
        ["y"],
        weights(one=np.float32(1)),
    )


def loop() -> onnx.ModelProto:
    """A sum over rounds, and what each round gives."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "x"], ["more"], "add"),
            helper.make_node("Identity", ["more"], ["scanned"], "scan"),
            helper.make_node("Identity", ["goes_on"], ["still"], "still"),
        ],
        "body",
        [tensor_input("i", (), "int64"), tensor_input("goes_on", (), "bool"), tensor_input("sum", (2,))],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("scanned", TensorProto.FLOAT, [2]),
        ],
    )
    return model_of(
        [helper.make_node("Loop", ["count", "true", "x"], ["last", "all"], "loop", body=body)],
        [tensor_input("x", (2,))],
        ["last", "all"],
        weights(count=np.int64(3), true=np.array(True)),
    )


def quantized() -> onnx.ModelProto:
    """Quantize, a matrix product of integers, dequantize."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantize"),
        helper.make_node(
            "QLinearMatMul",
            ["q", "scale", "zero", "w", "wscale", "wzero", "yscale", "zero"],
            ["p"],
            "product",
        ),
        helper.make_node("DequantizeLinear", ["p", "yscale", "zero"], ["y"], "dequantize"),
    ]
    return model_of(
        nodes,
        [tensor_input("x", (2, 4))],
        ["y"],
        weights(
            scale=np.float32(0.1),
            yscale=np.float32(0.3),
            wscale=np.float32(0.2),
            zero=np.uint8(128),
            wzero=np.uint8(3),
            w=np.arange(12, dtype="uint8").reshape(4, 3),
        ),
    )


def functions() -> onnx.ModelProto:
    """A model that defines an operator of its own, by another of its own."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    inner = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"], "double")], opsets
    )
    outer = helper.make_function(
        "local",
        "Scaled",
        ["a", "s"],
        ["c"],
        [
            helper.make_node("Twice", ["a"], ["t"], "twice", domain="local"),
            helper.make_node("Mul", ["t", "s"], ["c"], "scale"),
        ],
        opsets,
    )
    model = model_of(
        [helper.make_node("Scaled", ["x", "s"], ["y"], "call", domain="local")],
        [tensor_input("x", (2, 3))],
        ["y"],
        weights(s=np.float32(3)),
        opset=18,
        domains=["local"],
    )
    model.functions.extend([inner, outer])
    return model


def exported() -> onnx.ModelProto:
    """What torch's exporter writes for a small network of symbolic batch."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.GroupNorm(2, 8),
        torch.nn.Hardswish(),
        torch.nn.PixelShuffle(2),
        torch.nn.Upsample(scale_factor=2, mode="bilinear"),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(),
            torch.zeros(1, 3, 6, 6),
            buffer,
            opset_version=17,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
    return onnx.load_from_string(buffer.getvalue())


MADE_HERE: dict[str, Callable[[], onnx.ModelProto]] = {
    "branches": branches,
    "convolution": convolution,
    "detector": detector,
    "exported": exported,
    "functions": functions,
    "loop": loop,
    "network": network,
    "quantized": quantized,
    "shape_arithmetic": shape_arithmetic,
}
