"""Attention to parts of tensors: on LLVM, on the emulated CUDA device, and as cuDNN is asked for it."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import numbers
from tests.helpers import run as run_on_llvm
from tests.ops.test_attention_cudnn import answers, short_is_long, target  # noqa: F401  fixtures
from topi_ext.attention import cudnn, op, reference
from topi_ext.attention.problem import Part, Problem

import tvm
from tvm import relay

BATCH, ITEMS, HEADS = 2, 9, 3


def packed(dtype, length, seed=0):
    """The result of one layer, (batch, items, 3, heads, length), and its parts, each as BHND."""
    whole = numbers(BATCH, ITEMS, 3, HEADS, length, seed=seed).astype(dtype)
    return whole, [np.ascontiguousarray(whole[:, :, which].swapaxes(1, 2)) for which in range(3)]


def part(which, length):
    row = 3 * HEADS * length
    strides = ITEMS * row, length, row, 1
    return Part((BATCH, HEADS, ITEMS, length), strides, which * HEADS * length)


def function_of(whole, parts, **options):
    name = relay.var("packed", shape=whole.shape, dtype=str(whole.dtype))
    return relay.Function([name], topi_ext.attention(name, name, name, scale=0.3, parts=parts, **options))


@pytest.mark.parametrize("on", ["llvm", "cuda"])
@pytest.mark.parametrize("length, dtype", [(8, "float16"), (5, "float16"), (8, "float32")])
def test_of_one_tensor(on, length, dtype, request):
    whole, tensors = packed(dtype, length)
    layouts = "BHND", "BHND", "BHND", "BNHD"
    function = function_of(whole, [part(which, length) for which in range(3)], layouts=layouts)
    if on == "llvm":
        (found,) = run_on_llvm(tvm.IRModule.from_expr(function), whole)
    else:
        cuda = request.getfixturevalue("emulated_cuda")
        (found,) = cuda.run_relay(function, whole)
        assert ("multiply<half>" in cuda.sources[-1]) == (dtype == "float16")
    expected = reference.attention(*tensors, scale=0.3, layouts=layouts)
    np.testing.assert_allclose(found, expected, *[3e-3 if dtype == "float16" else 2e-5] * 2)


@pytest.mark.parametrize("first", [8, 4, 2, 3])
def test_vectors_that_begin_within_pieces_or_pairs(emulated_cuda, first):
    query, key, value = (numbers(1, 2, 4, 8, seed=seed).astype("float16") for seed in range(3))
    names = [relay.var(f"x{i}", shape=(count,), dtype="float16") for i, count in enumerate((80, 64, 64))]
    parts = [Part((1, 2, 4, 8), (0, 32, 8, 1), at) for at in (first, 0, 0)]
    function = relay.Function(names, topi_ext.attention(*names, scale=0.3, parts=parts))
    behind = np.concatenate([np.full(first, np.nan), query.ravel(), np.full(16 - first, np.nan)])
    arrays = behind.astype("float16"), key.ravel(), value.ravel()
    (found,) = emulated_cuda.run_relay(function, *arrays)
    np.testing.assert_allclose(found, reference.attention(query, key, value, scale=0.3), 3e-3, 3e-3)
    assert "multiply<half>" in emulated_cuda.sources[-1]


@pytest.mark.parametrize("on", ["llvm", "cuda"])
def test_one_head_of_keys_for_all_heads(on, request):
    """A stride of 0, beside a query that is a whole tensor, and a mask."""
    query, own = numbers(1, 3, 9, 8), [numbers(1, 1, 9, 8, seed=seed) for seed in (1, 2)]
    mask = numbers(1, 1, 9, 9, seed=3)
    names = [relay.var(f"x{i}", shape=each.shape) for i, each in enumerate((query, *own, mask))]
    shared = Part((1, 3, 9, 8), (72, 0, 8, 1))
    result = topi_ext.attention(*names, scale=0.3, parts=(None, shared, shared))
    function = relay.Function(names, result)
    if on == "llvm":
        (found,) = run_on_llvm(tvm.IRModule.from_expr(function), query, *own, mask)
    else:
        (found,) = request.getfixturevalue("emulated_cuda").run_relay(function, query, *own, mask)
    repeated = [np.repeat(each, 3, axis=1) for each in own]
    np.testing.assert_allclose(
        found, reference.attention(query, *repeated, mask, scale=0.3), rtol=2e-5, atol=2e-5
    )


def test_compiled_code_asks_cudnn_for_parts(emulated_cuda, answers):  # noqa: F811
    """Each tensor begins with the first element that cuDNN reads."""
    whole, tensors = packed("float16", 8)

    def compute(text, *arrays):
        problem = Problem.from_json(text)
        views = []
        for which, array in enumerate(arrays):
            shape, strides, _ = problem.part(which)
            views.append(np.lib.stride_tricks.as_strided(array, shape, [2 * step for step in strides]))
        return reference.attention(*views, scale=problem.scale)

    asked = answers(cudnn.OPERATOR, compute)
    emulated_cuda.target = target()
    (found,) = emulated_cuda.run_relay(function_of(whole, [part(which, 8) for which in range(3)]), whole)
    np.testing.assert_array_equal(found, reference.attention(*tensors, scale=0.3))
    (text,) = asked
    assert Problem.from_json(text).parts == tuple(part(which, 8) for which in range(3))


@pytest.mark.parametrize(
    "changed, expected",
    [({}, "cudnn"), ({"first": 4}, "cuda"), ({"strides": (1944, 0, 216, 1)}, "cuda")],
)
def test_which_parts_cudnn_reads(changed, expected):
    parts = [part(0, 8)._replace(**changed), part(1, 8), part(2, 8)]
    problem = Problem(BATCH, HEADS, ITEMS, ITEMS, 8, 8, 0.3, "float16", parts=tuple(parts))
    assert op.kernels_for(problem, target()).__name__.split(".")[-1] == expected


def test_cudnn_reads_parts_of_one_batch():
    """Whose stride is 0, since nobody takes a step: cuDNN takes none of 0."""
    parts = [Part((1, HEADS, ITEMS, 8), (0, *part(which, 8).strides[1:]), 24 * which) for which in range(3)]
    problem = Problem(1, HEADS, ITEMS, ITEMS, 8, 8, 0.3, "float16", parts=tuple(parts))
    assert op.kernels_for(problem, target()).__name__.split(".")[-1] == "cudnn"
    for which in range(4):
        strides = cudnn._strides(problem, which)
        assert min(strides) > 0 and strides[1:] == list(problem.strides(which)[1:])


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"first": 73}, "must be vectors side by side among the 1296 elements given"),
        ({"first": -1}, "must be vectors side by side"),
        ({"strides": (648, 8, 72, 2)}, "must be vectors side by side"),
        ({"strides": (-648, 8, 72, 1)}, "must be vectors side by side"),
        ({"shape": (2, 3, 9, 0)}, "no extent may be 0"),
    ],
)
def test_what_is_refused(wrong, message):
    whole, _ = packed("float32", 8)
    last = part(2, 8)
    first = {"first": last.first + wrong["first"]} if wrong.get("first", 0) > 0 else {}
    parts = [last._replace(**{**wrong, **first})] * 3
    with pytest.raises(tvm.TVMError, match=message):
        relay.transform.InferType()(tvm.IRModule.from_expr(function_of(whole, parts)))


def test_a_part_has_no_other_layout():
    whole, _ = packed("float32", 8)
    with pytest.raises(ValueError, match="a part has four extents and four strides, as BHND, but query has"):
        function_of(whole, [part(0, 8)] * 3, layouts=["BNHD"] * 4)
