"""What half precision holds, and which nodes of a graph to compute in it, for graphs of either TVM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

# The least and the greatest normal number of each type.
RANGES = {"float16": (2.0**-14, 65504.0), "bfloat16": (2.0**-126, (2 - 2.0**-7) * 2.0**127)}
HALF = tuple(RANGES)
MAX_WINDOW = 16  # pixels: larger windows are not summed in half precision


def holds(dtype: str, value: np.ndarray | None) -> bool:
    """Whether the largest magnitude in a constant is a normal number of this type."""
    if value is None:
        return True
    least, most = RANGES[dtype]
    greatest = np.abs(value[np.isfinite(value)]).max(initial=0)
    return bool(greatest == 0 or least <= greatest <= most)


def holds_each(dtype: str, value: np.ndarray | None) -> bool:
    """Whether each number in a constant but 0 is a normal one of this type, so that none becomes 0."""
    if value is None:
        return True
    least, most = RANGES[dtype]
    magnitudes = np.abs(value[np.isfinite(value) & (value != 0)])
    return bool(((least <= magnitudes) & (magnitudes <= most)).all())


class ChosenForHalf:
    """The nodes to compute in half precision, `chosen`: those that gain from it, and some that follow them.

    One that can follow does so if it is an epilogue, the only user of a chosen node; or if it only moves what
    is chosen, which is the same in both types; or if it comes behind a chosen one, or one in int8, and all
    its users are chosen too, or round it to int8, or it does so itself.
    `followers` are in the order in which they are computed. Each dialect says what the operands and the users
    of a node are.
    """

    def __init__(self, gaining: Iterable[Any], followers: Sequence[Any]) -> None:
        self.chosen = set(gaining)
        self._add_epilogues_and_what_moves(followers)
        self._add_what_is_between(followers)

    def data_of(self, node: Any) -> list[Any]:
        """The operands of a node that would be in half precision."""
        raise NotImplementedError

    def users(self, node: Any) -> list[Any]:
        """The users of a node, with those of a tuple in place of the tuple."""
        raise NotImplementedError

    def is_epilogue(self, node: Any) -> bool:
        """Whether its kernel is also that of a convolution before it."""
        raise NotImplementedError

    def moved_by(self, node: Any) -> list[Any]:
        """The operands whose elements are those of its result, if it computes nothing; else none."""
        return []

    def is_field(self, node: Any) -> bool:
        """Whether it is a field of a tuple."""
        raise NotImplementedError

    def is_int8(self, node: Any) -> bool:
        return False

    def gives_int8(self, node: Any) -> bool:
        """Whether it computes in a float type, and rounds its result to int8."""
        return False

    def rounds_to_int8(self, node: Any) -> bool:
        """Whether a cast from half precision before it would be a part of its kernel."""
        return False

    def serves_the_chosen_only(self, node: Any, or_int8: bool = False) -> bool:
        return all(
            (user in self.chosen and node in self.data_of(user)) or (or_int8 and self.rounds_to_int8(user))
            for user in self.users(node)
        )

    def _add_epilogues_and_what_moves(self, followers: Sequence[Any]) -> None:
        for node in followers:
            moved = self.moved_by(node)
            is_moved = bool(moved) and self.chosen.issuperset(moved)
            if is_moved or (self.is_epilogue(node) and self._is_next_to_the_chosen(node)):
                self.chosen.add(node)

    def _is_next_to_the_chosen(self, node: Any) -> bool:
        """Whether it is the only user of a chosen node that computes, or is an epilogue itself."""
        return any(
            data in self.chosen
            and (self.is_epilogue(data) or not self.moved_by(data))
            and self.users(data) == [node]
            for data in self.data_of(node)
        )

    def _add_what_is_between(self, followers: Sequence[Any]) -> None:
        behind = set(self.chosen)  # nodes computed from a convolution's result, as all in int8 are
        candidates = []
        for node in followers:
            if any(data in behind or self.is_int8(data) for data in self.data_of(node)):
                behind.add(node)
                candidates.append(node)
        for node in reversed(candidates):
            if self.gives_int8(node) or self.serves_the_chosen_only(node, or_int8=True):
                self.chosen.add(node)
        # One field of a tuple may serve convolutions where another does not.
        self.chosen = {
            node for node in self.chosen if not self.is_field(node) or self.data_of(node)[0] in self.chosen
        }
