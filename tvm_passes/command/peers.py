"""The same model run by other runtimes, to compare its time with TVM's: `profile --compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

import numpy as np
import torch

import topi_ext.bootstrap  # noqa: F401  (before tvm)

from ..analysis.targets import is_for_gpu
from .errors import CommandError
from .models import OnnxModel, TorchModel, is_detector
from .work import Work


@dataclass
class Peer:
    """Another runtime: `call` starts a run, and `wait` returns when it is done."""

    name: str
    call: Callable
    wait: Callable = lambda: None


def peer_of(name: str, work: Work, inputs: Sequence[np.ndarray]) -> Peer:
    """The imported model in torch or ONNX Runtime, with the same inputs as TVM."""
    return (_in_torch if name == "torch" else _in_onnxruntime)(work, inputs)


def _in_torch(work: Work, inputs: Sequence[np.ndarray]) -> Peer:
    """torch in eager mode, in the model's own types, without the conversion of camera pixels."""
    model = work.model
    if not isinstance(model, TorchModel):
        raise CommandError(f"{model.title} has no torch model to compare with: leave out --compare torch")
    on_cuda = is_for_gpu(work.target)
    if on_cuda and not torch.cuda.is_available():
        raise CommandError("this torch has no CUDA: install one that has, or leave out --compare torch")
    device = "cuda" if on_cuda else "cpu"
    given = model.inputs if model.camera else map(torch.from_numpy, inputs)
    tensors = [tensor.to(device) for tensor in given]
    module = model.module.to(device)
    arguments = [tensors] if is_detector(module) else tensors

    def call() -> None:
        with torch.inference_mode():
            module(*arguments)

    peer = Peer("torch, eager", call)
    if on_cuda:
        peer.wait = torch.cuda.synchronize
    return peer


def _in_onnxruntime(work: Work, inputs: Sequence[np.ndarray]) -> Peer:
    """ONNX Runtime on an ONNX file, with the provider for the target's device."""
    if not isinstance(work.model, OnnxModel) or work.model.camera:
        raise CommandError("--compare onnxruntime is for ONNX files, without --camera")
    try:
        import onnxruntime
    except ImportError:
        raise CommandError("ONNX Runtime is not installed: pip install onnxruntime") from None
    provider = "CUDAExecutionProvider" if is_for_gpu(work.target) else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise CommandError(f"this ONNX Runtime has no {provider}: pip install onnxruntime-gpu")
    session = onnxruntime.InferenceSession(str(work.model.path), providers=[provider])
    feeds = dict(zip((each.name for each in session.get_inputs()), inputs))
    return Peer("ONNX Runtime", lambda: session.run(None, feeds))
