"""Restore nn.depth_to_space and nn.space_to_depth from the reshapes and transposes that spell them."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ._matchers import static_shape
from ._rule import Match, Rule, RulePass

# Where a transpose takes the axes (N, ., ., ., H, W) of channels split in three, by the mode it spells.
DEPTH_TO_SPACE: dict[tuple[int, ...], str] = {(0, 1, 4, 2, 5, 3): "CRD", (0, 3, 4, 1, 5, 2): "DCR"}
# Where it takes the axes (N, C, H, b, W, b) of height and width split in two.
SPACE_TO_DEPTH: dict[tuple[int, ...], str] = {(0, 1, 3, 5, 2, 4): "CRD", (0, 3, 5, 1, 2, 4): "DCR"}


class _Shuffle(Rule):
    data = wildcard()
    split = is_op("reshape")(data)
    moved = is_op("transpose")(split)
    pattern = is_op("reshape")(moved)
    from_space: bool  # whether height and width are split, not the channels

    def where(self, match: Match) -> bool:
        ranks = [len(expr.checked_type.shape) for expr in (match.data, match.split, match.root)]
        return ranks == [4, 6, 4] and _splits_height_and_width(match) == self.from_space

    def check(self, match: Match) -> str | None:
        shapes = [static_shape(expr) for expr in (match.data, match.split, match.root)]
        if None in shapes:
            return "the shape is dynamic"
        if any(0 in shape for shape in shapes):
            return "the tensor is empty"
        if match.used_elsewhere(match.split, match.moved):
            return "the reshaped or transposed tensor has other users"
        return self.check_geometry(shapes[0], shapes[1], shapes[2], _axes(match))

    def check_geometry(
        self, data: tuple[int, ...], split: tuple[int, ...], result: tuple[int, ...], axes: tuple[int, ...]
    ) -> str | None:
        """As `check`, of the shapes and of the axes of the transpose."""
        raise NotImplementedError


class PixelShuffle(_Shuffle):
    """Replace the reshape, transpose and reshape of `pixel_shuffle` with nn.depth_to_space.

    Why legal: splitting the channels into (C, b, b) or (b, b, C) and moving the two b behind H and W is
    what the op does in mode CRD or DCR.
    """

    from_space = False

    def check_geometry(
        self, data: tuple[int, ...], split: tuple[int, ...], result: tuple[int, ...], axes: tuple[int, ...]
    ) -> str | None:
        batch, channels, height, width = data
        if split[0] != batch or split[4:] != (height, width):
            return f"the first reshape, to {list(split)}, splits another axis than the channels"
        if axes not in DEPTH_TO_SPACE:
            return f"no mode of nn.depth_to_space transposes by the axes {list(axes)}"
        blocks = split[2:4] if DEPTH_TO_SPACE[axes] == "CRD" else split[1:3]
        if blocks[0] != blocks[1]:
            return f"the block of {blocks[0]}x{blocks[1]} is not square"
        if result != (batch, channels // blocks[0] ** 2, height * blocks[0], width * blocks[0]):
            return f"the last reshape, to {list(result)}, does not merge the block into height and width"

    def rewrite(self, match: Match) -> relay.Expr:
        block = static_shape(match.root)[2] // static_shape(match.data)[2]
        return relay.nn.depth_to_space(match.data, block, "NCHW", DEPTH_TO_SPACE[_axes(match)])


class PixelUnshuffle(_Shuffle):
    """Replace the reshape, transpose and reshape of `pixel_unshuffle` with nn.space_to_depth.

    Why legal: the op splits height and width alike, and puts the place in the block before the channel
    (DCR). `pixel_unshuffle` puts it after the channel (CRD), which is the same where there is one channel.
    """

    from_space = True

    def check_geometry(
        self, data: tuple[int, ...], split: tuple[int, ...], result: tuple[int, ...], axes: tuple[int, ...]
    ) -> str | None:
        reason = _why_no_unshuffle(data, split, result, axes)
        if reason is None and SPACE_TO_DEPTH[axes] == "CRD" and data[1] > 1:
            return "nn.space_to_depth puts the place in the block before the channel, this puts it after"
        return reason

    def rewrite(self, match: Match) -> relay.Expr:
        return relay.nn.space_to_depth(match.data, static_shape(match.split)[3])


class RestoreDepthToSpace(RulePass):
    """Replace the reshapes and transposes that spell a sub-pixel shuffle with the operator itself.

    With the operator in place layouts can be converted around it, and the shuffle fuses with its producer.

    >>> x = relay.var("x", shape=(1, 12, 6, 10))
    >>> y = relay.transpose(relay.reshape(x, (1, 3, 2, 2, 6, 10)), [0, 1, 4, 2, 5, 3])
    >>> mod = tvm.IRModule.from_expr(relay.reshape(y, (1, 3, 12, 20)))
    >>> print(tvm_passes.as_text(tvm_passes.RestoreDepthToSpace()(mod)))
    def @main(%x: Tensor[(1, 12, 6, 10), float32]) -> Tensor[(1, 3, 12, 20), float32] {
      nn.depth_to_space(%x, block_size=2, mode="CRD")
    }
    """

    rules = (PixelShuffle, PixelUnshuffle)


def why_no_unshuffle(
    data: relay.Expr, split: relay.Expr, moved: relay.Call, result: relay.Expr
) -> str | None:
    """Why these reshape, transpose and reshape are no unshuffle of `unshuffle_mode`, or None."""
    shapes = [static_shape(expr) for expr in (data, split, result)]
    if None in shapes or [len(shape) for shape in shapes] != [4, 6, 4] or any(0 in shape for shape in shapes):
        return "the shapes are not those of an unshuffle"
    if shapes[0][:2] != shapes[1][:2]:
        return "the first reshape splits other axes than height and width"
    return _why_no_unshuffle(shapes[0], shapes[1], shapes[2], _axes_of(moved))


def unshuffle_mode(moved: relay.Call) -> str:
    """The mode of the unshuffle that this is the transpose of."""
    return SPACE_TO_DEPTH[_axes_of(moved)]


def _why_no_unshuffle(
    data: tuple[int, ...], split: tuple[int, ...], result: tuple[int, ...], axes: tuple[int, ...]
) -> str | None:
    batch, channels, height, width = data
    if axes not in SPACE_TO_DEPTH:
        return f"nn.space_to_depth does not transpose by the axes {list(axes)}"
    if (split[2] * split[3], split[4] * split[5]) != (height, width):
        return f"the first reshape, to {list(split)}, splits other axes than height and width"
    if split[3] != split[5]:
        return f"the block of {split[3]}x{split[5]} is not square"
    if result != (batch, channels * split[3] ** 2, split[2], split[4]):
        return f"the last reshape, to {list(result)}, does not merge the block into the channels"


def _axes(match: Match) -> tuple[int, ...]:
    return _axes_of(match.moved)


def _axes_of(moved: relay.Call) -> tuple[int, ...]:
    rank = len(moved.checked_type.shape)
    axes = moved.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(axis) % rank for axis in axes)


def _splits_height_and_width(match: Match) -> bool:
    data, split = static_shape(match.data), static_shape(match.split)
    return None not in (data, split) and data[:2] == split[:2] and data[2:] != split[4:]
