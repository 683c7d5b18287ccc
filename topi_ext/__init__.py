from . import _bootstrap
