"""Run an operator of TVM as it is corrected."""

from tests.helpers import module, run

from tvm import relay


def computed(function, array):
    x = relay.var("x", shape=array.shape, dtype=str(array.dtype))
    (found,) = run(module(x, function(x)), array)
    assert found.dtype == array.dtype
    return found


def run_on(target, emulated_cuda, mod, *arrays):
    (found,) = run(mod, *arrays) if target == "llvm" else emulated_cuda.run_relay(mod, *arrays)
    return found
