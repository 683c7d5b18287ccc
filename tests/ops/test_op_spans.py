"""Operators say that they have no place in a model's source, and expressions still say theirs."""

import topi_ext  # noqa: F401  gives and mends TVM

from tvm import relay
from tvm.relay.frontend.common import set_span


def test_an_operator_has_none_and_its_call_has_one():
    assert relay.op.get("add").span is None
    x = relay.var("x", shape=(3,))
    call = set_span(relay.add(relay.nn.relu(x), x), "here")
    assert call.op.same_as(relay.op.get("add"))
    assert {each.span.source_name.name for each in (call, call.args[0], call.args[1])} == {"here"}
