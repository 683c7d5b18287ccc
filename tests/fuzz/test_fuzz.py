"""Networks that the fuzzers drew, through every pipeline."""

import ast

import pytest

from tests.fuzz import general, own
from tests.fuzz.check import TO_MEND, check
from tests.fuzz.make_corpus import CORPUS, OWN

pytestmark = pytest.mark.slow
QUICK = "llvm -opt-level=0"  # each network runs once
PARTS = 4  # that run beside each other
NETWORKS = sorted(CORPUS.glob("*.onnx"))
DESCRIPTIONS = [ast.literal_eval(line) for line in OWN.read_text().splitlines()]


@pytest.mark.parametrize("part", range(PARTS))
def test_networks_of_nnsmith(part):
    results = {path.stem: check(general.load(path), QUICK) for path in NETWORKS[part::PARTS]}
    assert results
    assert not {name: result for name, result in results.items() if result.kind in TO_MEND}


@pytest.mark.parametrize("part", range(PARTS))
def test_idioms_of_our_own(part):
    results = [(description, own.checked(description, QUICK)) for description in DESCRIPTIONS[part::PARTS]]
    assert results
    assert not [(description, result) for description, result in results if result.kind in TO_MEND]
