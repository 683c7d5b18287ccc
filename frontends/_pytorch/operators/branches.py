"""The operator that a trace has in place of `torch.cond`."""

from __future__ import annotations

from tvm import relay

from ..branches import CHOOSE
from . import functions
from .converter import Converter, Inputs, InputTypes, known_number


def choose(converter: Converter, inputs: Inputs, _: InputTypes) -> list[relay.Expr]:
    """TVM lacks it, a choice between the results of two functions: the other function is not computed."""
    condition, if_true, if_false = inputs
    pairs = [converter.pytorch_promote_types([*pair], []) for pair in zip(if_true, if_false)]
    branches = [relay.Tuple(list(results)) for results in zip(*pairs)]
    known = known_number(condition)
    if known is not None:
        return list(branches[0 if known else 1].fields)
    scalar = functions.truth(relay.reshape(condition, []), converter.infer_type(condition).dtype)
    chosen = relay.If(scalar, *branches)
    return [relay.TupleGetItem(chosen, place) for place in range(len(pairs))]


CONVERTERS = {CHOOSE: choose}
