"""A module as readable Relay text."""

from __future__ import annotations

import re
import textwrap

import tvm
from tvm import IRModule, relay

from ..module_argument import check_module
from .expressions import constant
from .graph import Graph, relay_functions

WIDTH = 96  # of a line: what fits into a docstring, and into a page without scrolling
MAX_SHOWN = 4  # elements of a constant

NOISE = {
    r'#\[version = ".*"\]\n': "",
    r" *free_var .*\n": "",  # see `_with_named_constants`
    r"%(const[(\[])": r"\1",
    r" /\* (ty|span)=.*?\*/": "",
    r", \w+=(None|meta\[relay\.\w+\]\[\d+\])": "",  # an option that is not set, or also an argument
    r"/\* For debugging purposes(.|\n)*": "",
}


def as_text(mod: tvm.IRModule) -> str:
    """A module as Relay text, without the type and source location that TVM prints for each node.

    Constants other than scalars show a few integers, `const([1, 0])`, or their type,
    `const[(64, 3, 7, 7), float32]`.
    """
    check_module(mod, "as_text")
    mod = relay.transform.InferType()(mod)
    named = {name: _with_named_constants(function) for name, function in relay_functions(mod).items()}
    text = IRModule({**mod.functions, **named}, mod.type_definitions).astext(show_meta_data=False)
    for noise, instead in NOISE.items():
        text = re.sub(noise, instead, text)
    return "\n".join(map(_tidied, text.strip().splitlines()))


def _with_named_constants(function: relay.Function) -> relay.Function:
    """The function with free variables in place of constants, since the printer shows their names."""
    graph = Graph(function)
    named: dict[str, relay.Var] = {}
    for node in graph.nodes:
        value = constant(node)
        if value is None or value.ndim == 0:
            continue
        name = f"const[{value.shape}, {node.checked_type.dtype}]"
        if value.dtype.kind == "i" and value.ndim == 1 and len(value) <= MAX_SHOWN:
            name = f"const({value.tolist()})"
        named.setdefault(name, relay.var(name, node.checked_type))
        graph.notes[node] = named[name]
    return graph.rebuilt(graph.notes)


def _tidied(line: str) -> str:
    """A wrapped line, with attributes of this project's operators as TVM prints those of its own."""
    whole = re.sub(r"\[[^\[\]]*\]|: |-> ", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), line)
    whole = re.sub(r", __dict__={(.*)}", _in_order, whole)
    indent = line[: len(line) - len(line.lstrip(" "))] + "    "
    wrapped = textwrap.fill(
        whole, WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
    )
    return wrapped.replace("\N{NO-BREAK SPACE}", " ")


def _in_order(attributes: re.Match[str]) -> str:
    named = re.findall(r'"(\w+)"=(.*?)(?=, "\w+"=|$)', attributes[1])
    return "".join(f", {name}={value}" for name, value in sorted(named))
