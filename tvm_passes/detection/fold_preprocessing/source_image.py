"""Trace a resized image back to the function's input."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from topi_ext.preprocess.op import IMAGE_TYPES

from tvm import relay

from ...analysis.layouts import order_of_axes
from ...engine.expressions import constant, known_shape, op_name, static_shape
from ...engine.graph import Graph
from ...engine.rule import Refusal
from .affine import ARITHMETIC, ZERO, Affine, Step

LAYOUTS = {"NCHW": "NCHW", "NHWC": "NHWC", "CHW": "NCHW", "HWC": "NHWC"}  # by the axes of the source


class SourceImage:
    """How a tensor is computed from the tensor `source`: from which of its pixels, and with what arithmetic.

    `axes` names the axes of the source; `channels` has, for each channel of the tensor, that of the source;
    `item` is the index of the image if one image of a batch is taken.
    """

    def __init__(self, graph: Graph, data: relay.Expr, axes: str) -> None:
        self._graph = graph
        self.source, self.axes = data, list(axes)
        self.channels = list(range(known_shape(data)[self.axes.index("C")]))
        self.item: int | None = None
        self._batch: relay.Expr | None = None
        self._between: list[relay.Expr] = []
        self._steps: list[Step] = []
        while self._go_up():
            pass

    @property
    def is_input(self) -> bool:
        """Whether the source is a parameter of the function."""
        return any(self.source.same_as(parameter) for parameter in self._graph.root.params)

    @property
    def layout(self) -> str | None:
        """The layout of `images`, or None if it has no name."""
        return LAYOUTS.get("".join(self.axes))

    @property
    def images(self) -> relay.Expr:
        """The source with a batch axis; if one image of a batch is taken, that image alone."""
        images = self.source if "N" in self.axes else relay.expand_dims(self.source, 0)
        if self.item is None:
            return images
        return relay.strided_slice(images, [self.item], [self.item + 1], axes=[0])

    @property
    def is_changed(self) -> bool:
        """Whether values differ from those in the source, or have another type."""
        return bool(self._steps) or self.source.checked_type.dtype != "float32"

    @property
    def values(self) -> Affine:
        """The affine map from values in the source to those of the tensor."""
        unchanged = Affine.of([0.0] * len(self.channels), [1.0] * len(self.channels))
        return reduce(Affine.then, reversed(self._steps), unchanged)

    @property
    def swaps_channels(self) -> bool | None:
        """Whether the channels of the source are reversed; None if they are neither reversed nor in order."""
        in_order = list(range(known_shape(self.source)[self.axes.index("C")]))
        if self.channels == in_order:
            return False
        return True if self.channels == in_order[::-1] else None

    @property
    def is_wanted_elsewhere(self) -> bool:
        """Whether an intermediate result has users besides those that take the images of a batch."""
        users = [self._graph.users(node) for node in self._between if not node.same_as(self._batch)]
        return any(len(users_of_one) > 1 for users_of_one in users)

    def options(self) -> dict[str, Any] | Refusal:
        """The options of `topi_ext.preprocess` for `images`, or why it cannot compute the same values."""
        if not self.is_input:
            between = op_name(self.source) or type(self.source).__name__
            return Refusal(f"{between} comes between the input image and its resizing")
        if self.layout is None:
            return Refusal(f"the axes of the image are {''.join(self.axes)}, which is not a supported layout")
        if self.source.checked_type.dtype not in IMAGE_TYPES:
            return Refusal(f"the image is of type {self.source.checked_type.dtype}, which is not supported")
        if self.swaps_channels is None:
            return Refusal(f"the channels of the image are permuted to {self.channels}")
        mean_and_std = self.values.mean_and_std
        if mean_and_std is None:
            return Refusal(ZERO)
        if self.is_wanted_elsewhere:
            return Refusal("an intermediate result before the resizing has another user")
        return {**mean_and_std, "swap_channels": self.swaps_channels, "image_layout": self.layout}

    def _go_up(self) -> bool:
        """Step back over one operator, if it is a known one: its argument becomes the source."""
        node = self.source
        go = WAYS_UP.get(op_name(node) or type(node).__name__)
        above = go(self, node) if go else None
        if above is None:
            return False
        self.source = above
        self._between.append(node)
        return True

    # --- steps back, by operator: each restates the tensor in terms of an operand and returns it, or None

    def _expand_dims(self, node: relay.Expr) -> relay.Expr | None:
        axis = int(node.attrs.axis) % len(self.axes)
        if int(node.attrs.num_newaxis) != 1 or self.axes[axis] != "N":
            return None
        self.axes.pop(axis)
        return node.args[0]

    def _squeeze(self, node: relay.Expr) -> relay.Expr | None:
        (data,), axes = node.args, node.attrs.axis
        if axes is None or len(axes) != 1:
            return None
        return self._one_of(data, int(axes[0]), 0)

    def _take(self, node: relay.Expr) -> relay.Expr | None:
        data, index = node.args[0], constant(node.args[1])
        if index is None or node.attrs.axis is None or int(node.attrs.batch_dims):
            return None
        axis = int(node.attrs.axis) % len(data.checked_type.shape)
        shape = static_shape(data)
        if shape is None or not ((index >= 0) & (index < shape[axis])).all():
            return None
        if index.ndim == 0:
            return self._one_of(data, axis, int(index))
        if index.ndim != 1 or self.axes[axis] != "C":
            return None
        self.channels = [int(index[channel]) for channel in self.channels]
        return data

    def _field_of_split(self, node: relay.Expr) -> relay.Expr | None:
        split = node.tuple_value
        if op_name(split) != "split" or self.axes[int(split.attrs.axis) % len(self.axes)] != "N":
            return None
        lengths = [int(piece.shape[self.axes.index("N")]) for piece in split.checked_type.fields]
        if self.item is not None or set(lengths) != {1}:
            return None
        return self._item(split.args[0], node.index, len(lengths))

    def _one_of(self, data: relay.Expr, axis: int, index: int) -> relay.Expr | None:
        """Step back over the selection of one index along an axis, which becomes the batch axis."""
        if "N" in self.axes:
            return None
        axis = axis % len(data.checked_type.shape)
        self.axes.insert(axis, "N")
        return self._item(data, index, known_shape(data)[axis])

    def _item(self, batch: relay.Expr, index: int, count: int) -> relay.Expr:
        if count > 1:
            self.item, self._batch = index, batch
        return batch

    def _transpose(self, node: relay.Expr) -> relay.Expr | None:
        order = order_of_axes(node)
        if order is None:
            return None
        self.axes = [self.axes[order.index(axis)] for axis in range(len(order))]
        return node.args[0]

    def _reverse(self, node: relay.Expr) -> relay.Expr | None:
        axis = int(node.attrs.axis) % len(self.axes)
        if self.axes[axis] != "C":
            return None
        last = known_shape(node)[axis] - 1
        self.channels = [last - channel for channel in self.channels]
        return node.args[0]

    def _cast(self, node: relay.Expr) -> relay.Expr | None:
        return node.args[0] if node.checked_type.dtype == "float32" else None

    def _arithmetic(self, node: relay.Expr) -> relay.Expr | None:
        found = Step.of(self._graph, node, self.axes.index("C"))
        if found is None:
            return None
        step, data = found
        self._steps.append(replace(step, constants=step.constants[self.channels]))
        return data


WAYS_UP = {
    "expand_dims": SourceImage._expand_dims,
    "squeeze": SourceImage._squeeze,
    "take": SourceImage._take,
    "TupleGetItem": SourceImage._field_of_split,
    "transpose": SourceImage._transpose,
    "layout_transform": SourceImage._transpose,
    "reverse": SourceImage._reverse,
    "cast": SourceImage._cast,
    **dict.fromkeys(ARITHMETIC, SourceImage._arithmetic),
}
