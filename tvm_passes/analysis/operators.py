"""The properties of Relay's operators: one table for every pass and both frontends.

What the table does not say about an operator is unknown, and no pass assumes it: an operator that is missing
here, or in a column, prevents a rewrite and never makes a wrong one. To make an operator known to all passes,
add its line.
"""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass

import tvm
from tvm import relay

from ..engine.expressions import op_name, type_of
from . import ranges


class Elements(enum.Enum):
    """What the elements of a result are."""

    EACH = "each is computed from those at its place in each operand, broadcast as in NumPy"
    SAME = "those of the first operand, in the same order; the shape may differ"
    MOVED = "those of the first operand, or of all in its tuple, once each, in another order"
    TAKEN = "some of those of the first operand, or of all in its tuple, once or several times"


class Rows(enum.Enum):
    """Along which axis of an operand the rows lie, each of which gives a row of the result by itself."""

    ITEMS = "along the first axis of the first operand, which is a batch; no other operand has rows"
    REGIONS = "along the first axis of the last operand; the others serve every row"
    OTHER_AXES = "along any axis of the first operand but the attribute `axis`, along which it computes"
    NOT_REDUCED = "along any axis but those that `axis`, `exclude` and `keepdims` reduce"


@dataclass(frozen=True)
class Operator:
    """What is known about one operator."""

    elements: Elements | None = None
    rows: Rows | None = None  # those of Elements.EACH work row by row anyway
    limits: ranges.Rule | None = None  # of integer results
    places: tuple[int, ...] = ()  # which of several results are positions or lengths, never negative
    is_activation: bool = False  # of one operand, and a convolution can take it in
    of_a_channel: bool = False  # the second operand has an element for each channel, along `axis`
    moves_freely: bool = False  # of one operand, or of two alike: may be computed before or after a shuffle
    sizes: tuple[int, ...] = ()  # the operands that are a shape, or bounds in one
    lends_type: bool = False  # only the type of its second operand matters
    reads: int = 1  # how often TVM inlines what it reads into the expression of an element


NMS = "topi_ext.batched_nms", "vision.all_class_non_max_suppression", "vision.non_max_suppression"
EACH, SAME, MOVED, TAKEN = Elements.EACH, Elements.SAME, Elements.MOVED, Elements.TAKEN
ITEMS, REGIONS, OTHER_AXES, NOT_REDUCED = Rows.ITEMS, Rows.REGIONS, Rows.OTHER_AXES, Rows.NOT_REDUCED
PLACES = ranges.always(*ranges.PLACES)
TRUTHS = Operator(EACH, limits=ranges.always(0, 1))

OPERATORS: dict[str, Operator] = {
    # --- element by element
    "abs": Operator(EACH, moves_freely=True),
    "add": Operator(EACH, limits=ranges.of_both(operator.add), moves_freely=True),
    "bitwise_and": Operator(EACH),
    "bitwise_not": Operator(EACH),
    "bitwise_or": Operator(EACH),
    "bitwise_xor": Operator(EACH),
    "cast": Operator(EACH, limits=ranges.any_of, moves_freely=True),
    "cast_like": Operator(EACH, lends_type=True),
    "ceil": Operator(EACH),
    "clip": Operator(EACH, is_activation=True, moves_freely=True),
    "copy": Operator(EACH, limits=ranges.any_of, moves_freely=True),
    "divide": Operator(EACH, limits=ranges.of_quotient, moves_freely=True),
    "equal": TRUTHS,
    "erf": Operator(EACH),
    "exp": Operator(EACH, moves_freely=True),
    "fixed_point_multiply": Operator(EACH),
    "floor": Operator(EACH),
    "floor_divide": Operator(EACH, limits=ranges.of_quotient),
    "floor_mod": Operator(EACH, limits=ranges.of_remainder),
    "full_like": Operator(EACH),
    "greater": TRUTHS,
    "greater_equal": TRUTHS,
    "isfinite": TRUTHS,
    "isinf": Operator(EACH, limits=ranges.always(0, 1), reads=3),
    "isnan": Operator(EACH, limits=ranges.always(0, 1), reads=2),
    "left_shift": Operator(EACH),
    "less": TRUTHS,
    "less_equal": TRUTHS,
    "log": Operator(EACH),
    "log10": Operator(EACH),
    "log2": Operator(EACH),
    "logical_and": TRUTHS,
    "logical_not": TRUTHS,
    "logical_or": TRUTHS,
    "logical_xor": TRUTHS,
    "maximum": Operator(EACH, limits=ranges.of_both(max), moves_freely=True),
    "minimum": Operator(EACH, limits=ranges.of_both(min), moves_freely=True),
    "mod": Operator(EACH),
    "multiply": Operator(EACH, limits=ranges.of_product, moves_freely=True),
    "negative": Operator(EACH, moves_freely=True),
    "nn.bias_add": Operator(EACH, of_a_channel=True),
    "nn.leaky_relu": Operator(EACH, is_activation=True, moves_freely=True, reads=3),
    "nn.prelu": Operator(EACH, of_a_channel=True, reads=3),
    "nn.relu": Operator(EACH, is_activation=True, moves_freely=True),
    "not_equal": TRUTHS,
    "ones_like": Operator(EACH, limits=ranges.always(1, 1)),
    "power": Operator(EACH),
    "reinterpret": Operator(EACH),
    "right_shift": Operator(EACH),
    "round": Operator(EACH),
    "rsqrt": Operator(EACH),
    "sigmoid": Operator(EACH, moves_freely=True),
    "sign": Operator(EACH, reads=2),
    "sqrt": Operator(EACH),
    "subtract": Operator(EACH, limits=ranges.of_difference, moves_freely=True),
    "tanh": Operator(EACH, moves_freely=True, reads=5),
    "trunc": Operator(EACH),
    "trunc_divide": Operator(EACH, limits=ranges.of_quotient),
    "trunc_mod": Operator(EACH),
    "where": Operator(EACH, limits=ranges.of_where),
    "zeros_like": Operator(EACH, limits=ranges.always(0, 0)),
    **{
        name: Operator(EACH)
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "sin", "tan")
    },
    **{name: Operator(EACH, reads=2) for name in ("cosh", "sinh")},
    # --- the same elements in another shape or order, and some of them
    "adv_index": Operator(TAKEN, limits=lambda data, *_: data),
    "broadcast_to": Operator(TAKEN),
    "broadcast_to_like": Operator(TAKEN, lends_type=True),
    "concatenate": Operator(MOVED, limits=ranges.any_of),
    "dyn.broadcast_to": Operator(TAKEN, sizes=(1,)),
    "dyn.reshape": Operator(SAME, sizes=(1,)),
    "dyn.strided_slice": Operator(TAKEN, sizes=(1, 2, 3)),
    "topi_ext.slice_by_lengths": Operator(TAKEN),
    "expand_dims": Operator(SAME),
    "gather": Operator(TAKEN),
    "gather_nd": Operator(TAKEN),
    "layout_transform": Operator(MOVED),
    "nn.batch_flatten": Operator(SAME, ITEMS),
    "nn.depth_to_space": Operator(MOVED, ITEMS),
    "nn.space_to_depth": Operator(MOVED, ITEMS),
    "repeat": Operator(TAKEN),
    "reshape": Operator(SAME),
    "reshape_like": Operator(SAME, lends_type=True),
    "reverse": Operator(MOVED, OTHER_AXES),
    "slice_like": Operator(TAKEN, lends_type=True),
    "split": Operator(TAKEN),
    "squeeze": Operator(SAME),
    "stack": Operator(MOVED, limits=ranges.any_of),
    "strided_slice": Operator(TAKEN),
    "take": Operator(TAKEN),
    "tile": Operator(TAKEN),
    "transpose": Operator(MOVED),
    # --- new tensors, and what counts or finds
    "arange": Operator(limits=ranges.of_arange, sizes=(0, 1, 2)),
    "argwhere": Operator(limits=PLACES),
    "dyn.nn.pad": Operator(sizes=(1,)),
    "dyn.full": Operator(limits=lambda value, *_: value, sizes=(1,)),
    "dyn.ones": Operator(limits=ranges.always(1, 1), sizes=(0,)),
    "dyn.topk": Operator(places=(1,), sizes=(1,)),
    "dyn.zeros": Operator(limits=ranges.always(0, 0), sizes=(0,)),
    "full": Operator(limits=lambda value, *_: value),
    "ndarray_size": Operator(limits=PLACES),
    "ones": Operator(limits=ranges.always(1, 1)),
    "shape_of": Operator(limits=PLACES),
    **dict.fromkeys(NMS, Operator(places=(1,))),  # the indices behind the kept ones are -1
    "zeros": Operator(limits=ranges.always(0, 0)),
    # --- along some axes, row by row along the others
    "all": Operator(rows=NOT_REDUCED, limits=ranges.always(0, 1)),
    "any": Operator(rows=NOT_REDUCED, limits=ranges.always(0, 1)),
    "argmax": Operator(rows=NOT_REDUCED, limits=PLACES),
    "argmin": Operator(rows=NOT_REDUCED, limits=PLACES),
    "argsort": Operator(rows=OTHER_AXES, limits=PLACES),
    "cumprod": Operator(rows=OTHER_AXES),
    "cumsum": Operator(rows=OTHER_AXES),
    "max": Operator(rows=NOT_REDUCED),
    "mean": Operator(rows=NOT_REDUCED),
    "min": Operator(rows=NOT_REDUCED),
    "nn.batch_norm": Operator(rows=OTHER_AXES),
    "nn.layer_norm": Operator(rows=OTHER_AXES),
    "nn.log_softmax": Operator(rows=OTHER_AXES),
    "nn.softmax": Operator(rows=OTHER_AXES),
    "prod": Operator(rows=NOT_REDUCED),
    "sort": Operator(rows=OTHER_AXES),
    "sum": Operator(rows=NOT_REDUCED),
    "topi_ext.layer_norm": Operator(rows=OTHER_AXES),
    "topk": Operator(rows=OTHER_AXES, places=(1,)),
    # --- item by item of a batch
    "image.resize2d": Operator(rows=ITEMS),
    "nn.adaptive_avg_pool2d": Operator(rows=ITEMS),
    "nn.adaptive_max_pool2d": Operator(rows=ITEMS),
    "nn.avg_pool2d": Operator(rows=ITEMS),
    "nn.conv2d": Operator(rows=ITEMS),
    "nn.conv2d_transpose": Operator(rows=ITEMS),
    "nn.dense": Operator(rows=ITEMS),
    "nn.global_avg_pool2d": Operator(rows=ITEMS),
    "nn.global_max_pool2d": Operator(rows=ITEMS),
    "nn.group_norm": Operator(rows=ITEMS),
    "nn.instance_norm": Operator(rows=ITEMS),
    "nn.max_pool2d": Operator(rows=ITEMS),
    "nn.upsampling": Operator(rows=ITEMS),
    "topi_ext.group_norm": Operator(rows=ITEMS),
    "topi_ext.multiscale_roi_align": Operator(rows=REGIONS),
    "topi_ext.roi_pool": Operator(rows=REGIONS),
    "vision.roi_align": Operator(rows=REGIONS),
}
UNKNOWN = Operator()


def _names(which: str) -> tuple[str, ...]:
    return tuple(name for name, each in OPERATORS.items() if getattr(each, which))


ACTIVATIONS = _names("is_activation")
OF_A_CHANNEL = _names("of_a_channel")
# They treat every element alike, wherever it is; of one operand, and of two.
BINARY = tuple(name for name in _names("moves_freely") if int(relay.op.get(name).num_inputs) == 2)
ELEMENTWISE = tuple(name for name in _names("moves_freely") if name not in BINARY)


def known_of(expr: relay.Expr) -> Operator:
    """What is known about the operator that an expression calls; nothing if it calls none."""
    return OPERATORS.get(op_name(expr) or "", UNKNOWN)


def is_elementwise(expr: relay.Expr) -> bool:
    """Whether a call works element by element, with broadcasting."""
    return known_of(expr).elements is EACH


def keeps_order(expr: relay.Expr) -> bool:
    """Whether a call gives the elements of its first operand, in the same order."""
    return known_of(expr).elements is SAME or op_name(expr) == "copy"


def as_first_shaped(expr: relay.Expr) -> relay.Expr:
    """The tensor whose elements these are in the same order, before any reshape."""
    while keeps_order(expr):
        expr = expr.args[0]
    return expr


def keeps_column(expr: relay.Expr) -> bool:
    """Whether a call keeps the order of the elements of a tensor in which only one axis is longer than 1."""
    return keeps_order(expr) or op_name(expr) in ("cast", "transpose")


def keeps_elements(expr: relay.Expr) -> bool:
    """Whether a call gives the elements of its first operand, which is not a tuple, in any order."""
    is_moved = known_of(expr).elements is MOVED and op_name(expr) not in ("concatenate", "stack")
    return keeps_order(expr) or is_moved


def computes_along(call: relay.Call, axis: int) -> bool:
    """Whether a call of Rows.OTHER_AXES computes along this axis of its first operand."""
    given, rank = call.attrs.axis, len(call.args[0].checked_type.shape)
    return given is None or int(given) % rank == axis  # None flattens all axes to one


def reduced_axes(call: relay.Call) -> set[int]:
    """The axes over which a call of Rows.NOT_REDUCED reduces its operand."""
    every = set(range(len(type_of(call.args[0]).shape)))
    axis = call.attrs.axis
    if axis is None:
        return every
    given = axis if isinstance(axis, tvm.ir.Array) else [axis]
    named = {int(each) % max(len(every), 1) for each in given}
    return every - named if getattr(call.attrs, "exclude", False) else named


def reads(expr: relay.Expr) -> int:
    """How often TVM inlines what a call reads into the expression of one element of its result."""
    name = op_name(expr)
    if name is not None and name.startswith(("image.", "nn.upsampling")):
        return TAPS.get(str(getattr(expr.attrs, "method", "")), 1)
    return known_of(expr).reads


TAPS = {"nearest_neighbor": 1, "linear": 4, "bilinear": 4, "cubic": 16, "bicubic": 16}  # pixels
