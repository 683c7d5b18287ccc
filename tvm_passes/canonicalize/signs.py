"""Which integers are never negative, and which conditions therefore never hold."""

from tvm import relay

from .._matchers import constant, op_name

_OF_ALL = ("minimum", "concatenate", "stack", "floor_divide", "divide")  # if all arguments are
_OF_FIRST = ("squeeze", "transpose", "reshape", "expand_dims", "strided_slice", "dyn.strided_slice", "take")
_INDICES = ("argwhere", "shape_of")


def is_never_negative(graph, expr):
    """Whether an integer tensor has only elements that are 0 or more, by what computes it."""
    known = graph.notes.setdefault(is_never_negative, {})
    if expr not in known:
        known[expr] = _is_integer(expr) and _follows(graph, expr)
    return known[expr]


def never_holds(graph, condition):
    """Whether a condition is false for every element."""
    name = op_name(condition)
    if isinstance(condition, relay.Constant):
        return not constant(condition).any()
    if name == "less":
        left, right = condition.args
        return _all(right, lambda value: value <= 0) and is_never_negative(graph, left)
    if name == "logical_and":
        return any(never_holds(graph, arg) for arg in condition.args)
    if name in ("logical_or", "logical_xor"):
        return all(never_holds(graph, arg) for arg in condition.args)
    return False


def _is_integer(expr):
    dtype = getattr(expr.checked_type, "dtype", "")
    return dtype.startswith(("int", "uint"))


def _follows(graph, expr):
    name = op_name(expr)
    if isinstance(expr, relay.Constant):
        return _all(expr, lambda value: value >= 0)
    if isinstance(expr, relay.TupleGetItem):
        return expr.index == 1 and op_name(expr.tuple_value) in ("topk", "dyn.topk")
    if name in _INDICES:
        return True
    if name == "cast":  # to less than 64 bits it might wrap around
        return expr.checked_type.dtype == "int64" and is_never_negative(graph, expr.args[0])
    if name == "floor_mod":
        return _all(expr.args[1], lambda value: value > 0)
    if name in _OF_FIRST:
        return is_never_negative(graph, expr.args[0])
    if name == "maximum":
        return any(is_never_negative(graph, arg) for arg in expr.args)
    if name in _OF_ALL:
        args = [
            field for arg in expr.args for field in (arg.fields if isinstance(arg, relay.Tuple) else [arg])
        ]
        return all(is_never_negative(graph, arg) for arg in args)
    return False


def _all(expr, holds):
    value = constant(expr)
    return value is not None and value.size > 0 and bool(holds(value).all())
