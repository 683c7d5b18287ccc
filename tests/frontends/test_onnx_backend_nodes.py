"""ONNX's own tests of single operators, run through `from_onnx` on LLVM.

The cases are collected from the installed onnx, so a newer one brings more of them.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from frontends import from_onnx
from tests.frontends.onnx_models import operators, run
from tvm_passes import detection_pipeline

OPERATORS = ("depthtospace", "nonmaxsuppression", "roialign", "spacetodepth", "top_k")


def backend_cases(*names):
    """The cases whose name begins with one of these."""
    prefixes = tuple(f"test_{name}" for name in names)
    return [case for case in load_model_tests(kind="node") if case.name.startswith(prefixes)]


def model_and_data(case):
    """The model and [(inputs, outputs)]: in files up to some version of onnx, in memory since."""
    if case.model_dir is None:
        return case.model, case.data_sets
    folder = Path(case.model_dir)
    model = onnx.load(str(folder / "model.onnx"))
    counts = len(model.graph.input), len(model.graph.output)
    return model, [
        tuple(
            [_array(data / f"{kind}_{i}.pb") for i in range(n)]
            for kind, n in zip(("input", "output"), counts)
        )
        for data in sorted(folder.glob("test_data_set_*"))
    ]


def _array(path):
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


@pytest.mark.parametrize("operator", OPERATORS)
def test_there_are_cases(operator):
    assert backend_cases(operator)


@pytest.mark.parametrize("case", backend_cases(*OPERATORS), ids=lambda case: case.name)
def test_backend_case(case):
    model, data_sets = model_and_data(case)
    assert_backend_case(case, from_onnx(model)[0], data_sets)


@pytest.mark.parametrize("case", backend_cases("nonmaxsuppression", "top_k"), ids=lambda case: case.name)
def test_backend_case_after_the_passes(case):
    model, data_sets = model_and_data(case)
    mod = detection_pipeline()(from_onnx(model)[0])
    assert "vision.all_class_non_max_suppression" not in operators(mod)
    assert_backend_case(case, mod, data_sets)


def assert_backend_case(case, mod, data_sets):
    assert data_sets
    for inputs, outputs in data_sets:
        for found, expected in zip(run(mod, *inputs), outputs):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(found, expected, rtol=case.rtol, atol=case.atol)
