"""Write a page for each pass and each operator, and the index of both: `python -m docs.generate`.

A page is derived from the code: the docstring with its example, which is run; the pipelines that include the
pass; and the reasons that its code gives for refusals. A test compares the committed pages with the code.
"""

import ast
import contextlib
import doctest
import functools
import importlib
import inspect
import io
import pkgutil
import re
from pathlib import Path

import numpy as np

import topi_ext
import topi_ext.torch
import tvm_passes
from docs import converters
from tvm_passes.engine import Pass, RulePass

import tvm
from tvm import relay

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# What the examples in docstrings take for granted.
NAMES = {"np": np, "topi_ext": topi_ext, "tvm_passes": tvm_passes, "tvm": tvm, "relay": relay}
IMPORTS = {"np": "import numpy as np", "relay": "from tvm import relay"}
# The modules whose `__all__` is public.
PUBLIC = (
    *("topi_ext", "topi_ext.authoring", "topi_ext.torch"),
    *("tvm_passes", "tvm_passes.batch", "tvm_passes.engine", "tvm_passes.quantize"),
    *("tvm_passes.runtime", "tvm_passes.serve"),
    *(f"tvm_passes.command.{name}" for name in ("chart", "draw", "images", "progress")),
    *("frontends", "frontends.l5kit"),
)
PIPELINES = (
    "default_pipeline()",
    "detection_pipeline()",
    'detection_pipeline("llvm -libs=onednn")',
    'detection_pipeline("cuda -arch=sm_90")',
    'detection_pipeline("cuda -arch=sm_90", outputs="padded")',
    'detection_pipeline("cuda -arch=sm_90", "int8")',
    "subpixel_pipeline()",
    'subpixel_pipeline("llvm")',
    'subpixel_pipeline("llvm -libs=onednn")',
    'subpixel_pipeline("cuda -arch=sm_90")',
    'subpixel_pipeline("cuda -arch=sm_90", "int8")',
)


def main():
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


def pages():
    """{path: text} for all pages."""
    written = {DOCS / "passes" / f"{name}.md": pass_page(name) for name in passes()}
    written |= {DOCS / "operators" / f"{name}.md": operator_page(name) for name in operators()}
    written |= {DOCS / "README.md": index(), DOCS / "api.md": public_names()}
    return {**written, DOCS / "converters.md": converters.page()}


def passes():
    """{name: class} for the public passes."""
    public = {name: getattr(tvm_passes, name) for name in tvm_passes.__all__}
    return {
        name: made
        for name, made in public.items()
        if inspect.isclass(made) and issubclass(made, Pass) and made is not RulePass
    }


def operators():
    """{name: function} for the public operators."""
    public = {name: getattr(topi_ext, name) for name in topi_ext.__all__}
    return {name: made for name, made in public.items() if made.__module__.endswith(".op")}


# --- pages


def index():
    parts = [
        "# Guides, passes and operators",
        "Written by `python -m docs.generate`. The page of a pass says what it replaces, with what, and why "
        "that is legal, with a graph before and after it; the page of an operator gives its conventions. The "
        "examples are doctests.",
        "See also [all public names](api.md), [today's TVM, with Relax](relax.md), [what becomes of models "
        "of other packages](models.md), [how the NMS of torchvision's models is restored](restored_nms.md), "
        "[which of the frontends' converters are not TVM's own](converters.md), and which operators of "
        "[ONNX](operators_of_onnx.md) and [PyTorch](operators_of_pytorch.md) are imported correctly.",
        "## Guides",
        guides(),
        "## Pipelines",
        "Stages of passes, in order; [pipeline.py](../tvm_passes/pipeline.py) explains the order.",
    ]
    for pipeline in PIPELINES:
        rows = [
            f"| {stage} | " + ", ".join(f"[{name}](passes/{name}.md)" for name in names) + " |"
            for stage, names in stages_of(pipeline)
        ]
        parts.append("\n".join([f"`{pipeline}`:\n", "| stage | passes |", "|---|---|", *rows]))
    parts += ["## Passes", _table("passes", passes()), "## Operators", _table("operators", operators())]
    return _page(*parts)


def guides():
    """A table of the guides, with their titles and first paragraphs, in the order of the README."""
    rows = []
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Further reading")[2]
    for path in sorted((DOCS / "guides").glob("*.md"), key=lambda path: readme.index(f"guides/{path.name}")):
        title, first, *_ = path.read_text(encoding="utf-8").split("\n\n")
        rows.append(f"| [{title.removeprefix('# ')}](guides/{path.name}) | {' '.join(first.split())} |")
    return "\n".join(["| | |", "|---|---|", *rows])


def public_names():
    parts = [
        "# Public names",
        "Written by `python -m docs.generate` from `__all__` of each module. Names that are not listed "
        "here may change without notice.",
    ]
    for module in map(importlib.import_module, PUBLIC):
        parts.append(f"## {module.__name__}\n\n{inspect.getdoc(module).splitlines()[0]}")
        named = {name: getattr(module, name) for name in module.__all__}
        rows = [f"| `{name}` | {_first_line(made)} |" for name, made in named.items()]
        parts.append("\n".join(["| | |", "|---|---|", *rows]))
    return _page(*parts)


def pass_page(name):
    made = passes()[name]
    described, code, before, after = example(made)
    parts = [f"# {name}", _source(made), described]
    pipelines = [f"- `{pipeline}`" for pipeline in PIPELINES if name in order_of(pipeline)]
    parts += ["## Pipelines", "\n".join(pipelines) or "None."]
    rules = getattr(made(), "rules", ())
    if rules:
        parts.append("## Rules")
        parts += [f"### {rule.__name__}\n\n{_markdown(inspect.getdoc(rule))}" for rule in rules]
    parts += ["## Example", _block(code, "python"), "Before:", _block(before), "After:", _block(after)]
    found = refusals(made)
    if found:
        parts += ["## Reasons for refusal", "Taken from the code, with … for what depends on the graph:"]
        parts.append("\n".join(f"- {reason}" for reason in found))
    return _page(*parts)


def operator_page(name):
    made = operators()[name]
    described, code, _, printed = example(made)
    folder = Path(inspect.getfile(made)).parent
    files = {"LLVM": "cpu.py", "CUDA": "cuda.py", "NumPy oracle": "reference.py"}
    there = {what: folder / file for what, file in files.items() if (folder / file).exists()}
    links = [f"[{what}]({_link(path)})" for what, path in there.items()]
    where = "Kernels: " + ", ".join(links) + "."
    if name in topi_ext.torch.__all__:
        where += f" As a function of torch tensors: `topi_ext.torch.{name}`."
    signature = _block(_signature(f"topi_ext.{name}", made), "python")
    parts = [f"# topi_ext.{name}", _source(made), signature, described, "## Example"]
    return _page(*parts, _block(code, "python"), _block(printed), "## Implementation", where)


# --- their contents


@functools.lru_cache(None)
def example(made):
    """The description, code, module before (or None) and printed output of a docstring's example."""
    parts = doctest.DocTestParser().parse(inspect.getdoc(made))
    examples = [part for part in parts if isinstance(part, doctest.Example)]
    names = dict(NAMES)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for part in examples:
            exec(compile(part.source, made.__name__, "exec"), names)
    before = tvm_passes.as_text(names["mod"]) if "mod" in names else None
    code = "".join(part.source for part in examples)
    used = [name for name in NAMES if re.search(rf"\b{name}\.", code)]
    code = "\n".join([*(IMPORTS.get(name, f"import {name}") for name in used), code])
    return _markdown(parts[0]), code, before, printed.getvalue()


@functools.lru_cache(None)
def stages_of(pipeline):
    """[(stage, the names of its passes)] for a pipeline, in order."""
    stages = eval(pipeline, vars(tvm_passes)).passes
    return [(stage.info.name, [each.info.name for each in stage.passes]) for stage in stages]


def order_of(pipeline):
    """The names of a pipeline's passes, in order."""
    return [name for _, names in stages_of(pipeline) for name in names]


def refusals(made):
    """The sentences that a pass's code gives as reasons, in order."""
    found = {}
    for module in _modules_of(made):
        tree = ast.parse(inspect.getsource(module))
        functions = [getattr(module, name) for name in _imported(tree) if name.startswith(("why_", "read_"))]
        for each in (tree, *(ast.parse(inspect.getsource(function)) for function in functions)):
            found |= dict.fromkeys(filter(None, map(_sentence, _answers(each))))
    return list(found)


def _modules_of(made):
    """The module of a pass, those in its folder if it has one, and those of the rules that it shares."""
    module = inspect.getmodule(made)
    inner = pkgutil.iter_modules(getattr(module, "__path__", []), module.__name__ + ".")
    shared = (importlib.import_module(rule.__module__) for rule in getattr(made, "rules", ()))
    return list(dict.fromkeys([module, *(importlib.import_module(info.name) for info in inner), *shared]))


def _imported(tree):
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return [alias.name for node in nodes for alias in node.names]


def _answers(tree):
    """The reasons in refusals, in reports of them, and in functions that return a reason, by line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("Refusal", "NotStatic", "refused")
        ):
            found += node.args
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("why_"):
            returns = (each for each in ast.walk(node) if isinstance(each, ast.Return))
            found += [each.value for each in returns if each.value]
    return sorted(found, key=lambda node: node.lineno)


def _sentence(node):
    """The text of a string of several words, otherwise None."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
    return text if isinstance(node, (ast.JoinedStr, ast.Constant)) and len(text.split()) > 3 else None


# --- Markdown


def _page(*parts):
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _block(text, language=""):
    return f"```{language}\n{text.rstrip()}\n```"


def _table(folder, named):
    rows = [f"| [{name}]({folder}/{name}.md) | {_first_line(made)} |" for name, made in named.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _first_line(made):
    """The first line of its docstring; for a constant, its type."""
    is_constant = not (inspect.ismodule(made) or inspect.isclass(made) or inspect.isroutine(made))
    return f"a constant, `{type(made).__name__}`" if is_constant else inspect.getdoc(made).splitlines()[0]


def _link(path):
    """A link from the page of a pass or an operator."""
    return f"../../{path.relative_to(ROOT)}"


def _source(made):
    path = Path(inspect.getfile(made))
    return f"Written by `python -m docs.generate` from [{path.relative_to(ROOT)}]({_link(path)})."


def _signature(name, function):
    """The signature, with one argument per line where a single line would be too long."""
    signature = inspect.signature(function)
    result = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    arguments = list(map(_argument, signature.parameters.values()))
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"{name}({', '.join(arguments)}){result}"
    if len(line) < 100:
        return line
    return "\n".join([name + "(", *(f"    {argument}," for argument in arguments), f"){result}"])


def _argument(parameter):
    """An argument as written: annotations are strings in modules that postpone their evaluation."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    has_type, has_default = (
        value is not parameter.empty for value in (parameter.annotation, parameter.default)
    )
    default = f'"{parameter.default}"' if isinstance(parameter.default, str) else f"{parameter.default}"
    type_ = f": {parameter.annotation}" if has_type else ""
    equals = " = " if has_type else "="
    return f"{stars}{parameter.name}{type_}{f'{equals}{default}' if has_default else ''}"


def _markdown(docstring):
    """A docstring with its sections as headings and their entries as list items."""
    text = re.sub(r"^(\w+)\n-+$", r"## \1\n", docstring, flags=re.MULTILINE)
    text = re.sub(r"^(\w[\w, ]*) : (.*)(\n    )", r"- `\1` (\2):\3", text, flags=re.MULTILINE)
    text = re.sub(r"^(\w[\w, ]*) : (.*)$", r"- `\1` (\2)", text, flags=re.MULTILINE)
    return re.sub(r"^(\w[\w, ]*)(\n    )", r"- `\1`:\2", text, flags=re.MULTILINE)


if __name__ == "__main__":
    main()
