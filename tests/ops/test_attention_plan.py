"""How attention on tensor cores is divided: each way finds the same, and fits on the card."""

from functools import partial

import numpy as np
import pytest

import topi_ext
from tests.helpers import numbers
from tests.ops.convolutions import rounded
from tests.ops.test_attention import TOLERANCES, function_of, inputs
from topi_ext.attention import cuda, op, reference
from topi_ext.attention.plan import BANKS, Plan, choose_plan, place
from topi_ext.attention.problem import Problem
from topi_ext.conv2d_nhwc.plan import KIB, SHARED_MEMORY

import tvm
from tvm import relay

PLANS = Plan(1, 1, 16), Plan(1, 4, 32), Plan(2, 2, 64, groups=2), Plan(4, 1, 32, groups=2), Plan(2, 2, 32)


@pytest.mark.parametrize("has_mask", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("shape", [(2, 2, 75, 90, 32, 48), (1, 1, 16, 129, 64, 64)], ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_all_find_the_same(plan, shape, has_mask, emulated_cuda, monkeypatch):
    monkeypatch.setattr(cuda, "choose_plan", lambda _problem, _most_bytes: plan)
    mask = numbers(1, shape[1], *shape[2:4], seed=5, dtype="float16") if has_mask else None
    if has_mask:
        mask[..., :70] = -np.inf  # all keys of the first warps of some plans
    arrays = inputs(shape, "float16", mask=mask)
    (found,) = emulated_cuda.run_relay(function_of(*arrays, scale=0.2), *arrays)
    expected = reference.attention(*arrays, scale=0.2)
    np.testing.assert_allclose(found, expected, TOLERANCES["float16"], TOLERANCES["float16"])


@pytest.mark.parametrize("has_mask", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "shape",
    [
        (2, 6, 35, 40, 30, 30),
        (1, 2, 17, 33, 10, 42),
        (1, 1, 20, 70, 100, 6),
        (1, 1, 9, 20, 24, 3),
        (2, 3, 18, 25, 35, 35),
    ],
    ids=str,
)
def test_lengths_of_no_whole_pieces(shape, dtype, has_mask, emulated_cuda):
    """As in SwinIR and HAT, whose vectors have 30 numbers, and ATD, 35."""
    mask = numbers(1, 1, *shape[2:4], seed=5) if has_mask else None
    arrays = [rounded(each, dtype) for each in inputs(shape)] + [mask] * has_mask
    names = [relay.var(name, shape=each.shape, dtype="float32") for name, each in zip(op.ARGUMENTS, arrays)]
    call = topi_ext.attention(*(relay.cast(name, dtype) for name in names[:3]), *names[3:], scale=0.2)
    function = relay.Function(names, relay.cast(call, "float32"))
    (found,) = emulated_cuda.run_relay(function, *arrays)
    assert "multiply<" in "".join(emulated_cuda.sources)
    expected = reference.attention(*arrays, scale=0.2)
    np.testing.assert_allclose(found, expected, TOLERANCES[dtype], TOLERANCES[dtype])


@pytest.mark.parametrize("arch", SHARED_MEMORY)
def test_all_fit(arch):
    most = SHARED_MEMORY[arch] * KIB
    lengths = range(1, 129, 7)
    shapes = [(1, heads, 300, 900, length, length) for heads in (1, 8, 64) for length in lengths]
    for shape in shapes:
        problem = Problem(*shape, scale=1.0, dtype="float16")
        assert choose_plan(problem, most).shared_bytes(problem) <= most


@pytest.mark.parametrize(
    "shape, plan",
    [
        ((1, 4, 400, 400, 32, 64), Plan(1, 4, 64)),
        ((1, 12, 197, 197, 64, 64), Plan(2, 2, 64)),
        ((1, 2, 5, 2000, 64, 64), Plan(1, 4, 64)),
        ((64, 12, 49, 49, 32, 32), Plan(4, 1, 64)),
        ((1, 12, 4096, 4096, 64, 64), Plan(4, 1, 64, groups=2)),
        ((2, 16, 577, 577, 128, 128), Plan(4, 1, 32)),
    ],
    ids=str,
)
def test_few_queries_share_keys_and_many_share_loads(shape, plan):
    assert choose_plan(Problem(*shape, scale=1.0, dtype="float16"), 227 * KIB) == plan


@pytest.mark.parametrize("pieces", range(2, 17, 2))
def test_pieces_have_places_and_banks_of_their_own(pieces):
    vectors, number = 32, partial(tvm.tir.const, dtype="int32")
    places = [
        [int(place(pieces, number(vector), number(piece))) for piece in range(pieces)]
        for vector in range(vectors)
    ]
    assert len({each for row in places for each in row}) == vectors * pieces
    for first in range(0, vectors, 8):
        for piece in range(pieces):
            assert len({places[first + v][piece] % BANKS for v in range(8)}) == 8
