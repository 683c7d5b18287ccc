"""Operators of TVM's own that are wrong, not exact, or do not compile. Importing this package corrects them.

| operator | what TVM does | here |
|---|---|---|
| `clip` with `a_min > a_max` | gives `a_min` | `a_max`, as in NumPy, ONNX and PyTorch |
| `clip` of NaN | gives a bound | NaN, as they have it |
| `erf` of float64 | is computed in float32 | by the C library's, or CUDA's |
| `acos` ... `atanh` of float16 | there is no code | in float32 |
| convolutions, products and sums of float16 | add up in float16 | in float32 |
| `nn.leaky_relu` of float16 | rounds the slope to float16 | in float32, as PyTorch has it |
| `scatter_elements` of fewer indices | takes them as if there were as many as elements | where they are |
| `image.resize2d` behind a transpose | refuses what TVM makes its layout, as "WCHN" | any order |
| `power` of 2 and a bool | does not compile on CPUs | 2 or 1 |
| `reverse` of shuffled elements that are taken | does not compile: its bound exceeds int32 | is bounded |
| `squeeze`, `split`, `topk` of channels | do not compile behind a convolution on CPUs | in the old layout |
| `negative` of the float 0 | gives 0 | -0, by which a division has the other sign |
| `trilu` with a `k` of int32 | reads an unknown variable if fused | `k` is read first |
"""

from . import (  # noqa: F401  each corrects as it is imported
    backend,
    convert_layout,
    cuda_schedules,
    extremes,
    in_bounds,
    in_float32,
    kernels,
    mixed_precision,
    range,
    reshape,
    shape_functions,
    split_channels,
    where,
)
