"""Corrections of TVM 0.27, by other kernels for operators of Relax: no installed file is changed.

Importing a module of this folder applies its corrections, most of which are those of `topi_ext.corrections`.

| module | what TVM does without it |
|---|---|
| `division` | ends the process where integers are divided by 0, or the least one by -1 |
| `division`, of floats | has no exact remainders, nor quotients that are rounded down |
| `elementwise` | loses NaN in ReLU, bounds, maxima and minima; takes NaN for equal, 0 for 0 of infinities |
| `full` | fails at tensors of infinities and NaN |
| `in_float32` | returns float32 from norms and grid samples of half precision; has no code for some of it |
| `max_pooling` | loses NaN, and a window of minus infinities to -3.4e38 |
| `norms` | loses the variance of groups and instances whose mean is far from 0 |
| `pixel_shuffle` | finds no kernel |
| `reductions` | loses NaN, and a row of infinities to -3.4e38, at the index -1 |
| `sort` | does not sort rows with NaN, nor integers of every type; on CPUs, looks at all for a `topk` |
| `take` | reads whatever is there at indices that are out of range, and warns of it at every `take` |
"""

from . import (  # noqa: F401
    division,
    elementwise,
    full,
    in_float32,
    max_pooling,
    norms,
    pixel_shuffle,
    reductions,
    sort,
    take,
)
