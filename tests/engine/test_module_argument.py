"""Whatever is given to a pass in the place of a module is refused in a sentence, which names the pass."""

import copy
import pickle

import pytest

import tvm_passes

import tvm
from tvm import relay

PASSES = {
    "RestoreDepthToSpace": tvm_passes.RestoreDepthToSpace,
    "tvm_vision_passes": tvm_passes.default_pipeline,
    "canonicalize": tvm_passes.canonical_pipeline,
    "sequential": lambda: tvm.transform.Sequential([tvm_passes.RestoreDepthToSpace()]),
    "InferType": relay.transform.InferType,
}
INSTEAD = {
    "str": ("x", "give what an importer of `frontends` returns"),
    "tuple": ((tvm.IRModule(), {}), "give the first of what an importer returns"),
    "Function": (relay.Function([], relay.const(1)), r"give tvm.IRModule.from_expr\(...\) of it"),
    "NoneType": (None, "give what an importer"),
}


@pytest.mark.parametrize("given", INSTEAD)
@pytest.mark.parametrize("name", PASSES)
def test_what_is_no_module(name, given):
    value, instead = INSTEAD[given]
    with pytest.raises(TypeError, match=rf"^{name}: mod must be a tvm.IRModule, not {given}: {instead}"):
        PASSES[name]()(value)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", PASSES)
def test_no_pass_is_copied(name, duplicate):
    """A copy would lack the function that it calls, which ended the process."""
    with pytest.raises(TypeError, match=f"^{name}: a pass can be neither copied nor pickled"):
        duplicate(PASSES[name]())


@pytest.mark.parametrize("name", ["AlignFilters", "ConvertToNHWC", "DenseAsConvolution", "PixelsInPairs"])
def test_a_target_that_tvm_does_not_know(name):
    with pytest.raises(ValueError, match=f"^{name}: TVM does not know the target 'foo' .*: give such as"):
        getattr(tvm_passes, name)("foo")


@pytest.mark.parametrize(
    "pipeline, target, dtype, reason",
    [
        ("subpixel", "llvm", "float16", "in float16, a CPU needs oneDNN"),
        ("detection", "llvm", "bfloat16", "in bfloat16, a CPU needs oneDNN"),
        ("detection", "cuda -arch=sm_60", "float16", "float16 needs tensor cores: .* of at least sm_75"),
        ("detection", "cuda -arch=sm_75", "bfloat16", "bfloat16 needs tensor cores: .* of at least sm_80"),
        ("detection", None, "float16", "float16 needs tensor cores"),
    ],
)
def test_a_type_that_the_target_does_not_multiply(pipeline, target, dtype, reason):
    """It was ignored, and the network stayed in float32."""
    with pytest.raises(ValueError, match=f"^{pipeline}_pipeline: {reason}"):
        getattr(tvm_passes, f"{pipeline}_pipeline")(target, dtype)


def test_a_calibration_is_no_file():
    with pytest.raises(
        TypeError, match="InInt8: calibration must be a Calibration, not str: of a file, give"
    ):
        tvm_passes.detection_pipeline("cuda -arch=sm_90", calibration="detector.json")


def test_calibrate_takes_a_pipeline():
    x = relay.var("x", shape=(2,))
    with pytest.raises(TypeError, match="calibrate: passes must be a pipeline, not NoneType: give such as"):
        tvm_passes.quantize.calibrate(tvm.IRModule.from_expr(x + x), [], None)
