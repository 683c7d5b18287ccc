"""Sub-pixel shuffles in NHWC as a reshape, a transpose and a reshape: Relax has no operator for them."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..analysis.shuffles import Shape, Shuffle
from ..engine.contract import Match, Rule
from .graph import axes_of, lengths_of

AXES = {"CRD": (0, 1, 4, 2, 5, 3), "DCR": (0, 1, 3, 2, 4, 5)}  # of the transpose


class SpelledShuffle(Rule):
    """Matches a reshape, a transpose and a reshape of data."""

    data = wildcard()
    split = is_op("relax.reshape")(data, wildcard())
    moved = is_op("relax.permute_dims")(split)
    pattern = is_op("relax.reshape")(moved, wildcard())

    def where(self, match: Match) -> bool:
        return [each.ty.ndim for each in (match.data, match.split, match.root)] == [4, 6, 4]


def are_known(*lengths: Any) -> bool:
    return all(isinstance(each, int) for each in lengths)


def spelled(data: Expr, shuffle: Shuffle) -> Expr:
    """The depth-to-space of data in NHWC, whose channels are known."""
    *pixels, channels = data.ty.shape.values
    split, result = _shapes((*pixels, int(channels)), shuffle)
    return relax.op.reshape(relax.op.permute_dims(relax.op.reshape(data, split), AXES[shuffle.mode]), result)


def spelled_by(match: Match) -> Shuffle | None:
    """The depth-to-space that a match of `SpelledShuffle` is of data in NHWC, or None."""
    data, split, result = map(lengths_of, (match.data, match.split, match.root))
    if data is None or split is None or result is None:
        return None
    if not are_known(data[3], split[4]):
        return None
    found = (Shuffle(split[4], mode) for mode, axes in AXES.items() if axes == axes_of(match.moved))
    return next((each for each in found if _shapes(data, each) == (split, result)), None)


def _shapes(data: tuple[Any, ...], shuffle: Shuffle) -> tuple[Shape, Shape]:
    """Those before and behind the transpose."""
    (batch, height, width, deep), block = data, shuffle.block
    channels = deep // block**2
    parts = (channels, block, block) if shuffle.mode == "CRD" else (block, block, channels)
    return (batch, height, width, *parts), (batch, height * block, width * block, channels)
