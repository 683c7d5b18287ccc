"""relax.matmul by oneDNN: against NumPy, and where it is left to TVM."""

import numpy as np
import pytest

from tests.relax.modules import LLVM, compiled, module_of, run, types_of
from topi_ext.onednn import library
from topi_ext.onednn.matmul import PACKED_FUNCTION

import tvm
from tvm import relax

pytestmark = pytest.mark.skipif(library.library() is None, reason="oneDNN is not installed")
ONEDNN = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "libs": ["onednn"]})
SEEDED = np.random.default_rng(0)


def numbers(*shape):
    return SEEDED.standard_normal(shape, "float32")


def product(arguments):
    return relax.op.nn.relu(relax.op.matmul(*arguments))


def built(types, target=ONEDNN):
    """The executable, and whether it calls oneDNN."""
    module = module_of({"main": (product, types)})
    with target:
        lowered = relax.transform.LegalizeOps()(module)
    return compiled(module, target), PACKED_FUNCTION in lowered.script()


@pytest.mark.parametrize(
    "shapes",
    [
        ((7, 5), (5, 9)),
        ((3, 7, 5), (3, 5, 9)),
        ((2, 3, 4, 7, 5), (2, 3, 4, 5, 9)),
        ((2, 3, 7, 5), (5, 9)),  # all rows are one batch
        ((2, 3, 7, 5), (1, 5, 9)),
        ((7, 5), (2, 3, 5, 9)),
        ((1, 7, 5), (2, 3, 5, 9)),
    ],
    ids=str,
)
def test_a_product_and_what_is_behind_it(shapes):
    left, right = (numbers(*shape) for shape in shapes)
    executable, calls_onednn = built(types_of([left, right]))
    (found,) = run(executable, [left, right])
    np.testing.assert_allclose(found, np.maximum(left @ right, 0), rtol=1e-5, atol=1e-5)
    assert calls_onednn


@pytest.mark.parametrize(
    "lengths", [["b h r c", "b h c n"], ["b h r c", "c n"], ["- - r c", "b h c n"]], ids=str
)
def test_sizes_that_are_known_only_at_run_time(lengths):
    def arrays(**extents):
        of_one = {"-": 1, **extents}
        return [numbers(*map(of_one.get, names.split())) for names in lengths]

    executable, calls_onednn = built(types_of(arrays(b=1, h=1, r=1, c=1, n=1), lengths))
    for b, h, r, c, n in ((2, 3, 5, 7, 9), (1, 3, 1, 7, 9), (2, 3, 5, 0, 4), (0, 3, 5, 7, 9)):
        left, right = arrays(b=b, h=h, r=r, c=c, n=n)
        (found,) = run(executable, [left, right])
        np.testing.assert_allclose(found, np.maximum(left @ right, 0), rtol=1e-5, atol=1e-5)
    assert calls_onednn


@pytest.mark.parametrize("lengths", [None, ["b r c", "b c n"]], ids=str)
@pytest.mark.parametrize("result", ["float16", "float32"])
def test_sums_of_float16_are_rounded_once(result, lengths):
    left, right = (numbers(3, *shape).astype("float16") for shape in ((7, 500), (500, 9)))
    sums = left.astype("float32") @ right.astype("float32")
    types = types_of([left, right], lengths)
    module = module_of({"main": (lambda given: relax.op.matmul(*given, out_dtype=result), types)})
    with ONEDNN:
        assert PACKED_FUNCTION in relax.transform.LegalizeOps()(module).script()
    (found,) = run(compiled(module, ONEDNN), [left, right])
    assert found.dtype == result
    np.testing.assert_allclose(found, sums, rtol=6e-4 if result == "float16" else 1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "shapes, dtype, target",
    [
        (((3, 7, 5), (3, 5, 9)), "float32", LLVM),
        (((3, 7, 5), (3, 5, 9)), "float64", ONEDNN),
        (((3, 1, 7, 5), (2, 5, 9)), "float32", ONEDNN),  # every item of one batch with every one of the other
        (((5,), (5, 9)), "float32", ONEDNN),
        (((3, 7, 0), (3, 0, 9)), "float32", ONEDNN),
    ],
    ids=str,
)
def test_others_are_left_to_tvm(shapes, dtype, target):
    left, right = (numbers(*shape).astype(dtype) for shape in shapes)
    executable, calls_onednn = built(types_of([left, right]), target)
    (found,) = run(executable, [left, right])
    np.testing.assert_allclose(found, np.maximum(left @ right, 0), rtol=1e-5, atol=1e-5)
    assert not calls_onednn
