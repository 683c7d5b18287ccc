"""Find the MODEL of the command line: a file, a model of torchvision, or a function of a module."""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import onnx
import torch
import torchvision
from google.protobuf.message import DecodeError
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm

from ..runtime.arrays import Array
from .errors import CommandError

if TYPE_CHECKING or tvm_in_use.has_relay:
    from tvm import relay
if TYPE_CHECKING:
    from frontends import Camera

SEED = 0
DETECTOR_SIZE = 480, 640
IMAGE_SIZE = 224, 224
Imported = tuple[tvm.IRModule, dict[str, Array]]  # with the parameters


def find_model(args: argparse.Namespace) -> Model:
    """The model that the options of `main` name, ready to be imported; `main` has looked at the name."""
    if args.model.startswith("torchvision:"):
        return _of_torchvision(args.model, args)
    path = Path(args.model)
    return OnnxModel(path, args) if path.is_file() else _of_function(args.model, args)


@dataclass
class TorchModel:
    """An nn.Module and its example inputs."""

    title: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    camera: Camera | None = None
    labels: tuple[str, ...] = ()  # the names of the classes that it detects
    note: str = ""

    def imported(self) -> Imported:
        if not tvm_in_use.has_relay:
            import frontends.relax

            return frontends.relax.from_pytorch(self.module, self.inputs), {}
        import frontends

        return frontends.from_pytorch(self.module, self.inputs, camera=self.camera)

    def in_batches_of(self, size: int) -> TorchModel:
        """For several images, of which a detector of torchvision takes a list."""
        shapes = [list(tensor.shape) for tensor in self.inputs]
        if len(shapes) != 1 or len(shapes[0]) not in ((3, 4) if is_detector(self.module) else (4,)):
            given = ", ".join(map(str, shapes))
            raise CommandError(f"{self.title} takes {given}, not a batch of images: leave out --batch")
        (image,) = self.inputs
        inputs = (image,) * size
        if image.dim() == 4 or (self.camera and size > 1):
            first = image[:1] if image.dim() == 4 else image[None]
            inputs = (first.expand(size, -1, -1, -1).contiguous(),)
        title, camera = _titled(self.title, size), _of_batch(self.camera, size)
        return replace(self, title=title, inputs=inputs, camera=camera)


class OnnxModel:
    """An ONNX file; its weights are constants."""

    labels: tuple[str, ...] = ()
    note = ""

    def __init__(self, path: Path, args: argparse.Namespace) -> None:
        if args.weights == "trained":
            raise CommandError("--weights is for torchvision:NAME; an ONNX file has its own")
        self.title = str(path)
        self.path = path
        self.batch = 1
        self.camera = camera_of(args)
        self.shapes = _by_name(args)
        if None in self.shapes and len(args.input_shape) > 1:
            raise CommandError(f"{path}: give all --input-shape by name, or one without")
        if args.size or None in self.shapes:
            self._name_shapes(args)

    def imported(self) -> Imported:
        params: dict[str, Array] = {}
        if tvm_in_use.has_relay:
            import frontends

            mod, params = frontends.from_onnx(self.path, shapes=self.shapes, camera=self.camera)
        else:
            import frontends.relax

            mod = frontends.relax.from_onnx(self.path, shapes=self.shapes)
        if self.batch > 1:
            self._check_outputs(mod)
        return mod, params

    def in_batches_of(self, size: int) -> OnnxModel:
        """With another first extent of the only input."""
        name, declared = self._only_input() or (None, [])
        shape = self.shapes.get(name, declared)
        if len(shape) != 4:
            raise CommandError(f"{self.title} does not take a batch of images: leave out --batch")
        model = copy.copy(self)
        model.title, model.camera = _titled(self.title, size), _of_batch(self.camera, size)
        model.batch, model.shapes = size, {name: (size, *shape[1:])}
        return model

    def _check_outputs(self, mod: tvm.IRModule) -> None:
        """A file that was exported for one image may have its number in a shape inside."""
        type_ = mod["main"].checked_type.ret_type if tvm_in_use.has_relay else mod["main"].ret_ty
        for each in getattr(type_, "fields", [type_]):
            if not len(each.shape) or getattr(each.shape[0], "value", self.batch) != self.batch:
                raise CommandError(
                    f"{self.title} returns {each.dtype} {list(each.shape)}, not one for each image: export "
                    "it with a dynamic batch axis, or leave out --batch"
                )

    def _name_shapes(self, args: argparse.Namespace) -> None:
        """Shapes given without a name, or as the size of images, are those of the only input."""
        only = self._only_input()
        if only is None:
            return  # the importer reports it
        name, lengths = only
        if None in self.shapes:
            self.shapes = {name: self.shapes[None]}
        elif len(lengths) not in (3, 4):
            raise CommandError(
                f"the input {name} of {self.title} is not an image: give --input-shape, not --size"
            )
        else:
            before = [length or 1 for length in lengths[:-2]]
            self.shapes = {name: (*before, *args.size)}

    def _only_input(self) -> tuple[str, list[int | None]] | None:
        """Its name and its lengths; None if the file is no model that can be read."""
        try:
            graph = onnx.load(str(self.path), load_external_data=False).graph
        except (DecodeError, OSError):
            return None
        if not graph.node:  # an empty file is an empty graph, too
            return None
        weights = {tensor.name for tensor in graph.initializer}
        inputs = {value.name: value.type.tensor_type.shape for value in graph.input}
        inputs = {name: shape for name, shape in inputs.items() if name not in weights}
        if len(inputs) != 1:
            raise CommandError(
                f"{self.title} has the inputs {', '.join(inputs) or '(none)'}: give --input-shape NAME=…"
            )
        ((name, declared),) = inputs.items()
        return name, [dim.dim_value or None for dim in declared.dim]


@dataclass
class TvmModel:
    """A module of Relay, or of Relax, and its parameters, as a function returned them."""

    title: str
    mod: tvm.IRModule
    params: dict[str, Array]

    labels: tuple[str, ...] = ()
    note = ""

    def imported(self) -> Imported:
        mod = relay.transform.InferType()(self.mod) if tvm_in_use.has_relay else self.mod
        return mod, self.params  # a copy in Relay, since parameters are bound in it

    def in_batches_of(self, _size: int) -> TvmModel:
        raise CommandError(f"{self.title} returns a module of TVM, which has a batch size: leave out --batch")


Model = Union[TorchModel, OnnxModel, TvmModel]


def _titled(title: str, batch: int) -> str:
    return f"{title} for {batch} image{'s' * (batch > 1)}"


def _of_batch(camera: Camera | None, batch: int) -> Camera | None:
    return None if camera is None else replace(camera, batch=batch)


def camera_of(args: argparse.Namespace) -> Camera | None:
    import frontends

    return frontends.Camera(*args.camera) if args.camera else None


def resolve(text: str) -> Any:
    """The object of `module:name`, or the result of calling it for `module:name(literals)`."""
    where, _, call = text.partition(":")
    name, arguments, keywords = _call(call)
    if not all(part.isidentifier() for part in where.split(".")):
        raise CommandError(f"'{where}' is not the name of a module: give such as package.module:{name}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the current folder, as for `python -m`
    try:
        found = importlib.import_module(where)
    except ImportError as error:
        raise CommandError(
            f"cannot import {where}: {error}; modules are searched here and in PYTHONPATH"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise CommandError(f"{where} has no {name}{_meant(part, vars(found))}")
        found = getattr(found, part)
    if isinstance(found, torch.nn.Module) and "(" not in call:  # whose call would run it
        return found
    if not callable(found):
        raise CommandError(f"{text} is not callable: give a function")
    try:
        signature(found).bind(*arguments, **keywords)
    except ValueError:  # a function of C, which does not tell what it takes
        pass
    except TypeError as error:
        raise CommandError(
            f"{where}:{name} cannot be called so ({error}): give its arguments as literals, as "
            f"'{where}:{name}(2, key=\"x\")'"
        ) from None
    return found(*arguments, **keywords)


def _call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name, arguments and keywords of `name` or `name(literal, key=literal)`."""
    try:
        expression = ast.parse(text, mode="eval").body
        function, arguments, keywords = expression, [], []
        if isinstance(expression, ast.Call):
            function, arguments, keywords = expression.func, expression.args, expression.keywords
        values = [ast.literal_eval(value) for value in arguments]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg}
        name = ast.unparse(function)
        if len(named) < len(keywords) or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError
    except (SyntaxError, ValueError):
        raise CommandError(
            f"'{text}' is neither a name nor a call with literals, as name(2, key='x')"
        ) from None
    return name, values, named


def _of_torchvision(text: str, args: argparse.Namespace) -> TorchModel:
    name, arguments, options = _call(text.partition(":")[2])
    known = torchvision.models.list_models()
    if name not in known:
        raise CommandError(f"torchvision has no model {name}{_meant(name, known)}")
    if arguments:
        raise CommandError(f"{text} has an argument without a name: give such as {name}(num_classes=2)")
    builder = torchvision.models.get_model_builder(name)
    weights = torchvision.models.get_model_weights(name)
    if args.weights == "trained":
        wanted = {"weights": weights.DEFAULT}
        note = f"The weights are torchvision's {weights.DEFAULT.name}."
    else:
        wanted = {
            key: None for key in ("weights", "weights_backbone") if key in signature(builder).parameters
        }
        note = f"The weights are random, with seed {SEED}: the model's outputs mean nothing."
    try:
        module = _seeded(builder, **wanted, **options).eval()
    except OSError as reason:  # URLError is one
        raise CommandError(
            f"the weights cannot be loaded ({reason}): leave out --weights trained"
        ) from reason
    categories = weights.DEFAULT.meta.get("categories") or ()
    labels = tuple(categories) if is_detector(module) and "num_classes" not in options else ()
    shape = _shape(args, module, DETECTOR_SIZE if is_detector(module) else IMAGE_SIZE)
    return TorchModel(text, module, (_image(shape),), camera_of(args), labels, note)


def _of_function(text: str, args: argparse.Namespace) -> TorchModel | TvmModel:
    if args.weights == "trained":
        raise CommandError(f"--weights is for torchvision:NAME; {text} chooses its own")
    found = _seeded(resolve, text)
    module, *rest = found if isinstance(found, tuple) else (found,)
    if isinstance(module, tvm.IRModule) and len(rest) <= 1:
        if args.size or args.input_shape or args.camera:
            raise CommandError(
                f"{text} returns a module of TVM, which already has shapes: leave out the sizes"
            )
        return TvmModel(text, module, dict(*rest))
    if not isinstance(module, torch.nn.Module) or len(rest) > 1:
        kinds = ", ".join(type(part).__name__ for part in (module, *rest))
        raise CommandError(
            f"{text} returns {kinds}: it must return an nn.Module, an nn.Module and its example inputs, or a "
            "Relay module and its parameters"
        )
    if rest and not (args.size or args.input_shape or args.camera):
        inputs = (rest[0],) if isinstance(rest[0], torch.Tensor) else tuple(rest[0])
    else:
        shapes = _shapes_in_order(args, module) or [_shape(args, module, None)]
        inputs = tuple(map(_image, shapes))
    return TorchModel(text, module.eval(), inputs, camera_of(args))


def _shapes_in_order(args: argparse.Namespace, module: torch.nn.Module) -> list[tuple[int, ...]]:
    """Shapes by name in the order of what `forward` takes; those without a name are in order already."""
    given = _by_name(args)
    if None in given:
        if len(given) > 1:
            raise CommandError(f"{args.model}: give all --input-shape by name, or all in order without names")
        return [shape for _, shape in args.input_shape]
    names = [*signature(module.forward).parameters]
    wrong = [name for name in given if name not in names[: len(given)]]
    if wrong:
        raise CommandError(
            f"{args.model} takes {', '.join(names)}, and --input-shape has {', '.join(map(str, wrong))}: "
            "give the first ones by their names, or all in order without names"
        )
    return [given[name] for name in names[: len(given)]]


def _by_name(args: argparse.Namespace) -> dict[Any, tuple[int, ...]]:
    """What --input-shape gives; None is the name of those without one."""
    given: dict[Any, tuple[int, ...]] = {}
    for name, shape in args.input_shape:
        if name is not None and given.get(name, shape) != shape:
            raise CommandError(f"{args.model}: --input-shape gives {name} twice, with different shapes")
        given[name] = shape
    return given


def _seeded(function: Callable, *arguments: Any, **options: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return function(*arguments, **options)


def _shape(
    args: argparse.Namespace, module: torch.nn.Module, default: tuple[int, int] | None
) -> tuple[int, ...]:
    """The shape of the image that a module takes."""
    if args.input_shape:
        (_, shape), *others = args.input_shape
        if others:
            raise CommandError(f"{args.model} takes one image: give --input-shape once")
        return shape
    size = args.camera[:2] if args.camera else args.size or default
    if size is None:
        raise CommandError(f"{args.model} has no example inputs: give --size or --input-shape")
    if is_detector(module):
        return (3, *size)
    convolutions = (part for part in module.modules() if isinstance(part, torch.nn.Conv2d))
    first = next(convolutions, None)
    return (1, first.in_channels if first else 3, *size)


def is_detector(module: torch.nn.Module) -> bool:
    """Whether a module is one of torchvision's detectors, which take one image without a batch axis."""
    return isinstance(getattr(module, "transform", None), GeneralizedRCNNTransform)


def _image(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(SEED))


def _meant(name: str, known: Iterable[str]) -> str:
    known = [*known]
    longer = [each for each in known if name.lower() in each.lower()] if name else []
    close = [*dict.fromkeys([*longer, *difflib.get_close_matches(name, known)])][:3]
    return f"; there is {', '.join(close)}" if close else ""
