"""What becomes of a model: imported, its NMS or shuffles restored, and equal to torch or ONNX Runtime."""

import contextlib
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import frontends
import tvm_passes
from tests.zoo.models import MODELS
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay
from tvm.relay.ty import is_dynamic

IMPORTED_NMS = ("topi_ext.batched_nms", "vision.all_class_non_max_suppression", "vision.non_max_suppression")
YES, NO_NMS, NO_SHUFFLE = "yes", "no NMS", "no shuffle"
FOUND = 0.99  # of the detections
FIRST = "boxes", "scores", "labels"  # of torchvision's results, as they are imported
NEAR = 1e-3  # of the largest element: how far one of a network's outputs may be from torch's
SHUFFLES = "pixel_shuffle", "pixel_unshuffle"
LARGE = 1000  # columns of a detection that are not compared, such as its pasted mask


@dataclass
class Outcome:
    """A row of the table; a text is "yes" or the reason why not, and empty if it was not tried."""

    name: str
    imported: str = ""
    seconds: float = 0.0  # for the import and all passes
    restored: str = ""
    static: str = ""
    equal: str = ""
    detections: int = 0
    compiled: str = ""


def outcome_of(name, run=False, arch=None):
    """What becomes of a model, as a dict; `run` it on the CPU, and compile it for this architecture."""
    warnings.simplefilter("ignore")
    outcome, start = Outcome(name), time.monotonic()
    try:
        network, inputs = MODELS[name].build()
    except ImportError as error:
        outcome.imported = f"not installed: {error.name}"
        return asdict(outcome)
    try:
        mod = imported(network, inputs, MODELS[name].any_size)
    except frontends.ImportFailure as error:
        outcome.imported = f"refused: {error}"
        return asdict(outcome)
    outcome.imported = YES
    if not MODELS[name].is_detector:
        return asdict(_of_network(outcome, mod, network, inputs, start, run, arch))
    had_nms = any(op_name(node) in IMPORTED_NMS for node in Graph(mod["main"]).nodes)
    report = tvm_passes.explain(mod)
    outcome.restored = _restored(report.module) if had_nms else NO_NMS
    pads = tvm_passes.MakeDetectionStatic("padded")
    static = relay.transform.InferType()(pads(report.module))
    refused = pads.report.refusals
    outcome.static = refused[0].reason if refused else _static(static)
    outcome.seconds = round(time.monotonic() - start, 1)
    if run and outcome.static == YES:
        outcome.equal, outcome.detections = _equal(static, network, inputs)
    if arch and outcome.static == YES:
        target = tvm.target.Target(f"cuda -arch={arch}", host="llvm")
        outcome.compiled = _compiled(mod, target, tvm_passes.detection_pipeline(target, outputs="padded"))
    return asdict(outcome)


def _of_network(outcome, mod, network, inputs, start, run, arch):
    count = _shuffles_of(network, inputs)
    target = tvm.target.Target(f"cuda -arch={arch or 'sm_90'}", host="llvm")
    report = tvm_passes.explain(mod, tvm_passes.subpixel_pipeline(target))
    left = tvm_passes.explain(report.module, tvm_passes.RestoreDepthToSpace())
    left = sum(len(each.matches) for each in left.passes)
    outcome.restored = (f"{left} of {count} left" if left else f"{YES}: {count}") if count else NO_SHUFFLE
    outcome.static = _static(relay.transform.InferType()(mod))
    outcome.seconds = round(time.monotonic() - start, 1)
    if run:
        compiled = tvm_passes.runtime.compile(tvm_passes.subpixel_pipeline("llvm")(mod), "llvm")
        outcome.equal = _near(compiled, network, inputs)
        if MODELS[outcome.name].any_size and outcome.equal == YES:
            outcome.equal = _near(
                compiled, network, [each[..., : each.shape[-1] * 2 // 3] for each in inputs]
            )
    if arch and outcome.static == YES:
        outcome.compiled = _compiled(mod, target, tvm_passes.subpixel_pipeline(target))
    return outcome


def _shuffles_of(network, inputs):
    """How often a network calls torch's shuffles, or an ONNX file has them."""
    if isinstance(network, Path):
        import onnx

        nodes = onnx.load(network).graph.node
        return sum(node.op_type in ("DepthToSpace", "SpaceToDepth") for node in nodes)
    with contextlib.ExitStack() as stack, torch.no_grad():
        calls = [
            stack.enter_context(mock.patch.object(torch.nn.functional, name, wraps=getattr(torch, name)))
            for name in SHUFFLES
        ]
        network(*(each.clone() for each in inputs))
        return sum(each.call_count for each in calls)


def _near(compiled, network, inputs):
    arrays = [np.ascontiguousarray(tensor) for tensor in inputs]
    found = compiled(*arrays)
    found = list(found.values()) if isinstance(found, dict) else [found]
    expected = _by_onnx_runtime(network, arrays) if isinstance(network, Path) else _of_torch(network, inputs)
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        one, other = np.asarray(one, "float64"), np.asarray(other, "float64")
        if one.shape != other.shape:
            return f"the shape is {one.shape}, not {other.shape}"
        worst = max([worst, *(np.abs(one - other).max(initial=0) / np.abs(other).max(initial=1e-6),)])
    return YES if worst <= NEAR else f"off by {worst:.1e} of the largest element"


def _of_torch(network, inputs):
    with torch.no_grad():
        return tensors_of(network.eval()(*(each.clone() for each in inputs)))


def imported(network, inputs, any_size=False):
    if isinstance(network, Path):
        import onnx

        names = (each.name for each in onnx.load(network).graph.input)
        shapes = {name: tuple(each.shape) for name, each in zip(names, inputs)} if not any_size else None
        mod, params = frontends.from_onnx(network, shapes=shapes)
    else:
        mod, params = frontends.from_pytorch(network, inputs)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod


def _restored(mod):
    """Whether every NMS compares class ids, or is of one class."""
    calls = [node for node in Graph(mod["main"]).nodes if op_name(node) in IMPORTED_NMS]
    if any(op_name(call) != IMPORTED_NMS[0] for call in calls):
        return "TVM's own NMS is left"
    kinds = {"class-aware" if _has_classes(call.args[2]) else "of one class" for call in calls}
    return f"{YES}: {' and '.join(sorted(kinds))}"


def _has_classes(ids):
    while op_name(ids) in ("cast", "take", "reshape", "broadcast_to", "expand_dims", "repeat"):
        ids = ids.args[0]
    if isinstance(ids, relay.Constant):
        return len(np.unique(ids.data.numpy())) > 1
    return op_name(ids) not in ("zeros", "zeros_like")


def _static(mod):
    nodes = (node for node in Graph(mod["main"]).nodes if not isinstance(node, tvm.ir.Op))
    return "a shape is dynamic" if any(is_dynamic(node.checked_type) for node in nodes) else YES


def _compiled(mod, target, passes):
    """The seconds that all passes and TVM need for float16 on a GPU, or why not."""
    start = time.monotonic()
    try:
        tvm_passes.runtime.build_library(passes(mod), target)
    except (tvm.TVMError, tvm_passes.runtime.CompileFailure) as error:
        return str(error).strip().splitlines()[0]
    return f"{time.monotonic() - start:.1f}"


def _equal(mod, network, inputs):
    """How much of what torch or ONNX Runtime finds is found, and how many detections that are."""
    attrs = mod["main"].attrs
    compiled = tvm_passes.runtime.compile(mod, "llvm", cut=bool(attrs and "padded_rows" in attrs))
    arrays = [tensor.numpy() for tensor in inputs]
    found = compiled(*arrays)
    found = list(found.values()) if isinstance(found, dict) else [found]
    expected = _by_onnx_runtime(network, arrays) if isinstance(network, Path) else _by_torch(network, inputs)
    wanted, rows = as_rows(expected), as_rows(found)
    share = share_of(wanted, rows)
    return YES if share >= FOUND else f"{share:.1%} of the detections", len(wanted)


def _by_onnx_runtime(path, arrays):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {each.name: array for each, array in zip(session.get_inputs(), arrays)})


def _by_torch(network, inputs):
    is_detector = type(network).__module__.startswith("torchvision")
    with torch.no_grad():
        return tensors_of(network.eval()([inputs[0]] if is_detector else inputs[0]))


def tensors_of(outputs):
    """What a detector of torch returns for one image as arrays, torchvision's in the order of an import."""
    outputs = outputs[0] if isinstance(outputs, list) and isinstance(outputs[0], dict) else outputs
    if isinstance(outputs, dict):
        outputs = [outputs[key] for key in dict.fromkeys((*FIRST, *outputs)) if key in outputs]
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    outputs = [part for each in outputs for part in (each if isinstance(each, (list, tuple)) else [each])]
    outputs = [each for each in outputs if each is not None]
    return [
        tensor.cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor.numpy() for tensor in outputs
    ]


def as_rows(outputs):
    """The outputs of as many rows as the first side by side, without rows of zeros, which are padding."""
    tables = []
    for output in outputs:
        while output.ndim > 1 and output.shape[0] == 1:
            output = output[0]
        output = np.atleast_1d(np.asarray(output, "float64"))
        table = output.reshape(len(output), int(np.prod(output.shape[1:])))
        if tables and len(table) != len(tables[0]):
            continue
        if not tables or table.shape[1] <= LARGE:
            tables.append(table)
    rows = np.concatenate(tables, axis=1)
    return rows[(rows != 0).any(axis=1)]


def share_of(wanted, rows, tolerance=1e-2):
    """How many of the rows that are wanted are found, in any order: rounding swaps close scores."""
    if not len(wanted):
        return float(not len(rows))
    left, is_whole = list(rows), (wanted == wanted.round()).all(0)  # class ids, which have no tolerance
    for row in wanted:
        allowed = np.where(is_whole, 0.5, tolerance + tolerance * abs(row))
        near = (at for at, each in enumerate(left) if (abs(each - row) <= allowed).all())
        at = next(near, None)
        if at is not None:
            left.pop(at)
    return (len(rows) - len(left)) / len(wanted)
