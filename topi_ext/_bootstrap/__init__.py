"""Gives `import tvm` a TVM that has Relay, and mends what that TVM gets wrong on today's machines.

`find_tvm` decides which TVM, `find_libraries` loads what it links to, `fast_ffi` compiles what calls it,
`mends` corrects it.
All three packages of this project import this first; importing it again does nothing.
"""

from . import mends
from .find_tvm import TvmInUse, import_relay_tvm

tvm_in_use: TvmInUse = import_relay_tvm()
mends.apply()
