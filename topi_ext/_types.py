"""Type aliases. TVM has no type hints: to a type checker, its own types are `Any`."""

from collections.abc import Callable, Sequence
from typing import Any, Union

from ._tvm import PrimExpr

IntExpr = Union[int, PrimExpr]  # an int if it is known as code is emitted, else an expression
Shape = Sequence[IntExpr]
Condition = Callable[[], PrimExpr]  # emits one that is the same in all threads of a block

# Names that exist only in hybrid script, for type checkers and linters.
ceil_div: Any
const_range: Any
float64: Any
int64: Any
output_tensor: Any
