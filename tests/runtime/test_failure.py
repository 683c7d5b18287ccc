"""What TVM cannot compile is named, with its place in the model, in one line."""

import numpy as np
import pytest
import torch

import frontends
from tests.helpers import module
from tvm_passes import Canonicalize, ConvertToNHWC, detection_pipeline, explain, runtime, subpixel_pipeline
from tvm_passes.runtime import build
from tvm_passes.runtime.compile_failure import failure_of
from tvm_passes.runtime.failure import explained

import tvm
from tvm import relay

CUDA = "cuda -arch=sm_90"


class Grouped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = torch.nn.Conv2d(8, 8, 3)
        self.grouped = torch.nn.Conv2d(8, 8, 3, groups=2)

    def forward(self, x):
        return torch.relu(self.grouped(torch.sigmoid(self.plain(x))))


def test_the_operator_and_its_place_in_the_model():
    mod, params = frontends.from_pytorch(Grouped().eval(), torch.rand(1, 8, 12, 12))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    with pytest.raises(runtime.CompileFailure) as failure:
        runtime.build_library(ConvertToNHWC()(mod), CUDA)  # for no target, so to a layout without a kernel
    message = str(failure.value)
    assert "\n" not in message and len(message) < 300
    assert message.startswith("cannot compile nn.conv2d") and "at aten::_convolution_1" in message
    assert "for cuda -arch=sm_90: Unsupported group_conv2d layout NHWC" in message
    assert failure.value.__cause__ is not None


def test_without_a_place_the_operator_is_named():
    x = relay.var("x", shape=(1, 12, 12, 8))
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    grouped = relay.nn.conv2d(x, relay.var("w", shape=(3, 3, 4, 8)), groups=2, channels=8, **layout)
    with pytest.raises(runtime.CompileFailure, match=r"cannot compile nn\.conv2d, of type .* for cuda"):
        runtime.build_library(module(*relay.analysis.free_vars(grouped), grouped), CUDA)


def test_behind_a_norm():
    """Which TVM writes out before it fuses."""
    x, ones = relay.var("x", shape=(1, 12, 12, 8)), relay.const(np.ones(8, "float32"))
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO", "channels": 8, "kernel_size": (3, 3)}
    weight = relay.var("w", shape=(3, 3, 4, 8))
    grouped = relay.nn.conv2d(relay.nn.layer_norm(x, ones, ones), weight, groups=2, **layout)
    with pytest.raises(runtime.CompileFailure, match=r"cannot compile nn\.conv2d, of type .* for cuda"):
        runtime.build_library(module(x, weight, grouped), CUDA)


def test_errors_of_the_caller_stay_as_they_are():
    x = relay.var("x", shape=(4,))
    mod = module(x, relay.var("x", shape=(4,)), relay.const(np.float32(1)) + x)
    with pytest.raises(ValueError, match="two parameters named x"):
        runtime.build_library(mod, "llvm")
    assert not issubclass(runtime.CompileFailure, (ValueError, tvm.TVMError))


NVCC = """#include <a.h>

Compilation error:
/tmp/kernels.cu(9): warning: "f" was declared but never referenced
/tmp/kernels.cu(12): error: too many arguments in function call
      g(1,   2);
           ^

1 error detected
"""


def test_kernels_of_tuples_are_built_alone_and_nvcc_is_quoted():
    x = relay.var("x", shape=(4, 6))
    largest = relay.topk(x, k=2).tuple_value
    y = relay.sinh(relay.concatenate([relay.TupleGetItem(largest, 0), x], axis=1))

    def build(kernel):
        relay.build(kernel, "llvm")
        if "sinh" in str(kernel):
            raise tvm.TVMError(NVCC)

    found = explained(tvm.TVMError("whole"), module(x, y), tvm.target.Target("llvm"), build)
    assert str(found).startswith("cannot compile concatenate with sinh, of type float32 (4, 8)")
    assert str(found).endswith(" for llvm: nvcc: too many arguments in function call: g(1, 2);")


def test_an_architecture_that_nvcc_does_not_know():
    """It stops before it reads the code, which was quoted for a page."""
    said = "#include <a.h>\n\nCompilation error:\nnvcc fatal   : Unsupported gpu architecture 'sm_1'\n"
    found = failure_of("exp", tvm.target.Target("cuda -arch=sm_90"), tvm.TVMError(said))
    assert "for cuda -arch=sm_90: nvcc fatal : Unsupported gpu architecture 'sm_1'" in str(found)
    assert str(found).endswith(": give the target an -arch that this nvcc knows")


MODULES = {
    "x": "str: give what an importer",
    "pair": "tuple: give the first of what an importer",
    "f": "Function: give",
}


@pytest.mark.parametrize("given", MODULES)
def test_what_is_no_module(given):
    """TVM refuses it with a trace of its C++ code."""
    x = relay.var("x", shape=(2,))
    values = {"x": "x", "pair": (module(x, x), {}), "f": relay.Function([x], x)}
    calls = runtime.compile, runtime.build_library, lambda mod, _: explain(mod)
    for call in calls:
        with pytest.raises(TypeError, match=f"mod must be a tvm.IRModule, not {MODULES[given]}"):
            call(values[given], "llvm")


def test_what_are_no_parameters():
    x = relay.var("x", shape=(2,))
    mod = module(x, x + x)
    with pytest.raises(TypeError, match="compile: params must be a dict of arrays by name, not list"):
        runtime.compile(mod, "llvm", [])
    with pytest.raises(TypeError, match=r"params\['x'\] must be an array of TVM or NumPy, not Tensor"):
        runtime.compile(mod, "llvm", {"x": torch.zeros(2)})


def convolution():
    mod, params = frontends.from_pytorch(torch.nn.Conv2d(3, 4, 3).eval(), torch.rand(1, 3, 8, 8))
    return mod, params, next(name for name in params if name.endswith("bias"))


@pytest.mark.parametrize(
    "call", [lambda *of: runtime.compile(of[0], "llvm", of[1]), lambda *of: explain(of[0], params=of[1])]
)
def test_parameters_that_main_does_not_take(call):
    """A state_dict has other names: its weights would stay inputs, without a word."""
    mod, params, _ = convolution()
    others = {f"w{place}": np.zeros(4, "float32") for place in range(5)}
    with pytest.warns(
        UserWarning, match="params has w0, w1, w2 and 2 more, which main does not take: ignored"
    ):
        call(mod, {**params, **others})


@pytest.mark.parametrize("shape, dtype", [((3,), "float32"), ((4,), "float64")])
def test_parameters_of_another_type(shape, dtype):
    mod, params, bias = convolution()
    reason = rf"params\['{bias}'\] must be float32 \(4\), not {dtype} \({shape[0]}\)"
    for call in (
        lambda params: runtime.compile(mod, "llvm", params),
        lambda params: explain(mod, None, params),
    ):
        with pytest.raises(ValueError, match=reason):
            call({**params, bias: np.zeros(shape, dtype)})


@pytest.mark.parametrize(
    "call", [lambda mod: runtime.compile(mod, "llvm"), lambda mod: runtime.build_library(mod, "llvm")]
)
def test_a_module_without_main(call):
    x = relay.var("x", shape=(2,))
    for functions, has in (({}, "none at all"), ({relay.GlobalVar("f"): relay.Function([x], x)}, "f")):
        with pytest.raises(ValueError, match=f"mod has no function main, but {has}: give a module whose"):
            call(tvm.IRModule(functions))


def test_a_library_of_source_code():
    with pytest.raises(ValueError, match='build_library: the target "c" is source code'):
        runtime.build_library(convolution()[0], "c")


NOT_HERE = "compile: there is no cuda.* here: give device=, or compile by runtime.build_library"


@pytest.mark.parametrize(
    "target, options, reason",
    [
        ("llvm", {"device": "gpu:0"}, "'gpu:0' is no device: give such as cpu, cuda or cuda:1"),
        ("llvm", {"device": "cuda:x"}, "'cuda:x' is no device"),
        ("llvm", {"device": "cuda:77"}, NOT_HERE),
        ("c", {}, 'the target "c" is source code'),
        (
            "llvm -mtriple=aarch64-linux-gnu",
            {},
            "compile: the target is for aarch64-linux-gnu, and this machine has x86_64 and Linux: compile",
        ),
        ("llvm -mtriple=x86_64-pc-windows-msvc", {}, "for x86_64-pc-windows-msvc, and this machine has"),
        (
            tvm.target.Target("cuda -arch=sm_90", host="llvm -mtriple=aarch64-linux-gnu"),
            {},
            "compile: the target's host is for aarch64-linux-gnu, and this machine has x86_64 and Linux",
        ),
        ("llvm", {"cuts": True}, "compile: there is no option cuts: give some of cut, copy_outputs"),
    ],
)
def test_what_does_not_run_is_said_before_it_is_compiled(target, options, reason, monkeypatch):
    monkeypatch.setattr(build, "built", None)
    x = relay.var("x", shape=(2,))
    with pytest.raises((TypeError, ValueError), match=reason):
        runtime.compile(module(x, x + x), target, **options)


@pytest.mark.parametrize(
    "triple", ["x86_64", "x86_64-unknown-unknown", "x86_64-unknown-linux-gnu", "amd64-pc-linux-gnu"]
)
def test_a_triple_may_name_no_system_or_spell_the_machine_as_others_do(triple):
    x = relay.var("x", shape=(2,))
    model = runtime.compile(module(x, x + x), f"llvm -mtriple={triple}")
    assert model(np.ones(2, "float32")).tolist() == [2, 2]


@pytest.mark.parametrize("passes", [Canonicalize, [Canonicalize()]])
def test_what_is_no_pass(passes):
    x = relay.var("x", shape=(2,))
    with pytest.raises(TypeError, match=r"explain: passes must be a pass, .*: call a class, such as"):
        explain(module(x, x + x), passes)


@pytest.mark.parametrize("target", ["lvm", "llvm -mcpuu=foo", None])
def test_a_target_that_tvm_does_not_know(target):
    said = f'compile: TVM does not know the target {target!r} .*: give such as "llvm"'
    with pytest.raises(ValueError, match=said) as failure:
        runtime.compile(tvm.IRModule(), target)
    assert "\n" not in str(failure.value)
    if target:
        with pytest.raises(ValueError, match="subpixel_pipeline: TVM does not know"):
            subpixel_pipeline(target)


@pytest.mark.parametrize("pipeline", [detection_pipeline, subpixel_pipeline])
def test_a_dtype_that_no_pipeline_knows(pipeline):
    with pytest.raises(ValueError, match=r"dtype must be one of float32, float16, .*, not 'fp16'"):
        pipeline("llvm", dtype="fp16")
