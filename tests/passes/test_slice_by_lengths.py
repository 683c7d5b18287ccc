"""SliceByLengths: slices whose bounds follow from lengths are computed with what reads them."""

import io

import numpy as np
import onnx
import pytest
import torch
from torch.nn import functional

import frontends
import topi_ext
from tests.helpers import apply, assert_no_second_change, module, numbers, ops, quick, refusals, run, runner
from tvm_passes import ConvertToNHWC, SliceByLengths, runtime, subpixel_pipeline

from tvm import relay
from tvm.relay.op.dyn import _make as dynamic

NAME = "topi_ext.slice_by_lengths"
IMAGE = (1, 4, relay.Any(), relay.Any())


def imported(network, channels=4):
    """From ONNX, of images of any height and width."""
    file = io.BytesIO()
    axes = {"x": {2: "height", 3: "width"}}
    image = torch.rand(1, channels, 13, 14)
    torch.onnx.export(network, image, file, input_names=["x"], dynamic_axes=axes, dynamo=False)
    return frontends.from_onnx(onnx.load_from_string(file.getvalue()))


class Shifted(torch.nn.Module):
    """A part of the padded image, as a correlation of images takes."""

    def forward(self, x):
        padded, (height, width) = functional.pad(x, (1, 1, 1, 1)), x.shape[2:]
        return x * padded[:, :, 2 : 2 + height, 1 : 1 + width]


class Cropped(torch.nn.Module):
    """Of what was enlarged to a multiple of 8."""

    def forward(self, x):
        height, width = x.shape[2:]
        padded = functional.pad(x, (0, (8 - width % 8) % 8, 0, (8 - height % 8) % 8))
        return functional.interpolate(padded, scale_factor=2.0)[:, :, : height * 2, : width * 2]


class Halves(torch.nn.Module):
    def forward(self, x):
        return x[:, :, : x.shape[2] // 2] + x[:, :, -(x.shape[2] // 2) :, :]


class Every(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x[..., ::2, ::2], x[..., ::2, : x.shape[3] : 2]], 1)


@pytest.mark.parametrize(
    "network", [Shifted(), Cropped(), Halves(), Every()], ids=lambda each: type(each).__name__
)
def test_of_onnx(network):
    mod, params = imported(network)
    after, report = apply(SliceByLengths(), mod)
    assert "dyn.strided_slice" in ops(mod) and "dyn.strided_slice" not in ops(after), refusals(report)
    assert_no_second_change(SliceByLengths(), after)
    compiled = runtime.compile(after, "llvm", params)
    for height, width in ((13, 14), (6, 16), (8, 5)):
        image = torch.rand(1, 4, height, width)
        torch.testing.assert_close(compiled(image), network(image), rtol=1e-6, atol=1e-6)


def dynamic_slice(data, begin, end, strides=(1, 1, 1, 1)):
    begin, strides = (
        each if isinstance(each, relay.Expr) else relay.const(np.array(each)) for each in (begin, strides)
    )
    return dynamic.strided_slice(data, begin, end, strides, "end")


def test_what_depends_on_data_stays():
    x, bounds = relay.var("x", shape=IMAGE), relay.var("bounds", shape=(4,), dtype="int64")
    ends = relay.shape_of(x, "int64")
    for given in (bounds, relay.floor_divide(ends, bounds), ends + bounds):
        mod = relay.transform.InferType()(module(x, bounds, dynamic_slice(x, (0, 0, 0, 0), given)))
        assert SliceByLengths()(mod).same_as(mod)


def test_steps_from_the_end_or_of_data_are_refused():
    x, steps = relay.var("x", shape=IMAGE), relay.var("steps", shape=(4,), dtype="int64")
    for given in (steps, (1, 1, -1, 1)):
        _, report = apply(
            SliceByLengths(),
            module(x, steps, dynamic_slice(x, (0, 0, 9, 0), relay.shape_of(x, "int64"), given)),
        )
        assert refusals(report) == ["a step is below 1, or known only at run time"]


def test_narrow_numbers_stay():
    """A product in int32 may not be the number that it is in int64."""
    x = relay.var("x", shape=IMAGE)
    product = relay.cast(relay.shape_of(x, "int32") * relay.const(2**20), "int64")
    mod = relay.transform.InferType()(module(x, dynamic_slice(x, (0, 0, 0, 0), product)))
    assert SliceByLengths()(mod).same_as(mod)


def test_lengths_are_those_of_the_earliest_tensors():
    x = relay.var("x", shape=IMAGE)
    y = relay.nn.relu(relay.nn.relu(x))
    mod = module(
        x,
        dynamic_slice(
            relay.nn.pad(y, [(0, 0), (0, 0), (1, 1), (1, 1)]), (0, 0, 1, 1), relay.shape_of(y, "int64")
        ),
    )
    after = SliceByLengths()(mod)
    assert list(after["main"].body.args[1:]) == [after["main"].params[0]]
    image = numbers(1, 4, 5, 6)
    np.testing.assert_array_equal(
        run(after, image)[0], np.maximum(np.pad(image, [(0, 0), (0, 0), (1, 1), (1, 1)]), 0)[:, :, 1:5, 1:6]
    )


def convolved(data, weight):
    return relay.nn.conv2d(data, weight, padding=1, channels=4, kernel_size=(3, 3))


def test_in_nhwc():
    x, other = relay.var("x", shape=IMAGE), relay.var("other", shape=IMAGE)
    weight = relay.const(numbers(4, 4, 3, 3))
    y = convolved(x, weight)
    bounds = {2: (1, ("length", 1, 2), 1), 3: (0, ("subtract", ("length", 2, 3), 1), 2)}
    part = topi_ext.slice_by_lengths(relay.nn.pad(y, [(0, 0), (0, 0), (2, 2), (2, 2)]), [y, other], bounds)
    mod = module(x, other, convolved(part, weight))
    after = ConvertToNHWC()(mod)
    assert ops(after).count("layout_transform") == 2  # of the argument and the result
    in_nhwc, in_nchw = (runner(each, quick()) for each in (after, mod))
    for shapes in (((5, 6), (3, 4)), ((3, 9), (7, 7))):
        given = [numbers(1, 4, *shape, seed=seed) for seed, shape in enumerate(shapes)]
        np.testing.assert_allclose(in_nhwc(*given)[0], in_nchw(*given)[0], rtol=1e-5, atol=1e-5)


def test_of_unknown_layout_stays():
    x = relay.var("x", shape=IMAGE)
    part = topi_ext.slice_by_lengths(x, [], {2: (0, ("subtract", ("length", 0, 2), 1), 1)})
    mod = module(x, convolved(part, relay.const(numbers(4, 4, 3, 3))))
    image = numbers(1, 4, 5, 6)
    np.testing.assert_allclose(run(ConvertToNHWC()(mod), image)[0], run(mod, image)[0], rtol=1e-5, atol=1e-5)


def test_pipelines_have_it():
    mod, _ = imported(Shifted())
    assert NAME in ops(subpixel_pipeline("llvm")(mod))
