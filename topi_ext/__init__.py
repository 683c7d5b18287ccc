from . import _bootstrap, sort  # noqa: F401  _bootstrap comes first: it finds TVM
