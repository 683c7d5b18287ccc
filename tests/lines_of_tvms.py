"""How many lines of code serve both TVMs, and one alone: `python -m tests.lines_of_tvms` prints the table.

It reads the sources and imports nothing. What is imported where a condition asks for a TVM with Relay is
Relay's, and so is what imports `tvm.relay`, or what only Relay reaches; the same holds for Relax. Everything
else serves both. Lines that are empty do not count.
"""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PASSES = "analysis cleanup convolution detection engine pipeline quantize relax subpixel warps"
PARTS = {  # what their paths begin with
    "operators and their kernels": ("topi_ext/",),
    "passes": tuple(f"tvm_passes/{name}" for name in PASSES.split()),
    "runtime": ("tvm_passes/runtime/",),
    "importers": ("frontends/",),
}
TVMS = "both", "Relay", "Relax"
KERNELS = "cpu", "cuda", "reference"
ENTRIES = {  # where a process of each TVM begins
    "Relay": ("topi_ext", "tvm_passes", "frontends"),
    "Relax": ("topi_ext", "tvm_passes", "frontends.relax"),
}


def counts():
    """{part: {TVM, or both: lines}}"""
    reached = {tvm: _reached(tvm) for tvm in ENTRIES}
    both = reached["Relay"] & reached["Relax"]
    of = {"both": both, "Relay": set(modules()) - reached["Relax"], "Relax": reached["Relax"] - both}
    return {
        part: {tvm: sum(_lines(modules()[name], folders) for name in of[tvm]) for tvm in TVMS}
        for part, folders in PARTS.items()
    }


def table():
    rows = [
        f"| {part} | {' | '.join(f'{lines:,}' for lines in of.values())} |" for part, of in counts().items()
    ]
    return "\n".join(["| lines | of both | of Relay alone | of Relax alone |", "|---|---:|---:|---:|", *rows])


@functools.lru_cache(None)
def modules():
    """{name: path}"""
    found = {}
    for package in ("topi_ext", "tvm_passes", "tvm_passes_cli", "frontends"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _lines(path, folders):
    place = path.relative_to(ROOT).as_posix()
    if not place.startswith(folders):
        return 0
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


def _reached(tvm):
    reached, waiting = set(), list(ENTRIES[tvm])
    while waiting:
        name = waiting.pop()
        if name in reached or name not in modules():
            continue
        other = "relax" if tvm == "Relay" else "relay"
        tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
        taken = list(_taken(tree, name, tvm))
        if f"tvm.{other}" in taken or any(each.startswith(f"tvm.{other}.") for each in taken):
            continue
        reached.add(name)
        package, _, last = name.rpartition(".")
        waiting += [package, *taken]
        if last == "op":  # an operator's kernels are imported by the kind of the target
            waiting += [f"{package}.{each}" for each in KERNELS]
    return reached


def _taken(node, module, tvm):
    """The names of the modules that one imports, or names in a text, in a process with a TVM."""
    if isinstance(node, ast.If) and "has_relay" in ast.unparse(node.test).lower():
        asks_for_relay = "not" not in ast.unparse(node.test)
        for each in node.body if asks_for_relay == (tvm == "Relay") else node.orelse:
            yield from _taken(each, module, tvm)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        is_package = modules()[module].name == "__init__.py"
        parts = module.split(".") if is_package else module.split(".")[:-1]
        above = parts[: len(parts) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif module.startswith("topi_ext.") and isinstance(node, ast.Constant) and str(node.value).isidentifier():
        yield f"{module.rpartition('.')[0]}.{node.value}"  # some kernels are imported by their name
    for child in ast.iter_child_nodes(node):
        yield from _taken(child, module, tvm)


if __name__ == "__main__":
    print(table())
