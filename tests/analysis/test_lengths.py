"""Where lengths that are known only at run time come from: through what keeps them, and no further."""

import pytest

from frontends._fold import ConstantFolder
from tvm_passes.analysis.lengths import Origins
from tvm_passes.analysis.shape_values import Dim

from tvm import relay

ANY = relay.Any()
IMAGE = relay.var("image", shape=(ANY, 3, ANY, ANY))
OTHER = relay.var("other", shape=(ANY, 3, ANY, ANY))
ROW = relay.var("row", shape=(3, 1, 1))


def convolution(filters=3, **attributes):
    weight = relay.const([[[[1.0] * 3] * 3] * 3] * filters)
    return relay.nn.conv2d(IMAGE, weight, channels=filters, kernel_size=(3, 3), **attributes)


KEPT = {
    "convolution": (convolution(padding=(1, 1)), 2, 2),
    "dilated convolution": (convolution(padding=(2, 2), dilation=(2, 2)), 3, 3),
    "convolution's batch": (convolution(strides=(2, 2)), 0, 0),
    "transpose": (relay.transpose(IMAGE, (0, 2, 3, 1)), 1, 2),
    "transpose backwards": (relay.transpose(IMAGE), 0, 3),
    "reshape": (relay.reshape(IMAGE, (0, 0, -1)), 0, 0),
    "slice of another axis": (relay.strided_slice(IMAGE, [0], [2], axes=[1]), 2, 2),
    "one by one": (relay.exp(IMAGE), 3, 3),
    "broadcast of one": (relay.add(IMAGE, ROW), 2, 2),
    "alike": (relay.add(IMAGE, relay.nn.softmax(relay.exp(IMAGE), axis=2)), 2, 2),
    "mean": (relay.mean(IMAGE, 1, keepdims=True), 3, 3),
}
LOST = {
    "strides": (convolution(padding=(1, 1), strides=(2, 2)), 2),
    "no padding": (convolution(), 2),
    "padding of one side": (convolution(padding=(1, 1, 1, 0)), 3),
    "filters": (convolution(8, padding=(1, 1)), 1),
    "-1 of a reshape": (relay.reshape(IMAGE, (0, 0, -1)), 2),
    "reshape behind a split": (relay.reshape(IMAGE, (0, -4, 1, 3, 0, 0)), 3),
    "slice": (relay.strided_slice(IMAGE, [0], [2], axes=[3]), 3),
    "broadcast of two": (relay.add(IMAGE, OTHER), 2),
    "reduced": (relay.mean(IMAGE, 1, keepdims=False), 1),
}


@pytest.mark.parametrize("result, axis, of_image", KEPT.values(), ids=KEPT)
def test_lengths_that_are_kept(result, axis, of_image):
    assert Origins().of(Dim(result, axis)) == Dim(IMAGE, of_image)


@pytest.mark.parametrize("result, axis", LOST.values(), ids=LOST)
def test_lengths_that_are_not(result, axis):
    assert Origins().of(Dim(result, axis)) == Dim(result, axis)


def test_a_deep_network_of_residuals():
    """Which is followed once, and not along every path."""
    result = IMAGE
    for _ in range(40):
        result = relay.add(result, relay.exp(result))
    assert Origins().of(Dim(result, 0)) == Dim(IMAGE, 0)


def folded(*lengths):
    """A reshape of what is computed from the image to lengths; (tensor, axis) is its length."""
    data = relay.exp(relay.transpose(IMAGE, (0, 2, 3, 1)))
    shape = [
        relay.const([length], "int64")
        if isinstance(length, int)
        else relay.take(relay.shape_of(length[0], dtype="int64"), relay.const([length[1]], "int64"))
        for length in lengths
    ]
    return ConstantFolder()(relay.reshape(data, relay.concatenate(shape, 0)))


def test_a_reshape_to_lengths_of_its_data_is_static():
    product = relay.multiply(relay.exp(IMAGE), relay.const(2.0))
    result = folded((product, 0), (product, 2), (OTHER, 3), 3)
    assert result.op.name == "reshape" and list(result.attrs.newshape) == [0, 0, -1, 3]


def test_a_reshape_to_lengths_of_others_is_not():
    result = folded((IMAGE, 0), (IMAGE, 3), (IMAGE, 2), 3)  # height and width are exchanged
    assert result.args[0].op.name == "dyn.reshape"
