"""The checks that kernels of a network keep."""

import numpy as np
import pytest

from tvm_passes.runtime import llvm_parts
from tvm_passes.runtime.argument_checks import without_needless_checks

import tvm
from tvm import te, tir

ROWS, COLUMNS = 4, 3


def plus(name):
    """Lowered: x + y, of as many rows as both have, which its author wants to be less than 100."""
    rows = te.var("rows")
    x, y = (te.placeholder((rows, COLUMNS), name=name) for name in "xy")

    def body(inputs, outputs):
        builder = tir.ir_builder.create()
        x, y, out = map(builder.buffer_ptr, (*inputs, *outputs))
        with builder.new_scope():
            builder.emit(lambda rest: tir.AssertStmt(rows < 100, tir.StringImm("too many rows"), rest))
            with builder.for_range(0, rows * COLUMNS) as each:
                out[each] = x[each] + y[each]
        return builder.get()

    out = te.extern((rows, COLUMNS), [x, y], body, name="out", dtype="float32")
    return tvm.lower(te.create_schedule(out.op), [x, y, out], name=name)


def built():
    """Two kernels: one alone is what is called from outside."""
    mod = plus("plus")
    mod.update(plus("other"))
    return tvm.build(mod, "llvm")


@pytest.fixture
def of_network():
    with llvm_parts.on_all_cores(run_here=False):
        return built()["plus"]


def arrays(*rows, columns=COLUMNS):
    return [tvm.nd.array(np.ones((each, columns), "float32")) for each in rows]


def test_what_it_computes(of_network):
    x, y, out = arrays(ROWS, ROWS, ROWS)
    of_network(x, y, out)
    np.testing.assert_array_equal(out.numpy(), np.full((ROWS, COLUMNS), 2, "float32"))


@pytest.mark.parametrize("rows", [(ROWS, ROWS + 1, ROWS), (ROWS, ROWS, ROWS - 1)], ids=["input", "output"])
def test_rows_that_differ(of_network, rows):
    with pytest.raises(tvm.TVMError, match="plus: an argument's shape is not what it was compiled for"):
        of_network(*arrays(*rows))


def test_another_number_of_columns(of_network):
    with pytest.raises(tvm.TVMError, match="an argument's shape"):
        of_network(*arrays(ROWS, ROWS, ROWS, columns=COLUMNS + 1))


def test_a_check_of_the_kernel_itself(of_network):
    with pytest.raises(tvm.TVMError, match="too many rows"):
        of_network(*arrays(100, 100, 100))


def test_one_check_of_arguments_is_left(monkeypatch):
    functions = []
    stock = llvm_parts._stock_build

    def spied(mod, target):
        functions.extend(mod.functions.values())
        return stock(mod, target)

    monkeypatch.setattr(llvm_parts, "_stock_build", spied)
    built()
    with llvm_parts.on_all_cores(run_here=False):
        built()
    before, _, after, _ = map(checks, functions)
    assert before > 20
    assert after == 2, "of the lengths, and the kernel's own"


def checks(function):
    found = []
    tir.stmt_functor.post_order_visit(
        function.body, lambda node: found.append(isinstance(node, tir.AssertStmt))
    )
    return sum(found)


def test_a_function_that_does_not_begin_with_checks():
    x = te.placeholder((ROWS,), name="x")
    schedule = te.create_schedule(te.compute((ROWS,), lambda each: x[each] + 1).op)
    function = tvm.lower(schedule, [x])["main"].with_attr("global_symbol", "plain")
    assert without_needless_checks(function).same_as(function)
