"""Who may import whom: the layers of CONTRIBUTING.md, no circles, and private names kept at home."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("topi_ext", "tvm_passes", "tvm_passes_cli", "frontends")

# From the ground up: a module imports from its own layer or from those below it.
LAYERS = (
    ("topi_ext",),
    (
        "tvm_passes.errors",
        "tvm_passes.module_argument",
        "tvm_passes.guarded_passes",
        "tvm_passes.progress",
        "tvm_passes._moved",
        "tvm_passes.another_process",
        "tvm_passes.extras",
        "tvm_passes.version",
        "tvm_passes.engine",
    ),
    ("tvm_passes.analysis",),
    (
        "tvm_passes.cleanup",
        "tvm_passes.convolution",
        "tvm_passes.detection",
        "tvm_passes.subpixel",
        "tvm_passes.warps",
    ),
    ("tvm_passes.pipeline", "tvm_passes.quantize", "tvm_passes.relax", "tvm_passes.runtime"),
    ("tvm_passes.batch",),
    ("tvm_passes.serve",),
    ("tvm_passes",),  # the package itself, which hands all these on
    ("frontends",),
    ("tvm_passes.command",),
    ("tvm_passes_cli", "tvm_passes.__main__"),
)
APART = LAYERS[3]  # which take nothing from each other


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.lru_cache(None)
def modules():
    """{module: path} of the packages."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {module_of(path): path for path in paths}


@functools.lru_cache(None)
def imports():
    """{module: the modules that it imports, those for types and those inside functions among them}."""
    return {module: sorted(_imported(module, path)) for module, path in modules().items()}


def _imported(module, path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _taken_from(node, module, path)
            names = (f"{base}.{alias.name}" for alias in node.names)
            found |= {name if name in modules() else base for name in names}
    return found & set(modules()) - {module}


def _taken_from(node, module, path):
    """The whole name of what an ImportFrom takes from."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    folders = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    return ".".join([*folders, *([node.module] if node.module else [])])


def layer_of(module):
    """The number of the layer whose longest name a module begins with."""
    fitting = [
        (len(name), number)
        for number, names in enumerate(LAYERS)
        for name in names
        if f"{module}.".startswith(f"{name}.")
    ]
    return max(fitting)[1]


def test_a_module_imports_from_its_own_layer_or_below():
    upwards = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if layer_of(other) > layer_of(module)
    ]
    assert not upwards


def test_there_is_no_circle():
    """Taken down from the ground: what is left in the end imports itself, by whatever way."""
    left = {module: set(others) for module, others in imports().items()}
    while True:
        ground = [module for module, others in left.items() if not others & set(left)]
        if not ground:
            break
        for module in ground:
            del left[module]
    assert not left


def test_families_of_passes_take_nothing_from_each_other():
    def family(module):
        return next((name for name in APART if f"{module}.".startswith(f"{name}.")), None)

    across = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if None not in (family(module), family(other)) and family(module) != family(other)
    ]
    assert not across


def test_passes_take_nothing_from_the_modules_of_other_passes():
    homes = {}
    for module, path in modules().items():
        if not module.startswith(tuple(f"{name}." for name in APART)):
            continue
        classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        if any(ast.unparse(base) in ("Pass", "RulePass") for each in classes for base in each.bases):
            homes[module] = f"{module}."
    taken = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if module.startswith(tuple(f"{name}." for name in APART))
        and any(f"{other}.".startswith(home) and not f"{module}.".startswith(home) for home in homes.values())
    ]
    assert not taken


def test_private_names_stay_in_their_folder():
    """What has an underscore in front, module or name, is taken from inside the folder that it is in."""
    taken = []
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            base = _taken_from(node, module, path)
            for full in (f"{base}.{alias.name}" for alias in node.names):
                parts = full.split(".")
                private = [at for at, part in enumerate(parts) if part.startswith("_") and part != "__init__"]
                if parts[0] not in PACKAGES or not private or parts[private[0]].startswith("__"):
                    continue
                home = ".".join(parts[: private[0]])
                if not f"{module}.".startswith(f"{home}."):
                    taken.append(f"{module} imports {full}")
    assert not taken


@pytest.mark.parametrize(
    "package", ["topi_ext._tvm", "tvm_passes.runtime.arrays", "tvm_passes.runtime.libraries"]
)
def test_both_tvms_give_the_same_names(package):
    """A process has one of the two TVMs: what only the other gives would be missed there, when it runs."""
    relay, relax = (_exported(modules()[f"{package}.{ir}"]) for ir in ("relay", "relax"))
    assert relay == relax and len(relay) > 5


def _exported(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(name, "id", "") for name in node.targets] == ["__all__"]:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no __all__")
