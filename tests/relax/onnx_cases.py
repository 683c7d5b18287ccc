"""Nodes of ONNX with arguments that are not their defaults, and models that are made of them."""

import itertools
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(5)
LATEST = 22


class Case(NamedTuple):
    """A node: inputs that are `known` are weights of the model; None stands for one that is omitted."""

    op_type: str
    inputs: list
    known: tuple = ()
    attributes: dict = MappingProxyType({})
    opsets: tuple = (13, LATEST)
    outputs: int = 1


def random(*shape, dtype="float32"):
    return RANDOM.standard_normal(shape).astype(dtype)


def integers(low, high, *shape, dtype="int64"):
    return RANDOM.integers(low, high, shape).astype(dtype)


def case(op_type, *inputs, known=(), opsets=(13, LATEST), outputs=1, **attributes):
    inputs = [np.asarray(each, "int64") if isinstance(each, list) else each for each in inputs]
    inputs = [None if each is None else np.asarray(each) for each in inputs]
    return Case(op_type, inputs, tuple(known), attributes, opsets, outputs)


IMAGE, ROWS, VECTOR = random(2, 4, 7, 9), random(3, 5), random(5)
POSITIVE = np.abs(IMAGE) + 0.1
NUMBERS = np.float32([-2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 3.49, 1e9])
WHOLE, OTHER = integers(-9, 9, 3, 5), integers(-9, 9, 3, 5)
DIVISORS = np.int64([3, -2, 5, -7, 4])
SMALL_NUMBERS = np.float32([-0.9, -0.5, 0, 0.1, 0.8])
MASK, MASK_2 = WHOLE > 0, OTHER > 0
HALF = random(2, 4, 7, 9, dtype="float16")
INFINITE = np.float32([np.nan, np.inf, -np.inf, 0, 1, -1])

UNARY = (
    "Abs Ceil Celu Cos Elu Erf Exp Floor HardSigmoid HardSwish Identity LeakyRelu Neg Reciprocal Relu Round"
)
UNARY += " Asinh Atan Cosh Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Tanh ThresholdedRelu"
ELEMENTWISE = {
    **{
        name: case(name, NUMBERS / 3 if name == "Exp" else IMAGE)
        for name in UNARY.split()
        if name != "HardSwish"
    },
    "HardSwish": case("HardSwish", IMAGE * 3, opsets=(14, LATEST)),
    "Acos": case("Acos", SMALL_NUMBERS),
    "Acosh": case("Acosh", POSITIVE + 1),
    "Asin": case("Asin", SMALL_NUMBERS),
    "Atanh": case("Atanh", SMALL_NUMBERS),
    "Tan": case("Tan", SMALL_NUMBERS),
    "IsNaN": case("IsNaN", INFINITE),
    "IsInf": case("IsInf", INFINITE),
    "IsInf_positive": case("IsInf", INFINITE, detect_negative=0),
    "IsInf_negative": case("IsInf", INFINITE, detect_positive=0),
    "IsInf_none": case("IsInf", INFINITE, detect_negative=0, detect_positive=0),
    "ThresholdedRelu_alpha": case("ThresholdedRelu", INFINITE, alpha=-0.5),
    "Shrink_bias": case("Shrink", IMAGE, bias=0.2, lambd=0.3),
    "Round_halves": case("Round", NUMBERS),
    "Sign_zero": case("Sign", NUMBERS),
    "Softplus_large": case("Softplus", NUMBERS * 100),
    "Celu_alpha": case("Celu", IMAGE, alpha=2.0),
    "Elu_alpha": case("Elu", IMAGE, alpha=0.5),
    "HardSigmoid_alpha": case("HardSigmoid", IMAGE, alpha=0.3, beta=0.4),
    "LeakyRelu_alpha": case("LeakyRelu", IMAGE, alpha=0.3),
    "Selu_alpha": case("Selu", IMAGE, alpha=1.2, gamma=0.7),
    "Gelu": case("Gelu", IMAGE, opsets=(20, LATEST)),
    "Gelu_tanh": case("Gelu", IMAGE, opsets=(20, LATEST), approximate="tanh"),
    "Mish": case("Mish", IMAGE * 9, opsets=(18, LATEST)),
    "Log": case("Log", POSITIVE),
    "Sqrt": case("Sqrt", POSITIVE),
    "Abs_integers": case("Abs", WHOLE),
    "Neg_integers": case("Neg", WHOLE),
    "Not": case("Not", MASK),
    "PRelu": case("PRelu", IMAGE, random(4, 1, 1), known=[1], opsets=(16, LATEST)),
    "PRelu_one": case("PRelu", IMAGE, random(1), known=[1], opsets=(16, LATEST)),
    "PRelu_columns": case("PRelu", IMAGE, random(9), known=[1], opsets=(16, LATEST)),
    "PRelu_rows": case("PRelu", ROWS, random(5), known=[1], opsets=(16, LATEST)),
    "Dropout": case("Dropout", IMAGE),
    "Clip": case("Clip", IMAGE, np.float32(-0.5), np.float32(0.7), known=[1, 2]),
    "Clip_low": case("Clip", IMAGE, np.float32(0.2), known=[1]),
    "Clip_high": case("Clip", IMAGE, None, np.float32(0.2), known=[2]),
    "Clip_crossed": case("Clip", IMAGE, np.float32(0.5), np.float32(-0.5), known=[1, 2]),
    "Clip_integers": case("Clip", WHOLE, np.int64(-3), np.int64(4), known=[1, 2]),
    "Clip_data": case("Clip", IMAGE, np.float32(-0.5), np.float32(0.7)),
    "Add": case("Add", IMAGE, random(4, 1, 9)),
    "Sub": case("Sub", random(9), IMAGE),
    "Mul": case("Mul", IMAGE, random(1), known=[1]),
    "Div": case("Div", IMAGE, POSITIVE),
    "Add_integers": case("Add", WHOLE, OTHER),
    **{f"{name}_infinite": case(name, INFINITE) for name in ("Relu", "Sign", "Neg", "Sigmoid", "LeakyRelu")},
    "Clip_infinite": case("Clip", INFINITE, np.float32(0), np.float32(6), known=[1, 2]),
    "Mul_infinite": case("Mul", INFINITE, np.float32(0), known=[1]),
    "Greater_infinite": case("Greater", INFINITE, INFINITE[:, None]),
    "Div_integers": case("Div", WHOLE, DIVISORS, known=[1]),
    "Div_unknown": case("Div", WHOLE, DIVISORS),
    "Div_bytes": case("Div", WHOLE.astype("int8"), np.int8(-3), known=[1]),
    "Mod": case("Mod", WHOLE, DIVISORS, known=[1]),
    "Mod_unknown": case("Mod", WHOLE, DIVISORS),
    "Mod_fmod_unknown": case("Mod", WHOLE, DIVISORS, fmod=1),
    "Mod_fmod": case("Mod", WHOLE, DIVISORS, known=[1], fmod=1),
    "Mod_floats": case("Mod", IMAGE, np.float32(0.7), known=[1], fmod=1),
    "Pow": case("Pow", POSITIVE, random(9)),
    "Pow_2": case("Pow", IMAGE, np.float32(2), known=[1]),
    "Pow_integer": case("Pow", IMAGE, np.int64(3), known=[1]),
    "Pow_of_integer": case("Pow", WHOLE, np.float32(2), known=[1]),
    "Pow_half": case("Pow", POSITIVE, np.float32(0.5), known=[1]),
    "Pow_minus": case("Pow", POSITIVE, np.float32(-1.5), known=[1]),
    "Max": case("Max", IMAGE, random(9), random(4, 1, 1)),
    "Min": case("Min", IMAGE, random(9)),
    "Min_infinite": case("Min", INFINITE, INFINITE[::-1]),
    "Max_nan": case("Max", np.float32([np.nan, 1, 2]), np.float32([1, np.nan, -np.inf])),
    "Max_integers": case("Max", WHOLE, OTHER),
    "Sum": case("Sum", IMAGE, random(9), random(4, 1, 1)),
    "Mean": case("Mean", IMAGE, random(9), random(4, 1, 1)),
    "Where": case("Where", MASK, WHOLE, np.int64(7)),
    "And": case("And", MASK, MASK_2),
    "Or": case("Or", MASK, MASK_2),
    "Xor": case("Xor", MASK, MASK_2),
    "Equal": case("Equal", WHOLE, OTHER),
    "Equal_masks": case("Equal", MASK, MASK_2),
    "Greater": case("Greater", WHOLE, OTHER),
    "GreaterOrEqual": case("GreaterOrEqual", WHOLE, OTHER, opsets=(16, LATEST)),
    "Less": case("Less", IMAGE, random(9)),
    "LessOrEqual": case("LessOrEqual", WHOLE, OTHER, opsets=(16, LATEST)),
    "Cast_whole": case("Cast", NUMBERS, to=TensorProto.INT32),
    "Cast_mask": case("Cast", WHOLE, to=TensorProto.BOOL),
    "Cast_float_to_mask": case("Cast", NUMBERS / 3, to=TensorProto.BOOL),
    "Cast_of_mask": case("Cast", MASK, to=TensorProto.FLOAT),
    "Cast_half": case("Cast", IMAGE, to=TensorProto.FLOAT16),
    "Cast_double": case("Cast", WHOLE, to=TensorProto.DOUBLE),
    "CastLike": case("CastLike", NUMBERS, WHOLE, opsets=(15, LATEST)),
    "Cast_bytes": case("Cast", np.float32([0, 3.7, 255]), to=TensorProto.UINT8),
}

SHAPES = {
    "Concat": case("Concat", IMAGE, random(2, 1, 7, 9), axis=-3),
    "DepthToSpace": case("DepthToSpace", random(2, 12, 3, 5), blocksize=2),
    "DepthToSpace_crd": case("DepthToSpace", random(2, 12, 3, 5), blocksize=2, mode="CRD"),
    "SpaceToDepth": case("SpaceToDepth", random(2, 3, 4, 6), blocksize=2),
    "Expand": case("Expand", random(3, 1), [2, 1, 5], known=[1]),
    "Expand_less": case("Expand", ROWS, [1, 1], known=[1]),
    "Flatten": case("Flatten", IMAGE, axis=2),
    "Flatten_0": case("Flatten", IMAGE, axis=0),
    "Flatten_last": case("Flatten", IMAGE, axis=-1),
    "Reshape": case("Reshape", IMAGE, [0, -1, 3], known=[1]),
    "Squeeze": case("Squeeze", random(1, 3, 1, 2), [-2], known=[1]),
    "Squeeze_all": case("Squeeze", random(1, 3, 1, 2)),
    "Unsqueeze": case("Unsqueeze", ROWS, [-1, 0], known=[1]),
    "Transpose": case("Transpose", IMAGE, perm=[2, 0, 3, 1]),
    "Transpose_all": case("Transpose", IMAGE),
    "Tile": case("Tile", ROWS, [2, 3], known=[1]),
    "Split": case("Split", IMAGE, [1, 3], known=[1], axis=1, outputs=2),
    "Split_equal": case("Split", IMAGE, axis=-3, outputs=2, opsets=(13, 17)),
    "Split_number": case("Split", IMAGE, axis=2, num_outputs=3, outputs=3, opsets=(18, LATEST)),
    "Slice": case("Slice", IMAGE, [1, -4], [3, 99], [1, -1], [1, 2], known=[1, 2, 3, 4]),
    "Slice_default": case("Slice", ROWS, [1], [-1], known=[1, 2]),
    "Slice_backwards": case("Slice", IMAGE, [-1, 5], [-99, 1], [3, 2], [-1, -2], known=[1, 2, 3, 4]),
    "Slice_empty": case("Slice", ROWS, [3], [1], [1], known=[1, 2, 3]),
    "Gather": case("Gather", IMAGE, [[-1, 0], [2, 1]], known=[1], axis=1),
    "Gather_one": case("Gather", IMAGE, np.int64(-2), known=[1], axis=3),
    "Gather_data": case("Gather", ROWS, integers(-3, 3, 2, 2)),
    "GatherElements": case("GatherElements", ROWS, integers(-5, 5, 3, 2), axis=1),
    "GatherND": case("GatherND", IMAGE, np.int64([[0, -1], [1, 2]])),
    "GatherND_batch": case("GatherND", IMAGE, np.int64([[1, -1], [3, 2]]), batch_dims=1),
    "ScatterElements": case(
        "ScatterElements", ROWS, [[-1, 0], [1, 2]], random(2, 2), axis=1, opsets=(16, LATEST)
    ),
    "ScatterElements_fewer": case(
        "ScatterElements", IMAGE, [[[[1, -1]]], [[[0, 3]]]], random(2, 1, 1, 2), axis=3, opsets=(16, LATEST)
    ),
    "ScatterElements_sums": case(
        "ScatterElements", ROWS, [[0, 0], [1, 2]], random(2, 2), axis=1, reduction="add", opsets=(16, LATEST)
    ),
    "ScatterElements_least": case(
        "ScatterElements", WHOLE, [[0, 0], [1, 2]], OTHER[:2, :2], reduction="min", opsets=(18, LATEST)
    ),
    "ScatterND_products": case(
        "ScatterND", ROWS, [[0, 0], [0, 0]], random(2), reduction="mul", opsets=(16, LATEST)
    ),
    "OneHot_data": case("OneHot", [0, -1, 2, 9], np.int64(4), np.float32([-1, 5]), known=[1, 2], axis=0),
    "OneHot_last": case("OneHot", [[0, -4, -5]], np.int64(4), np.int64([0, 1]), known=[1, 2]),
    "Trilu_data": case("Trilu", IMAGE, np.int64(1), known=[1], opsets=(14, LATEST)),
    "Trilu_lower": case("Trilu", ROWS, upper=0, opsets=(14, LATEST)),
    "ScatterND": case("ScatterND", ROWS, [[0, -1], [2, 2]], random(2), opsets=(16, LATEST)),
    "ScatterND_rows": case("ScatterND", ROWS, [[2], [-3]], random(2, 5), known=[1], opsets=(16, LATEST)),
    "Pad": case("Pad", IMAGE, [0, 0, 1, 2, 0, 1, 3, 0], np.float32(1.5), known=[1, 2]),
    "Pad_reflect": case("Pad", IMAGE, [0, 0, 1, 2, 0, 0, 3, 4], known=[1], mode="reflect"),
    "Pad_edge": case("Pad", IMAGE, [1, 0, 1, 2, 0, 0, 3, 4], known=[1], mode="edge"),
    "Pad_axes": case("Pad", IMAGE, [1, 2, 3, 0], None, [-1, 1], known=[1, 3], opsets=(18, LATEST)),
    "Pad_integers": case("Pad", WHOLE, [1, 0, 0, 2], np.int64(-7), known=[1, 2]),
    "Pad_negative": case("Pad", IMAGE, [0, 0, -1, 2, 0, 1, 0, -3], np.float32(1.5), known=[1, 2]),
    "Pad_nothing": case("Pad", IMAGE, [0] * 8, known=[1]),
}

SMALL = random(2, 6, 8, 10)
VOLUME, EQUAL = random(2, 4, 5, 6, 7), np.round(IMAGE * 2)
LAYERS = {
    "MatMul": case("MatMul", random(2, 3, 5), random(5, 4)),
    "MatMul_batch": case("MatMul", random(2, 1, 3, 5), random(3, 5, 4)),
    "MatMul_vector": case("MatMul", ROWS, VECTOR),
    "MatMul_half": case("MatMul", HALF, random(9, 3, dtype="float16")),
    "Gemm": case("Gemm", ROWS, random(5, 4), random(4), known=[1, 2]),
    "Gemm_all": case("Gemm", ROWS, random(2, 3), random(5, 1), alpha=0.5, beta=2.0, transA=1, transB=1),
    "Gemm_without": case("Gemm", ROWS, random(5, 2), np.full(2, np.nan, "float32"), beta=0.0),
    "Gemm_plain": case("Gemm", ROWS, random(4, 5), known=[1], transB=1),
    "Conv": case("Conv", IMAGE, random(6, 4, 3, 3), random(6), known=[1, 2], pads=[1, 0, 2, 1]),
    "Conv_groups": case(
        "Conv", IMAGE, random(6, 2, 3, 2), known=[1], group=2, strides=[2, 1], dilations=[1, 2]
    ),
    "Conv_depthwise": case("Conv", IMAGE, random(4, 1, 3, 3), random(4), known=[1, 2], group=4),
    "Conv_upper": case("Conv", IMAGE, random(3, 4, 4, 3), known=[1], auto_pad="SAME_UPPER", strides=[2, 3]),
    "Conv_lower": case("Conv", IMAGE, random(3, 4, 4, 2), known=[1], auto_pad="SAME_LOWER", strides=[2, 1]),
    "Conv_valid": case("Conv", IMAGE, random(3, 4, 3, 3), known=[1], auto_pad="VALID"),
    "Conv_1d": case("Conv", random(2, 4, 9), random(3, 4, 3), random(3), known=[1, 2], pads=[1, 2]),
    "Conv_data": case("Conv", IMAGE, random(3, 4, 3, 3), random(3)),
    "Conv_half": case("Conv", HALF, random(3, 4, 3, 3, dtype="float16"), known=[1]),
    "ConvTranspose": case(
        "ConvTranspose", IMAGE, random(4, 3, 3, 3), random(3), known=[1, 2], strides=[2, 2]
    ),
    "ConvTranspose_all": case(
        "ConvTranspose",
        IMAGE,
        random(4, 3, 3, 4),
        known=[1],
        strides=[2, 3],
        pads=[1, 0, 2, 1],
        output_padding=[1, 2],
    ),
    "ConvTranspose_groups": case(
        "ConvTranspose", IMAGE, random(4, 3, 2, 2), known=[1], strides=[2, 2], group=2
    ),
    "ConvTranspose_dilated": case("ConvTranspose", IMAGE, random(4, 3, 3, 3), known=[1], dilations=[2, 1]),
    "ConvTranspose_upper": case(
        "ConvTranspose", IMAGE, random(4, 3, 3, 5), known=[1], strides=[2, 2], auto_pad="SAME_UPPER"
    ),
    "ConvTranspose_lower": case(
        "ConvTranspose", IMAGE, random(4, 3, 3, 5), known=[1], strides=[2, 2], auto_pad="SAME_LOWER"
    ),
    "ConvTranspose_shape": case(
        "ConvTranspose", IMAGE, random(4, 3, 4, 5), known=[1], strides=[2, 2], output_shape=[13, 18]
    ),
    "ConvTranspose_1d": case(
        "ConvTranspose", random(2, 4, 9), random(4, 3, 3), known=[1], strides=[2], pads=[1, 0]
    ),
    "MaxPool": case("MaxPool", SMALL, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    "MaxPool_ceil": case("MaxPool", SMALL, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "MaxPool_dilated": case("MaxPool", SMALL, kernel_shape=[3, 2], dilations=[2, 3]),
    "MaxPool_upper": case("MaxPool", SMALL, kernel_shape=[3, 2], strides=[3, 2], auto_pad="SAME_UPPER"),
    "MaxPool_1d": case("MaxPool", random(2, 4, 9), kernel_shape=[3], strides=[2]),
    "AveragePool": case("AveragePool", SMALL, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    "AveragePool_with_pads": case(
        "AveragePool", SMALL, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 2, 1], count_include_pad=1
    ),
    "AveragePool_upper": case(
        "AveragePool", SMALL, kernel_shape=[3, 2], strides=[3, 2], auto_pad="SAME_UPPER"
    ),
    "AveragePool_ceil": case("AveragePool", SMALL, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "AveragePool_past": case("AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "AveragePool_past_pads": case(
        "AveragePool",
        IMAGE,
        kernel_shape=[3, 3],
        strides=[3, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        count_include_pad=1,
    ),
    "AveragePool_1d": case("AveragePool", random(2, 4, 9), kernel_shape=[3], strides=[2], pads=[1, 0]),
    "Conv_3d": case(
        *("Conv", VOLUME, random(6, 4, 3, 2, 3), random(6)),
        known=[1, 2],
        pads=[1, 0, 2, 1, 1, 0],
        strides=[2, 1, 2],
        dilations=[1, 2, 1],
    ),
    "Conv_3d_groups": case("Conv", VOLUME, random(6, 2, 3, 2, 3), known=[1], group=2, auto_pad="SAME_UPPER"),
    "ConvTranspose_3d": case(
        *("ConvTranspose", VOLUME, random(4, 3, 3, 2, 3), random(3)),
        known=[1, 2],
        strides=[2, 1, 2],
        pads=[1, 0, 1, 0, 1, 0],
        output_padding=[1, 0, 1],
    ),
    "ConvTranspose_3d_groups": case(
        "ConvTranspose", VOLUME, random(4, 3, 3, 2, 3), known=[1], group=2, dilations=[2, 1, 2]
    ),
    "MaxPool_3d": case("MaxPool", VOLUME, kernel_shape=[2, 3, 2], strides=[2, 1, 2], ceil_mode=1),
    "AveragePool_3d": case(
        "AveragePool", VOLUME, kernel_shape=[2, 3, 2], strides=[2, 1, 2], pads=[1, 1, 0, 0, 1, 1]
    ),
    **{
        f"MaxPool_{dtype}_{at}": case(
            "MaxPool",
            integers(*bounds, 1, 2, 7, 6, dtype=dtype),
            kernel_shape=[2, 3],
            strides=[2, 2],
            pads=[1, 1, 0, 1],
            outputs=at,
        )
        for dtype, bounds in (("int8", (-128, 128)), ("uint8", (0, 256)))
        for at in (1, 2)
    },
    "MaxPool_places": case("MaxPool", EQUAL, kernel_shape=[2, 2], strides=[2, 2], outputs=2),
    "MaxPool_places_padded": case(
        "MaxPool", EQUAL, kernel_shape=[3, 2], strides=[1, 2], dilations=[2, 3], pads=[2, 1, 1, 0], outputs=2
    ),
    "MaxPool_places_by_columns": case(
        "MaxPool", EQUAL, kernel_shape=[3, 2], strides=[3, 2], ceil_mode=1, outputs=2, storage_order=1
    ),
    "MaxPool_places_upper": case(
        "MaxPool", EQUAL, kernel_shape=[3, 2], strides=[3, 2], auto_pad="SAME_UPPER", outputs=2
    ),
    "MaxPool_places_1d": case("MaxPool", random(2, 3, 9), kernel_shape=[3], strides=[2], outputs=2),
    "MaxPool_places_3d": case("MaxPool", VOLUME, kernel_shape=[2, 2, 3], strides=[2, 1, 2], outputs=2),
    "MaxPool_places_of_infinities": case(
        "MaxPool", np.full((1, 1, 4, 4), -np.inf, "float32"), kernel_shape=[3, 3], pads=[1] * 4, outputs=2
    ),
    "LRN": case("LRN", IMAGE, size=3, alpha=0.5, beta=0.3, bias=2.0),
    "LRN_of_all": case("LRN", IMAGE, size=9, alpha=0.5),
    "DeformConv": case(
        *("DeformConv", IMAGE, random(6, 4, 3, 3), random(2, 18, 7, 9), random(6)),
        pads=[1, 1, 1, 1],
        opsets=(19, LATEST),
    ),
    "DeformConv_groups": case(
        *("DeformConv", IMAGE, random(6, 2, 3, 2), random(2, 24, 4, 8), None, random(2, 12, 4, 8)),
        pads=[1, 0, 2, 0],
        strides=[2, 1],
        group=2,
        offset_group=2,
        opsets=(19, LATEST),
    ),
    **{
        f"Einsum_{equation}": case("Einsum", *operands, equation=equation)
        for equation, operands in {
            "bij,bjk->bik": (random(2, 3, 4), random(2, 4, 5)),
            "ba,cb": (random(3, 2), random(4, 3)),
            "bij->": (random(2, 3, 4),),
            "bij->bji": (random(2, 3, 4),),
            "ij,kl->ijkl": (random(2, 3), random(4, 5)),
            "bchw,bdhw->bcd": (IMAGE, IMAGE),
            "...ij,jk->...ik": (random(2, 3, 4), random(4, 5)),
            "i...,i...->...": (ROWS, ROWS),
            "bij, bjk, bkl -> bil": (random(2, 3, 4), random(2, 4, 5), random(2, 5, 2)),
            "i,i->i": (VECTOR, VECTOR),
            "ij,k->i": (ROWS, VECTOR),
            "bi,bi->b": (random(1, 5), ROWS[:1]),
            "ij,ij->ij": (WHOLE, OTHER),
        }.items()
    },
    "GlobalAveragePool": case("GlobalAveragePool", IMAGE),
    "GlobalMaxPool": case("GlobalMaxPool", IMAGE),
    "BatchNormalization": case(
        "BatchNormalization",
        *(IMAGE, random(4), random(4), random(4), np.abs(random(4))),
        known=[1, 2, 3, 4],
        epsilon=0.01,
        opsets=(15, LATEST),
    ),
    "InstanceNormalization": case(
        "InstanceNormalization", IMAGE, random(4), random(4), known=[1, 2], epsilon=0.01
    ),
    "LayerNormalization": case(
        "LayerNormalization", IMAGE, random(9), random(9), known=[1, 2], epsilon=0.01, opsets=(17, LATEST)
    ),
    "LayerNormalization_axes": case(
        "LayerNormalization", IMAGE, random(7, 9), known=[1], axis=2, opsets=(17, LATEST)
    ),
    "GroupNormalization": case(
        "GroupNormalization",
        *(IMAGE, random(4), random(4)),
        known=[1, 2],
        num_groups=2,
        epsilon=0.01,
        opsets=(21, LATEST),
    ),
}

MANY = np.full((1, 2, 60, 60), 40, "float16")  # whose sum float16 does not hold
SUMS_OF_HALF = {
    "Einsum": case("Einsum", HALF, HALF, equation="bchw,bdhw->bcd"),
    "GlobalAveragePool": case("GlobalAveragePool", MANY),
    "ReduceMean": case("ReduceMean", MANY, [2, 3], known=[1], opsets=(18, LATEST)),
    "ReduceL2": case("ReduceL2", HALF, [1], known=[1], opsets=(18, LATEST)),
    "Softmax": case("Softmax", HALF),
    "AveragePool": case("AveragePool", HALF, kernel_shape=[3, 3]),
    "LayerNormalization": case("LayerNormalization", HALF, HALF[0, 0, 0], HALF[0, 0, 1], known=[1, 2]),
    "BatchNormalization": case(
        "BatchNormalization", HALF, *[np.ones(4, "float16")] * 4, known=[1, 2, 3, 4], opsets=(15, LATEST)
    ),
    "Resize": case("Resize", HALF, None, np.float32([1, 1, 2, 3]), known=[2], mode="linear"),
    "Resize_averaged": case("Resize", HALF, None, None, [2, 4, 3, 5], known=[3], mode="linear", antialias=1),
}
ONLY_KNOWN = {
    "Compress": case("Compress", ROWS, np.array([True, False, True]), axis=0),
    "ConstantOfShape": case("ConstantOfShape", [2, 3]),
    "EyeLike": case("EyeLike", ROWS, k=1),
    "NonZero": case("NonZero", MASK),
    "OneHot": case("OneHot", [0, -1, 2], np.int64(4), np.float32([-1, 5]), axis=0),
    "Range": case("Range", np.int64(3), np.int64(-4), np.int64(-2)),
    "Trilu": case("Trilu", ROWS, np.int64(1), upper=0, opsets=(14, LATEST)),
    "Unique": case("Unique", WHOLE),
}

TIES = np.float32([[3, 1, 3, 0, 3], [1, 1, 2, 2, 0], [5, 4, 3, 2, 1]])
REDUCING = "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare"
REDUCTIONS = {
    **{
        f"{name}_{at}": case(name, POSITIVE, opsets=(13, 17), **attributes)
        for name in REDUCING
        for at, attributes in enumerate(({"axes": [-1, 1]}, {"axes": [2], "keepdims": 0}, {}))
    },
    **{
        f"{name}_as_input": case(name, POSITIVE, [-1, 1], known=[1], opsets=(18, LATEST), keepdims=0)
        for name in REDUCING
    },
    "ReduceSum": case("ReduceSum", IMAGE, [1, -2], known=[1], keepdims=0),
    "ReduceSum_all": case("ReduceSum", IMAGE),
    "ArgMax": case("ArgMax", TIES, axis=-1),
    "ArgMax_last": case("ArgMax", TIES, axis=-1, select_last_index=1),
    "ArgMin_last": case("ArgMin", TIES, axis=0, keepdims=0, select_last_index=1),
    "ArgMax_integers": case("ArgMax", WHOLE.astype("int32"), axis=1),
    "ArgMin_bytes": case("ArgMin", (WHOLE + 9).astype("uint8"), axis=1, select_last_index=1),
    **{
        f"{name}_integers": case(name, WHOLE, opsets=(13, 17), axes=[1])
        for name in ("ReduceL1", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare")
    },
    "ReduceSum_integers": case("ReduceSum", WHOLE.astype("int32"), [0], known=[1]),
    "ReduceLogSum": case("ReduceLogSum", POSITIVE, opsets=(13, 17), axes=[1]),
    "ReduceLogSumExp": case("ReduceLogSumExp", IMAGE * 100, opsets=(13, 17), axes=[1, 3], keepdims=0),
    "ReduceLogSumExp_infinite": case("ReduceLogSumExp", INFINITE[2:3], opsets=(13, 17)),
    "ArgMax_front": case("ArgMax", TIES, axis=0, keepdims=0),
    "ArgMin": case("ArgMin", TIES, axis=1, keepdims=0),
    "Softmax": case("Softmax", IMAGE, axis=1),
    "Softmax_last": case("Softmax", IMAGE * 50),
    "LogSoftmax": case("LogSoftmax", IMAGE, axis=2),
    "CumSum": case("CumSum", ROWS, np.int64(1), known=[1], opsets=(14, LATEST)),
    "CumSum_integers": case("CumSum", WHOLE, np.int64(-2), known=[1], opsets=(14, LATEST)),
    "TopK": case("TopK", TIES, [3], known=[1], outputs=2),
    "CumSum_exclusive": case("CumSum", ROWS, np.int64(1), known=[1], exclusive=1),
    "CumSum_reverse": case("CumSum", ROWS, np.int64(-1), known=[1], reverse=1),
    "CumSum_both": case("CumSum", WHOLE, np.int64(0), known=[1], reverse=1, exclusive=1),
    "TopK_integers": case("TopK", WHOLE, [3], known=[1], outputs=2),
    "TopK_int32": case("TopK", WHOLE.astype("int32"), [2], known=[1], outputs=2, largest=0, axis=0),
    "TopK_smallest": case("TopK", TIES, [2], known=[1], outputs=2, largest=0, axis=0),
}


def resize(x, sizes=None, scales=None, opsets=(13, LATEST), **attributes):
    scales = None if scales is None else np.float32(scales)
    return case("Resize", x, None, scales, sizes, known=[2, 3], opsets=opsets, **attributes)


COORDINATES = "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"
ROUNDINGS = "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"
SAMPLING = {
    **{
        f"Resize_{mode}_{coordinates}_{at}": resize(
            IMAGE, [2, 4, *size], mode=mode, coordinate_transformation_mode=coordinates
        )
        for mode, sizes in (("linear", ([14, 27], [5, 13])), ("cubic", ([5, 13],)))
        for coordinates in COORDINATES
        for at, size in enumerate(sizes)
    },
    **{
        f"Resize_{rounding}_{coordinates}": resize(
            IMAGE,
            [2, 4, 14, 5],
            mode="nearest",
            nearest_mode=rounding,
            coordinate_transformation_mode=coordinates,
        )
        for rounding in ROUNDINGS
        for coordinates in COORDINATES
    },
    "Resize_scales": resize(
        IMAGE, None, [1, 1, 2, 3], nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    ),
    "Resize_rounded_scales": resize(IMAGE[..., :5], None, [1, 1, 1, 1.2], mode="linear"),
    "Resize_cubic_scales": resize(IMAGE, None, [1, 1, 2, 2], mode="cubic", cubic_coeff_a=-0.5),
    "Resize_axes": resize(IMAGE, [14, 4], mode="linear", axes=[2, 3], opsets=(18, LATEST)),
    "Resize_bytes": resize((WHOLE + 9).astype("uint8")[None, None], None, [1, 1, 2, 1.2], mode="nearest"),
    "Resize_same": resize(IMAGE, None, [1, 1, 1, 1]),
    "Resize_channels": resize(IMAGE, [2, 8, 7, 9], mode="nearest"),
    "Resize_excluding": resize(IMAGE, None, [1, 1, 2, 2], mode="cubic", exclude_outside=1),
    **{
        f"Resize_{mode}_{coordinates}_by_scale": resize(
            IMAGE, None, [1, 1, 1.3, 0.77], mode=mode, coordinate_transformation_mode=coordinates
        )
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "pytorch_half_pixel", "asymmetric")
    },
    **{
        f"Resize_{mode}_cropped_to_{size[2]}": case(
            *("Resize", IMAGE, np.float32([0, 0, 0.1, -0.2, 1, 1, 1.2, 0.8]), None, size),
            known=[1, 3],
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=3.0,
        )
        for mode in ("nearest", "linear", "cubic")
        for size in ([2, 4, 5, 6], [2, 4, 1, 3])
    },
    **{
        f"Resize_{mode}_to_one": resize(
            IMAGE, [2, 4, 1, 4], mode=mode, coordinate_transformation_mode="align_corners"
        )
        for mode in ("nearest", "linear", "cubic")
    },
    **{
        f"Resize_{mode}_of_{rank}_axes": resize(random(*size), None, scales, mode=mode)
        for mode in ("nearest", "linear")
        for rank, size, scales in (
            (2, (5, 6), [1.5, 2.2]),
            (3, (2, 5, 6), [1, 1.5, 2.2]),
            (4, (1, 5, 6, 3), [1, 2, 2.5, 1]),
            (5, (1, 2, 5, 6, 7), [1, 1, 1.5, 0.6, 2]),
        )
    },
    **{
        f"Resize_{mode}_{policy}": resize(
            *(IMAGE, [13, 12]),
            mode=mode,
            axes=[2, 3],
            keep_aspect_ratio_policy=policy,
            opsets=(18, LATEST),
        )
        for mode in ("nearest", "linear", "cubic")
        for policy in ("not_larger", "not_smaller")
    },
    **{
        f"Resize_{mode}_{coordinates}_{'excluding' if excluding else 'averaged'}": resize(
            *(IMAGE, [2, 4, 3, 12]),
            mode=mode,
            antialias=1,
            coordinate_transformation_mode=coordinates,
            exclude_outside=excluding,
            opsets=(18, LATEST),
        )
        for mode in ("linear", "cubic")
        for coordinates in ("half_pixel", "asymmetric")
        for excluding in (0, 1)
    },
    "Resize_symmetric": resize(
        *(IMAGE, None, [1, 1, 1.3, 0.77]),
        mode="linear",
        coordinate_transformation_mode="half_pixel_symmetric",
        opsets=(19, LATEST),
    ),
}
GRID = (RANDOM.random((2, 5, 6, 2)) * 2.6 - 1.3).astype("float32")
SAMPLING |= {
    f"GridSample_{mode}_{padding}_{corners}": case(
        "GridSample", IMAGE, GRID, mode=mode, padding_mode=padding, align_corners=corners, opsets=(16, 19)
    )
    for mode, padding, corners in (
        *itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (0, 1)),
        ("bicubic", "zeros", 0),
    )
}
REGIONS = (RANDOM.random((5, 4)) * [5, 4, 4, 3] + [0, 0, 5, 4]).astype("float32")
SAMPLING |= {
    f"RoiAlign_{mode}_{ratio}": case(
        *("RoiAlign", IMAGE, REGIONS, integers(0, 2, 5)),
        coordinate_transformation_mode=mode,
        sampling_ratio=ratio,
        output_height=3,
        output_width=2,
        spatial_scale=0.8,
        opsets=(16, LATEST),
    )
    for mode in ("half_pixel", "output_half_pixel")
    for ratio in (0, 2)
}
SAMPLING |= {
    f"GridSample_cubic_{padding}_{corners}": case(
        *("GridSample", IMAGE, GRID),
        mode="cubic",
        padding_mode=padding,
        align_corners=corners,
        opsets=(20, LATEST),
    )
    for padding, corners in (("zeros", 1), ("border", 0), ("reflection", 0), ("reflection", 1))
}
SAMPLING |= {
    f"GridSample_3d_{mode}_{padding}": case(
        *("GridSample", random(1, 2, 3, 4, 5), random(1, 2, 3, 4, 3)),
        mode=mode,
        padding_mode=padding,
        opsets=(20, LATEST),
    )
    for mode in ("linear", "nearest")
    for padding in ("zeros", "border", "reflection")
}
SAMPLING["GridSample_cubic"] = case("GridSample", IMAGE, GRID, mode="cubic", opsets=(20, LATEST))
SAMPLING["GridSample_linear"] = case("GridSample", IMAGE, GRID, mode="linear", opsets=(20, LATEST))

FAMILIES = {
    "elementwise": ELEMENTWISE,
    "shapes": SHAPES,
    "layers": LAYERS,
    "reductions": REDUCTIONS,
    "sampling": SAMPLING,
    "sums of half": SUMS_OF_HALF,
    "only known": ONLY_KNOWN,
}


def model_of(cases, opset, all_known=False):
    """A model with a node for each case, and what its inputs are."""
    nodes, weights, inputs, outputs, given = [], [], [], [], {}
    for name, (op_type, arrays, known, attributes, _, count) in cases.items():
        names = []
        for at, array in enumerate(arrays):
            names.append("" if array is None else f"{name}.{at}")
            if array is None:
                continue
            if at in known or all_known:
                weights.append(numpy_helper.from_array(np.asarray(array), names[-1]))
            else:
                given[names[-1]] = array
                type_ = helper.np_dtype_to_tensor_dtype(array.dtype)
                inputs.append(helper.make_tensor_value_info(names[-1], type_, array.shape))
        results = [f"{name}:{at}" for at in range(count)]
        nodes.append(helper.make_node(op_type, names, results, name, **attributes))
        outputs += [helper.make_tensor_value_info(each, TensorProto.UNDEFINED, None) for each in results]
    graph = helper.make_graph(nodes, "cases", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    typed = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.output}
    for output in graph.output:
        first = cases[output.name.partition(":")[0]].inputs[0]
        elem_type = typed[output.name].type.tensor_type.elem_type
        output.type.tensor_type.elem_type = elem_type or helper.np_dtype_to_tensor_dtype(first.dtype)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, given
