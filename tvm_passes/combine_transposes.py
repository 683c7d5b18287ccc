"""Combine transposes that follow each other, so that those that cancel are gone."""

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ._matchers import op_name, static_shape
from ._rule import Rule, RulePass


class TransposeOfTranspose(Rule):
    """Replace two transposes in a row, also those that layout_transform spells, with one."""

    data = wildcard()
    inner = is_op("transpose")(data) | is_op("layout_transform")(data)
    pattern = is_op("transpose")(inner) | is_op("layout_transform")(inner)

    def where(self, match):
        return _axes(match.root) is not None and _axes(match.inner) is not None

    def rewrite(self, match):
        inner = _axes(match.inner)
        return relay.transpose(match.data, [inner[axis] for axis in _axes(match.root)])


class TransposeOfNothing(Rule):
    """Replace a transpose that only moves axes of extent 1 with a reshape, which costs nothing."""

    data = wildcard()
    pattern = is_op("transpose")(data) | is_op("layout_transform")(data)

    def where(self, match):
        shape, axes = static_shape(match.data), _axes(match.root)
        if shape is None or axes is None:
            return False
        longer = [axis for axis in axes if shape[axis] != 1]
        return longer == sorted(longer)

    def rewrite(self, match):
        if list(_axes(match.root)) == sorted(_axes(match.root)):
            return match.data
        return relay.reshape(match.data, static_shape(match.root))


class CombineTransposes(RulePass):
    """Combine transposes, and drop those that move nothing."""

    rules = (TransposeOfTranspose, TransposeOfNothing)


def _axes(call):
    """Where each axis of the result comes from, or None for a layout_transform that splits axes."""
    rank = len(call.args[0].checked_type.shape)
    if op_name(call) == "transpose":
        axes = call.attrs.axes
        return tuple(reversed(range(rank))) if axes is None else tuple(int(axis) % rank for axis in axes)
    source, target = str(call.attrs.src_layout), str(call.attrs.dst_layout)
    if len(source) != rank or sorted(source) != sorted(target) or not source.isupper():
        return None
    return tuple(source.index(axis) for axis in target)
