"""Tutorials are numbered without gaps, and take public names only from the packages that they show."""

import ast
from pathlib import Path

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"
PACKAGES = ("topi_ext", "tvm_passes", "frontends", "tests", "tutorials")


def test_tutorials_are_numbered():
    numbered = [path for path in sorted(TUTORIALS.glob("*.py")) if path.name[0].isdigit()]
    assert [int(path.name[:2]) for path in numbered] == list(range(1, len(numbered) + 1))
    assert not [path.name for path in TUTORIALS.glob("[!0-9]*.py") if "__main__" in path.read_text()]


def test_they_use_public_names():
    private = []
    for path in TUTORIALS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module or '.'}.{alias.name}" for alias in node.names]
                names = names if node.level or (node.module or "").split(".")[0] in PACKAGES else []
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names if each.name.split(".")[0] in PACKAGES]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                names = [node.attr]
            private += [f"{path.name}: {name}" for name in names if _is_private(name)]
    assert not private


def _is_private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
