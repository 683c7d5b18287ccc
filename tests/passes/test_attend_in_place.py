"""AttendInPlace: which parts of tensors attention reads, what it does not, and numbers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import frontends
import topi_ext
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops
from tvm_passes import AttendInPlace, detection_pipeline
from tvm_passes.engine.graph import calls_of

from tvm import relay

NAME = "topi_ext.attention"
BATCH, ITEMS, HEADS, LENGTH = 2, 7, 3, 8
WIDTH = HEADS * LENGTH


def of_heads(data):
    return relay.transpose(relay.reshape(data, (BATCH, ITEMS, HEADS, LENGTH)), [0, 2, 1, 3])


def taken(x):
    moved = relay.transpose(relay.reshape(x, (BATCH, ITEMS, 3, HEADS, LENGTH)), [2, 0, 3, 1, 4])
    return [relay.take(moved, relay.const(index), 0) for index in range(3)]


def split(x):
    moved = relay.transpose(relay.reshape(x, (BATCH, ITEMS, 3, HEADS, LENGTH)), [2, 0, 3, 1, 4])
    return [relay.squeeze(part, [0]) for part in relay.split(moved, 3)]


def sliced(x):
    bounds = [(i * WIDTH, (i + 1) * WIDTH) for i in range(3)]
    return [of_heads(relay.strided_slice(x, [first], [last], axes=[2])) for first, last in bounds]


def of_each_head(x):
    moved = relay.transpose(relay.reshape(x, (BATCH, ITEMS, HEADS, 3 * LENGTH)), [0, 2, 1, 3])
    return list(relay.split(moved, 3, axis=3))


def of_images(x):
    """Queries, keys and values of pixels, whose channels are last in memory."""
    image = relay.layout_transform(relay.reshape(x, (BATCH, ITEMS, 1, 3 * WIDTH)), "NHWC", "NCHW")
    parts = relay.split(relay.reshape(image, (BATCH, HEADS, 3 * LENGTH, ITEMS)), 3, axis=2)
    return [relay.transpose(part, [0, 1, 3, 2]) for part in parts]


SPELLINGS = {each.__name__: each for each in (taken, split, sliced, of_each_head, of_images)}


def attention_of(operands, **options):
    return topi_ext.attention(*operands, scale=0.3, **options)


@pytest.mark.parametrize("case", SPELLINGS)
def test_spellings(case):
    x = relay.var("x", shape=(BATCH, ITEMS, 3 * WIDTH))
    mod = module(x, attention_of(SPELLINGS[case](x)))
    after = assert_same_numbers(AttendInPlace(), mod, numbers(BATCH, ITEMS, 3 * WIDTH), rtol=1e-5, atol=1e-6)
    assert ops(after) == [NAME]
    assert_no_second_change(AttendInPlace(), after)


def test_layouts_become_strides():
    x = relay.var("x", shape=(3, BATCH, ITEMS, HEADS, LENGTH))
    operands = [relay.take(x, relay.const(index), 0) for index in range(3)]
    mod = module(x, attention_of(operands, layouts=["BNHD"] * 4))
    after = assert_same_numbers(
        AttendInPlace(), mod, numbers(3, BATCH, ITEMS, HEADS, LENGTH), rtol=1e-5, atol=1e-6
    )
    (call,) = calls_of(after, NAME)
    assert ops(after) == [NAME] and list(map(str, call.attrs["layouts"])) == ["BHND"] * 3 + ["BNHD"]


def test_heads_that_share_keys_and_a_mask():
    q, k = relay.var("q", shape=(BATCH, 6, ITEMS, LENGTH)), relay.var("k", shape=(BATCH, 1, ITEMS, LENGTH))
    mask = relay.const(numbers(1, 6, ITEMS, ITEMS))
    shared = relay.broadcast_to(k, (BATCH, 6, ITEMS, LENGTH))
    mod = module(q, k, attention_of([q, shared, shared, mask]))
    arrays = numbers(BATCH, 6, ITEMS, LENGTH), numbers(BATCH, 1, ITEMS, LENGTH)
    after = assert_same_numbers(AttendInPlace(), mod, *arrays, rtol=1e-5, atol=1e-6)
    assert ops(after) == [NAME]


def keys_are(change, shape=(BATCH, HEADS, ITEMS, LENGTH)):
    def make():
        x, q = relay.var("x", shape=shape), relay.var("q", shape=(BATCH, HEADS, ITEMS, LENGTH))
        return module(x, q, attention_of([q, change(x), q]))

    return make


SWAPPED = (BATCH, HEADS, LENGTH, ITEMS)
LEFT = {
    "whole tensors": keys_are(lambda x: x),
    "other shapes of whole tensors": keys_are(
        lambda x: relay.reshape(x, (BATCH, HEADS, ITEMS, LENGTH)), (BATCH * HEADS, ITEMS, LENGTH)
    ),
    "vectors that are not side by side": keys_are(lambda x: relay.transpose(x, [0, 1, 3, 2]), SWAPPED),
    "vectors that begin between pieces": keys_are(
        lambda x: relay.strided_slice(x, [4], [4 + LENGTH], axes=[3]), (BATCH, HEADS, ITEMS, 16)
    ),
    "vectors of every other element": keys_are(
        lambda x: relay.strided_slice(x, [0], [16], [2], axes=[3]), (BATCH, HEADS, ITEMS, 16)
    ),
    "backwards": keys_are(lambda x: relay.strided_slice(x, [ITEMS], [-ITEMS - 1], [-1], axes=[2])),
    "several taken": keys_are(lambda x: relay.take(x, relay.const([2, 0, 1]), 1)),
    "a place that is taken from the end": keys_are(
        lambda x: relay.take(x, relay.const(7), 0, mode="clip"), (2, BATCH, HEADS, ITEMS, LENGTH)
    ),
    "heads repeated": keys_are(lambda x: relay.repeat(x, HEADS, 1), (BATCH, 1, ITEMS, LENGTH)),
    "a part of more elements than kernels count": keys_are(
        lambda x: relay.take(x, relay.const(1), 0, mode="clip"), (2**23, BATCH, HEADS, ITEMS, LENGTH)
    ),
    "merged axes that are apart in memory": keys_are(
        lambda x: relay.reshape(relay.transpose(x, [1, 0, 2, 3]), (BATCH, HEADS, ITEMS, LENGTH)),
        (BATCH, HEADS, ITEMS, LENGTH),
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_left_as_it_is(case):
    mod = LEFT[case]()
    after, _ = apply(AttendInPlace(), mod)
    assert after.same_as(mod)


# --- what becomes of networks


class Block(nn.Module):
    """As timm's and torchvision's models spell it, by one layer for queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.packed, self.last = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        batch, items, width = x.shape
        q, k, v = self.packed(x).reshape(batch, items, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        found = functional.scaled_dot_product_attention(q, k, v)
        return self.last(found.transpose(1, 2).reshape(batch, items, width))


@pytest.mark.parametrize("batch", [1, 2])
def test_no_copy_is_left(emulated_cuda, batch):
    torch.manual_seed(0)
    model, x = Block().eval(), torch.rand(batch, 10, 32)
    mod, params = frontends.from_pytorch(model, [x])[:2]
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    mod = detection_pipeline(emulated_cuda.target, outputs="padded")(mod)
    layer = "topi_ext.conv2d_nhwc"
    assert [name for name in ops(mod) if name != "reshape"] == ["cast", layer, NAME, layer, "cast"]
    (found,) = emulated_cuda.run_relay(mod, x.numpy())
    np.testing.assert_allclose(found, model(x).detach().numpy(), 1e-2, 1e-2)
