"""Attention, as ONNX Runtime's optimizer writes it.

Convention: queries, keys and values of all heads are (batch, heads, length, size of a head). A mask has 0 for
keys that count for nothing, to whose scores a large negative number is added, as ONNX Runtime does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from tvm import relay

from ..._fold import constant
from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    all_sizes_of,
    dtype_of,
    like,
    rank_of,
    several,
    sizes_of,
)
from .arithmetic import matmul
from .quantization import matmul_integer
from .shapes import split_into


@dataclass
class _Attention:
    """What the attributes of all operators of attention say."""

    importer: ModuleType
    heads: int
    scale: float  # 0 for one by the root of the size of a head
    is_causal: bool
    filler: float  # what is added to the scores of masked keys

    @classmethod
    def of(cls, importer: ModuleType, attrs: Attrs) -> _Attention:
        for name in ("do_rotary", "past_present_share_buffer"):
            if attrs.get(name, 0):
                raise NotImplementedError(f"its attribute {name}=1 is not supported")
        return cls(
            importer,
            attrs["num_heads"],
            attrs.get("scale", 0.0),
            bool(attrs.get("unidirectional", 0)),
            attrs.get("mask_filter_value", -10000.0),
        )

    def split(self, rows: relay.Expr) -> relay.Expr:
        """The heads of (batch, length, all their numbers)."""
        size = _known_size(rows, 2) // self.heads
        return relay.transpose(relay.reshape(rows, [0, 0, self.heads, size]), [0, 2, 1, 3])

    def __call__(
        self,
        query: relay.Expr,
        key: relay.Expr,
        value: relay.Expr,
        mask: relay.Expr | None,
        bias: relay.Expr | None,
        past: int = 0,
    ) -> relay.Expr:
        """The values by how much their keys are like the queries: (batch, length, numbers of all heads).

        So many keys, as `past` says, come before those of the queries' own sequence.
        """
        of_head, of_value = _known_size(query, 3), _known_size(value, 3)
        transposed = relay.transpose(key, [0, 1, 3, 2])
        scores = matmul(self.importer, [query, transposed], {}, {})
        scores = scores * like(self.scale or 1 / math.sqrt(of_head), scores)
        for added in (self._as_bias(mask, query, key), self._of_future(query, key, past), bias):
            scores = scores if added is None else scores + added
        if dtype_of(scores) == "float16":
            weights = relay.cast(relay.nn.softmax(relay.cast(scores, "float32")), "float16")
        else:
            weights = relay.nn.softmax(scores)
        result = matmul(self.importer, [weights, value], {}, {})
        return relay.reshape(relay.transpose(result, [0, 2, 1, 3]), [0, 0, self.heads * of_value])

    def _as_bias(self, mask: relay.Expr | None, query: relay.Expr, key: relay.Expr) -> relay.Expr | None:
        """What a mask adds to the scores: a row or a matrix for each sequence, or where its keys end."""
        if mask is None:
            return None
        if rank_of(mask) == 1:
            batch, _, length, _ = all_sizes_of(key, "its mask of lengths")
            (count,) = all_sizes_of(mask)
            if count not in (batch, 2 * batch, 3 * batch + 2):  # or also where each begins
                raise NotImplementedError(
                    "its mask has neither a row nor an end for each sequence of the batch"
                )
            places = constant(np.arange(length, dtype=dtype_of(mask))[None])
            ends = relay.expand_dims(relay.strided_slice(mask, [0], [batch]), 1)
            counts = relay.less(places, ends)
            if count == 2 * batch:
                starts = relay.expand_dims(relay.strided_slice(mask, [batch], [count]), 1)
                counts = relay.logical_and(counts, relay.greater_equal(places, starts))
            axes = [1, 2]
        elif rank_of(mask) in (2, 3):
            lengths = {sizes_of(mask)[-1], sizes_of(key)[2]} - {None}
            if len(lengths) > 1:  # TVM would repeat a mask of one key
                raise NotImplementedError("its mask has not as many columns as there are keys")
            counts = relay.greater(mask, like(0, mask))
            axes = [1, 2] if rank_of(mask) == 2 else [1]
        else:
            raise NotImplementedError(f"its mask has {rank_of(mask)} axes, not 1 to 3")
        dtype = dtype_of(query)
        added = relay.where(counts, relay.const(0.0, dtype), relay.const(self.filler, dtype))
        return relay.expand_dims(added, 1, len(axes))

    def _of_future(self, query: relay.Expr, key: relay.Expr, past: int) -> relay.Expr | None:
        if not self.is_causal:
            return None
        rows, columns = (all_sizes_of(each, "its attribute unidirectional")[2] for each in (query, key))
        if columns != past + rows:  # what the last query sees then differs among ONNX Runtime's devices
            raise NotImplementedError("its attribute unidirectional needs as many keys as queries")
        seen = np.tril(np.ones((rows, columns), bool), past)
        return relay.const(np.where(seen, 0, np.finfo(dtype_of(query)).min / 2), dtype_of(query))


def attention(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs a bias, a mask of rows and `unidirectional`, and takes no scale."""
    data, weight, bias, mask, past, added = (inputs[place] for place in range(6))
    rows = matmul(importer, [data, weight], {}, params)
    return _self_attention(importer, rows if bias is None else rows + bias, mask, past, added, attrs)


def q_attention(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """As `Attention`, of quantized data and weights."""
    data, weight, bias, scale, of_weight, mask, zero, zero_of_weight, past = (inputs[at] for at in range(9))
    given = importer.onnx_input.of([data, weight, zero, zero_of_weight])
    products = relay.cast(matmul_integer(importer, given, {}, params), dtype_of(scale))
    rows = products * (scale * of_weight)
    return _self_attention(importer, rows if bias is None else rows + bias, mask, past, None, attrs)


def _self_attention(
    importer: ModuleType,
    rows: relay.Expr,
    mask: relay.Expr | None,
    past: relay.Expr | None,
    bias: relay.Expr | None,
    attrs: Attrs,
) -> relay.Expr:
    """Attention among rows that hold queries, keys and values."""
    attend, width = _Attention.of(importer, attrs), _known_size(rows, 2)
    lengths = list(attrs.get("qkv_hidden_sizes", ())) or [width // 3] * 3
    query, key, value = (attend.split(each) for each in split_into(rows, lengths, 2))
    before = 0
    if past is not None:
        before = all_sizes_of(past, "its past")[3]
        past_key, past_value = (relay.squeeze(each, [0]) for each in relay.split(past, 2, 0))
        key, value = relay.concatenate([past_key, key], 2), relay.concatenate([past_value, value], 2)
    result = attend(query, key, value, mask, bias, before)
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return result
    return several(result, relay.stack([key, value], 0))


def multi_head_attention(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: attention of what was projected before, in one to three tensors."""
    query, key, value, bias, mask, added, past_key, past_value = (inputs[place] for place in range(8))
    attend = _Attention.of(importer, attrs)
    if rank_of(query) == 5:  # (batch, length, heads, 3, size)
        query, key, value = _unpacked(query, 3)
    elif key is not None and rank_of(key) == 5:
        key, value = _unpacked(key, 2)
    if bias is not None:
        if {rank_of(each) for each in (query, key, value)} != {3}:
            raise NotImplementedError("its bias needs queries, keys and values of three axes")
        widths = [_known_size(each, 2) for each in (query, key, value)]
        query, key, value = (
            relay.reshape(each, [0, 0, width]) + part
            for each, width, part in zip((query, key, value), widths, split_into(bias, widths, 0))
        )
    query, key, value = (each if rank_of(each) == 4 else attend.split(each) for each in (query, key, value))
    before = 0
    if past_key is not None:
        before = all_sizes_of(past_key, "its past")[2]
        key, value = relay.concatenate([past_key, key], 2), relay.concatenate([past_value, value], 2)
    result = attend(query, key, value, mask, added, before)
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return result
    return several(result, key, value)


def _unpacked(packed: relay.Expr, count: int) -> list[relay.Expr]:
    """Tensors of (batch, length, numbers of all heads) from (batch, length, heads, count, size)."""
    heads, size = _known_size(packed, 2), _known_size(packed, 4)
    parts = relay.split(packed, count, 3)
    return [relay.reshape(part, [0, 0, heads * size]) for part in parts]


def _known_size(rows: relay.Expr, axis: int) -> int:
    size = sizes_of(rows)[axis]
    if size is None:
        raise NotImplementedError("it needs to know how many numbers its heads have")
    return size


def rotary_embedding(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: pairs of numbers, turned by an angle that grows with the position."""
    data, positions, cos, sin = inputs
    if attrs.get("is_packed_batching", 0) or attrs.get("scale", 1.0) != 1:
        raise NotImplementedError("its attributes is_packed_batching and scale are not supported")
    pairs, heads = all_sizes_of(cos)[1], attrs.get("num_heads", 0)
    turned = attrs.get("rotary_embedding_dim", 0) or 2 * pairs
    *_, width = all_sizes_of(data, "its data")
    length = all_sizes_of(data)[-2]
    is_flat = rank_of(data) == 3
    if is_flat:
        size = width // heads if heads else turned
        data = relay.transpose(relay.reshape(data, [0, 0, width // size, size]), [0, 2, 1, 3])
    else:
        size = width
    if rank_of(positions) == 1:  # of the first, for all sequences
        positions = relay.expand_dims(positions, 0) + constant(
            np.arange(length, dtype=dtype_of(positions))[None]
        )
    cos, sin = (relay.expand_dims(relay.take(each, positions, 0), 1) for each in (cos, sin))
    rest = relay.strided_slice(data, [turned], [size], axes=[3]) if turned < size else None
    data = relay.strided_slice(data, [0], [turned], axes=[3]) if turned < size else data
    is_interleaved = attrs.get("interleaved", 0)
    split = [0, 0, 0, pairs, 2] if is_interleaved else [0, 0, 0, 2, pairs]
    axis = 4 if is_interleaved else 3
    real, imaginary = (
        relay.squeeze(each, [axis]) for each in relay.split(relay.reshape(data, split), 2, axis)
    )
    parts = [real * cos - imaginary * sin, real * sin + imaginary * cos]
    result = relay.reshape(relay.stack(parts, axis), [0, 0, 0, turned])
    result = result if rest is None else relay.concatenate([result, rest], 3)
    return relay.reshape(relay.transpose(result, [0, 2, 1, 3]), [0, 0, width]) if is_flat else result


CONVERTERS: dict[str, Converter] = {
    "Attention": attention,
    "MultiHeadAttention": multi_head_attention,
    "QAttention": q_attention,
    "RotaryEmbedding": rotary_embedding,
}
