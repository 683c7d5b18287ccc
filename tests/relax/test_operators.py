"""The operators in Relax: on LLVM against their oracles, and as CUDA source that nvcc compiles."""

import shutil

import numpy as np
import pytest

import topi_ext
from tests.relax.cases import CASES, boxes
from tests.relax.emulated_cuda import emulate_cuda
from tests.relax.modules import CUDA, LLVM, assert_nvcc_compiles, compiled, module_of, run, types_of

import tvm
from tvm import relax


def module_of_all(is_known):
    """A function for each case, whose lengths are known as it is compiled, or only as it runs."""
    return module_of(
        {
            name.replace(" ", "_"): (
                case.expression,
                types_of(case.arrays, None if is_known else case.lengths),
            )
            for name, case in CASES.items()
        }
    )


@pytest.fixture(scope="module", params=[True, False], ids=["known", "unknown"])
def executable(request):
    return compiled(module_of_all(request.param), LLVM)


@pytest.mark.parametrize("name", CASES)
def test_as_the_oracle(executable, name):
    case = CASES[name]
    case.assert_expected(run(executable, case.arrays, name.replace(" ", "_")))


@pytest.mark.parametrize("name", CASES)
def test_on_the_emulated_device(name):
    """Lengths that are known only at run time take the most of a kernel."""
    case = CASES[name]
    with emulate_cuda():
        executable = compiled(
            module_of({"main": (case.expression, types_of(case.arrays, case.lengths))}), CUDA
        )
        case.assert_expected(run(executable, case.arrays, device=tvm.cuda()))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_compiles_the_kernels():
    assert_nvcc_compiles(module_of_all(is_known=True))


def test_a_wrong_type_says_what_it_should_be():
    with pytest.raises(Exception, match="scores must be of type float32 or float16 or bfloat16, not int32"):
        module_of(
            {
                "main": (
                    CASES["nms"].expression,
                    types_of([boxes(3), np.zeros(3, "int32"), np.zeros(3, "int32")]),
                )
            }
        )


def test_lengths_that_may_differ_are_refused():
    lengths = ("n -", "m", "n")
    with pytest.raises(Exception, match="an extent must be equal to another, n and m; see match_cast"):
        module_of({"main": (CASES["nms"].expression, types_of(CASES["nms"].arrays, lengths))})


def test_an_unknown_shape_is_refused():
    unknown = [relax.TensorType(dtype="float32", ndim=2), relax.TensorType([3, 3], "float32")]
    with pytest.raises(Exception, match="the shape and type of each argument must be known"):
        module_of({"main": (CASES["transform_points"].expression, unknown)})


def test_without_a_target_compiling_says_what_is_missing():
    module = module_of({"main": (CASES["roi_pool"].expression, types_of(CASES["roi_pool"].arrays))})
    with pytest.raises(Exception, match="compile it with a target in scope"):
        relax.transform.LegalizeOps()(module)


def test_other_targets_have_no_kernels():
    module = module_of({"main": (CASES["roi_pool"].expression, types_of(CASES["roi_pool"].arrays))})
    with tvm.target.Target("vulkan"), pytest.raises(Exception, match="but not for vulkan"):
        relax.transform.LegalizeOps()(module)


def test_what_needs_relay_says_so():
    with pytest.raises(ImportError, match=r"topi_ext\.attention needs a TVM with Relay"):
        topi_ext.attention  # noqa: B018
