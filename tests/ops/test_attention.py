"""Attention on LLVM and the emulated CUDA device, with and without tensor cores."""

import shutil

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import topi_ext
from tests.helpers import numbers
from tests.ops.nvcc import assert_compiles_without_spills
from topi_ext.attention import cudnn, op, reference
from topi_ext.attention.problem import LAYOUTS

import tvm
from tvm import relay
from tvm.contrib import graph_executor

TOLERANCES = {"float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2}
SWAPPED = ("BNHD", "BNHD", "BNHD", "BNHD")
SHAPES = [  # batch, heads, queries, keys, depth, width
    (1, 2, 16, 64, 16, 16),
    (2, 3, 37, 53, 32, 64),
    (1, 1, 70, 130, 64, 32),
    (1, 2, 5, 1, 8, 24),
    (1, 1, 1, 33, 128, 128),
    (1, 2, 7, 9, 5, 3),
    (1, 1, 3, 40, 20, 136),
]


def inputs(shape, dtype="float32", layouts=LAYOUTS, mask=None):
    batch, heads, queries, keys, depth, width = shape
    arrays = [
        numbers(batch, heads, items, length, seed=seed)
        for seed, (items, length) in enumerate([(queries, depth), (keys, depth), (keys, width)])
    ]
    arrays = [array if layout == "BHND" else array.swapaxes(1, 2) for array, layout in zip(arrays, layouts)]
    arrays = [np.ascontiguousarray(array * 2).astype(dtype) for array in arrays]
    return arrays if mask is None else [*arrays, mask]


def function_of(*arrays, **options):
    names = [relay.var(n, shape=a.shape, dtype=str(a.dtype)) for n, a in zip(op.ARGUMENTS, arrays)]
    return relay.Function(names, topi_ext.attention(*names, **options))


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""

    def on_llvm(*arrays, **options):
        library = relay.build(tvm.IRModule.from_expr(function_of(*arrays, **options)), "llvm")
        module = graph_executor.GraphModule(library["default"](tvm.cpu()))
        for at, array in enumerate(arrays):
            module.set_input(at, array)
        module.run()
        return module.get_output(0).numpy()

    def on_cuda(*arrays, **options):
        return cuda.run_relay(function_of(*arrays, **options), *arrays)[0]

    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")
    return on_cuda


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layouts", [LAYOUTS, SWAPPED], ids=["BHND", "BNHD"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(run, shape, layouts, dtype):
    arrays = inputs(shape, dtype, layouts)
    options = {"scale": shape[4] ** -0.5, "layouts": layouts}
    found, expected = run(*arrays, **options), reference.attention(*arrays, **options)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, TOLERANCES[dtype], TOLERANCES[dtype])


@pytest.mark.parametrize("mask_dtype", ["float32", "float16"])
@pytest.mark.parametrize("axes", [(), (0,), (0, 1), (0, 1, 2), (3,), (2,)], ids=str)
@pytest.mark.parametrize("depth", [16, 7])
def test_masks(run, axes, depth, mask_dtype):
    """Also with keys that are excluded; axes of the mask are 1."""
    full = 2, 3, 19, 37
    mask = numbers(*(1 if axis in axes else extent for axis, extent in enumerate(full)), seed=7)
    mask = np.where(mask > 1, -np.inf, mask).astype(mask_dtype)
    mask[..., 0] = 0
    arrays = inputs((*full, depth, 8), "float16", mask=mask)
    expected = reference.attention(*arrays, scale=0.3)
    np.testing.assert_allclose(run(*arrays, scale=0.3), expected, 3e-3, 3e-3)


@pytest.mark.parametrize("depth", [16, 7])
def test_first_tiles_that_are_excluded(run, depth):
    mask = np.zeros((1, 1, 3, 150), "float32")
    mask[..., :140] = -np.inf
    arrays = inputs((1, 2, 3, 150, depth, 8), "float16", mask=mask)
    expected = reference.attention(*arrays, scale=0.3)
    np.testing.assert_allclose(run(*arrays, scale=0.3), expected, 3e-3, 3e-3)


@pytest.mark.parametrize("depth", [16, 7])
def test_a_query_whose_keys_are_all_excluded(emulated_cuda, depth):
    mask = np.zeros((1, 1, 3, 70), "float32")
    mask[:, :, 1] = -np.inf
    arrays = inputs((1, 1, 3, 70, depth, 8), "float16", mask=mask)
    (found,) = emulated_cuda.run_relay(function_of(*arrays, scale=0.3), *arrays)
    assert np.isnan(found[:, :, 1]).all() and np.isfinite(found[:, :, [0, 2]]).all()


@pytest.mark.parametrize("depth", [16, 7])
def test_keys_that_the_lowest_number_excludes_are_as_good_as_each_other(run, depth):
    """Where it excludes all keys of a query, as a mask of padding does."""
    mask = np.zeros((1, 1, 3, 70), "float32")
    mask[:, :, 1], mask[:, :, 2, 40:] = 2 * [np.finfo("float32").min]
    arrays = inputs((1, 1, 3, 70, depth, 8), "float16", mask=mask)
    found = run(*arrays, scale=0.3)
    np.testing.assert_allclose(found, reference.attention(*arrays, scale=0.3), 3e-3, 3e-3)
    np.testing.assert_allclose(found[0, 0, 1], arrays[2].astype("float32").mean((0, 1, 2)), 3e-3, 3e-3)


@pytest.mark.parametrize("depth", [16, 7])
def test_scales_that_are_none_in_float32(run, depth):
    arrays = inputs((1, 1, 3, 70, depth, 8), "float16")
    expected = reference.attention(*arrays, scale=0.0)
    np.testing.assert_allclose(run(*arrays, scale=1e-50), expected, 3e-3, 3e-3)


@pytest.mark.parametrize("depth", [16, 7])
def test_scores_whose_exponentials_overflow(run, depth):
    query, key, value = inputs((1, 2, 9, 70, depth, 8), "float16")
    arrays = query * np.float16(30), key * np.float16(30), value
    expected = reference.attention(*arrays, scale=1.0)
    np.testing.assert_allclose(run(*arrays, scale=1.0), expected, 3e-3, 3e-3)


@pytest.mark.parametrize("depth", [16, 7])
def test_bfloat16(emulated_cuda, depth):
    arrays = inputs((1, 2, 9, 70, depth, 8))
    names = [relay.var(n, shape=a.shape) for n, a in zip(op.ARGUMENTS, arrays)]
    result = topi_ext.attention(*(relay.cast(name, "bfloat16") for name in names), scale=0.3)
    function = relay.Function(names, relay.cast(result, "float32"))
    (found,) = emulated_cuda.run_relay(function, *arrays)
    tolerance = TOLERANCES["bfloat16"]
    np.testing.assert_allclose(found, reference.attention(*arrays, scale=0.3), tolerance, 2 * tolerance)


@pytest.mark.parametrize("depth", [16, 7])
def test_threads_do_not_race(emulated_cuda, depth):
    emulated_cuda.sanitize = "thread"
    arrays = inputs((1, 2, 33, 140, depth, 8), "float16", SWAPPED)
    function = function_of(*arrays, scale=0.3, layouts=SWAPPED)
    emulated_cuda.assert_same_in_any_order(lambda: emulated_cuda.run_relay(function, *arrays), range(2))


def test_half_precision_is_on_tensor_cores(emulated_cuda):
    arrays = inputs((1, 1, 4, 4, 8, 8), "float16")
    relay.build(tvm.IRModule.from_expr(function_of(*arrays, scale=1.0)), emulated_cuda.target)
    assert "multiply<half>" in emulated_cuda.sources[-1]


Q, K = (2, 3, 4, 8), (2, 3, 5, 8)


@pytest.mark.parametrize(
    "shapes, dtypes, message",
    [
        ((Q, K, K), "float64 float64 float64", "query must be of type float32, float16, bfloat16"),
        ((Q, K, K), "float32 float16 float32", "key must be of the type of query, float32, not float16"),
        ((Q[1:], K, K), "float32 float32 float32", "query must have four axes, BHND"),
        (
            (Q, (2, 3, 5, 7), K),
            "float32 float32 float32",
            "key must have batch 2, 3 heads, 5 keys and",
        ),
        ((Q, K, (2, 3, 4, 8)), "float32 float32 float32", "value must have batch 2, 3 heads, 5 keys, but"),
        ((Q, (2, 3, 0, 8), (2, 3, 0, 8)), "float32 float32 float32", "no extent may be 0"),
        ((Q, (2, 3, relay.Any(), 8), K), "float32 float32 float32", "all extents must be known"),
        ((Q, K, K, (2, 3, 4, 4)), "float32 float32 float32 float32", "mask must have the shape"),
        ((Q, K, K, (4, 5)), "float32 float32 float32 float32", "mask must have the shape"),
        ((Q, K, K, (2, 3, 4, 5)), "float32 float32 float32 bool", "mask must be of type float32"),
    ],
)
def test_what_is_refused(shapes, dtypes, message):
    names = [
        relay.var(f"x{i}", shape=each, dtype=of) for i, (each, of) in enumerate(zip(shapes, dtypes.split()))
    ]
    function = relay.Function(names, topi_ext.attention(*names, scale=1.0))
    with pytest.raises(tvm.TVMError, match=message):
        relay.transform.InferType()(tvm.IRModule.from_expr(function))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"scale": float("inf")}, "scale must be finite"),
        ({"scale": 1.0, "layouts": ("BHND",)}, "layouts must be four of"),
        ({"scale": 1.0, "layouts": ("BHND", "BHND", "BHND", "BHDN")}, "layouts must be four of"),
    ],
)
def test_options_that_are_refused(options, message):
    names = [relay.var(name, shape=Q) for name in "qkv"]
    with pytest.raises(ValueError, match=message):
        topi_ext.attention(*names, **options)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize(
    "shape, dtype, mask",
    [
        ((1, 12, 197, 197, 64, 64), "float16", False),
        ((1, 4, 400, 400, 32, 64), "float16", True),
        ((8, 8, 300, 300, 128, 128), "float16", False),
        ((8, 8, 300, 300, 128, 128), "float16", True),
        ((1, 4, 30, 30, 40, 24), "float16", True),
        ((1, 4, 30, 30, 30, 30), "float32", True),
    ],
)
def test_compiles_without_spills(shape, dtype, mask, emulated_cuda, tmp_path):
    batch, heads, queries, keys, depth, width = shape
    lengths = (queries, depth), (keys, depth), (keys, width)
    names = [relay.var(f"x{i}", shape=(batch, heads, *each), dtype=dtype) for i, each in enumerate(lengths)]
    names += [relay.var("mask", shape=(1, 1, queries, keys))] if mask else []
    function = relay.Function(names, topi_ext.attention(*names, scale=0.125))
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=1, spilled=32)


GPU_SHAPES = [
    *SHAPES,
    (1, 12, 197, 197, 64, 64),
    (1, 4, 400, 400, 32, 64),
    (1, 8, 300, 300, 32, 32),
    (1, 8, 100, 950, 32, 32),
    (4, 16, 520, 300, 64, 64),
    (2, 6, 1000, 1000, 128, 128),
    (9, 6, 256, 256, 30, 30),
    (9, 6, 256, 576, 30, 30),
    (4, 3, 256, 100, 35, 35),
]


@pytest.mark.gpu
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("libraries", ["", " -libs=cudnn-frontend"], ids=["ours", "cuDNN"])
@pytest.mark.parametrize("layouts", [LAYOUTS, SWAPPED], ids=["BHND", "BNHD"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
def test_on_a_gpu(shape, dtype, layouts, libraries, has_mask, monkeypatch):
    if libraries:
        pytest.importorskip("cudnn")
        monkeypatch.setattr(cudnn, "LONG", 1)  # also where ours is faster
    mask = numbers(1, 1, shape[2], shape[3], seed=5) if has_mask else None
    arrays = inputs(shape, layouts=layouts, mask=mask)
    tensors = [torch.from_numpy(each).cuda() for each in arrays]
    tensors[:3] = [each.to(getattr(torch, dtype)) for each in tensors[:3]]
    names = [
        relay.var(name, shape=each.shape, dtype=str(each.dtype).split(".")[-1])
        for name, each in zip(op.ARGUMENTS, tensors)
    ]
    scale = shape[4] ** -0.5
    function = relay.Function(names, topi_ext.attention(*names, scale=scale, layouts=layouts))
    library = relay.build(tvm.IRModule.from_expr(function), f"cuda{libraries}")
    module = graph_executor.GraphModule(library["default"](tvm.cuda()))
    for name, each in zip(op.ARGUMENTS, tensors):
        module.set_input(name, tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(each)))
    module.run()
    tvm.cuda().sync()
    found = torch.utils.dlpack.from_dlpack(module.get_output(0).to_dlpack())
    by_head = [each.double() if layouts is LAYOUTS else each.double().transpose(1, 2) for each in tensors[:3]]
    of_scores = tensors[3].double() if has_mask else None
    expected = scaled_dot_product_attention(*by_head, attn_mask=of_scores, scale=scale)
    expected = expected if layouts is LAYOUTS else expected.transpose(1, 2)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * 2)
