"""PyTorch's own samples of its operators: each is computed rightly, or refused in one clear line.

`pytorch_outcomes.json` has what came of each; here the first of each operator, in float32, is run again and
held to it. All of them run in half an hour: `python -m tests.conformance.pytorch_page`.
"""

import ast
import functools
import inspect
import textwrap

import pytest
import torch

from frontends._pytorch.arguments import NEUTRAL, NEUTRAL_OF, OFF
from frontends._pytorch.operators import CONVERTERS
from tests.conformance import pytorch_page

CHUNKS = 4  # each within the time of a test


def test_all_that_is_known_is_right_or_refused():
    assert not {name for name, (kind, _) in pytorch_page.read().items() if kind not in ("right", "refused")}


def test_the_page_says_it():
    """`python -m tests.conformance.pytorch_page` writes it anew."""
    known = pytorch_page.read(), pytorch_page.read(pytorch_page.STOCK)
    assert pytorch_page.PAGE.read_text(encoding="utf-8") == pytorch_page.page(*known)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_first_sample_of_each_operator(chunk):
    known = pytorch_page.read()
    every = (pytorch_page.sample_of(name) for name in sorted(known))
    chosen = [sample for sample in every if sample.dtype == "float32" and sample.number == 0]
    found = pytorch_page.run(chosen[chunk::CHUNKS])
    worse = {
        name: (kind, reason)
        for name, (kind, reason) in found.items()
        if kind not in ("right", "refused") or (kind, known[name][0]) == ("refused", "right")
    }
    assert not worse


@pytest.mark.parametrize("name", sorted(CONVERTERS))
def test_a_converter_of_ours_passes_over_nothing_that_counts(name):
    """What is unpacked counts as read, so no `_` may take what changes the numbers."""
    neutral = NEUTRAL | NEUTRAL_OF.get(name, set()) | set(OFF) | {"out"}  # a graph of values has no `out=`
    for schema in torch._C._jit_get_schemas_for_operator(name):
        names = [argument.name for argument in schema.arguments]
        for places in unnamed_inputs(CONVERTERS[name]):
            assert set(names[places]) <= neutral


def unnamed_inputs(convert):
    """Slices of the inputs that `a, _, *_ = inputs` gives no name to."""
    while isinstance(convert, functools.partial):
        convert = convert.func
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(convert)))
    except (SyntaxError, TypeError):  # a function within another, whose source does not stand alone
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and getattr(node.value, "id", None) == "inputs":
            for target in node.targets:
                for place, part in enumerate(getattr(target, "elts", [])):
                    if isinstance(part, ast.Starred) and part.value.id == "_":
                        yield slice(place, None)
                    elif isinstance(part, ast.Name) and part.id == "_":
                        yield slice(place, place + 1)
