"""Operators that are lowered once: skipped are passes that find none left, and the network stays the same."""

import re

import numpy as np

from tests.helpers import module
from tvm_passes.runtime.lowered_once import ALLOCATES, LOWER, LoweredOnce

import tvm
from tvm import relay
from tvm.relay.loops import while_loop

ROWS = 3


def network():
    """Of unknown sizes, so that its shapes are computed at run time, and memory for them is allocated."""
    x = relay.var("x", shape=(relay.Any(), 4))
    rows = relay.take(relay.shape_of(x, dtype="int64"), relay.const(0, "int64"))
    shape = relay.concatenate([relay.expand_dims(rows, 0), relay.const([2, 2], "int64")], 0)
    return module(x, relay.reshape(relay.exp(x), shape))


def compiled(*instruments):
    """The machine's code, and how often each pass ran."""
    ran = dict.fromkeys((*LOWER, ALLOCATES), 0)

    @tvm.instrument.pass_instrument
    class Counted:
        def run_before_pass(self, _mod, info):
            if info.name in ran:
                ran[info.name] += 1

    with tvm.transform.PassContext(opt_level=3, instruments=[*instruments, Counted()]):
        return relay.vm.compile(network(), "llvm"), ran


def code(lib):
    return re.sub(r"\d{12,}", "address", lib.bytecode)


def test_what_finds_nothing_to_lower_is_skipped():
    (before, all_), (after, ran) = compiled(), compiled(LoweredOnce())
    assert all(ran[name] < all_[name] for name in ran)
    assert code(after) == code(before)
    assert after.primitive_ops == before.primitive_ops


def test_the_network_computes_the_same():
    lib, _ = compiled(LoweredOnce())
    data = np.arange(ROWS * 4, dtype="float32").reshape(ROWS, 4)
    result = tvm.runtime.vm.VirtualMachine(lib, tvm.cpu()).invoke("main", tvm.nd.array(data))
    np.testing.assert_allclose(result.numpy(), np.exp(data).reshape(ROWS, 2, 2), rtol=1e-6)


def test_the_kernels_of_a_loop_are_lowered_too():
    """TVM makes a function of its own of a loop, which the main one only calls."""
    count, x = relay.var("count", shape=(), dtype="int32"), relay.var("x", shape=(relay.Any(), 4))
    loop = while_loop(
        lambda count, x: relay.less(count, relay.const(3)),
        [count, x],
        lambda count, x: (relay.add(count, relay.const(1)), relay.exp(x)),
    )
    given = relay.var("given", shape=(ROWS, 4))
    mod = module(given, relay.TupleGetItem(loop(relay.const(0), given), 1))
    with tvm.transform.PassContext(opt_level=3, instruments=[LoweredOnce()]):
        lib = relay.vm.compile(mod, "llvm")
    data = np.zeros((ROWS, 4), "float32")
    result = tvm.runtime.vm.VirtualMachine(lib, tvm.cpu()).invoke("main", tvm.nd.array(data))
    np.testing.assert_allclose(result.numpy(), np.exp(np.exp(np.exp(data))), rtol=1e-6)
