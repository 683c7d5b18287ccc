"""What is public: it is listed in `__all__`, described, and typed; private names look private."""

import ast
import importlib
import inspect
import pkgutil
import sys
import typing
from pathlib import Path

import pytest

from docs.generate import PUBLIC

OURS = ("topi_ext", "tvm_passes", "frontends")
TUTORIALS = Path(__file__).resolve().parents[1] / "tutorials"


def _packages():
    """All packages of this project by name, those inside others too."""
    for name in OURS:
        package = importlib.import_module(name)
        yield name
        for info in pkgutil.walk_packages(package.__path__, f"{name}."):
            if info.ispkg and not info.name.endswith("relax"):  # which need another TVM
                yield info.name


def _listing():
    names = sorted({*_packages(), *PUBLIC})
    return [name for name in names if hasattr(importlib.import_module(name), "__all__")]


def _public():
    """{dotted name: what it is} of the functions and classes that are public."""
    modules = {name: importlib.import_module(name) for name in PUBLIC}
    public = {
        f"{name}.{each}": getattr(module, each) for name, module in modules.items() for each in module.__all__
    }
    return {name: made for name, made in public.items() if inspect.isroutine(made) or inspect.isclass(made)}


def _functions():
    """The same, with the public methods of classes in their place."""
    for name, made in _public().items():
        if not inspect.isclass(made):
            yield name, made
            continue
        for method, function in vars(made).items():
            is_public = not method.startswith("_") or method in ("__init__", "__call__")
            function = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
            if is_public and inspect.isfunction(function) and function.__module__ == made.__module__:
                yield f"{name}.{method}", function


FUNCTIONS = dict(_functions())


@pytest.mark.parametrize("name", _listing())
def test_listed_names_exist(name):
    module = importlib.import_module(name)
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_names_that_are_not_listed_look_private(name):
    module = importlib.import_module(name)
    there = [
        each
        for each, made in vars(module).items()
        if (inspect.isroutine(made) or inspect.isclass(made)) and f"{made.__module__}.".startswith(f"{name}.")
    ]
    assert [each for each in there if not each.startswith("_") and each not in module.__all__] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_public_modules_are_described(name):
    assert inspect.getdoc(importlib.import_module(name))


@pytest.mark.parametrize("name", _public())
def test_public_names_are_described(name):
    assert _public()[name].__doc__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_are_typed(name):
    function = FUNCTIONS[name]
    signature = inspect.signature(function)
    named = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    assert [each.name for each in named if each.annotation is each.empty] == []
    assert signature.return_annotation is not signature.empty
    if sys.version_info >= (3, 10):  # an older Python has no `X | Y` to evaluate
        typing.get_type_hints(function)


@pytest.mark.parametrize("name", OURS)
def test_packages_say_that_they_are_typed(name):
    assert Path(importlib.import_module(name).__file__).with_name("py.typed").is_file()


STAND_INS = {  # for what a user has: trained weights, recorded traffic, a GPU
    "tests.models.zoo.detection_model",
    "tests.frontends.traffic.town",
    "tests.frontends.traffic.traffic",
    "tests.cuda_on_cpu.CannotEmulate",
    "tests.cuda_on_cpu.emulate_cuda",
}


@pytest.mark.parametrize("path", sorted(TUTORIALS.glob("**/*.py")), ids=lambda path: path.name)
def test_tutorials_use_public_names(path):
    public = {f"{name}.{each}" for name in PUBLIC for each in importlib.import_module(name).__all__}
    public |= {*PUBLIC, *STAND_INS}
    used = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            used += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            used += [f"{node.module}.{alias.name}" for alias in node.names]
    ours = [name for name in used if name.split(".")[0] in (*OURS, "tests")]
    assert [name for name in ours if name not in public] == []
