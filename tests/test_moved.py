"""Names of the release before still work, each with one line of warning."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

import tvm_passes
from tvm_passes import _moved


@pytest.mark.parametrize("old", _moved.MOVED)
def test_a_module_that_moved(old):
    sys.modules.pop(old, None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    assert [str(one.message) for one in said] == [f"{old} is now {_moved.MOVED[old]}"]
    moved = importlib.import_module(_moved.MOVED[old])
    public = [name for name in vars(moved) if not name.startswith("_")]
    assert public and all(getattr(module, name) is getattr(moved, name) for name in public)


@pytest.mark.parametrize("old", _moved.RENAMED)
def test_what_has_another_name(old):
    with pytest.warns(DeprecationWarning, match=f"tvm_passes.{old} is now tvm_passes.{_moved.RENAMED[old]}"):
        found = getattr(tvm_passes, old)
    assert found is getattr(tvm_passes, _moved.RENAMED[old])


def test_what_was_never_there():
    with pytest.raises(AttributeError, match="'tvm_passes' has no attribute 'nothing'"):
        assert tvm_passes.nothing
