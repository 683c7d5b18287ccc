"""What tests of Canonicalize's rules have in common."""

import numpy as np

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, ops
from tvm_passes.cleanup.canonicalize import Canonicalize

from tvm import relay
from tvm.relay import op

ANY = relay.Any()


def constant(*values, dtype="int64"):
    return relay.const(np.array(values, dtype), dtype)


def rewritten(report):
    return {outcome.rule for outcome in report.passes[0].rewrites}


def variable(*shape, dtype="float32", name="x"):
    return relay.var(name, shape=shape, dtype=dtype)


def check(mod, rule, expected_ops, *arrays):
    after, report = apply(Canonicalize(), mod)
    assert rule in rewritten(report)
    assert ops(after) == expected_ops
    assert_same_numbers(Canonicalize(), mod, *arrays)
    assert_no_second_change(Canonicalize(), after)
    return after


def rows_of(x, dtype="int64"):
    """The number of rows of a tensor as PyTorch's importer spells it: (rows,)."""
    return relay.expand_dims(relay.cast(relay.take(op.shape_of(x), relay.const(0), axis=0), dtype), 0)
