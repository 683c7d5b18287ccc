"""SeparateScalars: a scalar that several kernels read is written into the code of each."""

import numpy as np
import pytest

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module
from tvm_passes import SeparateScalars, runtime

from tvm import relay


def two_kernels(scalar):
    """Two kernels that divide by it, and a tuple of it."""
    x = relay.var("x", shape=(8,), dtype=str(scalar.data.dtype))
    divide = relay.floor_divide if "int" in str(scalar.data.dtype) else relay.divide
    first = relay.annotation.stop_fusion(divide(x, scalar))
    return module(x, relay.Tuple([divide(first, scalar), first, scalar]))


def arguments_of_kernels(mod):
    """Those that are scalars."""
    found = []

    def visit(node):
        if isinstance(node, relay.Call) and isinstance(node.op, relay.Function):
            found.extend(arg for arg in node.args if not arg.checked_type.shape)

    fused = relay.transform.FuseOps(2)(relay.transform.InferType()(mod))
    relay.analysis.post_order_visit(fused["main"], visit)
    return found


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_no_kernel_is_given_a_scalar(dtype):
    mod = two_kernels(relay.const(7, dtype))
    assert len(arguments_of_kernels(mod)) == 2
    after = assert_same_numbers(SeparateScalars(), mod, np.arange(-4, 4).astype(dtype))
    assert not arguments_of_kernels(after)
    assert_no_second_change(SeparateScalars(), after)


def test_scalars_of_one_reader_and_tensors_stay():
    x = relay.var("x", shape=(2,))
    both = relay.const(np.ones(2, "float32"))
    mod = module(x, relay.multiply(relay.add(x, both), relay.add(relay.const(2.0), both)))
    after, report = apply(SeparateScalars(), mod)
    assert after.same_as(mod) or not report.passes[0].rewrites


def test_what_is_compiled_without_passes_has_no_scalar_to_load():
    lib = runtime.build_library(two_kernels(relay.const(7, "int32")), "llvm")
    assert [array.shape for array in lib.get_params().values()] == [()]  # that of the tuple
