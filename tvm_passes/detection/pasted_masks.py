"""Whether something else can be returned in place of the images that masks are pasted into."""

from __future__ import annotations

from tvm import relay

from ..engine.rule import Match


def why_not_only_an_output(match: Match) -> str | None:
    """Why images cannot be replaced with something else that is returned, or None."""
    graph = match.graph
    outputs = graph.root.body
    users = graph.users(match.root)
    is_output = all(user.same_as(graph.root) or user.same_as(outputs) for user in users)
    if not is_output or (isinstance(outputs, relay.Tuple) and graph.users(outputs) != [graph.root]):
        return "the pasted images have users besides the outputs of the function"
    if not graph.infer_result:
        return "another function of the module may call this one and depend on its outputs"
    return None
