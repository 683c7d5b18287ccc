"""Camera images as inputs of models that take them in another form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import topi_ext
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay
from tvm.tir import Any

from ._types import IntExpr
from .errors import ImportFailure

ORDERS = ("RGB", "BGR")
FLOATS = ("float32", "float16")


@dataclass(frozen=True)
class Sizes:
    """How preprocessing changes an image's size.

    `size` is the (height, width) to which it is resized, `padded_size` that of the model's input. The model's
    boxes, divided by `scale_factor`, (of x, of y), are in pixels of the image.
    """

    size: tuple[int, ...]
    padded_size: tuple[int, ...]
    scale_factor: tuple[float, float]


@dataclass(frozen=True)
class MMDet:
    """How MMDetection prepares images: `Resize`, `Normalize` and `Pad` of a test pipeline.

    Parameters
    ----------
    scale : (int, int)
        Of `Resize`: with `keep_ratio` the greatest long and short side of an image, otherwise its width and
        height.
    mean, std : sequence of float
        Of `Normalize` or the data preprocessor, in the channel order of the model.
    to_rgb : bool
        `to_rgb`, or `bgr_to_rgb`: whether the model takes RGB; otherwise it takes BGR.
    divisor : int
        Of `Pad`, or `pad_size_divisor`: height and width are padded to the next multiple.
    keep_ratio : bool
        Of `Resize`.

    Convention
    ----------
    With `keep_ratio`, s = min(max(scale) / long side, min(scale) / short side) in float64, and each side d
    becomes int(d * s + 0.5). The image is resized as by `topi_ext.preprocess`, normalised as
    (pixel - mean) / std, and padded with zeros at the right and at the bottom. `scale_factor` is
    (new width / width, new height / height), which is not quite s.

    OpenCV, with which MMDetection resizes on the CPU, uses fixed point and rounds to integers. Here nothing
    is rounded: a pixel may differ by less than a grey level.
    """

    scale: tuple[int, int] = (1333, 800)
    mean: tuple[float, ...] = (123.675, 116.28, 103.53)
    std: tuple[float, ...] = (58.395, 57.12, 57.375)
    to_rgb: bool = True
    divisor: int = 32
    keep_ratio: bool = True

    @property
    def channels(self) -> str:
        return "RGB" if self.to_rgb else "BGR"

    def sizes(self, height: int, width: int) -> Sizes:
        """The `Sizes` for images of this height and width."""
        if self.keep_ratio:
            longest, shortest = max(self.scale), min(self.scale)
            scale = min(longest / max(height, width), shortest / min(height, width))
            size = int(height * scale + 0.5), int(width * scale + 0.5)
        else:
            size = self.scale[1], self.scale[0]
        padded_size = tuple(-(-length // self.divisor) * self.divisor for length in size)
        return Sizes(size, padded_size, (size[1] / width, size[0] / height))


@dataclass(frozen=True)
class Camera:
    """The images that a model is to be fed: `batch` of them, uint8, (batch, height, width, 3).

    They replace the model's only input, and keep its name.

    Parameters
    ----------
    height, width : int
        Of the camera's images.
    channels : "RGB" or "BGR"
        Their order in the camera's images.
    batch : int
        How many images at once.
    preprocessing : MMDet, optional
        The preprocessing that the model expects of an image. If None, the model does all of it itself, as
        torchvision's detectors do: it takes RGB between 0 and 1, one image (3, height, width) or a batch,
        of the camera's size, and gives boxes in pixels of the camera's images. A traced detector of
        torchvision resizes each side d to floor(d * s) with s in float32; if it is not traced, s is float64,
        and a side may be a pixel longer.
    """

    height: int
    width: int
    channels: str = "RGB"
    batch: int = 1
    preprocessing: MMDet | None = None

    def __post_init__(self) -> None:
        if self.channels not in ORDERS:
            raise ValueError(f"Camera: channels must be {' or '.join(ORDERS)}, not {self.channels!r}")

    @property
    def sizes(self) -> Sizes | None:
        """The `Sizes` that `preprocessing` gives images; None if the model resizes them itself."""
        preparation = self.preprocessing
        return None if preparation is None else preparation.sizes(self.height, self.width)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """The shape that the model's input must have: (batch, 3, height, width)."""
        size = self.sizes.padded_size if self.sizes else (self.height, self.width)
        return (self.batch, 3, *size)


def settle(camera: Camera, inputs: dict[str, list[IntExpr]]) -> dict[str, list[IntExpr]]:
    """The shapes of inputs by name, with lengths that the model leaves open taken from the camera."""
    ((name, shape),) = _one(inputs).items()
    if len(shape) != len(camera.model_shape):
        return inputs
    pairs = zip(shape, camera.model_shape)
    return {name: [known if isinstance(length, Any) else length for length, known in pairs]}


def feed(camera: Camera, mod: tvm.IRModule, input_names: Iterable[str]) -> tvm.IRModule:
    """The module with the camera's images in place of its only input."""
    main = mod["main"]
    ((name, taken),) = _one(dict(zip(input_names, main.params))).items()
    shape, dtype = _check(camera, name, taken.type_annotation)
    images = relay.var(name, shape=(camera.batch, camera.height, camera.width, 3), dtype="uint8")
    body = Graph(main.body).rebuilt({taken: _as_taken(camera, images, shape, dtype)})
    mod["main"] = relay.Function([images, *main.params[1:]], body)
    return mod


def _one(inputs: dict) -> dict:
    if len(inputs) != 1:
        raise ImportFailure(f"a camera replaces the only input of a model, but this model has {list(inputs)}")
    return inputs


def _check(camera: Camera, name: str, type_: relay.TensorType) -> tuple[tuple[int | None, ...], str]:
    """The shape and dtype of the model's input, if that can be made of the camera's images."""
    wanted = [camera.model_shape]
    if camera.preprocessing is None and camera.batch == 1:
        wanted.append(camera.model_shape[1:])  # torchvision's detectors take one image without a batch
    shape = tuple(None if isinstance(length, Any) else int(length) for length in type_.shape)
    if shape not in wanted or type_.dtype not in FLOATS:
        raise ImportFailure(
            f"the camera's images become {' or '.join(map(str, wanted))} of {' or '.join(FLOATS)} for the "
            f"model, but its input '{name}' is {shape} of {type_.dtype}"
        )
    return shape, type_.dtype


def _as_taken(camera: Camera, images: relay.Expr, shape: tuple[int | None, ...], dtype: str) -> relay.Expr:
    """The model's input, computed from the camera's images."""
    preparation = camera.preprocessing
    if preparation is not None:
        sizes = preparation.sizes(camera.height, camera.width)
        return topi_ext.preprocess(
            images,
            sizes.size,
            sizes.padded_size,
            mean=preparation.mean,
            std=preparation.std,
            swap_channels=camera.channels != preparation.channels,
            dtype=dtype,
        )
    taken = relay.cast(relay.transpose(images, (0, 3, 1, 2)), "float32") / relay.const(255, "float32")
    if camera.channels != "RGB":
        taken = relay.reverse(taken, 1)
    taken = taken if dtype == "float32" else relay.cast(taken, dtype)
    return taken if len(shape) == 4 else relay.squeeze(taken, [0])
