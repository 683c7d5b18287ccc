"""Rounding to integers, as every format of quantized networks does it: halves to even, ends clipped."""

from __future__ import annotations

import numpy as np

from tvm import relay

FAR = 2.0**17  # outside the range of 16 bits, whatever the zero point
INTEGERS = 1.5 * 2**23  # of float32, around which integers are all the numbers that there are


def along_axis(numbers: relay.Expr, axis: int, rank: int) -> relay.Expr:
    """Scales or zero points, one for each element of an axis, so that they broadcast."""
    return relay.reshape(numbers, [-1] + [1] * (rank - axis % rank - 1))


def quantized(
    data: relay.Expr,
    zero_point: relay.Expr | None,
    dtype: str,
    limits: tuple[int, int] | None = None,
) -> relay.Expr:
    """Round scaled floats of float32, add the zero point, and clip to `limits`, by default the dtype's range.

    `round_half_even` reads its data nine times, and TVM inlines it: what is quantised again and again would
    not compile in a minute. This reads them once: in a sum with `INTEGERS` the last bit is worth 1.
    `tvm_passes.FloatFromQDQ` knows this spelling.
    """
    low, high = limits or (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    bits = relay.reinterpret(relay.clip(data, -FAR, FAR) + relay.const(INTEGERS, "float32"), "int32")
    result = bits - relay.const(int(np.float32(INTEGERS).view("int32")))
    if zero_point is not None:
        result = result + relay.cast(zero_point, "int32")
    return relay.cast(relay.clip(result, low, high), dtype)
