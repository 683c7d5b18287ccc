"""Which integers cannot be negative, so that they need not be counted from the end where they are indices."""

from __future__ import annotations

from tvm import relay

PLACES = {  # positions, lengths, or numbers that are not negative
    *("argmax", "argmin", "argsort", "argwhere", "ones", "ones_like", "shape_of", "zeros", "zeros_like"),
}
PARTS = {  # the results that are, of operators that have several
    ("topi_ext.batched_nms", 0),
    ("topi_ext.batched_nms", 1),
    ("topk", 1),
    ("vision.all_class_non_max_suppression", 0),
    ("vision.all_class_non_max_suppression", 1),
    ("vision.non_max_suppression", 0),  # -1 only behind those that count, which the frontends cut off
    ("vision.non_max_suppression", 1),
}
MOVES = {  # have only elements of their first operand, so the result is negative only where that is
    *("adv_index", "broadcast_to", "cast", "concatenate", "copy", "dyn.strided_slice", "expand_dims"),
    *("full", "gather", "reshape", "split", "squeeze", "stack", "strided_slice", "take", "transpose"),
}
COMPUTES = {  # nothing negative of operands that are not
    *("add", "arange", "floor_divide", "floor_mod", "maximum", "minimum", "multiply", "trunc_divide"),
}


def never_negative(integers: relay.Expr) -> bool:
    """Whether these integers come from where no negative ones do, as far as their operators tell."""
    waiting, seen = [integers], set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if isinstance(each, relay.Constant):
            if (each.data.numpy() < 0).any():
                return False
        elif isinstance(each, relay.If):
            waiting += [each.true_branch, each.false_branch]
        elif isinstance(each, relay.Tuple):
            waiting += each.fields
        elif isinstance(each, relay.TupleGetItem):
            if (_name(each.tuple_value), each.index) not in PARTS:
                waiting.append(each.tuple_value)
        elif _name(each) in MOVES:
            waiting.append(each.args[0])
        elif _name(each) in COMPUTES:
            waiting += each.args
        elif _name(each) == "where":
            waiting += each.args[1:]
        elif _name(each) not in PLACES:
            return False
    return True


def _name(expr: relay.Expr) -> str:
    return getattr(getattr(expr, "op", None), "name", "")
