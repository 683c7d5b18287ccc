"""Gives `import tvm` a TVM that has Relay.

`find_tvm` decides which TVM, `find_libraries` loads what it links to, `fast_ffi` compiles what calls it; then
`topi_ext.corrections` corrects it.
All three packages of this project import this first; importing it again does nothing.
"""

from .find_tvm import TvmInUse, import_relay_tvm

tvm_in_use: TvmInUse = import_relay_tvm()
