"""Free variables: TVM looks for them in all functions, or a pipeline and `compile` do once."""

import threading

import pytest

import tvm_passes
from tests.helpers import module
from tvm_passes.engine.free_variables import check, unchecked

import tvm
from tvm import relay

FREE = "contains free variables"


def malformed():
    x, free = (relay.var(name, shape=(2, 3)) for name in ("x", "free"))
    return tvm.IRModule({"main": relay.Function([x], relay.add(x, free))})


def put_in(mod):
    mod["main"] = mod["main"]


def test_tvm_takes_functions_as_they_are_inside_only():
    mod = malformed()
    with unchecked():
        put_in(mod)
        with unchecked():
            put_in(mod)
        put_in(mod)
    with pytest.raises(tvm.TVMError, match=FREE):
        put_in(mod)


def test_another_thread_is_checked():
    errors = []

    def elsewhere():
        try:
            put_in(malformed())
        except tvm.TVMError as error:
            errors.append(str(error))

    with unchecked():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert len(errors) == 1 and FREE in errors[0]


def test_check_says_the_same():
    check(module(relay.var("x", shape=(2,)), relay.const(1.0)))
    with pytest.raises(tvm.TVMError, match=FREE):
        check(malformed())


@pytest.mark.parametrize(
    "use",
    [
        lambda mod: tvm_passes.default_pipeline()(mod),
        lambda mod: tvm_passes.explain(mod, tvm_passes.subpixel_pipeline("llvm")),
        lambda mod: tvm_passes.runtime.compile(mod, "llvm"),
    ],
)
def test_they_are_found_once(use):
    with pytest.raises(Exception, match=FREE):
        use(malformed())


def test_what_a_pass_loses_is_found():
    class Loses(tvm_passes.engine.Pass):
        def __init__(self):
            super().__init__(lambda _mod, _report: malformed())

    pipeline = tvm_passes.default_pipeline()
    broken = type(pipeline)([*pipeline.passes, Loses()], "broken")
    with pytest.raises(tvm.TVMError, match=FREE):
        broken(module(relay.var("x", shape=(2, 3)), relay.const(1.0)))
