"""Einsum: products of matrices become what has fast kernels, and all others what they are by elements."""

import numpy as np
import pytest
from onnx import helper

from frontends import from_onnx
from tests.frontends.onnx_models import compiled, model_of, operators, tensor_input
from tests.helpers import numbers

PRODUCTS = {
    "bhnd,bhmd->bhnm": [(2, 3, 4, 8), (2, 3, 5, 8)],
    "bnhd,bmhd->bhnm": [(2, 4, 3, 8), (2, 5, 3, 8)],
    "bhmd,bnhm->bnhd": [(2, 3, 5, 8), (2, 4, 3, 5)],  # the rows are those of the second operand
    "bqc,bchw->bqhw": [(2, 5, 4), (2, 4, 3, 6)],
    "bchw,bqc->bqhw": [(2, 4, 3, 6), (2, 5, 4)],
    "nkctv,kvw->nctw": [(2, 3, 4, 5, 6), (3, 6, 7)],  # several letters are summed, and several are rows
    "bhwc,hkc->bhwk": [(2, 3, 4, 8), (3, 5, 8)],
    "...ij,jk->...ik": [(2, 3, 4, 5), (5, 6)],
    "...ij,...jk->...ik": [(2, 1, 4, 5), (3, 5, 6)],
    "xab,bcy->ac": [(2, 4, 5), (5, 6, 3)],  # what one operand alone has is summed first
    "ij,jk,kl->il": [(3, 4), (4, 5), (5, 6)],
}
BY_ELEMENTS = {
    "ij,ij->": [(3, 4), (3, 4)],
    "bi,bj->bij": [(2, 3), (2, 4)],
    "bnm,bm->bn": [(2, 3, 4), (2, 4)],
    "ij,jk->ik": [(3, 1), (4, 5)],  # an axis that is summed broadcasts
    "ii,ij->ij": [(3, 3), (3, 4)],
}
TOLERANCES = {"float16": 2e-2, "float32": 1e-5, "int32": 0}


def found_and_expected(equation, dtype="float32", known=True):
    shapes = {**PRODUCTS, **BY_ELEMENTS}[equation]
    arrays = [(4 * numbers(*shape, seed=seed)).astype(dtype) for seed, shape in enumerate(shapes)]
    names = [f"x{place}" for place in range(len(arrays))]
    inputs = [
        tensor_input(name, array.shape if known else [f"{name}_{axis}" for axis in range(array.ndim)], dtype)
        for name, array in zip(names, arrays)
    ]
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    mod = from_onnx(model_of([node], inputs, ["y"], opset=13))[0]
    (found,) = compiled(mod)(*arrays)
    expected = np.einsum(equation, *(array.astype("float64") for array in arrays)).astype(dtype)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    tolerance = TOLERANCES[dtype]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=16 * tolerance)
    return set(operators(mod))


@pytest.mark.parametrize(
    ("equation", "known"),
    [*((equation, True) for equation in PRODUCTS), ("bchw,bqc->bqhw", False), ("nkctv,kvw->nctw", False)],
)
def test_products_of_matrices(equation, known):
    names = found_and_expected(equation, known=known)
    assert names & {"nn.batch_matmul", "nn.dense"}
    assert not names & {"einsum", "sum", "multiply"} or equation == "xab,bcy->ac"


@pytest.mark.parametrize("equation", BY_ELEMENTS)
def test_others(equation):
    assert not found_and_expected(equation) & {"nn.batch_matmul", "nn.dense"}


@pytest.mark.parametrize("equation", ["bqc,bchw->bqhw", "bnm,bm->bn"])
@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_other_types(equation, dtype):
    found_and_expected(equation, dtype)
