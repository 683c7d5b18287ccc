"""Fold the operators that follow `topi_ext.preprocess` into it, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topi_ext.preprocess.op import LAYOUTS, MAX_APART, MAX_CHANNELS, MAX_SIDE

from tvm import relay
from tvm.ir import structural_equal
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...analysis.layouts import order_of_axes
from ...engine.expressions import constant, op_name, static_shape
from ...engine.match import any_op
from ...engine.rule import NO_MATCH, Answer, Match, Refusal, Rule
from .affine import ARITHMETIC, ZERO, Affine, Step
from .image import OF_TUPLES, VIEWS, Image, image_in

Options = dict[str, Any]  # arguments of `topi_ext.preprocess`; a rule changes some of them


class _Follows(Rule):
    """An operator on an image. The plan is the preceding operator, which now does the work of this one."""

    data = wildcard()

    def plan(self, match: Match) -> relay.Expr | Refusal | Answer:
        image = self.image(match)
        if image is None:
            return NO_MATCH
        options = self.options(match, image)
        if not isinstance(options, dict):
            return options
        if image.is_wanted_elsewhere(match.graph):
            return Refusal("the image before this step has another user")
        return image.remade(**options)

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan

    def image(self, match: Match) -> Image | None:
        return image_in(match.data)

    def options(self, match: Match, image: Image) -> Options | Refusal | Answer:
        """The options of the preceding operator, changed so that it does the work of this one."""
        raise NotImplementedError


class Normalised(_Follows):
    """Fold arithmetic with a constant per channel."""

    pattern = any_op(ARITHMETIC, wildcard(), wildcard())

    def image(self, match: Match) -> Image | None:
        return next(filter(None, map(image_in, match.root.args)), None)

    def options(self, match: Match, image: Image) -> Options | Refusal | Answer:
        if "C" not in image.axes:
            return NO_MATCH
        found = Step.of(match.graph, match.root, image.axes.index("C"))
        if found is None:
            return NO_MATCH
        before = image.options
        if before["size"] != before["padded_size"] or before["padded_channels"] != len(before["mean"]):
            return Refusal("the image is normalized after it is padded")
        return Affine.of(before["mean"], before["std"]).then(found[0]).mean_and_std or Refusal(ZERO)


class Padded(_Follows):
    """Fold padding with zeros at the right, at the bottom, and to four channels."""

    value = wildcard()
    pattern = is_op("nn.pad")(_Follows.data, value)

    def options(self, match: Match, image: Image) -> Options | Refusal:
        if str(match.root.attrs.pad_mode) != "constant" or constant(match.value) != 0:
            return Refusal("the image is not padded with zeros")
        # The numbers of elements added before and after, by axis.
        widths = dict(zip(image.axes, (tuple(map(int, pair)) for pair in match.root.attrs.pad_width)))
        for axis, (before, after) in widths.items():
            if before or after < 0 or (after and axis not in "HWC"):
                return Refusal("the image is padded on a side other than the right or the bottom")
        channels = image.options["padded_channels"] + widths.get("C", (0, 0))[1]
        if channels not in (image.options["padded_channels"], MAX_CHANNELS):
            return Refusal(f"the image is padded to {channels} channels, not to {MAX_CHANNELS}")
        if max(map(int, match.root.checked_type.shape)) > MAX_SIDE:
            return Refusal(f"a side of the image is longer than {MAX_SIDE} pixels")
        lengths = zip("HW", image.options["padded_size"])
        padded_size = [length + widths.get(axis, (0, 0))[1] for axis, length in lengths]
        return {"padded_size": padded_size, "padded_channels": channels}


class Transposed(_Follows):
    """Fold a transpose between NCHW and NHWC."""

    pattern = is_op("transpose")(_Follows.data) | is_op("layout_transform")(_Follows.data)

    def options(self, match: Match, image: Image) -> Options | Refusal | Answer:
        if image.views:
            return NO_MATCH
        order = order_of_axes(match.root)
        layout = None if order is None else "".join(image.axes[axis] for axis in order)
        if layout not in LAYOUTS:
            return Refusal("the image is transposed to a layout other than NCHW and NHWC")
        return {"layout": layout}


class Cast(_Follows):
    """Fold the cast to float16; since everything is computed in float32, there is still one rounding."""

    pattern = is_op("cast")(_Follows.data)

    def where(self, match: Match) -> bool:
        dtypes = match.data.checked_type.dtype, match.root.checked_type.dtype
        return dtypes == ("float32", "float16")

    def options(self, match: Match, image: Image) -> Options:
        return {"dtype": "float16"}


class Unviewed(Rule):
    """Drop operators that add and remove axes of extent 1 where together they leave the image unchanged."""

    pattern = any_op(VIEWS, wildcard()) | is_op("take")(wildcard(), wildcard())

    def plan(self, match: Match) -> relay.Expr | Answer:
        image = image_in(match.root)
        if image is None or static_shape(image.call) != static_shape(match.root):
            return NO_MATCH
        return image.call

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


class Batch(Rule):
    """Preprocess the images of a batch together instead of one by one, also where they come apart."""

    parts = wildcard()
    pattern = any_op(OF_TUPLES, parts)

    def plan(self, match: Match) -> relay.Expr | Refusal | Answer:
        if not isinstance(match.parts, relay.Tuple) or len(match.parts.fields) < 2:
            return NO_MATCH
        images = [image for image in map(image_in, match.parts.fields) if image is not None]
        if len(images) < len(match.parts.fields) or int(match.root.attrs.axis) != 0:
            return NO_MATCH
        first, *others = images
        if tuple(map(int, match.root.checked_type.shape)) != (len(images), *_one_shape(first)[1:]):
            return NO_MATCH
        if any(not structural_equal(first.call.attrs, other.call.attrs) for other in others):
            return Refusal("the images of the batch are preprocessed in different ways")
        if any(image.is_wanted_elsewhere(match.graph) for image in images):
            return Refusal("an image of the batch has another user")
        batch = _batch(images)
        read = [batch] if batch is not None else [one for image in images for one in image.images]
        if len(read) > MAX_APART:
            return Refusal(f"the images come in more than {MAX_APART} tensors")
        return first.of(read)

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


def _one_shape(image: Image) -> tuple[int, ...]:
    return tuple(map(int, image.call.checked_type.shape))


def _batch(images: Sequence[Image]) -> relay.Expr | None:
    """The batch that consists of exactly these images, in order, or None if there is none."""
    batch = None
    for index, image in enumerate(images):
        source = image.images[0]
        if op_name(source) != "strided_slice" or source.attrs.axes is None:
            return None
        batch = batch or source.args[0]
        attrs = [list(map(int, getattr(source.attrs, name))) for name in ("axes", "begin", "end", "strides")]
        is_one = attrs == [[0], [index], [index + 1], [1]] and str(source.attrs.slice_mode) == "end"
        if not is_one or not source.args[0].same_as(batch):
            return None
    whole = None if batch is None else static_shape(batch)
    return batch if whole is not None and whole[0] == len(images) else None


AFTER_RESIZING = (Normalised, Padded, Transposed, Cast, Unviewed, Batch)
