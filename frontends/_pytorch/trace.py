"""Turns any PyTorch model into one TorchScript graph from tensors to tensors."""

from __future__ import annotations

import contextlib
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from .._torch_module import in_evaluation, named_tensors
from ..errors import ImportFailure
from .bools import settle_bools
from .branches import branches_by_functions
from .complex_numbers import complex_by_parts
from .detections import detections_are_handled_by_operators
from .messages import line_of, own_frame
from .patched import patched
from .quantized import known_operators
from .results import DTYPES, NOT_IMPORTED, instead_of
from .scripts import has_scripts, inline_attributes, settle
from .tracer_warnings import keep_masks_without_axes, tracer_warnings_into, warning_of
from .untraced import untraced

DETECTORS_OF = "torchvision.models.detection."
IMAGES_AND_TARGETS = ["images", "targets"]  # what these take


@dataclass(frozen=True)
class TracedModel:
    """A TorchScript module whose graph is flat: tensors in, a tuple of tensors out."""

    module: torch.jit.ScriptModule
    title: str
    input_names: tuple[str, ...]
    inputs: tuple[torch.Tensor, ...]  # the example tensors
    output_names: tuple[str, ...]
    output_dtypes: tuple[str, ...]  # as Relay calls them
    dtype: torch.dtype  # of a tensor whose type TorchScript does not know
    types_are_known: bool  # whether every tensor of the graph has the type that it had in the trace


def trace(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> TracedModel:
    """Trace `model` in evaluation mode, and leave it and torch's global state as they were."""
    if not isinstance(model, torch.nn.Module):
        instead = _instead_of(model)
        raise ImportFailure(
            f"model must be a torch.nn.Module, plain, traced or scripted, not {_name(model)}{instead}"
        )
    for part in model.modules():
        if _is_scripted_detector(part):
            raise ImportFailure(
                f"a scripted {_name(part)} has lists and dicts of tensors, which Relay cannot represent; "
                "pass the nn.Module that it was scripted from, or a traced one"
            )
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    _check_dtypes(model, inputs)
    flat = _FlatModel(model)
    kept: list[str] = []
    try:
        with (
            in_evaluation(model),
            tracer_warnings_into(kept),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):
            copies = tuple(tensor.clone() for tensor in inputs)  # for a model that writes to its inputs
            with (
                detections_are_handled_by_operators(),
                _attention_step_by_step(),
                _without_gradients(),
                _compiled_as_written(),
                _constants_as_they_were(),
                _data_as_detached(),
                _quantized_without_observing(),
                known_operators(model),
                _exported_inputs_checked_untraced(),
                _exported_fills(),
                branches_by_functions(),
                complex_by_parts(model),
            ):
                module = torch.jit.trace(flat, copies, check_trace=False, strict=False)
            is_scripted = any(isinstance(part, torch.jit.ScriptModule) for part in model.modules())
            if is_scripted:
                module = inline_attributes(module)
            if is_scripted or has_scripts(module.graph):
                settle(module, inputs)
    except ImportFailure:
        raise
    except Exception as error:
        shapes = ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in inputs)
        frame = own_frame(error)
        where = f", at {frame}" if frame else ""
        raise ImportFailure(
            f"torch cannot trace {_name(model)} with inputs of {shapes}{where}: {_said(error, model)}"
        ) from error
    keep_masks_without_axes(module.inlined_graph, kept)
    if kept:
        warnings.warn(warning_of(_name(model), kept), stacklevel=3)  # at the call of from_pytorch
    names = _input_names(model, len(inputs))
    outputs = flat.output_names, flat.output_dtypes
    return TracedModel(
        module, _name(model), names, inputs, *outputs, _dtype(model, inputs), types_are_known=not is_scripted
    )


def _said(error: Exception, model: torch.nn.Module) -> str:
    """What torch says of a failed trace, and what helps."""
    said = line_of(error)
    if "HigherOrderOperator" in said:  # while_loop, and what torch.export makes of it
        return (
            f"{said}; write it as a `while` in a module that torch.jit.script is given, which "
            "keeps what depends on values"
        )
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        return f"{said}; pass the nn.Module that it was scripted from"
    return said


def _instead_of(model: Any) -> str:
    """What to pass in place of what is often taken for a model."""
    if isinstance(model, torch.export.ExportedProgram):
        return ": pass its module()"
    if isinstance(model, Mapping):
        return ": pass the model whose load_state_dict takes these weights"
    return ": pass an instance of it" if isinstance(model, type) else ""


class _FlatModel(torch.nn.Module):
    """Calls the model with the arguments that it expects, and returns its results as a flat tuple."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = False  # not eval(), which would reach into the model
        self.output_names: tuple[str, ...] = ()
        self.output_dtypes: tuple[str, ...] = ()

    def forward(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        if _is_detector(self.model) and not isinstance(self.model, torch.jit.ScriptModule):
            inputs = ([image for tensor in inputs for image in _images(tensor)],)
        outputs = list(named_tensors(self.model(*inputs)))
        tracing: Any = torch._C._get_tracing_state()
        settle_bools(tracing.graph())
        if not outputs:
            raise ImportFailure("the model returns no tensor: return what it computes")
        self.output_names, tensors = zip(*outputs)
        self.output_dtypes = tuple(str(tensor.dtype).replace("torch.", "") for tensor in tensors)
        return tensors


def _check_dtypes(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    for index, tensor in enumerate(inputs):
        if str(tensor.dtype).replace("torch.", "") not in DTYPES.values():
            raise ImportFailure(f"example_inputs[{index}] is of {tensor.dtype}, {instead_of(tensor.dtype)}")
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if weight.dtype in NOT_IMPORTED.values():
            raise ImportFailure(f"{_name(model)}.{name} is of {weight.dtype}, {instead_of(weight.dtype)}")


def _images(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tensor.unbind() if tensor.dim() == 4 else (tensor,)


def _input_names(model: torch.nn.Module, count: int) -> tuple[str, ...]:
    if isinstance(model, torch.jit.ScriptModule):
        forward: Any = model.forward
        return tuple(argument.name for argument in forward.schema.arguments[1 : count + 1])
    names: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        missing = count - len(names)
        if parameter.kind is parameter.VAR_POSITIONAL or (missing > 1 and _is_detector(model)):
            return (*names, *(f"{parameter.name}{index}" for index in range(missing)))
        names.append(parameter.name)
    return tuple(names[:count])


def _dtype(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.dtype:
    floating = (tensor.dtype for tensor in (*model.parameters(), *inputs) if tensor.is_floating_point())
    return next(floating, torch.float32)


def _name(model: torch.nn.Module) -> str:
    return getattr(model, "original_name", type(model).__name__)


def _is_detector(model: torch.nn.Module) -> bool:
    """Whether it takes a list of images: torchvision's detectors do, and users' own that derive from them."""
    bases = (base for base in type(model).__mro__ if base.__module__.startswith(DETECTORS_OF))
    forwards = (vars(base)["forward"] for base in bases if "forward" in vars(base))
    return any(list(inspect.signature(each).parameters)[1:3] == IMAGES_AND_TARGETS for each in forwards)


def _is_scripted_detector(model: torch.nn.Module) -> bool:
    """Whether it is a detector that still takes a list of images; a traced one takes tensors."""
    schema = getattr(getattr(model, "forward", None), "schema", None)
    arguments = schema.arguments[1:3] if schema else []
    are_tensors = all(str(argument.type) == "Tensor" for argument in arguments)
    return [argument.name for argument in arguments] == IMAGES_AND_TARGETS and not are_tensors


@contextlib.contextmanager
def _attention_step_by_step() -> Iterator[None]:
    """Trace `nn.MultiheadAttention` as its operators, not as the single one of torch's fast path."""
    mha: Any = getattr(torch.backends, "mha", None)  # not before torch 2.1
    if not hasattr(mha, "set_fastpath_enabled"):
        yield
        return
    was_enabled = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(was_enabled)


@contextlib.contextmanager
def _without_gradients() -> Iterator[None]:
    """Trace what a `torch.autograd.Function` computes, not a call back into Python."""

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        context: Any = torch.autograd.function.FunctionCtx()
        context.needs_input_grad = (False,) * len(args)
        has_own_setup = cls.setup_context is not torch.autograd.Function.setup_context
        return cls.forward(*([] if has_own_setup else [context]), *args, **kwargs)

    # The class below, whose method that of `Function` calls: models keep `MyFunction.apply` in attributes.
    below: Any = torch.autograd.function._SingleLevelFunction
    with mock.patch.object(below, "apply", classmethod(apply)):
        yield


@contextlib.contextmanager
def _compiled_as_written() -> Iterator[None]:
    """Trace what `torch.compile` was given, as torch itself does if told to."""
    if "torch._dynamo" not in sys.modules:  # which takes seconds to import, so nothing is compiled
        yield
        return
    with sys.modules["torch._dynamo"].config.patch(error_on_nested_jit_trace=False):
        yield


@contextlib.contextmanager
def _data_as_detached() -> Iterator[None]:
    """Trace `x.data`, which torch takes for a constant, the example's numbers, as `x.detach()`."""
    own: Any = torch.Tensor.data
    traced = property(torch.Tensor.detach, own.__set__)
    with mock.patch.object(torch.Tensor, "data", traced):
        yield


@contextlib.contextmanager
def _constants_as_they_were() -> Iterator[None]:
    """Copy the tensors that a model makes of numbers: a trace holds what they are at its end, and a model may
    change them after reading them."""
    with contextlib.ExitStack() as stack:
        for name in ("as_tensor", "from_numpy", "tensor"):
            made_by = getattr(torch, name)

            def copied(data: Any, *args: Any, made_by: Any = made_by, **kwargs: Any) -> torch.Tensor:
                made = made_by(data, *args, **kwargs)
                return made if isinstance(data, torch.Tensor) else made.clone()

            stack.enter_context(patched(torch, name, copied))
        yield


@contextlib.contextmanager
def _exported_inputs_checked_untraced() -> Iterator[None]:
    """Let the module of an exported program look at its inputs outside the trace.

    It compares their sizes with those of fake tensors, whose own sizes a trace asks for without an end.
    """
    exported: Any = sys.modules.get("torch.export._unlift")
    check = getattr(exported, "_check_input_constraints_for_graph", None)
    if check is None:  # no such module was made
        yield
        return

    def checked(*args: Any, **kwargs: Any) -> None:
        with untraced():
            check(*args, **kwargs)

    with mock.patch.object(exported, "_check_input_constraints_for_graph", checked):
        yield


@contextlib.contextmanager
def _quantized_without_observing() -> Iterator[None]:
    """Trace the fake quantization of `prepare_qat` by that alone: its operator changes the scale, too."""

    def quantized(data: Any, observes: Any, quantizes: Any, *others: Any) -> torch.Tensor:
        _low, _high, scale, zero, _averaging, smallest, largest, axis, is_per_channel, *_ = others
        if observes.item():
            raise ImportFailure(
                "the model still observes what it is given, to quantize it, and its results depend on what "
                "came before: call model.apply(torch.ao.quantization.disable_observer)"
            )
        if not quantizes.item():
            return data
        if is_per_channel:
            return torch.fake_quantize_per_channel_affine(data, scale, zero, axis, smallest, largest)
        return torch.fake_quantize_per_tensor_affine(data, scale, zero, smallest, largest)

    with mock.patch.object(torch, "fused_moving_avg_obs_fake_quant", quantized):
        yield


@contextlib.contextmanager
def _exported_fills() -> Iterator[None]:
    """Trace the `fill` that `torch.export` makes of `x[0] = 0`, at which torch fails, by other operators."""

    def filled(x: torch.Tensor, value: Any) -> torch.Tensor:
        return (
            value.to(x.dtype).expand(x.shape)
            if isinstance(value, torch.Tensor)
            else torch.full_like(x, value)
        )

    with contextlib.ExitStack() as stack:
        for overload in (torch.ops.aten.fill.Tensor, torch.ops.aten.fill.Scalar):
            stack.enter_context(mock.patch.object(overload, "_op", filled))
        yield
