"""Register shape functions for operators that TVM has none for.

Without one, an operator on a tensor whose shape is known only at run time does not compile.
"""

from __future__ import annotations

from tvm.relay.op._tensor import elemwise_shape_func
from tvm.relay.op.op import register_shape_func

AS_THE_INPUT = (  # the result has the shape of the first input
    *("abs", "sign", "trunc", "isnan", "isinf", "isfinite", "erf", "log10"),
    *("sin", "cos", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("nn.log_softmax", "reverse", "trilu"),
)

for name in AS_THE_INPUT:
    register_shape_func(name, False, elemwise_shape_func)
