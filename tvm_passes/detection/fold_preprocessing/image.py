"""A call of `topi_ext.preprocess` as rules see it, under views that only add or remove axes of extent 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from topi_ext import preprocess
from topi_ext.preprocess.op import NAME

from tvm import relay

from ...engine.expressions import constant, op_name, static_shape
from ...engine.graph import Graph


@dataclass(frozen=True)
class Image:
    """`axes` names the axes of the outermost of `views`, in its order; axes that views add are named 1."""

    call: relay.Call
    views: tuple[relay.Call, ...]  # innermost first
    axes: tuple[str, ...]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `topi_ext.preprocess`."""
        attrs = self.call.attrs
        sizes = {name: tuple(map(int, attrs[name])) for name in ("size", "padded_size")}
        values = {name: [float(value) for value in attrs[name]] for name in ("mean", "std")}
        texts = {name: str(attrs[name]) for name in ("image_layout", "layout", "dtype")}
        others = {
            "swap_channels": bool(attrs["swap_channels"]),
            "padded_channels": int(attrs["padded_channels"]),
        }
        return {**sizes, **values, **texts, **others}

    def is_wanted_elsewhere(self, graph: Graph) -> bool:
        """Whether the call, or a view between it and the outermost one, has more than one user."""
        return any(len(graph.users(node)) > 1 for node in (self.call, *self.views))

    @property
    def images(self) -> list[relay.Expr]:
        """What the call reads."""
        (read,) = self.call.args
        return list(read.fields) if isinstance(read, relay.Tuple) else [read]

    def of(self, images: Sequence[relay.Expr]) -> relay.Call:
        """The call on other images."""
        return preprocess(images, **self.options)

    def remade(self, **options: Any) -> relay.Call:
        """The same views of a call with other options."""
        expr = preprocess(self.images, **{**self.options, **options})
        for view in self.views:
            if op_name(view) in OF_TUPLES:
                expr = relay.Call(view.op, [relay.Tuple([expr])], view.attrs)
            else:
                expr = relay.Call(view.op, [expr, *view.args[1:]], view.attrs)
        return expr


def image_in(expr: relay.Expr) -> Image | None:
    """The image that an expression is a view of, or None."""
    views: list[relay.Call] = []
    while expr is not None and op_name(expr) != NAME:
        views.insert(0, expr)
        expr = _viewed(expr)
    if expr is None:
        return None
    axes = list(str(expr.attrs["layout"]))
    for view in views:
        _change_axes(view, axes)
    return Image(expr, tuple(views), tuple(axes))


VIEWS = ("expand_dims", "squeeze", "take", "stack", "concatenate")
OF_TUPLES = ("stack", "concatenate")


def _viewed(expr: relay.Expr) -> relay.Expr | None:
    """The operand, where an expression only adds or removes axes of extent 1, else None."""
    name = op_name(expr)
    if name in OF_TUPLES:
        parts = expr.args[0]
        return parts.fields[0] if isinstance(parts, relay.Tuple) and len(parts.fields) == 1 else None
    if name == "take":
        index, axis, shape = constant(expr.args[1]), expr.attrs.axis, static_shape(expr.args[0])
        is_one = index is not None and index.shape == () and index == 0
        return expr.args[0] if is_one and axis is not None and shape and shape[int(axis)] == 1 else None
    if name == "squeeze" and expr.attrs.axis is None:
        return None
    return expr.args[0] if name in VIEWS else None


def _change_axes(view: relay.Call, axes: list[str]) -> None:
    name, attrs = op_name(view), view.attrs
    if name == "take":
        del axes[int(attrs.axis)]
    elif name == "squeeze":
        for axis in sorted((int(axis) % len(axes) for axis in attrs.axis), reverse=True):
            del axes[axis]
    elif name in ("expand_dims", "stack"):
        axis = int(attrs.axis) % (len(axes) + 1)
        axes[axis:axis] = ["1"] * int(getattr(attrs, "num_newaxis", 1))
