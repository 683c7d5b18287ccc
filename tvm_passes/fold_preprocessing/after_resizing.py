"""What follows on `topi_ext.preprocess`, taken into it, one operator at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

from topi_ext.preprocess.op import LAYOUTS, LONGEST

from tvm import relay
from tvm.ir import structural_equal
from tvm.relay.dataflow_pattern import DFPattern, is_op, wildcard

from .._layouts import order_of_axes
from .._matchers import constant, op_name, static_shape
from .._rule import Match, Rule
from .affine import ARITHMETIC, ZERO, Affine, Step
from .picture import OF_TUPLES, VIEWS, Picture, picture_in


def _any_of(names: Iterable[str], *arguments: DFPattern) -> DFPattern:
    return reduce(or_, (is_op(name)(*arguments) for name in names))


class _Follows(Rule):
    """An operator over a picture."""

    data = wildcard()

    def picture(self, match: Match) -> Picture | None:
        return picture_in(match.data)

    def where(self, match: Match) -> bool:
        return self.picture(match) is not None

    def check(self, match: Match) -> str | None:
        if self.picture(match).is_wanted_elsewhere(match.graph):
            return "the picture is also wanted as it is before"


class Normalised(_Follows):
    """Take in arithmetic with a constant for each channel."""

    pattern = _any_of(ARITHMETIC, wildcard(), wildcard())

    def picture(self, match: Match) -> Picture | None:
        return next(filter(None, map(picture_in, match.root.args)), None)

    def where(self, match: Match) -> bool:
        return super().where(match) and self._step(match) is not None

    def check(self, match: Match) -> str | None:
        options = self.picture(match).options
        if options["size"] != options["padded_size"]:
            return "the picture is normalised after it is padded"
        if self._values(match).mean_and_std is None:
            return ZERO
        return super().check(match)

    def rewrite(self, match: Match) -> relay.Expr:
        return self.picture(match).remade(**self._values(match).mean_and_std)

    def _values(self, match: Match) -> Affine:
        options = self.picture(match).options
        return Affine.of(options["mean"], options["std"]).then(self._step(match))

    def _step(self, match: Match) -> Step | None:
        axes = self.picture(match).axes
        return Step.of(match.graph, match.root, axes.index("C"))[0] if "C" in axes else None


class Padded(_Follows):
    """Take in zeros at the right and at the bottom."""

    value = wildcard()
    pattern = is_op("nn.pad")(_Follows.data, value)

    def check(self, match: Match) -> str | None:
        if str(match.root.attrs.pad_mode) != "constant" or constant(match.value) != 0:
            return "the picture is not padded with zeros"
        for axis, (before, after) in self._widths(match):
            if before or after < 0 or (after and axis not in "HW"):
                return "the picture is padded elsewhere than at the right and at the bottom"
        if max(static_shape(match.root)) > LONGEST:
            return f"the picture is longer than {LONGEST} pixels"
        return super().check(match)

    def rewrite(self, match: Match) -> relay.Expr:
        picture, widths = self.picture(match), dict(self._widths(match))
        lengths = zip("HW", picture.options["padded_size"])
        return picture.remade(padded_size=[length + widths.get(axis, (0, 0))[1] for axis, length in lengths])

    def _widths(self, match: Match) -> list[tuple[str, tuple[int, ...]]]:
        """How many elements are added before and after, by axis."""
        widths = (tuple(map(int, pair)) for pair in match.root.attrs.pad_width)
        return list(zip(self.picture(match).axes, widths))


class Transposed(_Follows):
    """Take in the way from one layout to the other."""

    pattern = is_op("transpose")(_Follows.data) | is_op("layout_transform")(_Follows.data)

    def where(self, match: Match) -> bool:
        return super().where(match) and not self.picture(match).views

    def check(self, match: Match) -> str | None:
        if self._layout(match) not in LAYOUTS:
            return "the layout of the picture becomes neither NCHW nor NHWC"
        return super().check(match)

    def rewrite(self, match: Match) -> relay.Expr:
        return self.picture(match).remade(layout=self._layout(match))

    def _layout(self, match: Match) -> str | None:
        order, axes = order_of_axes(match.root), self.picture(match).axes
        return None if order is None else "".join(axes[axis] for axis in order)


class Cast(_Follows):
    """Take in the cast to float16; as all is computed in float32, it is still rounded once."""

    pattern = is_op("cast")(_Follows.data)

    def where(self, match: Match) -> bool:
        dtypes = match.data.checked_type.dtype, match.root.checked_type.dtype
        return dtypes == ("float32", "float16") and super().where(match)

    def rewrite(self, match: Match) -> relay.Expr:
        return self.picture(match).remade(dtype="float16")


class Unviewed(_Follows):
    """Drop what adds and drops axes, where in the end it leaves the picture as it was."""

    pattern = _any_of(VIEWS, wildcard()) | is_op("take")(wildcard(), wildcard())

    def picture(self, match: Match) -> Picture | None:
        return picture_in(match.root)

    def where(self, match: Match) -> bool:
        picture = self.picture(match)
        return picture is not None and static_shape(picture.call) == static_shape(match.root)

    def check(self, match: Match) -> str | None:
        return None  # others may have the picture too

    def rewrite(self, match: Match) -> relay.Expr:
        return self.picture(match).call


class Batch(Rule):
    """Make the pictures of a batch at once, not one by one."""

    parts = wildcard()
    pattern = _any_of(OF_TUPLES, parts)

    def where(self, match: Match) -> bool:
        if not isinstance(match.parts, relay.Tuple) or len(match.parts.fields) < 2:
            return False
        pictures = _pictures(match)
        if None in pictures or int(match.root.attrs.axis) != 0:
            return False
        return static_shape(match.root) == (len(pictures), *static_shape(pictures[0].call)[1:])

    def check(self, match: Match) -> str | None:
        first, *others = pictures = _pictures(match)
        if any(not structural_equal(first.call.attrs, other.call.attrs) for other in others):
            return "not all pictures of the batch are made in the same way"
        if _batch(pictures) is None:
            return "the pictures are not those of one batch, in its order"
        if any(picture.is_wanted_elsewhere(match.graph) for picture in pictures):
            return "a picture of the batch is also wanted by itself"

    def rewrite(self, match: Match) -> relay.Expr:
        pictures = _pictures(match)
        return pictures[0].of(_batch(pictures))


def _pictures(match: Match) -> list[Picture | None]:
    return list(map(picture_in, match.parts.fields))


def _batch(pictures: Sequence[Picture]) -> relay.Expr | None:
    """What pictures are all of, one after the other; None if of nothing."""
    batch = None
    for index, picture in enumerate(pictures):
        image = picture.call.args[0]
        if op_name(image) != "strided_slice" or image.attrs.axes is None:
            return None
        batch = batch or image.args[0]
        attrs = [list(map(int, getattr(image.attrs, name))) for name in ("axes", "begin", "end", "strides")]
        is_one = attrs == [[0], [index], [index + 1], [1]] and str(image.attrs.slice_mode) == "end"
        if not is_one or not image.args[0].same_as(batch):
            return None
    return batch if static_shape(batch)[0] == len(pictures) else None


AFTER_RESIZING = (Normalised, Padded, Transposed, Cast, Unviewed, Batch)
