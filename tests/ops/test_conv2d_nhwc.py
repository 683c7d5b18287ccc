"""The NHWC convolution: against NumPy on LLVM and on the emulated device, against torch on a GPU."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from tests.ops.convolutions import (
    ACTIVATED,
    BIG,
    BIG_DEPTHWISE,
    BIG_GROUPED,
    CASES,
    DEPTHWISE,
    FEW_PIXELS,
    GROUPED,
    LEAKY,
    Case,
    options,
)
from topi_ext.conv2d_nhwc import conv2d_nhwc, plan
from topi_ext.conv2d_nhwc import cuda as cuda_kernel
from topi_ext.conv2d_nhwc.choose_plan import plan_for
from topi_ext.conv2d_nhwc.cuda_few_pixels import has_few_pixels
from topi_ext.conv2d_nhwc.plan_depthwise import plan_depthwise

import tvm
from tvm import relay
from tvm.contrib import graph_executor

ROUNDING = {"float32": 1e-6, "float16": 2**-11, "bfloat16": 2**-8}
SUMMING = 1e-4  # of float32, in sums of about 1
SPILLED = 16  # bytes: a number or two that are needed once a tile
by_name = {"ids": str}


# --- on LLVM


@pytest.mark.parametrize(
    "case", [case for case in CASES + GROUPED + DEPTHWISE + ACTIVATED if case.dtype == "float16"], **by_name
)
def test_llvm(case):
    check(case, "llvm", tvm.cpu())


@pytest.mark.parametrize("channels, filters", [(3, 64), (50, 12), (16, 3)])
def test_llvm_float32(channels, filters):
    check(Case((9, 11), channels, filters, dtype="float32", **options(activation=LEAKY)), "llvm", tvm.cpu())


def test_llvm_bfloat16():
    """TVM cannot cast to bfloat16 and back on LLVM here, so arrays are passed as they are."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case((9, 11), 16, 24, dtype="bfloat16", bias="bfloat16", residual=True, **options())
    arrays = case.arrays()
    variables = {name: relay.var(name, shape=array.shape, dtype="bfloat16") for name, array in arrays.items()}
    function = relay.Function([*variables.values()], conv2d_nhwc(**variables, **case.options))
    module = graph_executor.GraphModule(relay.build(function_module(function), "llvm")["default"](tvm.cpu()))
    for name, array in arrays.items():
        module.set_input(name, tvm.nd.array(array.astype(ml_dtypes.bfloat16)))
    module.run()
    output = module.get_output(0).numpy().view(ml_dtypes.bfloat16).astype("float32")
    assert_close(output, case.expected(arrays), "bfloat16")


# --- on the emulated device


@pytest.fixture(params=[80, 90])
def cuda(request, emulated_cuda, monkeypatch):
    """With one multiprocessor: then a block has several teams, and they several tiles."""
    emulated_cuda.set_arch(request.param)
    monkeypatch.setitem(plan.MULTIPROCESSORS, request.param, 1)
    return emulated_cuda


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", DEPTHWISE, **by_name)
def test_depthwise_on_cuda(cuda, case, dtype):
    test_cuda(cuda, replace(case, dtype=dtype))


@pytest.mark.parametrize(
    "channels, size", [(4, (65, 65)), (200, (7, 7)), (300, (3, 3)), (1030, (1, 2)), (7, (31, 31))]
)
def test_depthwise_of_other_sizes(cuda, channels, size):
    padding = size[0] // 2, size[1] // 2
    test_cuda(
        cuda, Case((5, 21), channels, channels, kernel=size, **options(groups=channels, padding=padding))
    )


@pytest.mark.parametrize(
    "size, channels, taps, pixels, turns",
    [
        (7, 960, 3, 2, 1),
        (512, 64, 3, 4, 2),
        (80, 128, 5, 4, 1),
        (56, 96, 7, 4, 1),
        (270, 64, 9, 8, 1),
        (1080, 64, 9, 8, 4),
    ],
)
def test_runs_of_depthwise_convolutions_fill_the_gpu(size, channels, taps, pixels, turns):
    case = Case((size, size), channels, channels, (taps, taps), **options(groups=channels, padding=taps // 2))
    chosen = plan_depthwise(case.problem(), plan.MULTIPROCESSORS[90])
    assert (chosen.pixels, chosen.turns) == (pixels, turns)


def test_depthwise_has_no_race(cuda):
    test_cuda_has_no_race(cuda, DEPTHWISE[0])
    wide = Case((9, 21), 232, 232, kernel=(7, 7), **options(groups=232, padding=3))
    assert plan_depthwise(wide.problem(), 1).turns > 1
    test_cuda_has_no_race(cuda, wide)


@pytest.mark.parametrize("case", ACTIVATED, **by_name)
def test_activations_on_cuda(cuda, case):
    test_cuda(cuda, case)
    test_cuda(cuda, replace(case, filters=16, options={**case.options, "groups": 16}))


@pytest.mark.parametrize("case", [*CASES, *FEW_PIXELS, *GROUPED], **by_name)
def test_cuda(cuda, case):
    arrays = case.arrays()
    (output,) = cuda.run_relay(case.function(arrays), *arrays.values())
    assert_close(output, case.expected(arrays), case.dtype)


FINE = [  # with filters and pixels of a block
    (Case((20, 20), 64, 64, **options(activation="silu")), 8, 64),
    (Case((13, 21), 48, 72, **options(strides=2, activation="prelu")), 8, 64),
    (Case((17, 9), 40, 44, residual=True, **options(final_activation="relu")), 8, 64),
    (Case((40, 44), 16, 30, kernel=(2, 3), **options(padding=(1, 1))), 16, 64),
    (Case((50, 88), 24, 32, **options(block_size=2)), 16, 128),
    (Case((9, 11), 3, 20, **options(dilation=2)), 8, 64),
    (Case((9, 17), 64, 64, **options(groups=16)), 8, 64),
    (Case((17, 18), 96, 96, **options(groups=4)), 8, 64),
]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("case, columns, pixels", FINE, **by_name)
def test_images_that_do_not_fill_the_gpu(emulated_cuda, case, columns, pixels, arch):
    chosen = plan_for(case.problem(), arch)
    assert (chosen.columns, chosen.pixels) == (columns, pixels) and chosen.tasks <= plan.MULTIPROCESSORS[arch]
    emulated_cuda.set_arch(arch)
    test_cuda(emulated_cuda, case)


def test_more_teams_write_many_results():
    case = Case((200, 336), 64, 64, batch=8, **options())
    residual = replace(case, residual=True)  # which takes registers
    chosen = [plan_for(each.problem(), 90) for each in (case, replace(case, batch=1), residual)]
    assert [(each.tile, each.teams) for each in chosen] == [((8, 8), 4), ((8, 16), 2), ((8, 16), 2)]


SHORT = [  # whose channels are no whole pieces, with filters of a block, and teams
    (Case((16, 30), 20, 1152, kernel=(1, 1), **options(padding=0, activation="prelu")), 128, 4),
    (Case((15, 30), 20, 600, kernel=(1, 1), residual=True, **options(padding=0)), 64, 4),
    (Case((15, 31), 20, 600, kernel=(1, 2), **options(padding=0, final_activation="relu")), 64, 4),
]


@pytest.mark.parametrize("case, columns, teams", SHORT, **by_name)
def test_many_teams_hide_short_copies(emulated_cuda, case, columns, teams):
    chosen = plan_for(case.problem(), 90)
    assert (chosen.tile, chosen.columns, chosen.teams) == ((8, 8), columns, teams)
    emulated_cuda.set_arch(90)
    test_cuda_has_no_race(emulated_cuda, case)


def test_short_copies_of_a_large_window_have_what_fits():
    chosen = plan_for(Case((128, 128), 180, 180, **options()).problem(), 90)
    assert (chosen.tile, chosen.columns, chosen.teams) == ((8, 8), 32, 3)


@pytest.mark.parametrize(
    "case",
    [
        Case((8, 70), 16, 20, **options()),  # teams
        Case((9, 18), 256, 136, kernel=(1, 2), **options(padding=0)),  # weights tap by tap
        Case((9, 18), 24, 300, kernel=(1, 1), **options(padding=0)),  # one tap
        Case((14, 10), 3, 8, **options()),  # taps in pairs
        Case((8, 20), 16, 16, **options(groups=4)),  # groups that are joined
    ],
    **by_name,
)
def test_cuda_has_no_race(cuda, case):
    cuda.sanitize = "thread"
    cuda.shuffle_order(0)
    arrays = case.arrays()
    (output,) = cuda.run_relay(case.function(arrays), *arrays.values())
    assert_close(output, case.expected(arrays), case.dtype)


@pytest.mark.parametrize("case", FEW_PIXELS, **by_name)
def test_few_pixels_have_a_kernel_of_their_own(cuda, case):
    assert has_few_pixels(case.problem())
    assert not has_few_pixels(replace(case, batch=3).problem())
    test_cuda_has_no_race(cuda, case)


def test_cuda_in_the_vm(emulated_cuda):
    case = CASES[0]
    arrays = case.arrays()
    (output,) = emulated_cuda.run_relay(case.function(arrays), *arrays.values(), executor="vm")
    assert_close(output, case.expected(arrays), case.dtype)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90])
@pytest.mark.parametrize(
    "case",
    [
        Case((720, 1280), 64, 64, **options(activation=LEAKY)),
        Case((720, 1280), 64, 64, residual=True, **options(final_activation="relu")),
        Case((720, 1280), 3, 64, **options()),
        Case((200, 336), 256, 256, **options(activation="relu")),
        SHORT[0][0],
    ],
    **by_name,
)
def test_compiles_for_registers(tmp_path, arch, case):
    report = compiler_report(kernel_source(case, arch), arch, tmp_path)
    assert "serialized" not in report  # of wgmma
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", report)]
    assert spilled and max(spilled) <= SPILLED


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("arch", [80, 90])
def test_joined_groups_compile_for_registers(tmp_path, arch):
    test_compiles_for_registers(tmp_path, arch, BIG_GROUPED[0])


@pytest.mark.parametrize("arch", plan.SHARED_MEMORY)
@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        *GROUPED,
        *BIG_GROUPED,
        Case((99, 99), 2048, 2048, **options()),
        Case((99, 99), 2048, 1000, kernel=(1, 1), **options(padding=0)),
        Case((512, 512), 512, 512, kernel=(15, 15), **options(dilation=16, padding=112)),
        Case((512, 512), 5, 200, kernel=(31, 31), **options(strides=7)),
        Case((512, 512), 62, 310, kernel=(31, 31), **options(strides=7, groups=31)),
        Case((99, 99), 1024, 1024, kernel=(15, 15), **options(dilation=16, padding=112, groups=2)),
    ],
    **by_name,
)
def test_every_convolution_has_a_plan(arch, case):
    chosen = plan_for(case.problem(), arch)
    assert chosen.fits and chosen.threads <= 1024


# --- what is refused

DATA, WEIGHT = ((1, 9, 9, 16), "float16"), ((8, 3, 3, 16), "float16")


@pytest.mark.parametrize(
    "types, given, reason",
    [
        ([((9, 9, 16), "float16"), WEIGHT], {}, r"data must have the shape \(N, H, W, C\), not \[9, 9, 16\]"),
        ([((1, 9, 9, 16), "uint8"), WEIGHT], {}, "of type float16, .*, int8, not uint8"),
        ([DATA, (WEIGHT[0], "float32")], {}, "weight must be of the type of data, float16, not float32"),
        ([DATA, ((8, 3, 3, 4), "float16")], {}, "as many channels as data, 16, not 4: give groups=4"),
        ([DATA, ((8, 3, 3, 5), "float16")], {}, "as many channels as data, 16, not 5$"),
        ([((0, 9, 9, 16), "float16"), WEIGHT], {}, "no extent may be 0"),
        ([((1, 9, 9, relay.Any()), "float16"), WEIGHT], {}, "known at compile time, but data has"),
        (
            [((relay.Any(), 9, 9, 16), "float16"), WEIGHT],
            {"residual": ((1, 7, 7, 8), "float16")},
            r"residual must have the shape \(any, 7, 7, 8\)",
        ),
        ([DATA, ((8, 10, 3, 16), "float16")], {}, "the kernel reaches over"),
        ([DATA, WEIGHT], {"block_size": 3}, "8 filters are not a multiple of the square of block_size 3"),
        ([DATA, WEIGHT], {"bias": ((9,), "float16")}, r"bias must have the shape \(8,\), not \[9\]"),
        ([DATA, WEIGHT], {"bias": ((8,), "int32")}, "bias must be of type float32 or float16, not int32"),
        (
            [DATA, WEIGHT],
            {"residual": ((1, 9, 9, 8), "float16")},
            r"residual must have the shape \(1, 7, 7, 8\) and type float16 or int8, not \[1, 9, 9, 8\]",
        ),
        (
            [DATA, WEIGHT],
            {"residual": ((1, 14, 14, 2), "float16"), "block_size": 2},
            "a residual requires block_size 1",
        ),
        ([((1, 9, 2**15, 2**13), "float16"), ((1, 1, 1, 2**13), "float16")], {}, "split the batch"),
    ],
)
def test_refuses_types(types, given, reason):
    def variable(name, type_):
        return relay.var(name, shape=type_[0], dtype=type_[1])

    data, weight = map(variable, ("data", "weight"), types)
    given = {
        name: variable(name, value) if isinstance(value, tuple) else value for name, value in given.items()
    }
    with pytest.raises(tvm.TVMError) as error:
        relay.transform.InferType()(function_module(conv2d_nhwc(data, weight, **given)))
    (said,) = re.findall(r"topi_ext\.conv2d_nhwc: (.*)", str(error.value))[-1:]
    assert re.search(reason, said)


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"activation": "elu"}, "activation must be one of none, relu, .*, silu, tanh, not 'elu'"),
        ({"final_activation": "prelu"}, "final_activation must be one of none, relu, leaky_relu, clip, gelu"),
        ({"activation": "leaky_relu"}, r"must be written as \('leaky_relu', 0.1\), not 'leaky_relu'"),
        ({"activation": ("clip", 1, 0)}, "clips to 1.0 to 0.0"),
        ({"activation": "prelu"}, "slope and the activation 'prelu' go together"),
        ({"padding": (1, 2, 3)}, "padding must be one number, two"),
        ({"padding": -1}, "none below 0"),
        ({"strides": (1, 1, 1)}, r"strides must be one number or two \(height, width\)"),
        ({"dilation": 0}, "must be at least 1"),
        ({"block_size": 0}, "block_size must be at least 1, not 0"),
    ],
)
def test_refuses_arguments(given, reason):
    data, weight = (relay.var("x", shape=shape, dtype=dtype) for shape, dtype in (DATA, WEIGHT))
    with pytest.raises(ValueError, match=reason):
        conv2d_nhwc(data, weight, **given)


@pytest.mark.parametrize(
    "target, dtype, reason",
    [
        ("cuda -arch=sm_80", "float32", "tensor cores do not multiply float32"),
        (
            "cuda -arch=sm_75",
            "bfloat16",
            "bfloat16 needs tensor cores of sm_80 or newer, and .* is sm_75",
        ),
        ("cuda -arch=sm_70", "float16", "float16 needs tensor cores of sm_75 or newer"),
        ("c", "float16", "kernels for the targets llvm and cuda, but not for c"),
    ],
)
def test_refuses_targets(target, dtype, reason):
    data, weight = (
        relay.var(name, shape=shape, dtype=dtype) for name, (shape, _) in zip("dw", (DATA, WEIGHT))
    )
    with pytest.raises(tvm.TVMError, match=reason):
        relay.build(function_module(conv2d_nhwc(data, weight)), tvm.target.Target(target, host="llvm"))


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("as_if", [None, 80, 86])
@pytest.mark.parametrize("case", [*CASES, *GROUPED], **by_name)
def test_gpu(monkeypatch, case, as_if):
    """As if of an older architecture, too: a newer one has its instructions."""
    if as_if:
        monkeypatch.setattr(cuda_kernel, "known_arch", lambda _arch: as_if)
    check_on_gpu(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*DEPTHWISE, *ACTIVATED], **by_name)
def test_gpu_of_groups_and_activations(case):
    check_on_gpu(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*BIG, *BIG_GROUPED, *BIG_DEPTHWISE], **by_name)
def test_gpu_large(case):
    check_on_gpu(case)


# --- helpers


def check(case, target, device):
    arrays = case.arrays()
    library = relay.build(function_module(case.function(arrays)), target)
    module = graph_executor.GraphModule(library["default"](device))
    for name, array in arrays.items():
        module.set_input(name, array)
    module.run()
    assert_close(module.get_output(0).numpy(), case.expected(arrays), case.dtype)


def check_on_gpu(case, target="cuda"):
    torch = pytest.importorskip("torch")
    from tests.ops import conv2d_in_torch

    tensors = case.tensors(torch)
    function = relay.Function(*case.call(case.shapes()))
    module = graph_executor.GraphModule(relay.build(function_module(function), target)["default"](tvm.cuda()))
    torch.cuda.synchronize()
    for name, tensor in tensors.items():
        module.set_input(name, tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)))
    torch.backends.cudnn.allow_tf32 = False
    exact = conv2d_in_torch.conv2d_nhwc(**{n: t.float() for n, t in tensors.items()}, **case.options)
    for _ in range(3):
        module.run()
        tvm.cuda().sync()
        output = torch.utils.dlpack.from_dlpack(module.get_output(0).to_dlpack()).float()
        error = (output - exact).abs_().sub_(exact.abs(), alpha=ROUNDING[case.dtype] * 1.01).max().item()
        assert output.shape == exact.shape and error < SUMMING


def assert_close(output, exact, dtype):
    assert output.shape == exact.shape
    np.testing.assert_allclose(output, exact, rtol=ROUNDING[dtype] * 1.01, atol=SUMMING)


def function_module(expression):
    return tvm.IRModule.from_expr(expression)


def kernel_source(case, arch):
    """The CUDA source of a case, as it goes to the compiler."""
    sources = []
    compile_cuda = tvm.get_global_func("tvm_callback_cuda_compile")
    tvm.register_func(
        "tvm_callback_cuda_compile", lambda code, _target: sources.append(code) or "/ no PTX", override=True
    )
    try:
        relay.build(function_module(relay.Function(*case.call(case.shapes()))), f"cuda -arch=sm_{arch}")
    finally:
        tvm.register_func("tvm_callback_cuda_compile", compile_cuda, override=True)
    (source,) = sources
    return source


def compiler_report(source, arch, folder):
    path = folder / "kernel.cu"
    path.write_text(source)
    arch = "90a" if "wgmma" in source else arch
    target = ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    command = ["nvcc", "-std=c++17", "-cubin", "-Xptxas", "-v", *target, "-o", folder / "out", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr
