"""IdentifyWeights: the same id for the same weights, and none for weights that are computed."""

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers
from topi_ext import conv2d_nhwc
from tvm_passes import FuseConv2dNHWC, IdentifyWeights, InMixedPrecision
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

from tvm import relay

SHAPE = (1, 5, 6, 8)


def image():
    return relay.var("x", shape=SHAPE)


def weights(seed, filters=8):
    return relay.const(numbers(filters, 3, 3, 8, seed=seed))


def ids(mod):
    calls = (node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.conv2d_nhwc")
    return [str(call.attrs["weight_id"]) for call in calls]


def test_the_same_for_the_same_weights():
    x = image()
    y = x
    for seed in (1, 2, 1):
        y = conv2d_nhwc(y, weights(seed), padding=1)
    mod = module(x, y)
    after = assert_same_numbers(IdentifyWeights(), mod, numbers(*SHAPE), rtol=1e-5, atol=1e-4)
    first, second, third = ids(after)
    assert first == third != second
    assert all(ids(after))
    assert_no_second_change(IdentifyWeights(), after)


def test_none_for_computed_weights():
    x, weight = image(), relay.var("weight", shape=(8, 3, 3, 8))
    after, _ = apply(IdentifyWeights(), module(x, weight, conv2d_nhwc(x, weight)))
    assert ids(after) == [""]


def test_the_same_bytes_in_another_shape_are_other_weights():
    x = image()
    first = conv2d_nhwc(x, relay.const(numbers(8, 1, 3, 8, seed=1)), padding=(0, 1))
    second = conv2d_nhwc(x, relay.const(numbers(8, 3, 1, 8, seed=1)), padding=(1, 0))
    after, _ = apply(IdentifyWeights(), module(x, relay.Tuple([first, second])))
    assert len(set(ids(after))) == 2


def test_another_id_once_weights_are_changed():
    """InMixedPrecision rounds them; what folds something into the call drops the id."""
    x = image()
    before, _ = apply(IdentifyWeights(), module(x, relay.nn.relu(conv2d_nhwc(x, weights(1)))))
    rounded, _ = apply(IdentifyWeights(), InMixedPrecision()(before))
    assert ids(rounded) != ids(before)
    grown, _ = apply(FuseConv2dNHWC(also_float32=True), before)
    assert ids(grown) == [""]
