"""Which concatenations are written part by part by the convolutions before them, and by which calls."""

from __future__ import annotations

import math
from itertools import accumulate

from topi_ext.conv2d_nhwc_in_place.op import ALIGNMENT, MAX_ELEMENTS

from tvm import relay

from ...analysis.convolution import channels_cut
from ...analysis.static import is_static
from ...engine.expressions import is_injective, known_shape, op_name, static_shape
from ...engine.graph import Graph
from ...engine.rule import Refusal
from ..in_place_call import NAMES, InPlaceCall, why_not_in_place

CONV = "topi_ext.conv2d_nhwc"
DATA, RESIDUAL = 0, 3  # the arguments of which a convolution can read some channels


def written_in_place(graph: Graph) -> dict[relay.Expr, relay.Expr | Refusal]:
    """For each concatenation of channels, and each of its convolutions, what it becomes, or why it stays."""
    if not is_static(graph):  # so that there is no memory plan
        refusal = Refusal("the network is dynamic: TVM's virtual machine would copy the tensor for each part")
        return dict.fromkeys(filter(is_of_convolutions, graph.nodes), refusal)
    order = {node: place for place, node in enumerate(graph.nodes)}
    found: dict[relay.Expr, relay.Expr | Refusal] = {}
    for node in reversed(graph.nodes):  # of several that begin alike, the widest first
        if node in found or not is_of_convolutions(node):
            continue
        buffer = Buffer(graph, node, order)
        reason = buffer.why_not()
        if reason:
            found[node] = Refusal(reason)
        else:
            found.update(buffer.replacements())
    return found


def is_of_convolutions(node: relay.Expr) -> bool:
    """Whether it concatenates images along the channels, and a convolution computes one of them."""
    if not _is_of_channels(node):
        return False
    shape = static_shape(node)
    return shape is not None and len(shape) == 4 and any(op_name(part) == CONV for part in _parts(node))


def _is_of_channels(node: relay.Expr) -> bool:
    is_known = op_name(node) == "concatenate" and isinstance(node.args[0], relay.Tuple)
    return is_known and int(node.attrs.axis) in (3, -1) and len(node.args[0].fields) > 1


def _parts(node: relay.Call) -> list[relay.Expr]:
    """What is concatenated, also by concatenations that are concatenated again."""
    fields = node.args[0].fields
    return [part for field in fields for part in (_parts(field) if _is_of_channels(field) else [field])]


class Buffer:
    """The tensor that a concatenation makes, to be written part by part."""

    def __init__(self, graph: Graph, whole: relay.Call, order: dict[relay.Expr, int]) -> None:
        self._graph, self._whole, self._order = graph, whole, order
        self.parts = _parts(whole)
        self._in_order = sorted(self.parts, key=self._computed)
        ends = list(accumulate(known_shape(part)[3] for part in self.parts))
        self._channels = ends[-1]
        self._first = dict(zip(self.parts, [0, *ends]))

    def _computed(self, part: relay.Expr) -> tuple[int, bool]:
        """When a part can be computed: a slice right behind what it is cut from."""
        is_slice = op_name(part) == "strided_slice" and part.args[0] in self._order
        return self._order[part.args[0] if is_slice else part], is_slice

    # --- legality

    def why_not(self) -> str | None:
        """Why the parts cannot be written where they are to be; None if they can."""
        if len(self._first) < len(self.parts):
            return "a part is concatenated twice"
        if math.prod(known_shape(self._whole)) >= MAX_ELEMENTS:
            return "the tensor has too many elements"
        if any(known_shape(part)[3] % ALIGNMENT for part in self.parts):
            return f"the channels of a part are not a multiple of {ALIGNMENT}"
        readers = self._graph.users(self._whole)
        if len(readers) == 1 and is_injective(readers[0]) and not self._runs():
            return f"nothing is copied: TVM concatenates in the kernel of {op_name(readers[0])}"
        return next(filter(None, map(self.why_not_written, self._in_order[1:])), None)

    def why_not_written(self, part: relay.Expr) -> str | None:
        """Why a part is not written where it is to be, so that it is copied; None if it is."""
        if op_name(part) != CONV:
            return "a part is not the result of a convolution, nor the first one that is computed"
        return why_not_in_place(part) or self.why_copied(part)

    def why_copied(self, value: relay.Expr) -> str | None:
        """Why some channels of the buffer would be copied for what reads them; None if they are not."""
        for reader in self._readers(value):
            if reader.same_as(self._whole) or _reads_in_place(reader, value):
                continue
            if not self._run(reader) and not _is_aligned_slice(reader):
                return f"a part would be copied for {op_name(reader) or 'the caller'}, which reads it, too"
            reason = self.why_copied(reader)
            if reason:
                return reason
        return None

    def _readers(self, value: relay.Expr) -> list[relay.Expr]:
        """The users of a value, or of tuples that are concatenated."""
        users = self._graph.users(value)
        return [
            reader
            for user in users
            for reader in (self._graph.users(user) if isinstance(user, relay.Tuple) else [user])
        ]

    def _run(self, node: relay.Expr) -> list[relay.Expr]:
        """The parts that a concatenation consists of, if they are neighbours here; else none."""
        run = _parts(node) if _is_of_channels(node) else []
        start = self.parts.index(run[0]) if run and run[0] in self.parts else 0
        return run if run == self.parts[start : start + len(run)] else []

    def _runs(self) -> dict[relay.Expr, list[relay.Expr]]:
        """Concatenations of some neighbouring parts, and these."""
        runs: dict[relay.Expr, list[relay.Expr]] = {}
        waiting = list(self.parts)
        while waiting:
            for reader in self._readers(waiting.pop()):
                run = self._run(reader)
                if run and reader not in runs and not reader.same_as(self._whole):
                    runs[reader] = run
                    waiting.append(reader)
        return runs

    # --- the calls

    def replacements(self) -> dict[relay.Expr, relay.Expr]:
        """What the concatenation becomes, and its convolutions, and concatenations of some of its parts."""
        written: dict[relay.Expr, relay.Expr] = {}
        buffer = None
        convolutions = list(self._in_order)
        if self.why_not_written(convolutions[0]):
            copied = convolutions.pop(0)
            buffer = written[copied] = self._begun_with(copied)
        for part in convolutions:
            call = InPlaceCall(part)
            call.destination, call.result_from = buffer, self._first[part]
            call.result_channels = self._channels
            buffer = written[part] = call.call()
        found = {part: self._cut(written, [part]) for part in convolutions}
        of_runs = {node: self._cut(written, run) for node, run in self._runs().items()}
        return {**found, **of_runs, self._whole: buffer}

    def _begun_with(self, part: relay.Expr) -> relay.Expr:
        """The buffer with a copy of its first part; that of a whole concatenation would take longer."""
        first = self._first[part]
        behind = self._channels - first - known_shape(part)[3]
        zero = relay.const(0, part.checked_type.dtype)
        return relay.nn.pad(part, [(0, 0), (0, 0), (0, 0), (first, behind)], zero)

    def _cut(self, written: dict[relay.Expr, relay.Expr], run: list[relay.Expr]) -> relay.Expr:
        """Some neighbouring parts, from the buffer as it is when they are in it."""
        first, last = self._first[run[0]], self._first[run[-1]] + known_shape(run[-1])[3]
        buffer = written[max(run, key=self._computed)]
        return relay.strided_slice(buffer, [first], [last], axes=[3])


def _reads_in_place(reader: relay.Expr, value: relay.Expr) -> bool:
    """Whether it is a convolution that can read some channels of a wider tensor in place of a value."""
    if op_name(reader) not in NAMES or why_not_in_place(reader):
        return False
    places = {at for at, argument in enumerate(reader.args) if argument.same_as(value)}
    return places <= {DATA, RESIDUAL}


def _is_aligned_slice(node: relay.Expr) -> bool:
    cut = channels_cut(node)
    return cut is not None and not any(channel % ALIGNMENT for channel in cut)
