"""What transposes do to axes."""

from __future__ import annotations

from tvm import relay

from ..engine.expressions import extents_of, op_name, type_of

TO_NHWC, FROM_NHWC = (0, 2, 3, 1), (0, 3, 1, 2)  # from NCHW, and to it


def order_of_axes(call: relay.Call) -> tuple[int, ...] | None:
    """Where each axis of a transpose comes from; None for a layout_transform that splits axes."""
    rank = len(type_of(call.args[0]).shape)
    if op_name(call) == "transpose":
        axes = call.attrs.axes
        return tuple(reversed(range(rank))) if axes is None else tuple(int(axis) % rank for axis in axes)
    order = order_of_transform(str(call.attrs.src_layout), str(call.attrs.dst_layout))
    return order if order is not None and len(order) == rank else None


def shape_in_order(call: relay.Call) -> list[int] | None:
    """The shape of a transpose that only moves axes of extent 1, so that no element does, or None.

    It is that of a reshape: -1 stands for an extent that only the run knows.
    """
    shape, axes = extents_of(call.args[0]), order_of_axes(call)
    if axes is None or 0 in shape or shape.count(None) > 1:  # 0 in a reshape means something else
        return None
    longer = [axis for axis in axes if shape[axis] != 1]
    return [shape[axis] or -1 for axis in axes] if longer == sorted(longer) else None


def order_of_transform(source: str, target: str) -> tuple[int, ...] | None:
    """Where each axis of a layout comes from in another; None for layouts that split axes."""
    if sorted(source) != sorted(target) or not source.isupper():
        return None
    return tuple(source.index(axis) for axis in target)
