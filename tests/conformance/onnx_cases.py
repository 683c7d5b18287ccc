"""ONNX's own tests of single operators, collected from the installed onnx."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from tests.conformance.outcome import outcome

# Of onnx 1.16 some expected numbers wrap around that ONNX says are clipped; later versions have them right.
MISTAKEN = {f"test_qlinearmatmul_{rank}D_int8_float{bits}" for rank in (2, 3) for bits in (16, 32)}


@dataclass(frozen=True)
class Case:
    """A model, [(inputs, outputs)], and how far results may be off."""

    name: str
    rtol: float
    atol: float
    test: object

    @cached_property
    def model(self):
        if self.test.model_dir is None:  # in memory, as in recent versions of onnx
            return self.test.model
        return onnx.load(str(Path(self.test.model_dir, "model.onnx")))

    @cached_property
    def data_sets(self):
        if self.test.model_dir is None:
            return [
                tuple([_as_array(each) for each in part] for part in pair) for pair in self.test.data_sets
            ]
        graph = self.model.graph
        counts = {"input": len(graph.input), "output": len(graph.output)}
        return [
            tuple([_array(data / f"{kind}_{i}.pb") for i in range(n)] for kind, n in counts.items())
            for data in sorted(Path(self.test.model_dir).glob("test_data_set_*"))
        ]

    @property
    def operator(self):
        """What the case is for: its name begins with the operator's, its model may have others."""
        nodes = self.model.graph.node
        mine = self.name[len("test_") :].replace("_", "")
        named = [node for node in nodes if mine.startswith(node.op_type.lower())]
        node = (named or nodes)[0]
        return f"{node.domain}.{node.op_type}" if node.domain else node.op_type

    def outcome(self, import_, compiled):
        """What comes of `import_(model)`, compiled to a function of arrays."""
        return outcome(lambda: import_(self.model), compiled, self.data_sets, self.rtol, self.atol)


@lru_cache(None)
def cases():
    """All cases whose inputs and outputs are tensors, without those that expect what ONNX does not say."""
    mistaken = MISTAKEN if onnx.__version__.startswith("1.16.") else set()
    tests = (test for test in load_model_tests(kind="node") if test.name not in mistaken)
    made = (Case(test.name, test.rtol, test.atol, test) for test in tests)
    return [case for case in made if _has_tensors_only(case.model.graph)]


def _has_tensors_only(graph):
    return all(value.type.HasField("tensor_type") for value in (*graph.input, *graph.output))


def _as_array(value):
    """Some of what recent versions keep in memory are arrays already."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _array(path):
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
