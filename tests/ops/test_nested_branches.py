"""A branch within a branch, whose operand is read again after both: TVM had freed it."""

import numpy as np
import pytest

from topi_ext.corrections.nested_branches import has_nested_branches  # before tvm

import tvm
from tvm import relay

X = np.float32([0, 1, 2])


def branches():
    """If `outer`, twice or thrice, as `inner` says, or else once; and once more."""
    x, outer, inner = (relay.var(name, shape=shape, dtype=dtype) for name, shape, dtype in ARGUMENTS)
    once = relay.exp(x)
    within = relay.If(inner, once * relay.const(2.0), once * relay.const(3.0))
    return (x, outer, inner), relay.If(outer, within, once), once


ARGUMENTS = [("x", (3,), "float32"), ("outer", (), "bool"), ("inner", (), "bool")]


@pytest.mark.parametrize("is_outer, is_inner, times", [(True, True, 3), (True, False, 4), (False, True, 2)])
def test_what_is_read_after_both_is_still_there(is_outer, is_inner, times):
    arguments, branched, once = branches()
    mod = tvm.IRModule.from_expr(relay.Function(arguments, branched + once))
    machine = tvm.runtime.vm.VirtualMachine(relay.vm.compile(mod, "llvm"), tvm.cpu())
    found = machine.invoke("main", X, np.array(is_outer), np.array(is_inner)).numpy()
    np.testing.assert_allclose(found, times * np.exp(X), rtol=1e-5)


def test_where_it_is_needed():
    arguments, branched, once = branches()
    x, _, inner = arguments
    at_the_end = relay.Function(arguments, branched)
    alone = relay.Function([x, inner], relay.If(inner, once, x) + once)
    within = relay.Function(arguments, branched + once)
    modules = [tvm.IRModule.from_expr(function) for function in (at_the_end, alone, within)]
    assert [has_nested_branches(mod) for mod in modules] == [False, False, True]
