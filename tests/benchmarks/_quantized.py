"""A network in float16 and in int8, as the benchmarks of int8 compile it."""

import fcntl

import torch

import tvm_passes
from tests.benchmarks import _common as common
from tvm_passes.quantize import Calibration, calibrate

import tvm

PIPELINES = {
    "detection": lambda *args, **options: tvm_passes.detection_pipeline(*args, outputs="padded", **options),
    "subpixel": tvm_passes.subpixel_pipeline,
}


def targets():
    """What the passes are for, and what is compiled for: without a GPU, a CPU computes the same network."""
    if torch.cuda.is_available():
        return (common.tensor_core_target("cudnn-frontend"),) * 2
    return tvm.target.Target("cuda -arch=sm_90"), tvm.target.Target("llvm")


def made_once(path, make):
    """The path of a file, which `make(path)` writes unless it exists; of several processes, one does."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = path.with_name(f"{path.name}.part")  # what is interrupted leaves no file behind
            make(part)
            part.rename(path)
    return path


def calibrated(mod, images, path, pipeline="detection"):
    """The calibration in the file, which is made if it is missing."""

    def make(path):
        passes = PIPELINES[pipeline](targets()[0], "int8")
        calibrate(mod, [image.numpy() for image in images], passes).save(path)

    return Calibration.read(made_once(path, make))


def compiled(mod, dtype, calibration=None, pipeline="detection", **options):
    """The compiled network, and for each convolution that is not in int8 though it could, the reason."""
    for_passes, target = targets()
    passes = PIPELINES[pipeline](for_passes, dtype, calibration=calibration, **options)
    report = tvm_passes.explain(mod, passes)
    cut = "padded_rows" in (report.module["main"].attrs or {})
    model = tvm_passes.runtime.compile(report.module, target, cut=cut, copy_outputs=False)
    refusals = [each for part in report.passes if part.name == "InInt8" for each in part.refusals]
    return model, [each.reason for each in refusals]
