"""Operators with weights or windows."""

import itertools

import numpy as np

from tests.relax.onnx_cases.case import (
    HALF,
    IMAGE,
    LATEST,
    OTHER,
    ROWS,
    VECTOR,
    WHOLE,
    case,
    integers,
    random,
)

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
    **{
        f"AveragePool_dilated_{ceil_mode}{all_count}": case(
            *("AveragePool", SMALL),
            kernel_shape=[3, 2],
            dilations=[2, 3],
            strides=[2, 1],
            pads=[1, 0, 1, 1],
            ceil_mode=ceil_mode,
            count_include_pad=all_count,
            opsets=(19, LATEST),
        )
        for ceil_mode, all_count in itertools.product((0, 1), (0, 1))
    },
    "AveragePool_dilated_1d": case(
        "AveragePool", random(2, 4, 9), kernel_shape=[3], dilations=[2], pads=[1, 2], opsets=(19, LATEST)
    ),
    "AveragePool_dilated_3d": case(
        "AveragePool", VOLUME, kernel_shape=[2, 2, 2], dilations=[2, 1, 3], opsets=(19, LATEST)
    ),
    **{
        f"LpPool_{p}": case("LpPool", SMALL, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], p=p)
        for p in (1, 2, 3)
    },
    "LpPool_upper": case("LpPool", SMALL, kernel_shape=[3, 2], strides=[3, 2], auto_pad="SAME_UPPER"),
    "LpPool_1d": case("LpPool", random(2, 4, 9), kernel_shape=[3], strides=[2]),
    "GlobalLpPool": case("GlobalLpPool", SMALL, p=3, opsets=(13, 21)),
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
    "Col2Im": case("Col2Im", random(2, 18, 20), [6, 6], [2, 3], known=[1, 2], opsets=(18, LATEST)),
    "Col2Im_all": case(
        *("Col2Im", random(2, 12, 12), [6, 5], [2, 2]),
        known=[1, 2],
        pads=[1, 0, 0, 1],
        strides=[2, 1],
        dilations=[1, 2],
        opsets=(18, LATEST),
    ),
    "Col2Im_3d": case("Col2Im", random(1, 16, 60), [4, 5, 6], [2, 2, 2], known=[1, 2], opsets=(18, LATEST)),
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
            "B I J, B J k -> B I k": (random(2, 3, 4), random(2, 4, 5)),
            "...Ij,jK->...IK": (random(2, 3, 4), random(4, 5)),
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
    **{
        f"LayerNormalization_moments_{data.dtype}": case(
            *("LayerNormalization", data, random(7, 9, dtype=data.dtype)),
            axis=-2,
            epsilon=0.01,
            outputs=3,
            opsets=(17, LATEST),
        )
        for data in (IMAGE, HALF)
    },
    "LpNormalization": case("LpNormalization", np.float32([[3, 0, 4], [0, 0, 0], [1, -1, 0]])),
    "LpNormalization_1": case("LpNormalization", IMAGE, p=1, axis=1),
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
