"""What a call of the operator asks for, as plain numbers: common to the type relation and all kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Union

ACTIVATIONS = {"none": 0, "relu": 0, "leaky_relu": 1, "clip": 2, "prelu": 0}  # and their number of constants
# How it is written by who calls the operator: a name, or a name with its constants.
GivenActivation = Union[str, tuple[Any, ...], None]


@dataclass(frozen=True)
class Activation:
    name: str = "none"
    low: float = 0.0  # of clip; the slope of leaky_relu
    high: float = 0.0

    @classmethod
    def of(cls, given: GivenActivation, argument: str, may_be_prelu: bool = True) -> Activation:
        """From what the user writes: None, a name, or a name with its constants."""
        name, *constants = [given or "none"] if given is None or isinstance(given, str) else given
        known = [each for each in ACTIVATIONS if each != "prelu" or may_be_prelu]
        if name not in known:
            raise ValueError(f"conv2d_nhwc: {argument} is one of {', '.join(known)}, not {name!r}")
        if len(constants) != ACTIVATIONS[name]:
            example = {"leaky_relu": "('leaky_relu', 0.1)", "clip": "('clip', 0, 6)"}.get(name, repr(name))
            raise ValueError(f"conv2d_nhwc: {argument} {name!r} is to be written as {example}, not {given!r}")
        activation = cls(name, *map(float, constants))
        if name == "clip" and not activation.low <= activation.high:
            raise ValueError(f"conv2d_nhwc: {argument} clips to {activation.low} to {activation.high}")
        return activation


@dataclass(frozen=True)
class Problem:
    """Pairs are of height and width, the padding is top, left, bottom, right."""

    batch: int
    size: tuple[int, ...]  # of the data
    channels: int
    filters: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str
    activation: Activation
    final_activation: Activation
    block: int
    bias: str | None  # its type
    residual: bool
    slope: str | None  # its type

    @property
    def reach(self) -> tuple[int, ...]:
        """Height and width of what one output pixel sees."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def out_size(self) -> tuple[int, ...]:
        """Before the shuffle."""
        (height, width), (top, left, bottom, right) = self.size, self.padding
        padded = height + top + bottom, width + left + right
        return tuple((p - r) // s + 1 for p, r, s in zip(padded, self.reach, self.strides))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        height, width = self.out_size
        return (
            self.batch,
            height * self.block,
            width * self.block,
            self.filters // self.block**2,
        )

    def to_json(self) -> str:
        """As text, for compiled code to tell a library at run time."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Problem:
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(text).items()
        }
        for name in ("activation", "final_activation"):
            values[name] = Activation(**values[name])
        return cls(**values)


def pair(value: int | Sequence[int], argument: str) -> tuple[int, ...]:
    values = (value, value) if isinstance(value, int) else tuple(map(int, value))
    if len(values) != 2:
        raise ValueError(f"conv2d_nhwc: {argument} is one number or two (height, width), not {value}")
    return values


def four_sides(value: int | Sequence[int]) -> tuple[int, ...]:
    values = (value, value) if isinstance(value, int) else tuple(map(int, value))
    values = values * 2 if len(values) == 2 else values
    if len(values) != 4 or min(values) < 0:
        raise ValueError(
            "conv2d_nhwc: padding is one number, two (height, width) or four (top, left, bottom, right), "
            f"none below 0, not {value}"
        )
    return values
