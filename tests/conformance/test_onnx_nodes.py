"""ONNX's own tests of every operator: each is computed rightly, or refused in one clear line.

`onnx_outcomes.json` has what came of every case under the version of onnx that the page is of. Here the first
of each operator is run again, of the installed onnx, and under that version nothing becomes a refusal
unnoticed. All of them run in half an hour: `python -m tests.conformance.onnx_page`.
"""

import onnx
import pytest

from frontends import from_onnx
from tests.conformance import onnx_page
from tests.conformance.onnx_cases import cases
from tests.conformance.pytorch_page import read
from tests.frontends.onnx_models import operators
from tvm_passes import detection_pipeline


def test_all_that_is_known_is_right_or_refused():
    assert not {
        name for name, (_, kind, _) in read(onnx_page.OURS).items() if kind not in ("right", "refused")
    }


def test_the_page_says_it():
    """`python -m tests.conformance.onnx_page` writes it anew."""
    known = read(onnx_page.OURS), read(onnx_page.STOCK)
    assert onnx_page.PAGE.read_text(encoding="utf-8") == onnx_page.page(*known)


@pytest.mark.parametrize(
    "case",
    [case for case in cases() if case.name.startswith(("test_nonmaxsuppression", "test_top_k"))],
    ids=lambda case: case.name,
)
def test_detection_after_the_passes(case):
    mod = detection_pipeline()(from_onnx(case.model)[0])
    assert "vision.all_class_non_max_suppression" not in operators(mod)
    assert case.outcome(lambda _: mod, onnx_page.compiled).kind == "right"


@pytest.mark.slow
def test_first_case_of_each_operator():
    known = read(onnx_page.OURS) if onnx.__version__ == onnx_page.ONNX else {}
    first = {case.operator: case for case in reversed(cases())}
    worse = {
        name: (kind, reason)
        for name, (_, kind, reason) in onnx_page.run(list(first.values())).items()
        if kind not in ("right", "refused") or (kind, known.get(name, [""] * 2)[1]) == ("refused", "right")
    }
    assert not worse
