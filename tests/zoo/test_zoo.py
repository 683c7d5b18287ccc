"""The zoo's machinery, without the packages: models run in processes, the comparison, and the page."""

import numpy as np
import pytest

from tests.zoo import __main__ as zoo
from tests.zoo.models import MODELS, detectors
from tests.zoo.outcome import as_rows, share_of
from tests.zoo.page import page


def test_what_takes_too_long_is_an_outcome():
    assert zoo.in_a_process("Peaks", run=False, minutes=1e-3)["imported"].startswith("took more than")


def test_an_unknown_model_is_a_crash():
    assert zoo.in_a_process("none", run=False)["imported"] == "crashed: KeyError: 'none'"


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.__name__ for each in detectors.WRITTEN])
def test_what_is_written_by_hand(name):
    outcome = zoo.in_a_process(name, run=True)
    assert (outcome["imported"], outcome["static"], outcome["equal"]) == ("yes", "yes", "yes")
    assert outcome["restored"] == {"NmsOfEachClass": "yes: of one class", "Peaks": "no NMS"}.get(
        name, "yes: class-aware"
    )


def test_rows_are_found_in_any_order():
    rows = np.random.default_rng(0).random((9, 5))
    assert share_of(rows, rows[::-1]) == 1 and share_of(rows, rows[:6]) == 6 / 9
    assert share_of(rows, rows + 1) == 0 and share_of(rows[:0], rows[:0]) == 1
    outputs = [rows[None, :, :4], rows[None, :, 4], np.zeros((1, 3))]
    np.testing.assert_array_equal(as_rows(outputs), rows)


def test_the_page_says_why():
    outcomes = [
        {"name": "Peaks", "imported": "yes", "restored": "no NMS", "static": "yes", "equal": "yes"},
        {"name": "Shifted", "imported": "refused: because | of this"},
        {"name": next(iter(MODELS)), "imported": "not installed: torchvision"},
    ]
    outcomes[0] |= {"detections": 50, "seconds": 1.5, "compiled": "30.1"}
    text = page(outcomes)
    assert "2 models of 1 packages: 1 imported, 1 static, 1 equal." in text
    assert "| Peaks | one stage | yes | no NMS | yes | yes (50) | 1.5 | 30.1 |" in text
    assert "refused: because \\| of this" in text and "not installed" not in text
