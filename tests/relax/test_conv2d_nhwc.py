"""Convolutions in Relax, on LLVM by their own kernels and by oneDNN, and on CUDA."""

import shutil
from dataclasses import dataclass, field

import ml_dtypes  # noqa: F401  (NumPy's bfloat16)
import numpy as np
import pytest

import topi_ext
from tests.ops.cudnn_oracle import oracle, prefer_cudnn  # noqa: F401  (a fixture)
from tests.relax.emulated_cuda import emulate_cuda
from tests.relax.modules import CUDA, LLVM, assert_nvcc_compiles, compiled, module_of, run, types_of
from topi_ext.conv2d_nhwc import onednn, reference
from topi_ext.conv2d_nhwc.problem import ACTIVATIONS
from topi_ext.cudnn import session
from topi_ext.onednn import calls

import tvm
from tvm import relax

RANDOM = np.random.default_rng(5)
ONEDNN = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "libs": ["onednn"]})
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2, "int8": 0}
IN_INT8 = {"residual_scale": 0.02, "out_scale": 50.0, "out_dtype": "int8"}


@dataclass(frozen=True)
class Convolution:
    """A convolution with a bias and what else is named."""

    dtype: str = "float32"
    channels: int = 16
    filters: int = 16
    more: tuple = ()  # of "slope" and "residual"
    size: tuple = (9, 10)
    kernel: int = 3
    images: int = 2
    options: dict = field(default_factory=dict)

    def arrays(self):
        """The arguments by name; results are about 1."""
        options = {"padding": 1, **self.options}
        of_group = self.channels // options.get("groups", 1)
        kernel = self.kernel, self.kernel
        shapes = {
            "data": (self.images, *self.size, self.channels),
            "weight": (self.filters, *kernel, of_group),
        }
        shapes |= {name: (self.filters,) for name in ("bias", *self.more)}
        if "residual" in self.more:
            step = options.get("strides", 1)
            height, width = (-(-extent // step) for extent in self.size)
            shapes["residual"] = 2, height, width, self.filters
        found = {name: RANDOM.standard_normal(shape) for name, shape in shapes.items()}
        found["weight"] /= (9 * of_group) ** 0.5
        if self.dtype == "int8":
            for name in {"data", "weight", "residual"} & set(found):
                found[name] = RANDOM.integers(-128, 128, shapes[name])
            found["scale"] = RANDOM.uniform(0.5, 1.5, self.filters) / 74**2 / (9 * of_group) ** 0.5
        own = {"bias": "float32", "slope": "float32", "scale": "float32"}
        return {name: array.astype(own.get(name, self.dtype)) for name, array in found.items()}

    def expression(self, arrays):
        """What builds the call, of the variables in order."""
        options = {"padding": 1, **self.options}
        return lambda variables: topi_ext.conv2d_nhwc(**dict(zip(arrays, variables)), **options)

    def assert_expected(self, found, arrays):
        options = {"padding": 1, **self.options}
        options.pop("weight_id", None)
        (found,) = found
        expected = reference.conv2d_nhwc(**arrays, **options)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        difference = np.abs(found.astype("float32") - expected.astype("float32"))
        tolerance = TOLERANCE[self.dtype] * np.maximum(1, np.abs(expected.astype("float32")))
        # Rounded to int8, sums that are nearly half an integer may differ by one.
        assert (difference <= tolerance).mean() > (0.995 if self.dtype == "int8" else 0.99999)
        assert difference.max() <= (1 if self.dtype == "int8" else tolerance.max())


def options(**given):
    return {"options": given}


BOTH = {"activation": "relu", "final_activation": ("clip", 0, 0.5)}
ON_LLVM = {
    "plain": Convolution(),
    "all of it": Convolution(filters=24, more=("residual",), **options(strides=2, **BOTH)),
    "prelu": Convolution(more=("slope",), **options(activation="prelu", dilation=2, padding=(2, 0, 1, 3))),
    "shuffled": Convolution(channels=3, filters=12, **options(block_size=2, activation="silu")),
    "grouped": Convolution(filters=32, **options(groups=4)),
    "depthwise": Convolution(**options(groups=16, activation="hard_swish")),
    "known weights": Convolution(**options(weight_id="these")),
}
IN_OTHER_TYPES = {
    "bfloat16": Convolution("bfloat16", more=("residual",), **options(**BOTH)),
    "float16": Convolution("float16", more=("residual",), **options(**BOTH)),
    "int8": Convolution("int8", filters=24, more=("residual",), **options(activation="relu", **IN_INT8)),
    "int8 of few": Convolution("int8", 5, 3, **options(out_dtype="int8", out_scale=50.0)),
}
ON_CUDA = {
    "float16": IN_OTHER_TYPES["float16"],
    "bfloat16": IN_OTHER_TYPES["bfloat16"],
    "int8": IN_OTHER_TYPES["int8"],
    "prelu": Convolution("float16", more=("slope",), **options(activation="prelu", strides=2)),
    "shuffled": Convolution("float16", filters=32, **options(block_size=2)),
    "grouped": Convolution("float16", 32, 64, **options(groups=8)),
    "depthwise": Convolution("float16", **options(groups=16)),
    "depthwise float32": Convolution(**options(groups=16)),
}
OF_ONE_PIXEL = {
    name: Convolution(
        filters=7,
        size=(1, 1),
        kernel=1,
        images=1,
        more=("slope",) if name == "prelu" else (),
        **options(padding=0, activation={"leaky_relu": (name, 0.1), "clip": (name, 0, 1)}.get(name, name)),
    )
    for name in ACTIVATIONS.keys() - {"none"}
}
needs_onednn = pytest.mark.skipif(not onednn.is_available(), reason="needs oneDNN")


def module_of_all(cases, batch=None):
    """A function for each case; `batch` names that of all tensors if it is known only at run time."""
    calls = {}
    for name, case in cases.items():
        arrays = case.arrays()
        lengths = {data: f"{batch} - - -" for data in ("data", "residual") if batch}
        lengths = [lengths.get(argument, " ".join("-" * array.ndim)) for argument, array in arrays.items()]
        calls[name.replace(" ", "_")] = case.expression(arrays), types_of(arrays.values(), lengths)
    return module_of(calls)


def assert_all(cases, target, batch=None, device=None):
    executable = compiled(module_of_all(cases, batch), target)
    for name, case in cases.items():
        arrays = case.arrays()
        case.assert_expected(run(executable, arrays.values(), name.replace(" ", "_"), device), arrays)


def lowered(cases, target):
    with target:
        return str(relax.transform.LegalizeOps()(module_of_all(cases)))


@pytest.mark.parametrize("batch", [None, "n"])
def test_on_llvm(batch):
    assert_all({**ON_LLVM, **IN_OTHER_TYPES}, LLVM, batch)


def test_all_activations_of_one_pixel():
    """Of vectors of filters, and of what is left over."""
    assert_all(OF_ONE_PIXEL, LLVM)


@needs_onednn
@pytest.mark.parametrize("batch", [None, "n"])
def test_by_onednn(batch):
    assert lowered(ON_LLVM, ONEDNN).count(onednn.PACKED_FUNCTION) == len(ON_LLVM)
    assert_all(ON_LLVM, ONEDNN, batch)


@needs_onednn
def test_the_second_call_of_onednn_is_made_without_python(monkeypatch):
    assert calls._native() is not None
    case = Convolution(more=("residual",), options={"weight_id": "some"})
    arrays = case.arrays()
    executable = compiled(module_of_all({"case": case}), ONEDNN)
    monkeypatch.setattr(onednn, "_of_thread", onednn._OfThread())
    case.assert_expected(run(executable, arrays.values(), "case"), arrays)
    monkeypatch.setattr(onednn, "address_of", None)  # which Python would need
    others = {name: array * np.float32(2) for name, array in arrays.items()} | {"weight": arrays["weight"]}
    case.assert_expected(run(executable, others.values(), "case"), others)
    others["weight"] = np.flip(arrays["weight"], 0).copy()
    with pytest.raises(TypeError, match="not callable"):
        run(executable, others.values(), "case")


@needs_onednn
def test_what_onednn_lacks_is_computed_without():
    of_int8 = {"int8": IN_OTHER_TYPES["int8"]}
    assert onednn.PACKED_FUNCTION not in lowered(of_int8, ONEDNN)
    assert_all(of_int8, ONEDNN)


def test_on_the_emulated_device():
    with emulate_cuda():
        assert_all(ON_CUDA, CUDA, device=tvm.cuda())


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_compiles_the_kernels():
    """The large one is of several tiles, by the instructions that only sm_90a has."""
    large = Convolution("float16", 64, 128, size=(64, 64))
    assert_nvcc_compiles(module_of_all({**ON_CUDA, "large": large}))


@pytest.mark.parametrize(
    ("case", "batch", "reason"),
    [
        (Convolution(), None, "on CUDA, data must be int8, float16 or bfloat16"),
        (Convolution("float16"), "n", "known only at run time has kernels for llvm, not for cuda"),
    ],
)
def test_on_cuda_what_has_no_kernel_is_refused(case, batch, reason):
    module = module_of_all({"refused": case}, batch)
    with CUDA, pytest.raises(Exception, match=reason):
        relax.transform.LegalizeOps()(module)


def test_wrong_types_are_refused():
    arrays = Convolution().arrays()
    arrays["weight"] = arrays["weight"].astype("float16")
    with pytest.raises(Exception, match="weight must be of the type of data, float32, not float16"):
        module_of({"main": (Convolution().expression(arrays), types_of(arrays.values()))})


def test_the_target_of_this_processor_has_onednn():
    target = topi_ext.cpu_target()
    assert target.kind.name == "llvm"
    assert ("onednn" in target.attrs.get("libs", ())) == onednn.is_available()


def test_cudnn_is_asked(oracle, monkeypatch):  # noqa: F811
    """As for Relay: see tests/ops/test_conv2d_nhwc_cudnn.py for when, and for what a call does."""
    prefer_cudnn(monkeypatch)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "libs": [session.LIBRARY]}, host="llvm")
    names = "float16", "int8", "prelu", "shuffled"
    with emulate_cuda():
        assert_all({name: ON_CUDA[name] for name in names}, target, device=tvm.cuda())
    assert [problem.dtype for problem in oracle] == ["float16", "float16"]
