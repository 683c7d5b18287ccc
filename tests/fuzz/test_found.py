"""What the fuzzers found wrong once is right, refused, or explained."""

from pathlib import Path

import pytest

from tests.fuzz import general, own
from tests.fuzz.check import check

FOUND = Path(__file__).parent / "found"


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.onnx")), ids=lambda path: path.stem)
def test_found_by_nnsmith(path):
    pytest.importorskip("onnxruntime")
    result = check(general.load(path))
    assert result.kind == "right", result


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.txt")), ids=lambda path: path.stem)
def test_found_by_our_own(path):
    result = check(own.load(path))
    assert result.kind in ("right", "refused"), result
