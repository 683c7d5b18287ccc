"""The NHWC convolution: against NumPy on LLVM and on the emulated device, against torch on a GPU."""

import re
import shutil
import subprocess
from dataclasses import dataclass, field

import numpy as np
import pytest

from topi_ext.conv2d_nhwc import conv2d_nhwc, plan, reference
from topi_ext.conv2d_nhwc.op import problem_of

import tvm
from tvm import relay
from tvm.contrib import graph_executor

ROUNDING = {"float32": 1e-6, "float16": 2**-11, "bfloat16": 2**-8}
SUMMING = 1e-4  # of float32, in sums of about 1
ARGUMENTS = "data", "weight", "bias", "slope", "residual"
LEAKY, CLIP = ("leaky_relu", 0.1), ("clip", -0.5, 0.5)


@dataclass(frozen=True)
class Case:
    size: tuple  # height and width of the data
    channels: int
    filters: int
    kernel: tuple = (3, 3)
    batch: int = 1
    dtype: str = "float16"
    bias: str = "float32"  # its type
    residual: bool = False
    options: dict = field(default_factory=dict)

    def __str__(self):
        wheres = "x".join(map(str, self.size)), f"{self.channels}to{self.filters}", "x".join(map(str, self.kernel))
        return "-".join([*wheres, *map(str, self.options.values())]).replace(" ", "")

    @property
    def shape(self):
        return self.batch, *self.size, self.channels

    def shapes(self):
        """Of the arguments, by name."""
        shapes = {"data": self.shape, "weight": (self.filters, *self.kernel, self.channels)}
        if self.bias:
            shapes["bias"] = (self.filters,)
        if self.options.get("activation") == "prelu":
            shapes["slope"] = (self.filters,)
        if self.residual:
            call = self.call(shapes)[1]
            shapes["residual"] = tuple(map(int, relay.transform.InferTypeLocal(call).shape))
        return shapes

    def types(self):
        return {name: self.bias if name == "bias" else self.dtype for name in ARGUMENTS}

    def arrays(self):
        """Arguments by name, of float32 values that the case's type holds exactly; results are about 1."""
        rng = np.random.default_rng(0)
        arrays = {name: rng.standard_normal(shape, "float32") for name, shape in self.shapes().items()}
        arrays["weight"] /= np.float32(np.prod(arrays["weight"].shape[1:]) ** 0.5)
        return {name: rounded(array, self.dtype) for name, array in arrays.items()}

    def tensors(self, torch):
        """The like for a GPU, in the types that they have."""
        torch.manual_seed(0)
        types = {name: getattr(torch, dtype or "float32") for name, dtype in self.types().items()}
        tensors = {name: torch.randn(shape, device="cuda") for name, shape in self.shapes().items()}
        tensors["weight"] /= tensors["weight"][0].numel() ** 0.5
        return {name: tensor.to(types[name]) for name, tensor in tensors.items()}

    def call(self, shapes, cast=False):
        """Variables, and the call of the operator with them; if `cast`, they and the result are float32."""
        types = self.types()
        variables = {
            name: relay.var(name, shape=shape, dtype="float32" if cast else types[name])
            for name, shape in shapes.items()
        }
        inputs = {name: relay.cast(v, types[name]) if cast else v for name, v in variables.items()}
        result = conv2d_nhwc(**inputs, **self.options)
        return list(variables.values()), relay.cast(result, "float32") if cast else result

    def function(self, arrays):
        """For NumPy, which has no bfloat16."""
        return relay.Function(*self.call({name: array.shape for name, array in arrays.items()}, cast=True))

    def expected(self, arrays):
        return reference.conv2d_nhwc(**arrays, **self.options, rounded=False)


def options(**given):
    return {"options": {"padding": 1, **given}}


CASES = [
    Case((20, 20), 16, 16, **options()),
    Case((9, 37), 64, 64, batch=2, **options(activation=LEAKY)),
    Case((9, 18), 64, 64, residual=True, **options(activation="relu", final_activation=CLIP)),
    Case((7, 9), 64, 128, dtype="bfloat16", bias="bfloat16", **options(block_size=2)),
    Case((9, 17), 32, 64, bias="float16", **options(block_size=2, activation="prelu")),
    Case((11, 19), 12, 27, **options(padding=(0, 1, 2, 1), block_size=3)),
    Case((5, 6), 8, 64, kernel=(1, 1), **options(padding=0, block_size=4)),
    Case((8, 9), 128, 256, **options(activation="relu")),
    Case((9, 7), 128, 128, kernel=(1, 1), residual=True, **options(padding=0)),
    Case((17, 19), 3, 64, **options(strides=2)),
    Case((13, 14), 3, 12, kernel=(5, 5), dtype="bfloat16", **options(padding=2)),
    Case((17, 20), 50, 12, kernel=(1, 1), bias=None, **options(padding=0, strides=(2, 1))),
    Case((19, 17), 16, 3, **options(final_activation=CLIP)),
    Case((15, 14), 32, 24, kernel=(5, 5), **options(padding=(4, 4), dilation=2)),
    Case((15, 14), 37, 65, kernel=(3, 2), batch=2, **options(dilation=(1, 2), padding=(3, 0, 0, 2))),
    Case((12, 12), 16, 300, kernel=(2, 2), residual=True, **options(strides=(1, 2))),
    Case((1, 1), 1, 1, kernel=(1, 1), **options(padding=0)),
]
by_name = {"ids": str}


# --- on LLVM


@pytest.mark.parametrize("case", [case for case in CASES if case.dtype == "float16"], **by_name)
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
    """With so few multiprocessors that a block has several teams, and they several tiles."""
    emulated_cuda.set_arch(request.param)
    monkeypatch.setitem(plan.MULTIPROCESSORS, request.param, 2)
    return emulated_cuda


@pytest.mark.parametrize("case", CASES, **by_name)
def test_cuda(cuda, case):
    arrays = case.arrays()
    (output,) = cuda.run_relay(case.function(arrays), *arrays.values())
    assert_close(output, case.expected(arrays), case.dtype)


@pytest.mark.parametrize(
    "case",
    [
        Case((26, 33), 16, 16, **options()),  # teams
        Case((6, 18), 64, 256, kernel=(2, 2), **options()),  # weights tap by tap
        Case((9, 18), 24, 300, kernel=(1, 1), **options(padding=0)),  # one tap
        Case((14, 10), 3, 8, **options()),  # taps in pairs
    ],
    **by_name,
)
def test_cuda_has_no_race(cuda, case):
    cuda.sanitize = "thread"
    cuda.shuffle_order(0)
    arrays = case.arrays()
    (output,) = cuda.run_relay(case.function(arrays), *arrays.values())
    assert_close(output, case.expected(arrays), case.dtype)


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
    ],
    **by_name,
)
def test_compiles_without_spills(tmp_path, arch, case):
    report = compiler_report(kernel_source(case, arch), arch, tmp_path)
    assert "serialized" not in report  # of wgmma
    assert set(re.findall(r"\d+ bytes spill \w+", report)) == {"0 bytes spill stores", "0 bytes spill loads"}


@pytest.mark.parametrize("arch", plan.SHARED_MEMORY)
@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        Case((99, 99), 2048, 2048, **options()),
        Case((99, 99), 2048, 1000, kernel=(1, 1), **options(padding=0)),
        Case((512, 512), 512, 512, kernel=(15, 15), **options(dilation=16, padding=112)),
        Case((512, 512), 5, 200, kernel=(31, 31), **options(strides=7)),
    ],
    **by_name,
)
def test_every_convolution_has_a_plan(arch, case):
    chosen = plan.plan_for(problem_in(case), arch)
    assert chosen.fits and chosen.threads <= 1024


# --- what is refused

DATA, WEIGHT = ((1, 9, 9, 16), "float16"), ((8, 3, 3, 16), "float16")


@pytest.mark.parametrize(
    "types, given, reason",
    [
        ([((9, 9, 16), "float16"), WEIGHT], {}, r"data must have the shape \(N, H, W, C\), not \[9, 9, 16\]"),
        ([((1, 9, 9, 16), "int8"), WEIGHT], {}, "data must be of type float16, bfloat16, float32, not int8"),
        ([DATA, (WEIGHT[0], "float32")], {}, "weight must be of the type of data, float16, not float32"),
        ([DATA, ((8, 3, 3, 4), "float16")], {}, "as many channels as data, 16, not 4, and .* in groups"),
        ([DATA, ((8, 3, 3, 5), "float16")], {}, "as many channels as data, 16, not 5$"),
        ([((0, 9, 9, 16), "float16"), WEIGHT], {}, "no extent may be 0"),
        ([((relay.Any(), 9, 9, 16), "float16"), WEIGHT], {}, "known at compile time, but data has"),
        ([DATA, ((8, 10, 3, 16), "float16")], {}, "the kernel reaches over"),
        ([DATA, WEIGHT], {"block_size": 3}, "8 filters are no multiple of the square of block_size 3"),
        ([DATA, WEIGHT], {"bias": ((9,), "float16")}, r"bias must have the shape \(8,\), not \[9\]"),
        ([DATA, WEIGHT], {"bias": ((8,), "int32")}, "bias must be of type float32 or float16, not int32"),
        (
            [DATA, WEIGHT],
            {"residual": ((1, 9, 9, 8), "float16")},
            r"residual must have the shape \(1, 7, 7, 8\) and type float16, not \[1, 9, 9, 8\] of float16",
        ),
        (
            [DATA, WEIGHT],
            {"residual": ((1, 14, 14, 2), "float16"), "block_size": 2},
            "a residual goes with block_size 1 only",
        ),
        ([((1, 9, 2**15, 2**13), "float16"), ((1, 1, 1, 2**13), "float16")], {}, "split the batch"),
    ],
)
def test_refuses_types(types, given, reason):
    def variable(name, type_):
        return relay.var(name, shape=type_[0], dtype=type_[1])

    data, weight = map(variable, ("data", "weight"), types)
    given = {name: variable(name, value) if isinstance(value, tuple) else value for name, value in given.items()}
    with pytest.raises(tvm.TVMError) as error:
        relay.transform.InferType()(function_module(conv2d_nhwc(data, weight, **given)))
    (said,) = re.findall(r"topi_ext\.conv2d_nhwc: (.*)", str(error.value))[-1:]
    assert re.search(reason, said)


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"activation": "gelu"}, "activation is one of none, relu, leaky_relu, clip, prelu, not 'gelu'"),
        ({"final_activation": "prelu"}, "final_activation is one of none, relu, leaky_relu, clip, not"),
        ({"activation": "leaky_relu"}, r"is to be written as \('leaky_relu', 0.1\), not 'leaky_relu'"),
        ({"activation": ("clip", 1, 0)}, "clips to 1.0 to 0.0"),
        ({"activation": "prelu"}, "slope and the activation 'prelu' go together"),
        ({"padding": (1, 2, 3)}, "padding is one number, two"),
        ({"padding": -1}, "none below 0"),
        ({"strides": (1, 1, 1)}, r"strides is one number or two \(height, width\)"),
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
        ("cuda -arch=sm_75", "bfloat16", "bfloat16 needs tensor cores of sm_80 or newer, and the target is sm_75"),
        ("cuda -arch=sm_70", "float16", "float16 needs tensor cores of sm_75 or newer"),
        ("c", "float16", "kernels for the targets llvm and cuda, not for c"),
    ],
)
def test_refuses_targets(target, dtype, reason):
    data, weight = (relay.var(name, shape=shape, dtype=dtype) for name, (shape, _) in zip("dw", (DATA, WEIGHT)))
    with pytest.raises(tvm.TVMError, match=reason):
        relay.build(function_module(conv2d_nhwc(data, weight)), tvm.target.Target(target, host="llvm"))


# --- on a GPU

BIG = [
    Case((720, 1280), 64, 64, **options(activation=LEAKY)),
    Case((720, 1280), 64, 64, residual=True, **options(activation="relu", final_activation="relu")),
    Case((720, 1280), 64, 128, **options(block_size=2)),
    Case((1440, 2560), 32, 64, **options(block_size=2)),
    Case((2880, 5120), 16, 3, **options()),
    Case((1440, 2560), 64, 12, **options(block_size=2)),
    Case((720, 1280), 3, 64, **options(activation="prelu")),
    Case((200, 336), 256, 256, **options(activation="relu")),
    Case((200, 336), 256, 256, dtype="bfloat16", batch=2, residual=True, **options()),
    Case((399, 667), 64, 64, batch=3, **options(strides=2)),
    Case((200, 336), 512, 1024, kernel=(1, 1), **options(padding=0)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, **by_name)
def test_gpu(case):
    check(case, tvm.target.Target("cuda", host="llvm"), tvm.cuda())


@pytest.mark.gpu
@pytest.mark.parametrize("case", BIG, **by_name)
def test_gpu_like_torch(case):
    torch = pytest.importorskip("torch")
    from tests.ops import conv2d_in_torch

    tensors = case.tensors(torch)
    function = relay.Function(*case.call(case.shapes()))
    module = graph_executor.GraphModule(relay.build(function_module(function), "cuda")["default"](tvm.cuda()))
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


# --- helpers


def check(case, target, device):
    arrays = case.arrays()
    library = relay.build(function_module(case.function(arrays)), target)
    module = graph_executor.GraphModule(library["default"](device))
    for name, array in arrays.items():
        module.set_input(name, array)
    module.run()
    assert_close(module.get_output(0).numpy(), case.expected(arrays), case.dtype)


def assert_close(output, exact, dtype):
    assert output.shape == exact.shape
    np.testing.assert_allclose(output, exact, rtol=ROUNDING[dtype] * 1.01, atol=SUMMING)


def rounded(array, dtype):
    """To what the type holds exactly."""
    if dtype == "bfloat16":
        return (array.view("uint32") & np.uint32(0xFFFF0000)).view("float32")
    return array.astype(dtype).astype("float32")


def function_module(expression):
    return tvm.IRModule.from_expr(expression)


def problem_in(case):
    """What the operator makes of a case."""
    call = case.call(case.shapes())[1]
    types = [relay.transform.InferTypeLocal(argument) for argument in call.args]
    return problem_of(types, call.attrs)


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
