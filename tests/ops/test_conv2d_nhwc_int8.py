"""The NHWC convolution in int8: against NumPy, exact but for ties, on LLVM and on the emulated device."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.ops.convolutions import (
    QUANTIZED,
    QUANTIZED_DEPTHWISE,
    QUANTIZED_GROUPS,
    QUANTIZING,
    QuantizedCase,
    options,
)
from tests.ops.test_conv2d_nhwc import (
    SPILLED,
    assert_close,
    compiler_report,
    cuda,  # noqa: F401  (a fixture)
    function_module,
    kernel_source,
)
from tests.ops.test_conv2d_nhwc_cudnn import GPU_TARGET, WIDE_INT8, cudnn_alone, target  # noqa: F401
from topi_ext._processor import options_of_processor
from topi_ext.conv2d_nhwc import conv2d_nhwc, cpu, cudnn, op, plan, reference
from topi_ext.conv2d_nhwc import cuda as cuda_kernel
from topi_ext.conv2d_nhwc.choose_plan import plan_for
from topi_ext.conv2d_nhwc.problem import Problem
from topi_ext.conv2d_nhwc_in_place import conv2d_nhwc_in_place

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


@pytest.mark.parametrize(
    "case", [*QUANTIZED, *QUANTIZED_GROUPS, *QUANTIZED_DEPTHWISE, *QUANTIZING], **by_name
)
def test_llvm(case):
    check_on_llvm(case, "llvm")


@pytest.mark.parametrize("case", [case for case in QUANTIZED if case.channels > 1][::3], **by_name)
def test_llvm_for_this_processor(case):
    """By vectors as wide as it has."""
    check_on_llvm(case, tvm.target.Target({"kind": "llvm", **options_of_processor()}))


@pytest.mark.parametrize("processor", ["nehalem", "haswell", "skylake-avx512"])
def test_llvm_multiplies_pairs(processor):
    case = QUANTIZED[1]
    code = relay.build(function_module(case.function(case.arrays())), f"llvm -mcpu={processor}").lib
    assert "pmaddwd" in code.get_source("asm")


@pytest.mark.parametrize(
    "given",
    [{"activation": "prelu"}, {"final_activation": ("clip", -0.5, 1)}, {"activation": "silu"}],
    **by_name,
)
@pytest.mark.parametrize("bias", ["float16", None])
def test_the_scale_of_the_result_is_folded(given, bias):
    """Into constants, and not behind functions for which that changes the result."""
    case = QuantizedCase((5, 6), 4, 8, bias=bias, residual=True, **options(**given))
    arrays = {name: array.astype(case.types()[name]) for name, array in case.arrays().items()}
    inputs = {name: as_variable(name, arrays[name]) for name in ("data", "residual")}
    constants = {name: relay.const(array) for name, array in arrays.items() if name not in inputs}
    call = conv2d_nhwc(**inputs, **constants, **case.options)
    module = relay.transform.InferType()(function_module(relay.Function([*inputs.values()], call)))
    attrs = relay.transform.Legalize()(module)["main"].body.attrs
    expected = (50, 0.02) if "silu" in given.values() else (1, 1)
    assert (float(attrs["out_scale"]), float(attrs["residual_scale"])) == pytest.approx(expected)
    executor = graph_executor.GraphModule(relay.build(module, "llvm")["default"](tvm.cpu()))
    executor.run(**{name: arrays[name] for name in inputs})
    assert_right(executor.get_output(0).numpy(), case, case.arrays())


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


# --- on the emulated device


@pytest.mark.parametrize(
    "case", [*QUANTIZED, *QUANTIZED_GROUPS, *QUANTIZED_DEPTHWISE, *QUANTIZING], **by_name
)
def test_cuda(cuda, case):  # noqa: F811
    arrays = case.arrays()
    (output,) = cuda.run_relay(case.function(arrays), *arrays.values())
    assert_right(output, case, arrays)


def test_cuda_has_no_race(cuda):  # noqa: F811
    cuda.sanitize = "thread"
    cuda.shuffle_order(0)
    test_cuda(cuda, QuantizedCase((8, 40), 32, 20, residual=True, **options()))


def test_some_channels_on_cuda(cuda):  # noqa: F811
    """Parts of wider tensors begin at multiples of eight channels, which are half a piece."""
    case = QuantizedCase((9, 10), 32, 24, residual=True, **options())
    arrays = {name: array.astype(case.types()[name]) for name, array in case.arrays().items()}
    wider = {name: np.pad(arrays[name], [(0, 0)] * 3 + [(8, 16)]) for name in ("data", "residual")}
    arrays["destination"] = np.full((1, 9, 10, 48), 7, "int8")
    where = {"data_from": 8, "residual_from": 8, "result_from": 8, "result_channels": 48}
    call = conv2d_nhwc_in_place(
        **{name: as_variable(name, array) for name, array in {**arrays, **wider}.items()},
        **where,
        **case.options,
    )
    given = {**arrays, **wider}
    (output,) = cuda.run_relay(relay.Function(relay.analysis.free_vars(call), call), *in_order(call, given))
    assert_right(output[..., 8:32], case, case.arrays())
    assert (output[..., :8] == 7).all() and (output[..., 32:] == 7).all()


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("arch", [75, 90])
@pytest.mark.parametrize(
    "case",
    [
        QuantizedCase((200, 336), 256, 256, **options(activation="relu")),
        QuantizedCase((200, 336), 64, 64, residual=True, **options(final_activation="relu")),
        QuantizedCase((400, 666), 3, 64, out_dtype="float16", **options(strides=2)),
        QuantizedCase((200, 200), 128, 128, **options(groups=32, activation="relu")),
        QuantizedCase((100, 100), 64, 64, **options(groups=64)),
    ],
    **by_name,
)
def test_compiles_for_registers(tmp_path, arch, case):
    report = compiler_report(kernel_source(case, arch), arch, tmp_path)
    assert "serialized" not in report
    assert max(map(int, re.findall(r"(\d+) bytes spill stores", report))) <= SPILLED


@pytest.mark.parametrize("arch", plan.SHARED_MEMORY)
@pytest.mark.parametrize(
    "case",
    [
        *QUANTIZED,
        *QUANTIZED_GROUPS,
        QuantizedCase((99, 99), 2048, 2048, **options()),
        QuantizedCase((512, 512), 512, 512, kernel=(15, 15), **options(dilation=16, padding=112)),
    ],
    **by_name,
)
def test_every_convolution_has_a_plan(arch, case):
    chosen = plan_for(case.problem(), arch)
    assert chosen.fits and chosen.threads <= 1024


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("as_if", [None, 80])
@pytest.mark.parametrize(
    "case", [*QUANTIZED, *QUANTIZED_GROUPS, *QUANTIZED_DEPTHWISE, *QUANTIZING], **by_name
)
def test_gpu(monkeypatch, case, as_if):
    """As if of an older architecture, too: a newer one has its instructions."""
    if as_if:
        monkeypatch.setattr(cuda_kernel, "known_arch", lambda _arch: as_if)
    check_on_gpu(case, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("case", WIDE_INT8, **by_name)
def test_gpu_by_cudnn(cudnn_alone, case):  # noqa: F811
    check_on_gpu(case, GPU_TARGET)


@pytest.mark.parametrize(
    "channels, filters, kernels", [(512, 512, cudnn), (320, 256, cudnn), (2048, 64, cuda_kernel)]
)
def test_cudnn_has_the_wide_ones(channels, filters, kernels):
    assert op.kernels_for(QuantizedCase((9, 18), channels, filters).problem(), target()) is kernels


@pytest.mark.parametrize(
    "size, channels, filters, kernel, batch, kernels",
    [
        # one tap: of few channels, of few filters, or with few results
        ((50, 84), 256, 1024, (1, 1), 1, cuda_kernel),
        ((25, 42), 256, 1024, (1, 1), 1, cuda_kernel),
        ((50, 84), 512, 256, (1, 1), 8, cudnn),
        ((100, 168), 512, 128, (1, 1), 8, cuda_kernel),
        ((20, 20), 1024, 512, (1, 1), 1, cuda_kernel),
        ((20, 20), 1024, 512, (1, 1), 8, cudnn),
        ((25, 42), 2048, 256, (1, 1), 1, cudnn),
        # several taps
        ((160, 160), 128, 256, (3, 3), 1, cuda_kernel),
        ((200, 336), 160, 128, (3, 3), 1, cuda_kernel),
        ((20, 20), 256, 256, (3, 3), 1, cuda_kernel),
        ((100, 168), 256, 256, (3, 3), 8, cudnn),
        ((20, 20), 512, 512, (3, 3), 1, cudnn),
    ],
)
def test_but_not_those_with_little_to_multiply(size, channels, filters, kernel, batch, kernels):
    problem = QuantizedCase(
        size, channels, filters, kernel, batch, **options(padding=kernel[0] // 2)
    ).problem()
    assert op.kernels_for(problem, target()) is kernels


def test_silu_takes_cudnn_long():
    case = QuantizedCase((80, 80), 256, 256, **options(activation="silu"))
    assert op.kernels_for(case.problem(), target()) is cuda_kernel
    without = QuantizedCase((80, 80), 256, 256, **options(activation="relu"))
    assert op.kernels_for(without.problem(), target()) is cudnn


def test_nor_those_that_skip_pixels():
    problem = QuantizedCase((200, 336), 256, 512, (1, 1), 8, **options(strides=2)).problem()
    assert op.kernels_for(problem, target()) is cudnn


@pytest.mark.parametrize(
    "size, channels, filters, kernel, expected",
    [
        ((100, 168), 512, 128, (3, 3), ((16, 16), 128)),
        ((50, 84), 512, 256, (3, 3), ((16, 16), 64)),
        ((25, 42), 512, 512, (3, 3), ((8, 16), 64)),
        ((50, 84), 1024, 256, (1, 1), ((8, 16), 128)),  # the widest: there is no halo
    ],
)
def test_tiles_that_fit_on_the_gpu_at_once_are_large(size, channels, filters, kernel, expected):
    chosen = plan_for(
        QuantizedCase(size, channels, filters, kernel, **options(padding=kernel[0] // 2)).problem(), 90
    )
    assert (chosen.tile, chosen.columns) == expected
    assert not chosen.resident and chosen.rounds == 1 and 2 * chosen.blocks > plan.MULTIPROCESSORS[90]


@pytest.mark.parametrize(
    "size, channels, filters, kernel, batch, columns",
    [
        ((100, 168), 128, 512, (1, 1), 1, 128),
        ((100, 168), 128, 512, (1, 1), 8, 256),
        ((200, 336), 128, 128, (3, 3), 1, 64),
        ((200, 336), 128, 128, (3, 3), 8, 128),
        ((50, 50), 256, 128, (3, 3), 1, 32),  # else half of the GPU would be idle
    ],
)
def test_blocks_have_fewer_filters_where_there_are_few_results(
    size, channels, filters, kernel, batch, columns
):
    more = options(padding=kernel[0] // 2)
    case = QuantizedCase(size, channels, filters, kernel, batch, residual=kernel == (1, 1), **more)
    chosen = plan_for(case.problem(), 90)
    assert chosen.resident and chosen.columns == columns


def test_four_teams_write_what_is_computed_from_few_channels():
    """Which then read these more often."""
    plans = [
        plan_for(QuantizedCase((200, 336), channels, 256, (1, 1), 8, residual=True).problem(), 90)
        for channels in (64, 256)
    ]
    assert [(each.columns, each.teams) for each in plans] == [(128, 4), (256, 2)]


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


def check_on_llvm(case, target):
    arrays = case.arrays()
    library = relay.build(function_module(case.function(arrays)), target)
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.run(**arrays)
    assert_right(module.get_output(0).numpy(), case, arrays)


def check_on_gpu(case, target):
    arrays = case.arrays()
    executor = graph_executor.GraphModule(
        relay.build(function_module(case.function(arrays)), target)["default"](tvm.cuda())
    )
    for _ in range(2):
        executor.run(**arrays)
        assert_right(executor.get_output(0).numpy(), case, arrays)


def as_variable(name, array):
    return relay.var(name, shape=array.shape, dtype=array.dtype.name)


def in_order(call, arrays):
    """The arrays of a call's variables, as `free_vars` orders them."""
    return [arrays[variable.name_hint] for variable in relay.analysis.free_vars(call)]


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
