"""What a call of the operator asks for, as plain numbers."""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Problem:
    """Sizes are height and width. The batch is not among them: it may be known only at run time."""

    given: tuple
    size: tuple
    padded_size: tuple
    mean: tuple
    std: tuple
    swap_channels: bool
    image_layout: str
    layout: str
    dtype: str

    @property
    def channels(self):
        return len(self.mean)

    @property
    def shape(self):
        """Of a picture of the result."""
        height, width = self.padded_size
        return (self.channels, height, width) if self.layout == "NCHW" else (height, width, self.channels)

    @property
    def image_elements(self):
        """Of one picture."""
        return prod(self.given) * self.channels

    @property
    def image_strides(self):
        """Elements from a channel, a row and a column to the next."""
        return self._strides(self.image_layout, *self.given)

    @property
    def strides(self):
        """The same of the result."""
        return self._strides(self.layout, *self.padded_size)

    def _strides(self, layout, height, width):
        if layout == "NCHW":
            return height * width, width, 1
        return 1, width * self.channels, self.channels

    def source(self, channel):
        """The channel of the image that a channel of the result comes from."""
        return self.channels - 1 - channel if self.swap_channels else channel
