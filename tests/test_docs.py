"""Documentation: pages are what the code says, examples print what they say, and links lead somewhere."""

import doctest
import importlib.util
import re

import numpy as np
import pytest

import tvm_passes
from docs import generate
from tests.helpers import module

from tvm import relay

ROOT = generate.ROOT
DOCUMENTED = {**generate.passes(), **generate.operators()}
MARKDOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
MARKDOWN += sorted(ROOT.glob("tests/benchmarks/results/*.md"))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples(name):
    docstring = DOCUMENTED[name].__doc__
    example = doctest.DocTestParser().get_doctest(docstring, dict(generate.NAMES), name, None, 0)
    assert example.examples
    said = []
    doctest.DocTestRunner().run(example, out=said.append)
    assert not said, "".join(said)


def test_pages_are_what_is_generated():
    pages = generate.pages()
    committed = {path for folder in ("passes", "operators") for path in (generate.DOCS / folder).iterdir()}
    assert committed == {path for path in pages if path.parent != generate.DOCS}
    for path, text in pages.items():
        assert path.read_text() == text, f"{path} is out of date: run `python -m docs.generate`"


def test_every_pass_says_why_it_is_legal():
    for name in generate.passes():
        assert "Why legal:" in generate.pass_page(name), name


def test_reasons_are_those_of_the_code():
    found = generate.refusals(tvm_passes.SplitConcatenate)
    assert "the tensors are not concatenated along the channels" in found  # its own
    assert "the partial sums take … times the memory of the concatenated tensor" in found
    # Of a function that it imports.
    assert "the weights of the convolution are not constant: bind them to the function" in found


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)]+)\)", _without_code(path.read_text())):
        if "://" not in target:
            file, _, heading = target.partition("#")
            where = path.parent / file if file else path
            assert where.exists(), f"{path} links to {target}"
            assert not heading or heading in _anchors(where), f"{path} links to {target}"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_name_modules(path):
    for name in re.findall(r"python -m ([\w.]+)", path.read_text()):
        assert importlib.util.find_spec(name), f"{path} says `python -m {name}`"


def test_text_of_a_module():
    x = relay.var("x", shape=(1, 4, 2, 2))
    y = x * relay.const(np.ones((4, 1, 1), "float32")) + relay.const(0.5)
    y = relay.take(relay.reshape(y, (4, 4)), relay.const([1, 3]), axis=0)
    assert tvm_passes.as_text(module(x, relay.split(y, 2, axis=1).astuple())) == (
        "def @main(%x: Tensor[(1, 4, 2, 2), float32]) -> (Tensor[(2, 2), float32],\n"
        "    Tensor[(2, 2), float32]) {\n"
        "  %0 = multiply(%x, const[(4, 1, 1), float32]);\n"
        "  %1 = add(%0, 0.5f);\n"
        "  %2 = reshape(%1, newshape=[4, 4]);\n"
        "  %3 = take(%2, const([1, 3]), axis=0);\n"
        "  split(%3, indices_or_sections=2, axis=1)\n"
        "}"
    )


def _anchors(path):
    """What links to the headings of a page end in, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _without_code(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def _without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)
