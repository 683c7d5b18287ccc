"""Make `import tvm` import a TVM of a version that this project knows, one with Relay if there is one.

`threads` says how many threads it has, `exact_math` how its CUDA kernels are compiled, `find_tvm` chooses it,
`find_libraries` loads the libraries it links to, `fast_ffi` compiles its Python interface; then
`topi_ext.corrections` corrects one with Relay.
All three packages of this project import this first; importing it again does nothing.
"""

from .exact_math import set_exact_math
from .find_tvm import TvmInUse, import_tvm
from .threads import set_threads

set_threads()
set_exact_math()
tvm_in_use: TvmInUse = import_tvm()
