"""The NHWC convolution in int8: against NumPy, exact but for ties, on LLVM and on the emulated device."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.ops.convolutions import QUANTIZED, QUANTIZED_GROUPS, QUANTIZING, QuantizedCase, options
from tests.ops.test_conv2d_nhwc import assert_close, function_module
from topi_ext.conv2d_nhwc import conv2d_nhwc, cpu, op, reference
from topi_ext.conv2d_nhwc.problem import Problem

import tvm
from tvm import relay
from tvm.contrib import graph_executor

TIE = 1e-3  # results so near to one between two integers may be either: kernels compute in float32
by_name = {"ids": str}


def test_the_reference_rounds_and_saturates():
    """Half to even, and both bounds."""
    data = np.array([1, 3, -1, 100, -100], "int8").reshape(1, 1, 5, 1)
    weight, scale = np.full((1, 1, 1, 1), 1, "int8"), np.array([0.5], "float32")
    result = reference.conv2d_nhwc(data, weight, scale=scale, out_dtype="int8")
    assert result.dtype == "int8" and result.reshape(-1).tolist() == [0, 2, 0, 50, -50]
    result = reference.conv2d_nhwc(data, weight, scale=scale, out_dtype="int8", out_scale=3)
    assert result.reshape(-1).tolist() == [2, 4, -2, 127, -128]


@pytest.mark.parametrize("case", [*QUANTIZED, *QUANTIZED_GROUPS, *QUANTIZING], **by_name)
def test_llvm(case):
    arrays = case.arrays()
    library = relay.build(function_module(case.function(arrays)), "llvm")
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.run(**arrays)
    assert_right(module.get_output(0).numpy(), case, arrays)


@pytest.mark.parametrize("case", [QUANTIZED[0], replace(QUANTIZING[0], dtype="float32")], **by_name)
def test_onednn_leaves_it_to_other_kernels(case):
    assert op.kernels_for(case.problem(), tvm.target.Target("llvm -libs=onednn")) is cpu


def test_a_batch_known_at_run_time():
    case = QUANTIZED[0]
    arrays = {name: array.astype(case.types()[name]) for name, array in case.arrays().items()}
    data = relay.var("data", shape=(relay.Any(), *case.shape[1:]), dtype="int8")
    others = {name: relay.const(array) for name, array in arrays.items() if name != "data"}
    module = function_module(relay.Function([data], conv2d_nhwc(data, **others, **case.options)))
    executor = tvm.runtime.vm.VirtualMachine(relay.vm.compile(module, "llvm"), tvm.cpu())
    for count in (1, 3):
        given = np.concatenate([arrays["data"]] * count)
        assert_right(executor.run(given).numpy(), case, {**case.arrays(), "data": given})


@pytest.mark.parametrize("case", QUANTIZED, **by_name)
def test_the_problem_as_text(case):
    problem = case.problem()
    assert Problem.from_json(problem.to_json()) == problem and problem.is_quantized


# --- what is refused


@pytest.mark.parametrize(
    "types, given, reason",
    [
        ({}, {"scale": None}, "int8 data needs a scale"),
        ({}, {"out_dtype": ""}, "int8 data needs an out_dtype: int8, or a float type"),
        ({}, {"out_dtype": "int32"}, "out_dtype for int8 data must be float16 or .* or int8, not int32"),
        ({"scale": "float16"}, {}, "scale must be of type float32, not float16"),
        ({"bias": "int32"}, {}, "bias must be of type float16 or bfloat16 or float32, not int32"),
        ({"residual": "int32"}, {}, "residual must have the shape .* not .* of int32"),
        ({"weight": "float16"}, {}, "weight must be of the type of data, int8, not float16"),
        ({"data": "float16", "weight": "float16"}, {}, "scale is for int8 data, not for float16: multiply"),
        (
            {"data": "float16", "weight": "float16"},
            {"scale": None, "out_dtype": "float32"},
            "out_dtype for float16 data must be float16 or int8, not float32",
        ),
    ],
)
def test_refuses_types(types, given, reason):
    case = QuantizedCase((9, 9), 16, 8, residual=True, **options())
    types = {**case.types(), **types}
    arguments = {n: relay.var(n, shape=shape, dtype=types[n]) for n, shape in case.shapes().items()}
    call = conv2d_nhwc(**{**arguments, **case.options, **given})
    refuses(function_module(call), reason)


def test_refuses_sums_that_may_overflow():
    case = QuantizedCase((300, 300), 2, 8, kernel=(256, 256), **options(padding=0))
    with pytest.raises(tvm.TVMError, match="a sum of 131072 products of int8 may overflow int32"):
        case.problem()


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"out_scale": 0}, "out_scale must be finite and above 0, not 0"),
        ({"residual_scale": float("nan")}, "residual_scale must be finite and above 0, not nan"),
    ],
)
def test_refuses_arguments(given, reason):
    data, weight = (relay.var(name, shape=(1, 8, 8, 8), dtype="int8") for name in "dw")
    with pytest.raises(ValueError, match=reason):
        conv2d_nhwc(data, weight, **given)


# --- helpers


def refuses(module, reason):
    with pytest.raises(tvm.TVMError) as error:
        relay.transform.InferType()(module)
    (said,) = re.findall(r"topi_ext\.conv2d_nhwc: (.*)", str(error.value))[-1:]
    assert re.search(reason, said)


def assert_right(output, case, arrays):
    """Whether a result is the oracle's: in int8 to the integer, except where two are equally near."""
    exact = case.expected(arrays)
    if case.out_dtype != "int8":
        assert_close(output, exact, case.out_dtype)
        return
    assert output.shape == exact.shape
    error = np.abs(output - np.rint(exact).clip(-128, 127))
    is_tie = np.abs(exact - np.floor(exact) - 0.5) < TIE
    assert error.max() <= 1 and not error[~is_tie].any()
    assert len(np.unique(output)) > 1 or output.size == 1
