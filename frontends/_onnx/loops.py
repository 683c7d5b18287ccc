"""Recognizes the loops over detections that torchvision exports, of which each is one operator.

torchvision scripts two loops so that they can be exported: one pastes the mask of each detection, the other
finds its keypoints. A loop, with the nodes before it that belong to it, is compared as terms with
torchvision's functions, which the functions below restate. Only these two loops are recognized.

They are matched in ONNX and not in Relay: there a loop is a recursive function, and the shape arithmetic of
TVM's converters, which varies with what is known of the shapes, separates the operators of its body. In Relax
there are no loops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import onnx

from .imported import FindImported, Imported
from .term_reader import Reader
from .term_rewrites import Terms
from .terms import NotRead, Term, Value


class PastedMasks(NamedTuple):
    """`topi_ext.paste_masks`, without the axis of one channel; the first two are what the frontend has."""

    masks: Any
    boxes: Any
    size: tuple[int, int]


class Keypoints(NamedTuple):
    """`topi_ext.heatmaps_to_keypoints`, whose places have their last two axes exchanged."""

    maps: Any
    rois: Any


def known_loop(
    graph: onnx.GraphProto, node: onnx.NodeProto, imported: FindImported
) -> PastedMasks | Keypoints | None:
    """What a Loop computes, or None; `graph` contains the node."""
    try:
        loop = _Loop(graph, node, imported)
    except NotRead:
        return None
    for recognized in (_pasted_masks, _keypoints):
        try:
            return recognized(loop)
        except (NotRead, _IsAnother):
            continue
    return None


class _IsAnother(Exception):
    """The loop is not the one that it is compared with."""


class _Loop:
    """A loop of `count` iterations: the values it carries at `first`, and `now` and `after` an iteration."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        node: onnx.NodeProto,
        imported: FindImported,
    ) -> None:
        self._imported, self._reader = imported, Reader(graph, imported)
        self.terms = self._reader.terms
        self.count, goes_on, *self.first = (self._reader.value(name) for name in node.input)
        (body,) = (attribute.g for attribute in node.attribute if attribute.name == "body")
        self.round = self.terms("Round", rank=0, dtype="int64")
        self.now = [
            self.terms("Carried", place, rank=_rank(value), dtype="float32")
            for place, value in enumerate(self.first)
        ]
        still_goes_on, *self.after = self._reader.read_inside(body, [self.round, goes_on, *self.now])
        ends_early = any(value is not self.terms.const(True, "bool") for value in (goes_on, still_goes_on))
        gathers_more = len(self.after) != len(self.first)
        if ends_early or gathers_more:
            raise NotRead

    def imported(self, term: Term) -> Imported:
        """What a term from outside is."""
        found = self._imported(self._reader.name_of.get(term))
        if found is None or found.dtype != "float32":
            raise _IsAnother
        return found


def _rank(value: Value) -> int:
    return value.rank if isinstance(value, Term) else value.ndim


def _check(condition: object) -> None:
    if not condition:
        raise _IsAnother


# --- torchvision's paste_masks_in_image


def _pasted_masks(loop: _Loop) -> PastedMasks:
    """For boxes outside the image or with negative width, the loop makes empty images too."""
    terms = loop.terms
    _check(len(loop.after) == 1 and _rank(loop.first[0]) == 3)
    none, height, width = (length.number for length in terms.shape(loop.first[0]))
    _check(none == 0 and None not in (height, width) and min(height, width) > 0)
    padded = _found(loop.after[0], lambda term: _is_item(loop, term, rank=4)).args[0]
    corners = _found(loop.after[0], lambda term: _is_item(loop, term, rank=2)).args[0]
    masks = _found(padded, lambda term: term.op == "Pad").args[0]
    boxes = _found(corners, lambda term: term.op == "Gather" and term.args[1] == 1).args[0]

    _check(padded is terms.pad(masks, [0, 0, 1, 1] * 2, 0))
    _check(corners is _grown(terms, boxes, terms.size(masks, 3)))
    mask, corners = (terms.gather(items, loop.round) for items in (padded, corners))
    image = _image(terms, mask, corners, height, width)
    _check(loop.after[0] is terms.concat([loop.now[0], terms.unsqueeze(image, [0])], 0))
    _check(loop.count is terms.size(padded, 0))

    masks, boxes = loop.imported(masks), loop.imported(boxes)
    shape = masks.sizes
    _check(shape[1:] == (1, shape[3], shape[3]) and shape[3] and _are_boxes(boxes.sizes, shape[0]))
    return PastedMasks(masks.value, boxes.value, (height, width))


def _grown(terms: Terms, boxes: Value, side: Value) -> Value:
    """`expand_boxes`, by as much as a border of one pixel enlarges a mask; then in whole pixels."""
    add, sub, mul, div = _arithmetic(terms)
    half = terms.const(0.5, "float32")
    x1, y1, x2, y2 = _columns(terms, boxes)
    scale = div(terms.cast(add(side, terms.const(2)), "float32"), terms.cast(side, "float32"))
    across, down = (mul(mul(sub(*ends), half), scale) for ends in ((x2, x1), (y2, y1)))
    x, y = (mul(add(*ends), half) for ends in ((x2, x1), (y2, y1)))
    corners = sub(x, across), sub(y, down), add(x, across), add(y, down)
    return terms.cast(terms.concat([terms.unsqueeze(corner, [1]) for corner in corners], 1), "int64")


def _image(terms: Terms, mask: Value, corners: Value, height: int, width: int) -> Value:
    """`_onnx_paste_mask_in_image`, for one mask with its border."""
    add, sub, _, _ = _arithmetic(terms)
    zero, one, height, width = map(terms.const, (0, 1, height, width))
    x1, y1, x2, y2 = (terms.gather(corners, terms.const(place)) for place in range(4))

    def most(*numbers: Value) -> Value:
        return terms.reduce("Max", terms.vector(*numbers))

    def least(*numbers: Value) -> Value:
        return terms.reduce("Min", terms.vector(*numbers))

    def cut(value: Value, begin: Value, end: Value, axis: int) -> Value:
        return terms.slice(value, terms.vector(begin), terms.vector(end), terms.const([axis]))

    def zeros(*lengths: Value) -> Value:
        return terms.full(terms.vector(*lengths), 0.0, "float32")

    mask = terms.unsqueeze(terms.gather(mask, zero), [0, 1])
    across, down = most(add(sub(x2, x1), one), one), most(add(sub(y2, y1), one), one)
    scaled = terms.resize(mask, terms.vector(one, one, down, across), "linear")
    scaled = terms.gather(terms.gather(scaled, zero), zero)
    left, right = most(x1, zero), least(add(x2, one), width)
    top, bottom = most(y1, zero), least(add(y2, one), height)

    inside = cut(cut(scaled, sub(top, y1), sub(bottom, y1), 0), sub(left, x1), sub(right, x1), 1)
    length = terms.size(inside, 1)
    rows = terms.concat([zeros(top, length), inside, zeros(sub(height, bottom), length)], 0)
    rows = cut(rows, zero, height, 0)
    length = terms.size(rows, 0)
    whole = terms.concat([zeros(length, left), rows, zeros(length, sub(width, right))], 1)
    return cut(whole, zero, width, 1)


# --- torchvision's heatmaps_to_keypoints


def _keypoints(loop: _Loop) -> Keypoints:
    terms = loop.terms
    _check(len(loop.after) == 2)
    maps = _found(loop.after[1], lambda term: _is_item(loop, term, rank=4)).args[0]
    heights = _found(loop.after[1], lambda term: _is_item(loop, term, rank=1)).args[0]
    rois = _found(heights, lambda term: term.op == "Gather" and term.args[1] == 1).args[0]

    places, scores = _places_and_scores(terms, maps, rois, loop.round)
    none, three, keypoints = terms.const(0), terms.const(3), terms.size(maps, 1)
    first = [[none, three, keypoints], [none, keypoints]]
    _check([list(terms.shape(value)) for value in loop.first] == first)
    for now, after, new in zip(loop.now, loop.after, (places, scores)):
        _check(after is terms.concat([now, terms.unsqueeze(new, [0])], 0))
    _check(loop.count is terms.size(rois, 0))

    maps, rois = loop.imported(maps), loop.imported(rois)
    _check(0 not in maps.sizes[1:] and _are_boxes(rois.sizes, maps.sizes[0]))
    return Keypoints(maps.value, rois.value)


def _places_and_scores(terms: Terms, maps: Value, rois: Value, round_: Value) -> tuple[Value, Value]:
    """`_onnx_heatmaps_to_keypoints`, for one detection."""
    add, sub, mul, div = _arithmetic(terms)
    one, half = terms.const(1.0, "float32"), terms.const(0.5, "float32")
    keypoints = terms.size(maps, 1)
    x1, y1, x2, y2 = _columns(terms, rois)
    sides = [terms.elementwise("AtLeast", sub(*ends), one) for ends in ((x2, x1), (y2, y1))]
    across, down = (terms.gather(side, round_) for side in sides)
    width, height = (terms.gather(terms.elementwise("Ceil", side), round_) for side in sides)

    heatmaps = terms.unsqueeze(terms.gather(maps, round_), [1])
    lengths = [terms.cast(length, "int64") for length in (height, width)]
    scaled = terms.resize(heatmaps, terms.vector(*terms.shape(heatmaps)[:2], *lengths), "cubic")
    scaled = terms.gather(scaled, terms.const(0), 1)

    in_rows = terms.reshape(scaled, terms.vector(keypoints, terms.const(-1)))
    position = terms.argmax(in_rows, 1)
    pixels = terms.size(scaled, 2)
    column = terms.elementwise("Mod", position, pixels)
    row = terms.cast(terms.cast(div(sub(position, column), pixels), "int64"), "float32")
    x = add(mul(add(half, terms.cast(column, "float32")), div(across, width)), terms.gather(x1, round_))
    y = add(mul(add(half, row), div(down, height)), terms.gather(y1, round_))
    seen = terms.full(terms.shape(y), 1.0, "float32")
    places = terms.concat([terms.unsqueeze(part, [0]) for part in (x, y, seen)], 0)

    of_all = terms.gather(terms.gather(scaled, terms.cast(row, "int64"), 1), column, 2)
    each = terms.range(terms.const(0), keypoints, terms.const(1))
    base = add(add(mul(keypoints, keypoints), keypoints), terms.const(1))
    return places, terms.gather(terms.reshape(of_all, terms.const([-1])), mul(each, base))


# --- helpers of both


def _are_boxes(shape: tuple[int | None, ...], count: int | None) -> bool:
    return shape[1:] == (4,) and (None in (shape[0], count) or shape[0] == count)


def _arithmetic(terms: Terms) -> list[Callable[..., Value]]:
    return [partial(terms.elementwise, op) for op in ("Add", "Sub", "Mul", "Div")]


def _columns(terms: Terms, boxes: Value) -> list[Value]:
    return [terms.gather(boxes, terms.const(column), 1) for column in range(4)]


def _is_item(loop: _Loop, term: Term, rank: int) -> bool:
    """Whether it is the item of this iteration of a tensor of this rank."""
    return term.op == "Gather" and term.args[1:] == (0, loop.round) and term.args[0].rank == rank


def _found(term: Value, is_wanted: Callable[[Term], bool]) -> Term:
    """The first wanted term of those that this one is made of: a candidate, to be compared later."""
    waiting, seen = [term] if isinstance(term, Term) else [], set()
    while waiting:
        term = waiting.pop()
        if is_wanted(term):
            return term
        new = [arg for arg in term.args if isinstance(arg, Term) and arg not in seen]
        seen.update(new)
        waiting.extend(reversed(new))
    raise _IsAnother
