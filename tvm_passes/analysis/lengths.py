"""Where a length that is known only at run time comes from: which tensors have it, too."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relay

from ..engine.expressions import known_extent, op_name, shape_of_type, type_of
from .layouts import order_of_axes
from .operators import Elements, known_of, reduced_axes
from .shape_values import Dim

MAX_DEPTH = 50  # of operands that both have to be followed; fewer are followed than there may be
KEEPS_CHANNELS_APART = "nn.bias_add", "nn.prelu"  # their second operand is a row


class Origins:
    """Of lengths of one graph; what was found is remembered."""

    def __init__(self) -> None:
        self._known: dict[Dim, Dim] = {}

    def of(self, dim: Dim, depth: int = 0) -> Dim:
        """The earliest dimension whose length this is. Lengths of one origin are equal."""
        passed = []
        while dim not in self._known:
            passed.append(dim)
            before = self._before(dim, depth)
            if before is None:
                break
            dim = before
        origin = self._known.get(dim, dim)
        self._known.update(dict.fromkeys(passed, origin))
        return origin

    def _before(self, dim: Dim, depth: int) -> Dim | None:
        """A dimension of an operand that has this length for certain."""
        call, axis = dim
        name = op_name(call)
        if name is None:
            return None
        if known_of(call).elements is Elements.EACH:
            return self._of_operands(call, axis, depth)
        before = _AXES[name](call, axis) if name in _AXES else None
        return None if before is None else Dim(call.args[0], before)

    def _of_operands(self, call: relay.Call, axis: int, depth: int) -> Dim | None:
        """Of operands that are broadcast, whose lengths are equal or 1."""
        is_one = known_of(call).lends_type or op_name(call) in KEEPS_CHANNELS_APART or len(call.args) == 1
        rank = len(type_of(call).shape)
        dims = []
        for operand in call.args[:1] if is_one else call.args:
            shape = type_of(operand).shape
            place = axis - rank + len(shape)
            if place >= 0 and known_extent(shape[place]) != 1:
                dims.append(Dim(operand, place))
        if len(dims) < 2:
            return dims[0] if dims else None
        origins = {self.of(each, depth + 1) for each in dims} if depth < MAX_DEPTH else ()
        return next(iter(origins)) if len(origins) == 1 else None


def _of_transpose(call: relay.Call, axis: int) -> int | None:
    axes = order_of_axes(call)
    return None if axes is None else axes[axis]


def _of_reshape(call: relay.Call, axis: int) -> int | None:
    codes = list(map(int, call.attrs.newshape))[: axis + 1]
    return axis if codes and min(codes) >= -1 and codes[-1] == 0 and not call.attrs.allowzero else None


def _of_strided_slice(call: relay.Call, axis: int) -> int | None:
    axes = call.attrs.axes
    return None if axes is None or axis in map(int, axes) else axis


def _of_softmax(_: relay.Call, axis: int) -> int:
    return axis


def _of_reduction(call: relay.Call, axis: int) -> int | None:
    """Of a reduction: where it does not reduce, and keeps the axes that it does."""
    return axis if call.attrs.keepdims and axis not in reduced_axes(call) else None


def _of_convolution(call: relay.Call, axis: int) -> int | None:
    attrs = call.attrs
    weight = shape_of_type(type_of(call.args[1]))
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW") or weight is None:
        return None
    if axis < 2:
        return axis if axis == 0 else None  # the number of filters is no length of the data
    side = axis - 2
    before_and_after = _of_side(attrs.padding, side)
    widened = int(attrs.dilation[side]) * (weight[axis] - 1)
    return axis if int(attrs.strides[side]) == 1 and before_and_after == widened else None


def _of_side(padding: Sequence[int], side: int) -> int:
    """How much is added along it, in all."""
    padding = list(map(int, padding))
    four = padding * (4 // len(padding))
    return four[side] + four[side + 2]


_AXES = {
    "mean": _of_reduction,
    "nn.conv2d": _of_convolution,
    "nn.softmax": _of_softmax,
    "reshape": _of_reshape,
    "strided_slice": _of_strided_slice,
    "sum": _of_reduction,
    "transpose": _of_transpose,
}
