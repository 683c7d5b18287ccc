"""Make `import tvm` import a TVM that has Relay.

`threads` says how many threads it has, `find_tvm` chooses it, `find_libraries` loads the libraries it links
to, `fast_ffi` compiles its Python interface; then `topi_ext.corrections` corrects it.
All three packages of this project import this first; importing it again does nothing.
"""

from .find_tvm import TvmInUse, import_relay_tvm
from .threads import set_threads

set_threads()
tvm_in_use: TvmInUse = import_relay_tvm()
