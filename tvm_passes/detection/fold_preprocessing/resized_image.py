"""Replace the resizing of an input image with one operator."""

from __future__ import annotations

from topi_ext import preprocess
from topi_ext.preprocess.op import LAYOUTS, MAX_CHANNELS, MAX_SIDE

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.expressions import static_shape
from ...engine.rule import NO_MATCH, Answer, Match, Refusal, Rule
from .source_image import SourceImage


class ResizedImage(Rule):
    """Replace the resizing of an image, and the operators before it, with `topi_ext.preprocess`.

    Why legal: a bilinearly resized pixel is a weighted mean of pixels, so normalizing a channel commutes with
    it. All other operators that are folded move pixels, or cast them to float32 exactly. Results differ by
    rounding: the operator computes sample positions exactly, the graph in float32.
    """

    data = wildcard()
    pattern = is_op("image.resize2d")(data)

    def plan(self, match: Match) -> relay.Expr | Refusal | Answer:
        attrs, layout, shape = match.root.attrs, str(match.root.attrs.layout), static_shape(match.data)
        if (
            layout not in LAYOUTS
            or shape is None
            or shape[layout.index("C")] > MAX_CHANNELS
            or min(shape) == 0
        ):
            return NO_MATCH
        source = SourceImage(match.graph, match.data, layout)
        if not source.is_changed:
            return NO_MATCH
        if str(attrs.method) != "linear":
            return Refusal(f"the image is resized with method {attrs.method}, not linear")
        if str(attrs.coordinate_transformation_mode) != "half_pixel":
            mode = attrs.coordinate_transformation_mode
            return Refusal(f"the image is resized with {mode}, not half_pixel")
        if {match.data.checked_type.dtype, match.root.checked_type.dtype} != {"float32"}:
            return Refusal("the image is not resized in float32")
        if max(*shape, *map(int, attrs.size)) > MAX_SIDE:
            return Refusal(f"a side of the image is longer than {MAX_SIDE} pixels")
        options = source.options()
        if isinstance(options, Refusal):
            return options
        return preprocess(source.images, tuple(map(int, attrs.size)), **options, layout=layout)

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan
