"""A Loop as a recursive function, whose arguments are what it carries, and the rows that it has gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tvm_passes.engine.expressions import shape_of_type, type_of

import tvm
from tvm import relay
from tvm.relay.frontend.common import set_span

from ._fold import constant
from ._types import sizes

Values = list[relay.Expr]
# Of a round: its number, whether to go on, what is carried; the same after.
ImportBody = Callable[[Values], Values]


def with_final_shapes(import_body: ImportBody, first: Values, unread: Sequence[int]) -> Values:
    """Zeros for what a round, of which there is one at least, replaces unread by more or fewer elements."""
    _, *made = import_body([*_round(), *_carried(map(type_of, first))])
    final = list(first)
    for place in unread:
        before, after = type_of(first[place]), type_of(made[place])
        shape = shape_of_type(after)
        if before.dtype == after.dtype and shape is not None and shape != sizes(before):
            final[place] = constant(np.zeros(shape, after.dtype))
    return final


def recursion(
    import_body: ImportBody,
    most: relay.Expr | None,
    goes_on: relay.Expr | None,
    first: Sequence[relay.Expr],
    names: Sequence[str],
) -> Values:
    """The values carried after the last round, and the rows gathered; `first` are those carried, of `names`.

    The arguments keep their types: a size that a round changes is known only at run time. TVM's own needs
    both a count and a condition, refuses what grows, and of no rounds gives rows of size 1.
    """
    if most is None and goes_on is None:
        raise NotImplementedError("it has neither a number of rounds nor a condition, and never ends")
    count, going = _round()
    limit = _variable("limit", count.type_annotation)
    types = [type_of(each) for each in first]
    while True:
        carried = _carried(types)
        still_going, *made = import_body([count, going, *carried])
        after = [_as_before(*each) for each in zip(first, made, names)]
        common = [_common(*each) for each in zip(types, map(type_of, after))]
        if all(map(tvm.ir.structural_equal, common, types)):
            break
        types = common

    rows = made[len(first) :]
    gathered = [_gathered(place, row) for place, row in enumerate(rows)]
    longer = [_longer(all_, row, count) for all_, row in zip(gathered, rows)]
    loop, goes = relay.Var("loop"), going
    if most is not None:
        goes = relay.logical_and(going, relay.less(count, limit))
    start, one = (relay.const(number, "int64") for number in (0, 1))
    again = relay.Call(loop, [count + one, limit, relay.reshape(still_going, []), *after, *longer])
    arguments = [count, limit, going, *carried, *gathered]
    function = relay.Function(arguments, relay.If(goes, again, relay.Tuple([*carried, *gathered])))
    none = [constant(np.zeros([0, *(size or 0 for size in _sizes(row))], type_of(row).dtype)) for row in rows]
    most = start if most is None else most
    goes_on = relay.const(True) if goes_on is None else goes_on
    result = relay.Call(relay.Let(loop, function, loop), [start, most, goes_on, *first, *none])
    return [relay.TupleGetItem(result, place) for place in range(len(first) + len(rows))]


def _variable(name: str, type_: relay.TensorType) -> relay.Var:
    """Nodes replace a variable that has no span by one that has."""
    return set_span(relay.var(name, type_), name)


def _round() -> Values:
    """The number of a round, and whether to go on: scalars, by ONNX."""
    return [
        _variable("count", relay.TensorType((), "int64")),
        _variable("going", relay.TensorType((), "bool")),
    ]


def _carried(types: Iterable[relay.TensorType]) -> Values:
    return [_variable(f"carried{place}", type_) for place, type_ in enumerate(types)]


def _sizes(value: relay.Expr) -> tuple[int | None, ...]:
    return sizes(type_of(value))


def _as_before(before: relay.Expr, after: relay.Expr, name: str) -> relay.Expr:
    """What a round makes of a carried value; one element has the shape of before, which exporters change."""
    old, new = _sizes(before), _sizes(after)
    if len(old) != len(new) and {*old, *new} <= {1}:
        return relay.reshape(after, old)
    if (type_of(before).dtype, len(old)) != (type_of(after).dtype, len(new)):
        raise NotImplementedError(
            f"it carries '{name}', which is {_text(before)} before the first round and {_text(after)} after "
            "it: give it its final shape before the loop"
        )
    return after


def _text(value: relay.Expr) -> str:
    extents = ", ".join("?" if size is None else str(size) for size in _sizes(value))
    return f"{type_of(value).dtype}[{extents}]"


def _common(one: relay.TensorType, other: relay.TensorType) -> relay.TensorType:
    """The type of both: what is known of their sizes."""
    shape = [mine if mine == its else None for mine, its in zip(sizes(one), sizes(other))]
    return relay.TensorType([relay.Any() if size is None else size for size in shape], one.dtype)


def _gathered(place: int, row: relay.Expr) -> relay.Var:
    type_ = type_of(row)
    return _variable(f"rows{place}", relay.TensorType([relay.Any(), *type_.shape], type_.dtype))


def _longer(rows: relay.Expr, row: relay.Expr, count: relay.Expr) -> relay.Expr:
    """The rows and one more; until it is there, sizes that are known only at run time are 0."""
    if None in _sizes(row):
        shape = [relay.reshape(count, [1]), relay.shape_of(row, "int64")]
        rows = relay.reshape(rows, relay.concatenate(shape, 0))
    return relay.concatenate([rows, relay.expand_dims(row, 0)], 0)
