"""DenseAsConvolution: structure, numbers, refusals, and nothing more the second time."""

import numpy as np
import pytest

from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    numbers,
    ops,
    refusals,
)
from tvm_passes import DenseAsConvolution, detection_pipeline, subpixel_pipeline
from tvm_passes.engine.graph import calls_of

from tvm import relay

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def weights(filters, length, seed=1):
    return relay.const(numbers(filters, length, seed=seed))


FLATTEN = {
    "reshape": lambda x: relay.reshape(x, (5, -1)),
    "batch_flatten": relay.nn.batch_flatten,
    "reshape and squeeze": lambda x: relay.squeeze(relay.reshape(x, (5, -1, 1, 1)), [2, 3]),
}


@pytest.mark.parametrize("name", FLATTEN)
def test_flattened_images(name):
    x = relay.var("x", shape=(5, 4, 3, 2))
    mod = module(x, relay.nn.dense(FLATTEN[name](x), weights(6, 24)))
    after = assert_same_numbers(DenseAsConvolution(), mod, numbers(5, 4, 3, 2), **TOLERANCE)
    assert ops(after) == ["nn.conv2d", "reshape"]
    assert_no_second_change(DenseAsConvolution(), after)


def test_layers_follow_each_other_without_a_reshape_between():
    x = relay.var("x", shape=(5, 24))
    y = relay.nn.relu(relay.nn.bias_add(relay.nn.dense(x, weights(6, 24)), relay.const(numbers(6))))
    y = relay.clip(relay.add(relay.nn.dense(y, weights(4, 6, seed=2)), relay.const(numbers(1, 4))), -1.0, 1.0)
    after = assert_same_numbers(DenseAsConvolution(), module(x, y), numbers(5, 24), **TOLERANCE)
    assert ops(after) == [
        "reshape",
        *["nn.conv2d", "nn.bias_add"],
        "nn.relu",
        "nn.conv2d",
        "nn.bias_add",
        "clip",
        "reshape",
    ]
    assert_no_second_change(DenseAsConvolution(), after)


def test_a_transpose_in_between_keeps_the_order_of_the_rows():
    x = relay.var("x", shape=(5, 4, 3, 2))
    flat = relay.reshape(relay.transpose(x, [0, 2, 3, 1]), (5, -1))
    mod = module(x, relay.nn.dense(flat, weights(6, 24)))
    assert_same_numbers(DenseAsConvolution(), mod, numbers(5, 4, 3, 2), **TOLERANCE)


def test_another_number_of_rows_is_not_that_of_images():
    x = relay.var("x", shape=(5, 4, 3, 2))
    mod = module(x, relay.nn.dense(relay.reshape(x, (10, 12)), weights(6, 12)))
    assert_same_numbers(DenseAsConvolution(), mod, numbers(5, 4, 3, 2), **TOLERANCE)


@pytest.mark.parametrize("constant", [relay.const(numbers(5, 1)), relay.const(numbers(5, 6))])
def test_what_is_no_bias_stays_behind(constant):
    x = relay.var("x", shape=(5, 24))
    mod = module(x, relay.add(relay.nn.dense(x, weights(6, 24)), constant))
    after = assert_same_numbers(DenseAsConvolution(), mod, numbers(5, 24), **TOLERANCE)
    assert ops(after)[-1] == "add"


def test_a_bias_of_each_row_stays_behind_also_where_there_are_as_many():
    x = relay.var("x", shape=(6, 24))
    for bias in (
        lambda y: relay.add(y, relay.const(numbers(6, 1))),
        lambda y: relay.nn.bias_add(y, relay.const(numbers(6)), axis=0),
    ):
        mod = module(x, bias(relay.nn.dense(x, weights(6, 24))))
        assert_same_numbers(DenseAsConvolution(), mod, numbers(6, 24), **TOLERANCE)


@pytest.mark.parametrize("shape", [(24,), (4, 3, 2)])
def test_rows_whose_number_is_known_only_at_run_time(shape):
    """For oneDNN; two layers leave no reshape in between."""
    x = relay.var("x", shape=(relay.Any(), *shape))
    y = relay.nn.dense(relay.nn.batch_flatten(x) if len(shape) > 1 else x, weights(6, 24))
    y = relay.nn.relu(relay.nn.bias_add(y, relay.const(numbers(6))))
    mod = module(x, relay.nn.bias_add(relay.nn.dense(y, weights(5, 6)), relay.const(numbers(5))))
    for count in (3, 1, 0):
        after = assert_same_numbers(
            DenseAsConvolution("llvm -libs=onednn"), mod, numbers(count, *shape), **TOLERANCE
        )
    layer = ["nn.conv2d", "nn.bias_add"]
    first = ["reshape"] * (len(shape) == 1)
    assert ops(after) == [*first, *layer, "nn.relu", *layer, "reshape"]


def test_refusals():
    cases = {
        "the shape is dynamic": relay.var("x", shape=(relay.Any(), 24)),
        "the data is empty or not a matrix": relay.var("x", shape=(0, 24)),
    }
    for reason, x in cases.items():
        after, report = apply(DenseAsConvolution(), module(x, relay.nn.dense(x, weights(6, 24))))
        assert ops(after) == ["nn.dense"] and refusals(report) == [reason]


def test_weights_known_at_run_time_are_no_match():
    x, w = relay.var("x", shape=(5, 24)), relay.var("w", shape=(6, 24))
    after, report = apply(DenseAsConvolution(), module(x, w, relay.nn.dense(x, w)))
    assert ops(after) == ["nn.dense"] and report.passes[0].matches == []


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_products_of_a_batch_with_the_same_weights(transposed, batch):
    x, weight = relay.var("x", shape=(batch, 5, 8)), numbers(6, 8, seed=1)
    given = relay.const(weight if transposed else np.ascontiguousarray(weight.T))
    given = relay.broadcast_to(given, (batch, *given.data.shape))
    y = relay.nn.batch_matmul(x, given, transpose_b=transposed)
    mod = module(x, relay.nn.relu(relay.nn.bias_add(y, relay.const(numbers(6)), axis=-1)))
    after = assert_same_numbers(DenseAsConvolution(), mod, numbers(batch, 5, 8), **TOLERANCE)
    assert [name for name in ops(after) if name != "reshape"] == ["nn.conv2d", "nn.bias_add", "nn.relu"]
    assert_no_second_change(DenseAsConvolution(), after)


def test_a_bias_that_is_added_to_rows_along_two_axes():
    x = relay.var("x", shape=(10, 8))
    y = relay.reshape(relay.nn.dense(x, weights(6, 8)), (2, 5, 6))
    after = assert_same_numbers(
        DenseAsConvolution(), module(x, relay.const(numbers(6)) + y), numbers(10, 8), **TOLERANCE
    )
    assert ops(after) == ["reshape", "nn.conv2d", "nn.bias_add", "reshape"]


@pytest.mark.parametrize(
    "reason, y",
    {
        "each item of the batch has weights of its own": lambda x: relay.nn.batch_matmul(
            x, relay.const(numbers(2, 6, 8))
        ),
        "the data are transposed": lambda x: relay.nn.batch_matmul(
            x, relay.broadcast_to(weights(6, 5), (2, 6, 5)), transpose_a=True
        ),
    }.items(),
)
def test_products_of_a_batch_that_stay(reason, y):
    x = relay.var("x", shape=(2, 5, 8))
    after, report = apply(DenseAsConvolution(), module(x, y(x)))
    assert any(reason in each for each in refusals(report))
    assert "nn.batch_matmul" in ops(after)


def test_a_bias_that_makes_the_matrix_larger_stays():
    conv = relay.nn.conv2d(
        relay.var("x", shape=(4, 3, 1, 1)),
        relay.const(np.ones((5, 3, 1, 1), "float32")),
        channels=5,
        kernel_size=(1, 1),
    )
    column = relay.reshape(conv, (-1, 1))
    mod = module(*relay.analysis.free_vars(column), column + relay.const(np.arange(5, dtype="float32")))
    assert_same_numbers(DenseAsConvolution(), mod, numbers(4, 3, 1, 1))


# --- what follows the rows


def layer(x, filters=6, seed=1):
    """Of rows along several axes, as PyTorch has them."""
    *lengths, length = map(int, relay.transform.InferTypeLocal(x).shape)
    rows = relay.nn.dense(relay.reshape(x, (-1, length)), weights(filters, length, seed))
    rows = relay.nn.bias_add(rows, relay.const(numbers(filters, seed=seed)))
    return relay.reshape(rows, (*lengths, filters))


def gelu(x):
    erf = relay.erf(relay.multiply(x, relay.const(0.5**0.5)))
    return relay.multiply(x, relay.add(relay.const(0.5), relay.multiply(erf, relay.const(0.5))))


CONV, GELU = ["nn.conv2d", "nn.bias_add"], ["multiply", "erf", "multiply", "add", "multiply"]
SHAPE = 2, 5, 8


def rewritten(y, *variables):
    """The operators, but for reshapes at the start, after the numbers are compared."""
    mod, arrays = (
        module(*variables, y),
        [numbers(*map(int, each.type_annotation.shape)) for each in variables],
    )
    after = assert_same_numbers(DenseAsConvolution(), mod, *arrays, **TOLERANCE)
    assert_no_second_change(DenseAsConvolution(), after)
    found = ops(after)
    return found[found.index("nn.conv2d") :]


def test_an_activation_of_several_operators_stands_between_two_layers():
    x = relay.var("x", shape=SHAPE)
    assert rewritten(layer(gelu(layer(x)), 4, seed=2), x) == [*CONV, *GELU, *CONV, "reshape"]


def test_an_activation_beside_what_reads_the_rows_too_stays_behind():
    x = relay.var("x", shape=SHAPE)
    rows = layer(x)
    after = rewritten(relay.Tuple([gelu(rows), relay.exp(rows)]), x)
    assert after[:3] == [*CONV, "reshape"]


def test_what_is_no_activation_stays_behind():
    x = relay.var("x", shape=SHAPE)
    rows = layer(x)
    assert rewritten(relay.multiply(rows, relay.erf(rows)), x) == [*CONV, "reshape", "erf", "multiply"]


def test_a_scale_of_each_channel():
    """As of a layer; `FoldIntoConvolutions` folds it into the weights then."""
    x, scale = relay.var("x", shape=SHAPE), relay.const(numbers(6, seed=5))
    assert rewritten(relay.multiply(layer(x), scale), x) == [*CONV, "multiply", "reshape"]
    assert rewritten(relay.multiply(scale, layer(x)), x) == [*CONV, "multiply", "reshape"]


def test_a_scale_of_rows_that_are_read_elsewhere_too_stays_behind():
    x = relay.var("x", shape=SHAPE)
    rows = layer(x)
    after = rewritten(relay.Tuple([relay.multiply(rows, relay.const(2.0)), relay.exp(rows)]), x)
    assert after[:3] == [*CONV, "reshape"]


def test_a_scale_of_each_row_stays_behind():
    x, scale = relay.var("x", shape=(2, 6, 8)), relay.const(numbers(6, 1, seed=5))
    assert rewritten(relay.multiply(layer(x), scale), x) == [*CONV, "reshape", "multiply"]


@pytest.mark.parametrize("swap", [False, True])
def test_a_residual(swap):
    """Between two blocks there is nothing to reshape."""
    x = relay.var("x", shape=(2, 5, 6))
    y = relay.add(x, layer(x)) if swap else relay.add(layer(x), x)
    y = relay.add(y, layer(y, seed=2)) if swap else relay.add(layer(y, seed=2), y)
    after = rewritten(y, x)
    assert [each for each in after if each != "reshape"] == [*CONV, "add", *CONV, "add"]
    assert after[-2:] == ["add", "reshape"] and "reshape" not in after[after.index("add") : -1]


def test_a_residual_of_one_image_whose_batch_comes_second():
    x = relay.var("x", shape=(1, 5, 6))
    rows = relay.transpose(layer(relay.transpose(x, (1, 0, 2))), (1, 0, 2))
    after = rewritten(relay.add(rows, x), x)
    assert [each for each in after if each != "reshape"] == [*CONV, "add"] and after[-2:] == [
        "add",
        "reshape",
    ]


def test_a_transpose_of_two_images_stays():
    x = relay.var("x", shape=(2, 5, 6))
    rows = relay.transpose(layer(relay.transpose(x, (1, 0, 2))), (1, 0, 2))
    assert rewritten(relay.add(rows, x), x)[-3:] == ["reshape", "transpose", "add"]


@pytest.mark.parametrize("shape", [(5, 6), (2, 1, 6), (2, 5, 1)])
def test_what_is_added_to_several_rows_or_columns_stays_behind(shape):
    x, other = relay.var("x", shape=SHAPE), relay.var("other", shape=shape)
    assert rewritten(relay.add(layer(x), other), x, other)[-2:] == ["reshape", "add"]


def test_rows_that_are_read_elsewhere_too_are_no_residual():
    x = relay.var("x", shape=SHAPE)
    rows = layer(x)
    assert rewritten(relay.add(rows, relay.exp(rows)), x)[-3:] == ["reshape", "exp", "add"]


# --- layers of the pixels of images, channels last


IMAGES = 2, 3, 5, 8


def of_pixels(x, filters=6, seed=1):
    """The bias is added behind the reshape."""
    *lengths, length = map(int, relay.transform.InferTypeLocal(x).shape)
    rows = relay.nn.dense(relay.reshape(x, (-1, length)), weights(filters, length, seed))
    return relay.nn.bias_add(
        relay.reshape(rows, (*lengths, filters)), relay.const(numbers(filters, seed=seed)), axis=-1
    )


def test_a_layer_of_pixels_is_a_convolution_of_the_images():
    x = relay.var("x", shape=IMAGES)
    mod = module(x, of_pixels(x))
    after = assert_same_numbers(DenseAsConvolution(), mod, numbers(*IMAGES), **TOLERANCE)
    assert ops(after) == ["transpose", *CONV, "transpose"]


def test_pixels_whose_images_are_one_behind_reshapes():
    """As PyTorch's importer spells a product of one image: of as many matrices as rows of pixels."""
    x, weight = relay.var("x", shape=(1, 3, 5, 8)), relay.broadcast_to(weights(6, 8), (3, 6, 8))
    rows = relay.nn.batch_matmul(relay.reshape(x, (-1, 5, 8)), weight)
    y = relay.nn.bias_add(relay.reshape(rows, (1, 3, 5, 6)), relay.const(numbers(6)), axis=-1)
    assert rewritten(y, x) == [*CONV, "transpose"]


def test_pixels_of_any_number_of_images():
    x = relay.var("x", shape=(relay.Any(), 3, 5, 8))
    y = relay.nn.dense(relay.reshape(x, (-1, 8)), weights(6, 8))
    y = relay.nn.bias_add(relay.reshape(y, (-1, 3, 5, 6)), relay.const(numbers(6)), axis=-1)
    for count in (3, 1):
        after = assert_same_numbers(
            DenseAsConvolution("llvm -libs=onednn"), module(x, y), numbers(count, 3, 5, 8), **TOLERANCE
        )
    assert ops(after) == ["transpose", *CONV, "transpose"]


def test_pixels_that_are_read_as_rows_are_images_of_one():
    x = relay.var("x", shape=IMAGES)
    rows = relay.nn.dense(relay.reshape(x, (-1, 8)), weights(6, 8))
    assert rewritten(rows, x) == ["nn.conv2d", "reshape"]
    assert rewritten(relay.reshape(rows, (2, 5, 3, 6)), x) == ["nn.conv2d", "reshape"]


def block(x, scale, seed=1):
    """Of ConvNeXt, without its normalization: what `scale` multiplies in NCHW is added to the images."""
    conv = relay.nn.conv2d(x, relay.const(numbers(8, 8, 1, 1, seed=seed)), channels=8, kernel_size=(1, 1))
    y = of_pixels(gelu(of_pixels(relay.transpose(conv, (0, 2, 3, 1)), 12, seed)), 8, seed + 1)
    return relay.add(relay.multiply(relay.const(scale), relay.transpose(y, (0, 3, 1, 2))), x)


def test_blocks_of_convnext_have_no_change_of_layout():
    """The scale of each channel is part of the weights, and the rest part of the convolutions."""
    x = relay.var("x", shape=(1, 8, 3, 5))
    scale = numbers(8, 1, 1, seed=7)
    mod = module(x, block(block(x, scale), scale, seed=3))
    for pipeline in (detection_pipeline, subpixel_pipeline):
        names = ops(pipeline("cuda -arch=sm_90")(mod))
        assert names.count("topi_ext.conv2d_nhwc") == 6 and names.count("layout_transform") == 2
        assert set(names) == {"topi_ext.conv2d_nhwc", "layout_transform", "cast"}
    assert_same_numbers(
        detection_pipeline("cuda -arch=sm_90"), mod, numbers(1, 8, 3, 5), rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize("target", ["cuda -arch=sm_90", "llvm -libs=onednn"])
@pytest.mark.parametrize("pipeline", [detection_pipeline, subpixel_pipeline])
def test_tokens_are_pixels_of_one_image(pipeline, target):
    """Tiles of a kernel never span images: each would have one pixel."""
    x = relay.var("x", shape=(1, 12, 8, 4))  # such as the heads of an attention
    tokens = relay.nn.dense(relay.reshape(x, (12, 32)), weights(16, 32))
    mod = module(x, relay.nn.dense(relay.nn.relu(tokens), weights(24, 16)))
    calls = calls_of(pipeline(target)(mod), "topi_ext.conv2d_nhwc")
    assert [tuple(call.args[0].checked_type.shape) for call in calls] == [(1, 3, 4, 32), (1, 3, 4, 16)]


@pytest.mark.parametrize("shape", [(8,), (1, 1, 8)])
def test_a_scale_of_each_channel_of_pixels(shape):
    x = relay.var("x", shape=IMAGES)
    y = relay.multiply(of_pixels(x, 8), relay.const(numbers(*shape, seed=5)))
    assert rewritten(y, x) == [*CONV, "multiply", "transpose"]


@pytest.mark.parametrize("shape", [(5, 1), (3, 1, 1), (2, 1, 1, 1), (3, 5, 8)])
def test_a_scale_of_pixels_or_images_stays_behind(shape):
    x = relay.var("x", shape=IMAGES)
    y = relay.multiply(of_pixels(x, 8), relay.const(numbers(*shape, seed=5)))
    assert rewritten(y, x) == [*CONV, "transpose", "multiply"]


def test_a_bias_of_each_column_of_pixels_stays_behind():
    x = relay.var("x", shape=(2, 3, 8, 8))
    y = relay.reshape(relay.nn.dense(relay.reshape(x, (-1, 8)), weights(8, 8)), (2, 3, 8, 8))
    y = relay.nn.bias_add(y, relay.const(numbers(8)), axis=2)
    assert rewritten(y, x) == ["nn.conv2d", "transpose", "nn.bias_add"]
