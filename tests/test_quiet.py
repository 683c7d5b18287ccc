"""What TVM and torch say about themselves is held back while they work for us, and only then."""

import logging
import threading
import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import frontends
from tests.test_find_tvm import python
from topi_ext.quiet import LOGGERS, RENDERER, is_verbose, quiet, without_warnings_of
from tvm_passes import ConvertToNHWC, runtime
from tvm_passes.command import progress

import tvm
from tvm import autotvm, relay

WORK = """
import io, sys
import onnx, torch
from torch import nn
import frontends
from tvm_passes import detection_pipeline, runtime, subpixel_pipeline
from tvm import relay
from tvm.relay.build_module import bind_params_by_name


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2, 2)

    def forward(self, x):
        image = torch.relu(self.up(self.first(x)))
        means = nn.functional.adaptive_avg_pool2d(image, 1).flatten(1)
        return nn.functional.pixel_shuffle(image, 2), means, torch.nonzero(means > 0)[:, :1] + 1


model, x = Network().eval(), torch.zeros(1, 8, 6, 6)
file = io.BytesIO()
torch.onnx.export(model, x, file, opset_version=17)
print("now", file=sys.stderr, flush=True)
exported = onnx.load_from_string(file.getvalue())
for mod, params in frontends.from_pytorch(model, x), frontends.from_onnx(exported):
    mod["main"] = bind_params_by_name(mod["main"], params)
    for pipeline in detection_pipeline, subpixel_pipeline:
        pipeline("cuda -arch=sm_90")(mod)
    runtime.compile(detection_pipeline("llvm")(mod), "llvm")
"""
NOTES = ("One or more operators have not been tuned",)


def said_by(**environment):
    answer = python(f"import warnings; warnings.simplefilter('always')\n{WORK}", **environment)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout + answer.stderr.partition("now\n")[2]


def test_imports_passes_and_compilation_say_nothing():
    assert said_by() == ""


def test_unless_asked_to():
    said = said_by(TVM_PASSES_VERBOSE="1")
    assert [note for note in NOTES if note not in said] == []


# --- what belongs to the process is put back


def state():
    levels = [logging.getLogger(name).level for name in LOGGERS]
    return autotvm.GLOBAL_SCOPE.silent, levels, tvm.get_global_func(RENDERER, allow_missing=True)


def note():
    """Something that TVM's C++ writes to standard error."""
    x, weight = relay.var("x", shape=(1, 4, 8, 8)), relay.var("weight", shape=(4, 4, 2, 2))
    mod = tvm.IRModule.from_expr(relay.Function([x, weight], relay.nn.conv2d_transpose(x, weight)))
    with tvm.transform.PassContext(opt_level=3):
        relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})(relay.transform.InferType()(mod))


def test_all_is_as_before(capfd):
    before = state()
    with pytest.raises(KeyError), quiet(), quiet():
        note()
        assert state() != before
        raise KeyError
    assert state() == before
    assert capfd.readouterr().err == ""
    note()
    assert "Desired layout(s) not specified" in capfd.readouterr().err


def test_threads_that_overlap(capfd):
    before, inside, leave = state(), threading.Event(), threading.Event()

    def another():
        with quiet():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=another)
    with quiet():
        thread.start()
        inside.wait()
    note()
    assert capfd.readouterr().err == ""
    leave.set()
    thread.join()
    assert state() == before


def test_a_level_of_the_user_stays(monkeypatch):
    logger = logging.getLogger("strategy")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    with quiet():
        assert logger.level == logging.DEBUG
    assert logger.level == logging.DEBUG


def test_python_and_its_warnings_are_heard(capfd):
    with quiet(), pytest.warns(UserWarning, match="of the user"):
        print("printed")
        warnings.warn("of the user", stacklevel=1)
    assert capfd.readouterr().out == "printed\n"


def test_type_errors_are_heard(capfd):
    x, y = relay.var("x", shape=(2, 3)), relay.var("y", shape=(4, 5))
    with pytest.raises(tvm.error.DiagnosticError), quiet():
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, y], x + y)))
    assert "Incompatible broadcast type" in capfd.readouterr().err


def test_warnings_of_a_package_are_held_back_and_no_others():
    before = list(warnings.filters)
    with pytest.warns() as told, without_warnings_of("torch"):
        for module in ("torch", "torch.nn", "torchless"):
            warnings.warn_explicit(f"by {module}", UserWarning, "file.py", 1, module)
    assert [str(each.message) for each in told] == ["by torchless"]
    assert warnings.filters == before


def test_the_command_shows_all_that_it_is_asked_to():
    with progress.quiet(wanted=True):
        assert not is_verbose()
    with progress.quiet(wanted=False):
        assert is_verbose()
    assert not is_verbose()


def test_the_command_prints_our_warnings_as_lines_and_no_others(capsys):
    with progress.quiet():
        for module in ("tvm_passes.runtime", "frontends", "torch.jit", "frontends_of_others"):
            warnings.warn_explicit(f"by {module}", UserWarning, "file.py", 1, module)
    assert capsys.readouterr().err == "Warning: by tvm_passes.runtime\nWarning: by frontends\n"


# --- what a user has to know is said in one line


class Branching(torch.nn.Module):
    def forward(self, x):
        for _ in range(len(x)):
            x = x + torch.tensor(1.0) if x.sum() > 0 else x
        return x if float(x[0]) > 0 else -x


def test_a_trace_that_keeps_a_branch():
    with pytest.warns() as told:
        frontends.from_pytorch(Branching(), torch.ones(3))
    (only,) = told
    assert only.filename == __file__
    text = str(only.message)
    assert "\n" not in text and text.startswith("from_pytorch: what Python computes in Branching is fixed")
    assert "a Python boolean at " in text and "a Python float at " in text
    assert "len" not in text and "torch.tensor" not in text


class Warning_(torch.nn.Module):
    def forward(self, x):
        warnings.warn("the user's own", stacklevel=1)
        return x + 1


def test_a_warning_of_the_model_is_shown():
    with pytest.warns(UserWarning, match="the user's own"):
        frontends.from_pytorch(Warning_(), torch.ones(3))


def branches_of_different_ranks():
    def branch(name, shape):
        value = onnx.numpy_helper.from_array(np.ones(shape, "float32"))
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        return helper.make_graph([helper.make_node("Constant", [], [name], value=value)], name, [], [result])

    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, (1,))
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    node = helper.make_node(
        "If",
        ["condition"],
        ["result"],
        "choice",
        then_branch=branch("a", (2, 3)),
        else_branch=branch("b", (3,)),
    )
    graph = helper.make_graph([node], "graph", [condition], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def test_branches_of_different_ranks():
    with pytest.warns(
        UserWarning, match=r"^from_onnx: the node 'choice' \(If\) has branches of different ranks"
    ):
        frontends.from_onnx(branches_of_different_ranks())


def test_a_processor_that_llvm_does_not_know(capfd):
    x = relay.var("x", shape=(2,))
    mod = tvm.IRModule.from_expr(relay.Function([x], x + x))
    for compile_ in runtime.compile, runtime.build_library:
        with pytest.raises(ValueError, match="has no processor 'abacus'; give an older one"):
            compile_(mod, "llvm -mcpu=abacus")
    assert capfd.readouterr().err == ""


def test_hybrid_script_is_read_without_deprecated_visitors():
    x = relay.var("x", shape=(relay.Any(), 4))
    y = relay.strided_slice(x, [0], [2], axes=[1])
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.concatenate([y, y], axis=1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = runtime.compile(mod, "llvm")
    assert model(np.ones((3, 4), "float32")).shape == (3, 4)


def test_a_pass_of_ours_says_nothing(capfd):
    x, weight = relay.var("x", shape=(1, 4, 8, 8)), relay.var("weight", shape=(4, 4, 2, 2))
    ConvertToNHWC()(tvm.IRModule.from_expr(relay.Function([x, weight], relay.nn.conv2d_transpose(x, weight))))
    assert capfd.readouterr().err == ""
