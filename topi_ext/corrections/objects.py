"""Read attributes of graphs, and find their nodes in dictionaries, without TVM's detour through Python.

Python looks for an attribute in the class, makes an exception, and calls TVM's `__getattr__`, and for each
lookup in a dictionary TVM's `__hash__` and `__eq__`, which call C++. A pipeline does that millions of times.
Importing this module has the compiled interface of `bootstrap/fast_ffi.py` do it, where there is one.
"""

from __future__ import annotations

import tvm
from tvm import relay
from tvm.runtime import Object

FIELDS = {
    tvm.ir.RelayExpr: ("_checked_type_", "span"),
    relay.Call: ("op", "args", "attrs", "type_args"),
    relay.Constant: ("data",),
    relay.Function: ("params", "body"),
    relay.Tuple: ("fields",),
    relay.TupleGetItem: ("tuple_value", "index"),
    relay.Var: ("vid", "type_annotation"),
    tvm.ir.Op: ("name",),
    tvm.ir.TensorType: ("shape", "dtype"),
    tvm.tir.IntImm: ("value",),
}


def apply() -> None:
    interface = Object.__mro__[1]
    try:
        from tvm._ffi._cy3.core import Field

        is_the_same = interface.is_the_same
    except (ImportError, AttributeError):  # ctypes, compiled elsewhere, or of other sources than ours
        return
    Object.__hash__ = interface.__hash__
    # Its `__eq__` would bring along `__lt__` and others, and hide those of classes that come behind, as of
    # tensors. TVM's `__ne__` asks the `__eq__` of whichever class it is.
    Object.__eq__ = is_the_same
    for kind, names in FIELDS.items():
        for name in names:
            setattr(kind, name, Field(name))


apply()
