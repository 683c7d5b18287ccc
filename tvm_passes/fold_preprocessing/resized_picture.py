"""A picture that a function takes and resizes, as one operator."""

from __future__ import annotations

from topi_ext import preprocess
from topi_ext.preprocess.op import IMAGE_TYPES, LAYOUTS, LONGEST, MOST_CHANNELS

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from .._matchers import op_name, static_shape
from .._rule import Match, Rule
from .affine import ZERO
from .source_picture import SourcePicture


class ResizedPicture(Rule):
    """Replace the resizing of a picture, and what is done to it before, with `topi_ext.preprocess`.

    Why legal: a bilinearly resized pixel is a mean of pixels, so it does not matter whether a channel is
    normalised before or after. What else is understood moves pixels, or takes them to float32 as they are.
    Numbers differ by rounding: the operator's places between pixels are exact, the graph's are float32.
    """

    data = wildcard()
    pattern = is_op("image.resize2d")(data)

    def where(self, match: Match) -> bool:
        layout, shape = str(match.root.attrs.layout), static_shape(match.data)
        if layout not in LAYOUTS or shape is None or shape[layout.index("C")] > MOST_CHANNELS:
            return False
        return min(shape) > 0 and _source(match).is_changed

    def check(self, match: Match) -> str | None:
        attrs, source = match.root.attrs, _source(match)
        if str(attrs.method) != "linear":
            return f"the picture is resized by the method {attrs.method}, not linear"
        if str(attrs.coordinate_transformation_mode) != "half_pixel":
            return f"the picture is resized with {attrs.coordinate_transformation_mode}, not half_pixel"
        if {match.data.checked_type.dtype, match.root.checked_type.dtype} != {"float32"}:
            return "the picture is not resized in float32"
        if max(*static_shape(match.data), *static_shape(match.root)) > LONGEST:
            return f"the picture is longer than {LONGEST} pixels"
        if not source.is_input:
            between = op_name(source.source) or type(source.source).__name__
            return f"{between} comes between the picture that the function takes and its resizing"
        if source.layout is None:
            return f"the axes of the picture are {''.join(source.axes)}"
        if source.source.checked_type.dtype not in IMAGE_TYPES:
            return f"the picture is of type {source.source.checked_type.dtype}"
        if source.swaps_channels is None:
            return f"the channels of the picture are taken in the order {source.channels}"
        if source.values.mean_and_std is None:
            return ZERO
        if source.is_wanted_elsewhere:
            return "what becomes of the picture before it is resized is also wanted elsewhere"

    def rewrite(self, match: Match) -> relay.Expr:
        source = _source(match)
        return preprocess(
            source.pictures,
            tuple(map(int, match.root.attrs.size)),
            **source.values.mean_and_std,
            swap_channels=source.swaps_channels,
            image_layout=source.layout,
            layout=str(match.root.attrs.layout),
        )


def _source(match: Match) -> SourcePicture:
    notes = match.graph.notes.setdefault(_source, {})
    if match.root not in notes:
        notes[match.root] = SourcePicture(match.graph, match.data, str(match.root.attrs.layout))
    return notes[match.root]
