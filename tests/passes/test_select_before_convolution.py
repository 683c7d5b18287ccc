"""SelectBeforeConvolution: structure, numbers, refusals, and nothing more the second time."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    numbers,
    ops,
    refusals,
    run,
)
from tvm_passes import SelectBeforeConvolution

from tvm import relay

IMAGES, FILTERS, CHANNELS = 3, 5, 8
SHAPE = IMAGES, 4, 6, CHANNELS
IN_ORDER = np.arange(IMAGES)


def selected(convolution=None, images=IN_ORDER, **options):
    """The function that gives each image the results of one filter, and what is computed on the way."""
    x = relay.var("x", shape=SHAPE, dtype="float16")
    filters = relay.var("filters", shape=(IMAGES,), dtype="int64")
    y = convolved(x, **options) if convolution is None else convolution(x)
    y = relay.layout_transform(relay.sigmoid(relay.cast(y, "float32")), "NHWC", "NCHW")
    return [x, filters], y, relay.adv_index([y, relay.const(images), filters])


def convolved(x, filters=FILTERS, kernel=1, **options):
    weight = numbers(filters, kernel, kernel, CHANNELS // options.get("groups", 1)).astype("float16")
    options.setdefault("bias", relay.const(numbers(filters, seed=3)))
    return topi_ext.conv2d_nhwc(x, relay.const(weight), **options)


def of_results(**options):
    inputs, _, result = selected(**options)
    return module(*inputs, result)


ARRAY = numbers(*SHAPE).astype("float16")


@pytest.mark.parametrize("filters", [[4, 0, 2], [-1, -5, 1], [5, 1000, -6]])
@pytest.mark.parametrize("options", [{}, {"bias": None}])
def test_one_filter_for_each_image(options, filters):
    mod = of_results(**options)
    after = assert_same_numbers(
        SelectBeforeConvolution(), mod, ARRAY, np.array(filters), rtol=2e-3, atol=2e-3
    )
    assert not {"topi_ext.conv2d_nhwc", "adv_index", "layout_transform"} & set(ops(after))
    assert ops(after).count("sum") == 1
    assert_no_second_change(SelectBeforeConvolution(), after)


def test_indices_that_are_never_negative_are_taken_as_they_are():
    inputs, y, _ = selected()
    result = relay.adv_index([y, relay.const(IN_ORDER), relay.maximum(inputs[1], relay.const(0, "int64"))])
    after, _ = apply(SelectBeforeConvolution(), module(*inputs, result))
    assert "sum" in ops(after) and "where" not in ops(after)


def test_a_number_of_images_known_only_at_run_time_is_refused():
    x = relay.var("x", shape=(relay.Any(), *SHAPE[1:]), dtype="float16")
    filters = relay.var("filters", shape=(IMAGES,), dtype="int64")
    y = relay.layout_transform(convolved(x), "NHWC", "NCHW")
    mod = module(x, filters, relay.adv_index([y, relay.const(IN_ORDER), filters]))
    after, report = apply(SelectBeforeConvolution(), mod)
    assert refusals(report) == ["the number of images is dynamic"] and ops(after) == ops(mod)


def test_on_the_emulated_device(emulated_cuda):
    mod, filters = of_results(), np.array([-1, 7, 2])
    after, _ = apply(SelectBeforeConvolution(), mod)
    found, expected = emulated_cuda.run_relay(after, ARRAY, filters), run(mod, ARRAY, filters)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-3, atol=2e-3)


def of_other_axes():
    """NCHW by name, in which the second axis has rows."""
    x = relay.var("x", shape=SHAPE, dtype="float16")
    rows = relay.var("rows", shape=(IMAGES,), dtype="int64")
    return module(x, rows, relay.adv_index([convolved(x), relay.const(IN_ORDER), rows]))


def test_rows_are_no_filters():
    mod = of_other_axes()
    after, report = apply(SelectBeforeConvolution(), mod)
    assert after.same_as(mod) and not refusals(report)


def of_rows(first=IN_ORDER * FILTERS, greatest=FILTERS - 1, **options):
    """As ONNX's GatherND is imported."""
    inputs, y, _ = selected(**options)
    filters = relay.take(relay.const(np.arange(greatest + 1)), inputs[1], axis=0)
    rows = relay.reshape(y, (IMAGES * FILTERS, -1))
    taken = relay.take(rows, filters + relay.const(first), axis=0)
    return module(*inputs, relay.reshape(taken, (IMAGES, 2, -1)))


@pytest.mark.parametrize("filters", [[4, 0, 2], [1, 1, 1]])
def test_one_row_for_each_image(filters):
    mod = of_rows()
    after = assert_same_numbers(
        SelectBeforeConvolution(), mod, ARRAY, np.array(filters), rtol=2e-3, atol=2e-3
    )
    assert "topi_ext.conv2d_nhwc" not in ops(after) and ops(after).count("sum") == 1
    assert_no_second_change(SelectBeforeConvolution(), after)


def also_returned():
    inputs, y, result = selected()
    return module(*inputs, relay.Tuple([y, result]))


def also_convolved():
    """The convolution itself has another reader."""
    inputs, y, result = selected()
    inner = y.args[0].args[0].args[0]
    return module(*inputs, relay.Tuple([relay.exp(inner), result]))


def with_residual():
    inputs, _, result = selected(convolution=lambda x: convolved(x, CHANNELS, residual=x))
    return module(*inputs, result)


def with_one_filter_for_all():
    inputs, y, _ = selected()
    one = relay.var("one", shape=(1,), dtype="int64")
    return module(inputs[0], one, relay.adv_index([y, relay.const(IN_ORDER), one]))


REFUSALS = {
    "the convolution is not one of single pixels": [
        lambda: of_results(kernel=3),
        lambda: of_results(strides=2),
        lambda: of_results(padding=1),
        lambda: of_rows(kernel=3, padding=1),
    ],
    "the convolution is grouped": [lambda: of_results(filters=CHANNELS, groups=CHANNELS)],
    "the filters are shuffled into pixels": [lambda: of_results(filters=8, block_size=2)],
    "a residual is added": [with_residual],
    "the convolution has an activation": [
        lambda: of_results(activation="relu"),
        lambda: of_results(final_activation="relu"),
    ],
    "the images are not all of them, in order": [
        lambda: of_results(images=IN_ORDER[::-1].copy()),
        lambda: of_results(images=np.zeros_like(IN_ORDER)),
        lambda: of_rows(first=IN_ORDER),
    ],
    "the filters are not one for each image": [with_one_filter_for_all],
    "a filter may be that of another image": [lambda: of_rows(greatest=FILTERS)],
    "more than the selected results is read": [also_returned, also_convolved],
}


@pytest.mark.parametrize("reason, make", [(reason, make) for reason in REFUSALS for make in REFUSALS[reason]])
def test_refusals(reason, make):
    mod = make()
    after, report = apply(SelectBeforeConvolution(), mod)
    assert after.same_as(mod) and refusals(report) == [reason]
