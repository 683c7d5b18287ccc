"""ONNX's own tests of every operator: each is computed rightly, or refused in one clear line.

The cases are those of the installed onnx. `python -m tests.conformance.onnx_page` writes a page of what is
right and what is refused; under the version that it is of, the page is compared as well, so nothing becomes a
refusal unnoticed.
"""

import onnx
import pytest

from tests.conformance import onnx_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcomes():
    return onnx_page.outcomes()


@pytest.mark.parametrize("kind", ["wrong", "crash", "unclear"])
def test_no_case_is(kind, outcomes):
    found = {name: outcome.reason for name, outcome in outcomes.items() if outcome.kind == kind}
    assert not found


@pytest.mark.skipif(onnx.__version__ != onnx_page.ONNX, reason=f"the page is of onnx {onnx_page.ONNX}")
@pytest.mark.skipif(not onnx_page.PAGE.exists(), reason="the page has not been written yet")
def test_page_says_what_is_refused(outcomes):
    assert onnx_page.PAGE.read_text() == onnx_page.page(outcomes)
