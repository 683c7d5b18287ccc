"""ONNX's own tests of single operators: each is computed rightly in Relax, or refused in one clear line."""

import frontends.relax
from tests.conformance.isolated import each
from tests.conformance.onnx_cases import cases
from tests.relax.modules import QUICK, compiled, run


def outcome(case):
    return case.outcome(frontends.relax.from_onnx, in_relax)


def in_relax(mod):
    executable = compiled(mod, QUICK)
    return lambda *arrays: run(executable, arrays)


def test_none_is_wrong():
    chosen = cases()[::40]  # all of them take minutes
    found = dict(zip([case.name for case in chosen], each(outcome, chosen)))
    kinds = [getattr(one, "kind", "crash") for one in found.values()]
    assert set(kinds) <= {"right", "refused"}, found
    assert kinds.count("right") > len(kinds) / 3
