"""What a call of the operator asks for, as plain numbers: common to the type relation and all kernels."""

from dataclasses import dataclass
from typing import Optional

ACTIVATIONS = {"none": 0, "relu": 0, "leaky_relu": 1, "clip": 2, "prelu": 0}  # and their number of constants


@dataclass(frozen=True)
class Activation:
    name: str = "none"
    low: float = 0.0  # of clip; the slope of leaky_relu
    high: float = 0.0

    @classmethod
    def of(cls, given, argument, may_be_prelu=True):
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
    size: tuple  # of the data
    channels: int
    filters: int
    kernel: tuple
    strides: tuple
    padding: tuple
    dilation: tuple
    dtype: str
    activation: Activation
    final_activation: Activation
    block: int
    bias: Optional[str]  # its type
    residual: bool
    slope: Optional[str]  # its type

    @property
    def reach(self):
        """Height and width of what one output pixel sees."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def out_size(self):
        """Before the shuffle."""
        (height, width), (top, left, bottom, right) = self.size, self.padding
        padded = height + top + bottom, width + left + right
        return tuple((p - r) // s + 1 for p, r, s in zip(padded, self.reach, self.strides))

    @property
    def shape(self):
        """Of the result."""
        height, width = self.out_size
        return (
            self.batch,
            height * self.block,
            width * self.block,
            self.filters // self.block**2,
        )


def pair(value, argument):
    values = (value, value) if isinstance(value, int) else tuple(map(int, value))
    if len(values) != 2:
        raise ValueError(f"conv2d_nhwc: {argument} is one number or two (height, width), not {value}")
    return values


def four_sides(value):
    values = (value, value) if isinstance(value, int) else tuple(map(int, value))
    values = values * 2 if len(values) == 2 else values
    if len(values) != 4 or min(values) < 0:
        raise ValueError(
            "conv2d_nhwc: padding is one number, two (height, width) or four (top, left, bottom, right), "
            f"none below 0, not {value}"
        )
    return values
