"""Imports PyTorch models into Relay, detection models included, and keeps names and types."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from topi_ext.quiet import quiet

import tvm

from ._canonical import canonicalize
from ._pytorch.convert import convert
from ._pytorch.trace import trace
from ._torch_module import tensors_of
from .camera import Camera, feed
from .errors import ImportFailure


def from_pytorch(
    model: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    camera: Camera | None = None,
) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """Import a PyTorch model into Relay.

    Convention
    ----------
    Inputs are the tensors of `example_inputs`, with their shapes and dtypes, named as in the signature
    of `forward`; a `*xs` gives `xs0`, `xs1`, ....

    Outputs are the tensors that the model returns, as one flat tuple, or bare if there is only one.
    An output's name is its path in what the model returns, joined by dots: keys of a dict and fields of a
    named tuple or a dataclass by name, items of a list or tuple by number, `output` standing for the whole:
    `{"out": {"logits": a}, "aux": [b, c]}` gives `out.logits`, `aux.0`, `aux.1`; `(a, b)` gives `output0`,
    `output1`. A list of one item adds nothing, and None is omitted.

    The detection models of torchvision take one image (3xHxW), a batch (Nx3xHxW), or a list of either.
    For one image the outputs are `boxes`, `scores`, `labels`, then whatever else the model finds: `masks`,
    or `keypoints` and `keypoints_scores`. For several images these come one after another:
    `output0.boxes`, ..., `output1.boxes`, ....

    Parameters
    ----------
    model : torch.nn.Module
        A module, which is traced, or one that is already traced or scripted. The control flow of scripted
        modules, even inside another module, stays in the graph; scripted detection models are refused,
        since Relay cannot represent their lists and dicts of tensors. The module is imported in evaluation
        mode, and left as it was.
    example_inputs : torch.Tensor, or a tuple or list of them
        What the model is called with.
    camera : Camera, optional
        The uint8 images that `main` takes in place of the model's only input, which is computed from them.
        `tvm_passes.FoldPreprocessing` makes this one kernel.

    Returns
    -------
    mod : tvm.IRModule
        Typed, in the canonical form of `canonicalize`. `main` has the attributes `input_names`
        and `output_names`; its parameters are the inputs, in order, then the weights. Each call's span names
        the operator of the PyTorch graph that it comes from, such as `torchvision::nms_0`.
    params : dict of str to tvm.nd.NDArray
        The weights.

    Raises
    ------
    ImportFailure
        If torch cannot run or trace the model, if an operator has no equivalent in Relay, or if the camera's
        images do not suit the model.
    """
    if not (camera is None or isinstance(camera, Camera)):
        kind = type(camera).__name__
        raise ImportFailure(
            f"camera must be a frontends.Camera, not {kind}: several example inputs are a tuple"
        )
    with quiet():
        traced = trace(model, tensors_of(example_inputs))
        # A context of its own, so that one around the call (opt_level, spans off) does not change the result.
        with tvm.transform.PassContext(config={"relay.frontend.fill_span": True}):
            mod, params = convert(traced)
            if camera is not None:
                mod = feed(camera, mod, traced.input_names)
            mod = canonicalize(mod)
        main = mod["main"].with_attr("input_names", list(traced.input_names))
        mod["main"] = main.with_attr("output_names", list(traced.output_names))
    return mod, params
