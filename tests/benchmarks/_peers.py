"""What runs a network on a CPU: this project, torch, `torch.compile`, ONNX Runtime, OpenVINO and stock TVM.

Each is a function of a `Case` that gives a call without arguments, and raises if it cannot take the network.
"""

import time
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torchvision.models.detection.roi_heads import paste_masks_in_image

import tvm_passes
from tests.benchmarks._detector import autocast, unpasted
from tests.benchmarks._models import call_of, is_of_torchvision
from tests.models.detectors import export, share_found, share_matched
from tests.zoo.outcome import as_rows, imported, share_of
from tutorials.detectors import stock_import

from tvm import relay

DTYPES = "float32", "bfloat16"
OPSET = 17
LAYOUTS = {"torch": torch.contiguous_format, "torch channels_last": torch.channels_last}


@dataclass
class Case:
    """A network and its inputs, in float32, and how it is to be run."""

    network: torch.nn.Module
    inputs: list
    target: str
    folder: Path  # for files
    pipeline: str = "detection"
    dtype: str = "float32"
    threads: int = 1

    @cached_property
    def expected(self):
        """{name: array}, by torch in float32."""
        return named(call_of(self.network, self.inputs)())

    @cached_property
    def batch(self):
        """The inputs of an exported network, which takes a batch rather than a list of images."""
        return [torch.stack(self.inputs)] if is_of_torchvision(self.network) else self.inputs

    @cached_property
    def onnx(self):
        """The path of the network as an ONNX file."""
        return self._exported("network")

    @cached_property
    def onnx_unpasted(self):
        """The same, whose masks are not pasted into the image."""
        with unpasted():
            return self._exported("unpasted")

    def _exported(self, name):
        path = self.folder / f"{name}.onnx"
        return str(export(self.network, path, self.batch, list(self.expected), OPSET))

    def around(self, call):
        """The call in this case's type, of torch."""
        return call if self.dtype == "float32" else autocast(call, "cpu")


def named(outputs):
    """{name: array} of what a network returns for one image, under the names of an import."""
    if isinstance(outputs, list):  # of torchvision's, which return one for each image
        (outputs,) = outputs
    if isinstance(outputs, tuple):
        outputs = {f"output{at}": each for at, each in enumerate(outputs)}
    outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
    tensors = {name: torch.as_tensor(each) for name, each in outputs.items()}
    return {name: (of.float() if of.is_floating_point() else of).numpy() for name, of in tensors.items()}


def off_by(found, expected, dtype="float32"):
    """The share of detections that are not found, or the largest difference in parts of the largest element.

    Boxes are found to the distances of `share_found` in float32, and else to those of `share_matched`.
    """
    if "boxes" in expected:
        return 1 - float((share_found if dtype == "float32" else share_matched)(found, expected))
    if len(expected) == 1:
        (found,), (expected,) = found.values(), expected.values()
        return float(np.abs(found - expected).max() / np.abs(expected).max())
    rows = [as_rows(list(of.values())) for of in (expected, found)]
    return 1 - share_of(*rows, 1e-2 if dtype == "float32" else 5e-2)


# --- each of them


def ours(case):
    mod = imported(case.network, case.inputs)
    passes = {"detection": tvm_passes.detection_pipeline, "subpixel": tvm_passes.subpixel_pipeline}
    dtype = None if case.dtype == "float32" else case.dtype
    mod = passes[case.pipeline](case.target, dtype)(mod)
    if case.dtype not in mod.astext(show_meta_data=False):
        raise NotImplementedError(f"the {case.pipeline} pipeline leaves all in float32")
    return partial(tvm_passes.runtime.compile(mod, case.target, copy_outputs=False), *case.inputs)


def eager(layout, case):
    return case.around(_in_layout(layout, case))


def compiled(case):
    """By torch's compiler, in the layout in which torch is faster without it."""
    call = min((_in_layout(layout, case) for layout in LAYOUTS), key=lambda call: _quick(case.around(call)))
    return case.around(partial(torch.compile(call.func), *call.args))


def _in_layout(layout, case):
    layout = LAYOUTS[layout]
    inputs = [each.to(memory_format=layout) if each.dim() == 4 else each for each in case.inputs]
    return call_of(deepcopy(case.network).to(memory_format=layout), inputs)


def _quick(call):
    """The seconds of the processor for the second of two calls."""
    call()
    start = time.process_time()
    call()
    return time.process_time() - start


def onnx_runtime(case):
    import onnxruntime

    if case.dtype != "float32":
        raise NotImplementedError(f"has no {case.dtype} on a CPU such as this")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = case.threads, 1
    session = onnxruntime.InferenceSession(case.onnx, options, providers=["CPUExecutionProvider"])
    given = {each.name: array.numpy() for each, array in zip(session.get_inputs(), case.batch)}
    return lambda: dict(zip(case.expected, session.run(None, given)))


def openvino(case):
    from openvino import Core

    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": case.threads,
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[case.dtype],
    }
    # It cannot convert the loop in which masks are pasted: its user pastes them with torchvision.
    pastes = "masks" in case.expected
    core = Core()
    model = core.read_model(case.onnx_unpasted if pastes else case.onnx)
    request = core.compile_model(model, "CPU", options).create_infer_request()
    given = [each.numpy() for each in case.batch]

    def run():
        found = request.infer(given, share_inputs=True, share_outputs=True)
        found = {name: found[at] for at, name in enumerate(case.expected)}
        if pastes:
            masks, boxes = (torch.from_numpy(found[name]) for name in ("masks", "boxes"))
            found["masks"] = paste_masks_in_image(masks, boxes, case.batch[0].shape[-2:])
        return found

    return run


def stock(case):
    """TVM by itself: its own importer, and no passes but its own."""
    if case.dtype != "float32":
        raise NotImplementedError(f"computes {case.dtype} only in networks that are in {case.dtype}")
    if is_of_torchvision(case.network):
        mod, params = stock_import(case.network, *case.batch)
    else:
        traced = torch.jit.trace(case.network, case.batch, check_trace=False)
        shapes = [(f"input{at}", tuple(each.shape)) for at, each in enumerate(case.batch)]
        mod, params = relay.frontend.from_pytorch(traced, shapes)
    mod["main"] = mod["main"].with_attr("output_names", list(case.expected))
    return partial(tvm_passes.runtime.compile(mod, case.target, params, copy_outputs=False), *case.batch)


OURS, STOCK, COMPILED = "ours", "stock TVM", "torch.compile"
PEERS = {
    **{layout: partial(eager, layout) for layout in LAYOUTS},
    COMPILED: compiled,
    "ONNX Runtime": onnx_runtime,
    "OpenVINO": openvino,
}
RUNNERS = {OURS: ours, **PEERS, STOCK: stock}
