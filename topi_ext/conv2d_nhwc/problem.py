"""The parameters of a call of the operator as plain numbers; the type relation and all kernels use them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Union

from .._int8 import INT8
from .._types import IntExpr

ACTIVATIONS = {  # and their number of constants
    "none": 0,
    "relu": 0,
    "leaky_relu": 1,
    "clip": 2,
    "prelu": 0,
    "gelu": 0,
    "gelu_tanh": 0,
    "hard_swish": 0,
    "mish": 0,
    "sigmoid": 0,
    "silu": 0,
    "tanh": 0,
}
AT_RUN_TIME = 0  # for a batch, a height or a width that is not known before
# How callers of the operator write an activation: None, a name, or a name with its constants.
GivenActivation = Union[str, tuple[Any, ...], None]


@dataclass(frozen=True)
class Activation:
    name: str = "none"
    low: float = 0.0  # the lower bound of clip, or the slope of leaky_relu
    high: float = 0.0  # the upper bound of clip

    @classmethod
    def of(
        cls,
        given: GivenActivation,
        argument: str,
        may_be_prelu: bool = True,
        operator: str = "conv2d_nhwc",
    ) -> Activation:
        """From what the caller wrote; raises ValueError, naming the argument, if it is not valid."""
        name, *constants = [given or "none"] if given is None or isinstance(given, str) else given
        known = [each for each in ACTIVATIONS if each != "prelu" or may_be_prelu]
        if name not in known:
            raise ValueError(f"{operator}: {argument} must be one of {', '.join(known)}, not {name!r}")
        if len(constants) != ACTIVATIONS[name]:
            example = {"leaky_relu": "('leaky_relu', 0.1)", "clip": "('clip', 0, 6)"}.get(name, repr(name))
            raise ValueError(f"{operator}: {argument} {name!r} must be written as {example}, not {given!r}")
        activation = cls(name, *map(float, constants))
        if name == "clip" and not activation.low <= activation.high:
            raise ValueError(
                f"{operator}: {argument} clips to {activation.low} to {activation.high}: "
                "the lower bound must not exceed the upper one"
            )
        return activation


class Part(NamedTuple):
    """A part of the channels of a tensor: from which one on, and how many the whole tensor has."""

    first: int
    whole: int


MAX_ELEMENTS = 2**31 - 1  # of a tensor: the kernels count in 32 bits
PARTS = ("data_part", "residual_part", "result_part")


@dataclass(frozen=True)
class Problem:
    """A convolution; pairs are (height, width), the padding is (top, left, bottom, right)."""

    batch: int  # or AT_RUN_TIME
    size: tuple[int, ...]  # height and width of the data, or AT_RUN_TIME
    channels: int
    filters: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str  # of data and weights
    out_dtype: str  # of the result
    activation: Activation
    final_activation: Activation
    block: int
    bias: str | None  # its dtype
    residual: str | None  # its dtype
    slope: str | None  # its dtype
    residual_scale: float = 1.0
    out_scale: float = 1.0
    groups: int = 1
    weight_id: str = ""  # the same for the same weights, of which a library keeps what it has packed
    # Where a tensor has more channels than the convolution reads or writes, these; without depth to space.
    data_part: Part | None = None
    residual_part: Part | None = None
    result_part: Part | None = None

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has one filter of its own."""
        return self.groups == self.channels == self.filters > 1

    @property
    def channels_of_group(self) -> int:
        return self.channels // self.groups

    @property
    def filters_of_group(self) -> int:
        return self.filters // self.groups

    @property
    def is_quantized(self) -> bool:
        """Whether it has what only networks in int8 need: scales, or tensors of several types."""
        types = {self.dtype, self.out_dtype, self.residual or self.dtype}
        return types != {self.dtype} or self.dtype == INT8 or (self.residual_scale, self.out_scale) != (1, 1)

    @property
    def reach(self) -> tuple[int, ...]:
        """Height and width of the window that one output pixel sees."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def is_product(self) -> bool:
        """Whether each filter sees a whole image, once: a product of the images by the filters, as rows."""
        sees_all = self.kernel == self.reach == self.size and self.padding[:2] == (0, 0)
        return self.groups == 1 and sees_all and self.out_size == (1, 1)

    @property
    def out_size(self) -> tuple[int, ...]:
        """Height and width of the result before depth to space; AT_RUN_TIME where those of the data are."""
        return tuple(
            self.out_extent(axis, extent) if extent != AT_RUN_TIME else AT_RUN_TIME
            for axis, extent in enumerate(self.size)
        )

    def out_extent(self, axis: int, extent: IntExpr) -> Any:
        """The height (axis 0) or width of the result, of data of such an extent."""
        padded = extent + self.padding[axis] + self.padding[axis + 2]
        return (padded - self.reach[axis]) // self.strides[axis] + 1

    def shape_of_result(self, data: Sequence[IntExpr]) -> list[Any]:
        """The shape of the result, of data of such a shape."""
        _, *extents, channels = self.shape
        for axis, extent in enumerate(extents):
            if extent == AT_RUN_TIME:
                extents[axis] = self.out_extent(axis, data[1 + axis]) * self.block
        return [data[0], *extents, channels]

    @property
    def has_known_size(self) -> bool:
        """Whether it is known before run time how large the images are."""
        return AT_RUN_TIME not in self.size

    def of_shape(self, batch: int, height: int, width: int, _channels: int = 0) -> Problem:
        """The same convolution of data of such a shape."""
        return replace(self, batch=batch, size=(height, width))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        height, width = self.out_size
        channels = self.result_part.whole if self.result_part else self.filters // self.block**2
        return self.batch, height * self.block, width * self.block, channels

    @property
    def counts(self) -> dict[str, int]:
        """How many channels of data, residual and result are read and written, before depth to space."""
        return {"data": self.channels, "residual": self.filters, "result": self.filters}

    @property
    def parts(self) -> dict[str, Part]:
        """Which channels of data, residual and result these are."""
        return {name: getattr(self, f"{name}_part") or Part(0, count) for name, count in self.counts.items()}

    def is_aligned(self, to: int) -> bool:
        """Whether all channels that are read or written begin and end at multiples of a number."""
        of_parts = (extent for part in self.parts.values() for extent in part)
        return all(extent % to == 0 for extent in (self.channels, self.filters, *of_parts))

    def from_channel_0(self) -> Problem:
        """The same convolution of parts that begin with the first channel."""
        given = {name: getattr(self, name) for name in PARTS}
        return replace(self, **{name: part._replace(first=0) for name, part in given.items() if part})

    def to_json(self) -> str:
        """As text, which compiled code passes to a library at run time."""
        written = asdict(self)
        return json.dumps({name: v for name, v in written.items() if name not in PARTS or v is not None})

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """The inverse of `to_json`."""
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(text).items()
        }
        for name in ("activation", "final_activation"):
            values[name] = Activation(**values[name])
        for name in values.keys() & set(PARTS):
            values[name] = Part(*values[name])
        return cls(**values)


def why_no_such_extents(problem: Problem) -> str | None:
    """Why no kernel computes a convolution of data of these extents, or None; of those that are known."""
    extents = {axis: extent for axis, extent in enumerate(problem.size) if extent != AT_RUN_TIME}
    if any(problem.out_extent(axis, extent) < 1 for axis, extent in extents.items()):
        size = f"({', '.join(str(extent or 'any') for extent in problem.size)})"
        return f"the kernel reaches over {problem.reach} pixels, more than the padded data of {size} has"
    given, written = math.prod(problem.size), math.prod(problem.out_size)  # 0 where they are not known
    if max(given * problem.channels, written * problem.filters) * max(problem.batch, 1) > MAX_ELEMENTS:
        return "2 ** 31 elements and more are too many: split the batch"
    return None


def pair(value: int | Sequence[int], argument: str) -> tuple[int, ...]:
    """(height, width) from one number or two; raises ValueError, naming the argument."""
    values = (value, value) if isinstance(value, int) else tuple(map(int, value))
    if len(values) != 2:
        raise ValueError(f"conv2d_nhwc: {argument} must be one number or two (height, width), not {value}")
    return values


def four_sides(value: int | Sequence[int]) -> tuple[int, ...]:
    """The padding (top, left, bottom, right) from one, two or four numbers; raises ValueError."""
    values = (value, value) if isinstance(value, int) else tuple(map(int, value))
    values = values * 2 if len(values) == 2 else values
    if len(values) != 4 or min(values) < 0:
        raise ValueError(
            "conv2d_nhwc: padding must be one number, two (height, width) or four (top, left, bottom, "
            f"right), none below 0, not {value}"
        )
    return values
