"""Converts the loop over classes that scripted `batched_nms` runs for many boxes to one operator.

Relay cannot express it: each iteration mutates a mask from outside the loop. Its nodes are compared with
those that the installed torch makes of the same loop: every operator, constant and connection must be the
same, and nothing else may use what is computed inside. A loop that differs in any way stays, and is refused.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torchvision

BATCHED_NMS = "frontends::batched_nms"  # boxes, scores, class ids, IoU threshold
LOOP, LIST, CONSTANT = "prim::Loop", "prim::ListConstruct", "prim::Constant"
NO_STEPS = (CONSTANT, LIST)  # torch may merge several that are equal


def class_by_class(
    boxes: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor, iou_threshold: float
) -> torch.Tensor:
    """The loop to look for: the boxes that NMS keeps of each class, in descending order of score."""
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for one in torch.unique(ids):
        members = torch.where(ids == one)[0]
        of_members = torchvision.ops.nms(boxes[members], scores[members], iou_threshold)
        kept[members[of_members]] = True
    indices = torch.where(kept)[0]
    return indices[scores[indices].sort(descending=True)[1]]


def name_loops_over_classes(graph: torch.Graph) -> None:
    """Replace each such loop in a graph with one node of the kind BATCHED_NMS."""
    if any(step.kind() == LOOP for block in _blocks(graph) for step in _steps(block)):
        _simplify(graph)  # a trace leaves the constants of scripts that it calls as they are
    for block in list(_blocks(graph)):
        # The last one first, since replacing a loop also removes other nodes of the list.
        for loop in reversed([step for step in _steps(block) if step.kind() == LOOP]):
            found = _Comparison(_template(), block, loop)
            if found.is_equal:
                _replace(graph, found.steps, found.inputs)


class _Comparison:
    """A template versus the `steps` around a loop; `inputs` are those that correspond to the template's."""

    def __init__(self, template: torch.Graph, block: torch.Block, loop: torch.Node) -> None:
        wanted, here = _steps(template), _steps(block)
        begin = here.index(loop) - [step.kind() for step in wanted].index(LOOP)
        self.steps = here[max(begin, 0) : begin + len(wanted)]
        self._stands_for: dict[str, torch.Value] = {}  # the value here, by its name in the template
        self.is_equal = self._are_equal(wanted, self.steps) and self._is_used_alike(template)
        self.inputs: list[Any] = [self._stands_for.get(value.debugName()) for value in template.inputs()]

    def _are_equal(self, wanted: list[torch.Node], found: list[torch.Node]) -> bool:
        return len(wanted) == len(found) and all(map(self._is_equal, wanted, found))

    def _is_equal(self, wanted: torch.Node, found: torch.Node) -> bool:
        if wanted.kind() != found.kind() or wanted.hasAttributes() or found.hasAttributes():
            return False
        if not self._reads_alike(wanted.inputs(), found.inputs()):
            return False
        self._pair(wanted.outputs(), found.outputs())
        blocks = list(wanted.blocks()), list(found.blocks())
        return len(blocks[0]) == len(blocks[1]) and all(map(self._is_equal_block, *blocks))

    def _is_equal_block(self, wanted: torch.Block, found: torch.Block) -> bool:
        self._pair(wanted.inputs(), found.inputs())
        steps_are_equal = self._are_equal(_steps(wanted), _steps(found))
        return steps_are_equal and self._reads_alike(wanted.outputs(), found.outputs())

    def _reads_alike(self, wanted: Iterable[torch.Value], found: Iterable[torch.Value]) -> bool:
        wanted, found = list(wanted), list(found)
        return len(wanted) == len(found) and all(map(self._is_read_alike, wanted, found))

    def _is_read_alike(self, wanted: torch.Value, found: torch.Value) -> bool:
        kind = wanted.node().kind()
        if kind in NO_STEPS and found.node().kind() != kind:
            return False
        if kind == CONSTANT:
            return _is_same(wanted.toIValue(), found.toIValue())
        if kind == LIST:
            return self._reads_alike(wanted.node().inputs(), found.node().inputs())
        # What the template has not computed is one of its inputs, which matches anything.
        stands_for = self._stands_for.setdefault(wanted.debugName(), found)
        return stands_for.debugName() == found.debugName()

    def _pair(self, wanted: Iterable[torch.Value], found: Iterable[torch.Value]) -> None:
        self._stands_for.update(zip((value.debugName() for value in wanted), found))

    def _is_used_alike(self, template: torch.Graph) -> bool:
        """Whether only these steps use what they compute, as in the template, which has no others."""
        steps = (step for block in _blocks(template) for step in _steps(block))
        *inner, _ = (value for step in steps for value in step.outputs())
        return all(_uses(value) == _uses(self._stands_for[value.debugName()]) for value in inner)


def _replace(graph: torch.Graph, steps: list[torch.Node], inputs: list[torch.Value]) -> None:
    last = steps[-1]
    named = graph.create(BATCHED_NMS, inputs, 1)
    named.insertBefore(last)
    named.copyMetadata(last)
    named.output().setType(last.output().type())
    last.output().replaceAllUsesWith(named.output())
    for step in reversed(steps):
        for output in step.outputs():
            while output.uses():  # by a list that no step reads any more
                output.uses()[0].user.destroy()
        step.destroy()


@functools.lru_cache(None)
def _template() -> torch.Graph:
    graph = torch.jit.script(class_by_class).graph.copy()
    torch._C._jit_pass_inline(graph)
    _simplify(graph)
    return graph


def _simplify(graph: torch.Graph) -> None:
    torch._C._jit_pass_lower_all_tuples(graph)
    torch._C._jit_pass_constant_propagation(graph)
    torch._C._jit_pass_dce(graph)


def _blocks(block: Any) -> Iterator[Any]:
    """A graph or block and all blocks inside, the inner ones first."""
    for node in block.nodes():
        for inner in node.blocks():
            yield from _blocks(inner)
    yield block


def _steps(block: Any) -> list[torch.Node]:
    return [node for node in block.nodes() if node.kind() not in NO_STEPS]


def _uses(value: torch.Value) -> int:
    """How many steps read a value, directly or in a list."""
    users = (use.user for use in value.uses())
    return sum(_uses(user.output()) if user.kind() == LIST else 1 for user in users)


def _is_same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right
