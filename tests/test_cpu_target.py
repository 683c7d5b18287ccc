"""The best of the processors that LLVM knows whose every feature this one has."""

import pytest

import topi_ext
from topi_ext import _cpu_target, _processor

import tvm

NAMES = list(_processor.PROCESSORS)


@pytest.fixture
def features(monkeypatch):
    """What the processor has, as LLVM tells it; a test may change it."""
    found = set().union(*_processor.PROCESSORS.values())
    answer = {name: name in found for name in [*found, "amx-tile"]}
    monkeypatch.setattr(tvm, "get_global_func", lambda name, allow_missing: lambda: answer)
    return answer


@pytest.mark.parametrize("rank", range(len(NAMES)))
def test_the_best(features, rank):
    for better in NAMES[:rank]:
        features[min(_processor.PROCESSORS[better] - _processor.PROCESSORS[NAMES[rank]])] = False
    assert topi_ext.cpu_target().attrs["mcpu"] == NAMES[rank]


def test_none_of_them(features):
    features.clear()
    assert "mcpu" not in topi_ext.cpu_target().attrs


def test_a_tvm_that_cannot_tell(monkeypatch):
    monkeypatch.setattr(tvm, "get_global_func", lambda name, allow_missing: None)
    assert "mcpu" not in topi_ext.cpu_target().attrs


@pytest.mark.parametrize("is_available", [True, False])
def test_onednn_where_it_is_installed(monkeypatch, is_available):
    monkeypatch.setattr(_cpu_target.onednn, "is_available", lambda: is_available)
    assert ("onednn" in topi_ext.cpu_target().libs) == is_available
