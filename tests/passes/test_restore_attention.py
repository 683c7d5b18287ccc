"""RestoreAttention: the spellings of attention, what looks like it, and what becomes of it."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.models.maxvit import PartitionAttentionLayer
from torchvision.models.swin_transformer import ShiftedWindowAttention, ShiftedWindowAttentionV2

import frontends
import topi_ext
from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    numbers,
    ops,
    quick,
    refusals,
    run,
)
from tests.models.yolo import Attention
from tvm_passes import RestoreAttention, detection_pipeline
from tvm_passes.engine.graph import calls_of

import tvm
from tvm import relay

NAME = "topi_ext.attention"
BATCH, HEADS, QUERIES, KEYS, DEPTH, WIDTH = 2, 3, 6, 5, 8, 16
GROUPS = BATCH * HEADS
SHAPES = {"query": (GROUPS, QUERIES, DEPTH), "key": (GROUPS, KEYS, DEPTH), "value": (GROUPS, KEYS, WIDTH)}
TARGET = "cuda -arch=sm_90 -libs=cudnn-frontend"
SWAPPED = ["BNHD"] * 4
product = relay.nn.batch_matmul


def const(number):
    return relay.const(number, "float32")


def spelled(q, k, v, change=lambda scores: scores * const(0.3), soften=relay.nn.softmax):
    return product(soften(change(product(q, k))), v, transpose_b=False)


def flipped(data):
    return relay.transpose(data, [0, 2, 1])


MASK = numbers(BATCH, HEADS, QUERIES, KEYS, seed=9)
MASK[..., 2] = -np.inf


FACTORS = 0.5 + np.abs(numbers(BATCH, HEADS, QUERIES, KEYS, seed=10))
LOWEST = np.finfo("float32").min
EXCLUDED = numbers(BATCH, HEADS, QUERIES, KEYS, seed=11) > 0.5
EXCLUDED[..., 3] = False
EXCLUDED[1, 1, 1] = True  # all keys of a query


def filled(excluded, number=-np.inf, keeps=False):
    """Replace the scores of some keys, or of all others."""

    def change(scores):
        scores = relay.reshape(scores, (BATCH, HEADS, QUERIES, KEYS))
        both = const(number), scores
        scores = relay.where(relay.const(excluded), *(both[::-1] if keeps else both))
        return relay.reshape(scores, (GROUPS, QUERIES, KEYS))

    return change


def masked(mask, split=True, factor=None):
    """Add a mask to scores that have batch and heads apart, or as one axis."""

    def change(scores):
        scores = scores * const(0.3)
        if not split:
            return scores + relay.const(mask)
        scores = relay.reshape(scores, (BATCH, HEADS, QUERIES, KEYS))
        scores = scores if factor is None else scores * relay.const(factor)
        return relay.reshape(scores + relay.const(mask), (GROUPS, QUERIES, KEYS))

    return change


def of_windows(scores):
    """As Swin: a mask of each head, then one of each window, which is the same for both images."""
    images, windows, heads = 1, BATCH, HEADS
    scores = relay.reshape(scores, (BATCH, HEADS, QUERIES, KEYS)) + relay.const(MASK[:1])
    scores = relay.reshape(scores, (images, windows, heads, QUERIES, KEYS)) + relay.const(MASK[None, :, :1])
    return relay.reshape(scores, (GROUPS, QUERIES, KEYS))


def with_more_axes(scores):
    scores = relay.reshape(scores, (BATCH, HEADS, QUERIES, 1, 1, KEYS))
    scores = relay.reshape(relay.transpose(scores, [4, 0, 1, 2, 5, 3]), (1, BATCH, HEADS, QUERIES, KEYS))
    return relay.reshape(scores + relay.const(MASK[:1]), (GROUPS, QUERIES, KEYS))


def with_large_factors(q, k, v):
    """In half precision, where queries times these factors would overflow, though their scores do not."""
    first = np.eye(1, DEPTH, dtype="float32")
    q, k = q + relay.const(1000 * first), k * relay.const(0.003 * (1 - first))
    factors = relay.const((100 * FACTORS[0, 0, :, :1]).astype("float16"))
    halves = (relay.cast(each, "float16") for each in (q, k, v))
    return relay.cast(spelled(*halves, lambda s: s * factors), "float32")


def flip_all(q, k, v):
    """(v^T softmax^T)^T, where the softmax is over the first axis of each matrix."""
    scores = product(k, q) * const(0.3)
    return flipped(product(flipped(v), flipped(relay.nn.softmax(flipped(scores))), transpose_b=False))


SPELLINGS = {
    "scaled": spelled,
    "divided": lambda q, k, v: spelled(q, k, v, lambda s: s / const(3.0)),
    "scale first": lambda q, k, v: spelled(q, k, v, lambda s: const(0.3) * s),
    "scaled queries and keys": lambda q, k, v: spelled(q * const(0.5), k / const(2.0), v, lambda s: s),
    "scaled by roots": lambda q, k, v: spelled(
        q * relay.rsqrt(const(3.0)), k, v, lambda s: s / relay.sqrt(const(2.0))
    ),
    "not scaled": lambda q, k, v: spelled(q, k, v, lambda s: s),
    "keys transposed": lambda q, k, v: product(
        relay.nn.softmax(product(q, flipped(k), transpose_b=False)), v, transpose_b=False
    ),
    "queries transposed": lambda q, k, v: product(
        relay.nn.softmax(product(flipped(q), k, transpose_a=True)), v, transpose_b=False
    ),
    "values transposed": lambda q, k, v: product(relay.nn.softmax(product(q, k)), flipped(v)),
    "all transposed": flip_all,
    "softmax of the first axis": lambda q, k, v: product(
        relay.nn.softmax(product(k, q), axis=1), v, transpose_a=True, transpose_b=False
    ),
    "batch and heads apart": lambda q, k, v: product(
        relay.reshape(
            relay.nn.softmax(relay.reshape(product(q, k), (BATCH, HEADS, QUERIES, KEYS))),
            (GROUPS, QUERIES, KEYS),
        ),
        v,
        transpose_b=False,
    ),
    "half precision in between": lambda q, k, v: spelled(
        q, k, v, soften=lambda s: relay.cast(relay.cast(relay.nn.softmax(s), "float16"), "float32")
    ),
    "a full mask": lambda q, k, v: spelled(q, k, v, masked(MASK)),
    "a mask of the heads": lambda q, k, v: spelled(q, k, v, masked(MASK[:1])),
    "a mask of the batch": lambda q, k, v: spelled(q, k, v, masked(MASK[:, :1, :1])),
    "a mask of the keys": lambda q, k, v: spelled(q, k, v, masked(MASK[0, 0, 0], split=False)),
    "a mask of batch and heads together": lambda q, k, v: spelled(
        q, k, v, masked(MASK.reshape(GROUPS, QUERIES, KEYS), split=False)
    ),
    "masks of windows and of heads": lambda q, k, v: spelled(q, k, v, of_windows),
    "axes of extent 1 that move": lambda q, k, v: spelled(q, k, v, with_more_axes),
    "a factor for each head": lambda q, k, v: spelled(q, k, v, masked(MASK, factor=FACTORS[:1, :, :1, :1])),
    "a divisor for each query": lambda q, k, v: spelled(
        q, k, v, lambda s: s / relay.const(FACTORS[0, 0, :, :1])
    ),
    "a factor for each key": lambda q, k, v: spelled(
        q, k, v, lambda s: s * relay.exp(relay.const(MASK[0, 0, 0]))
    ),
    "a scaled mask": lambda q, k, v: spelled(q, k, v, lambda s: masked(MASK)(s) / const(2.0)),
    "keys excluded": lambda q, k, v: spelled(q, k, v, filled(EXCLUDED)),
    "keys kept": lambda q, k, v: spelled(q, k, v, filled(~EXCLUDED, keeps=True)),
    "keys excluded for each image": lambda q, k, v: spelled(q, k, v, filled(EXCLUDED[:, :1, :1], -1e9)),
    "keys excluded, a mask and a scale": lambda q, k, v: spelled(
        q, k, v, lambda s: filled(EXCLUDED[:1])(masked(MASK)(s)) * const(0.5)
    ),
    "a mask for what is excluded, too": lambda q, k, v: spelled(
        q, k, v, lambda s: masked(MASK)(filled(EXCLUDED, -1e9)(s))
    ),
    "keys that the lowest number excludes in two ways": lambda q, k, v: spelled(
        q, k, v, lambda s: filled(EXCLUDED, LOWEST)(masked(np.where(EXCLUDED, 0, LOWEST))(s))
    ),
    "keys that a negative scale excludes": lambda q, k, v: spelled(
        q, k, v, lambda s: filled(EXCLUDED, np.inf)(s) * const(-1.0)
    ),
    "large factors in half precision": with_large_factors,
    "two masks": lambda q, k, v: spelled(q, k, v, lambda s: masked(MASK)(s) + relay.const(MASK[0, 0])),
}


def inputs():
    return [relay.var(name, shape=shape) for name, shape in SHAPES.items()]


def arrays():
    return [numbers(*shape, seed=seed) for seed, shape in enumerate(SHAPES.values())]


@pytest.mark.parametrize("case", SPELLINGS)
def test_spellings(case):
    variables = inputs()
    mod = module(*variables, SPELLINGS[case](*variables))
    tolerance = 2e-3 if "half" in case else 1e-5
    after = assert_same_numbers(RestoreAttention(), mod, *arrays(), rtol=tolerance, atol=tolerance)
    assert "nn.softmax" not in ops(after) and "nn.batch_matmul" not in ops(after)
    assert_no_second_change(RestoreAttention(), after)


def test_structure():
    query, key, value = variables = inputs()
    shapes = [(1, *shape) for shape in SHAPES.values()]
    result = topi_ext.attention(
        *(relay.reshape(each, shape) for each, shape in zip(variables, shapes)), scale=float(np.float32(0.3))
    )
    expected = module(*variables, relay.reshape(result, (GROUPS, QUERIES, WIDTH)))
    after = RestoreAttention()(module(*variables, spelled(query, key, value)))
    tvm.ir.assert_structural_equal(after, relay.transform.InferType()(expected))


def twice(q, k, v):
    weights = relay.nn.softmax(product(q, k))
    return relay.Tuple([product(weights, v, transpose_b=False), weights])


def of_scores_elsewhere(q, k, v):
    scores = product(q, k)
    return relay.Tuple([product(relay.nn.softmax(scores * const(0.3)), v, transpose_b=False), scores])


USED, UNKNOWN = "used elsewhere, too", "not of a product of queries and keys"
REFUSED = {
    "weights are a result": (twice, USED),
    "scores are a result": (of_scores_elsewhere, USED),
    "over the queries": (
        lambda q, k, v: spelled(q, k, v, soften=lambda s: relay.nn.softmax(s, axis=1)),
        "the softmax is not over the axis",
    ),
    "a mask that a tensor multiplies": (
        lambda q, k, v: spelled(q, k, v, lambda s: masked(MASK)(s) * relay.const(FACTORS[0, 0, :, :1])),
        "the mask is multiplied by a tensor, too",
    ),
    "replaced by a number near others": (
        lambda q, k, v: spelled(q, k, v, filled(EXCLUDED, -100.0)),
        "scores are replaced by -100, which others may be near",
    ),
    "replaced by the greatest number": (
        lambda q, k, v: spelled(q, k, v, lambda s: filled(EXCLUDED, -1e9)(s) * const(-1.0)),
        "scores are replaced by -1e+09, which others may be near",
    ),
    "excluded by the scores": (
        lambda q, k, v: spelled(q, k, v, lambda s: relay.where(relay.less(s, const(0.0)), const(-np.inf), s)),
        USED,
    ),
    "weights of the scores": (
        lambda q, k, v: spelled(q, k, v, lambda s: s - relay.max(s, axis=-1, keepdims=True)),
        UNKNOWN,
    ),
    "replaced by a tensor": (
        lambda q, k, v: spelled(
            q,
            k,
            v,
            lambda s: relay.where(
                relay.const(EXCLUDED.reshape(GROUPS, QUERIES, KEYS)),
                relay.const(MASK.reshape(GROUPS, QUERIES, KEYS)),
                s,
            ),
        ),
        UNKNOWN,
    ),
    "clipped scores": (lambda q, k, v: spelled(q, k, v, lambda s: relay.clip(s, -1.0, 1.0)), UNKNOWN),
    "a computed scale": (
        lambda q, k, v: spelled(q, k, v, lambda s: s * relay.sum(k, keepdims=True)),
        UNKNOWN,
    ),
    "a factor for each query and key": (
        lambda q, k, v: spelled(q, k, v, lambda s: s * relay.const(numbers(QUERIES, KEYS))),
        UNKNOWN,
    ),
    "infinite factors": (
        lambda q, k, v: spelled(q, k, v, lambda s: s / relay.const(np.zeros((QUERIES, 1), "float32"))),
        UNKNOWN,
    ),
    "divided by 0": (lambda q, k, v: spelled(q, k, v, lambda s: s / const(0.0)), UNKNOWN),
    "the root of a negative number": (
        lambda q, k, v: spelled(q, k, v, lambda s: s * relay.sqrt(const(-1.0))),
        UNKNOWN,
    ),
    "a constant divided": (lambda q, k, v: spelled(q, k, v, lambda s: const(0.3) / s), UNKNOWN),
    "a mask of other heads": (
        lambda q, k, v: spelled(
            q,
            k,
            v,
            lambda s: relay.reshape(
                relay.transpose(
                    relay.transpose(relay.reshape(s, (BATCH, HEADS, QUERIES, KEYS)), [1, 0, 2, 3])
                    + relay.const(MASK.swapaxes(0, 1)),
                    [1, 0, 2, 3],
                ),
                (GROUPS, QUERIES, KEYS),
            ),
        ),
        "the mask is not by batch, head, query and key",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    spell, reason = REFUSED[case]
    variables = inputs()
    mod = module(*variables, spell(*variables))
    after, report = apply(RestoreAttention(), mod)
    assert after.same_as(mod) and any(reason in each for each in refusals(report)), refusals(report)


@pytest.mark.parametrize("depth", [30, 35])
def test_vectors_of_any_length(depth):
    """Of 30 in SwinIR, HAT and DAT, of 35 in ATD."""
    q, k, v = (relay.var(name, shape=(2, 4, depth)) for name in "qkv")
    after, _ = apply(RestoreAttention(), module(q, k, v, spelled(q, k, v)))
    assert ops(after).count(NAME) == 1 and "nn.batch_matmul" not in ops(after)


def test_vectors_without_a_fast_kernel():
    q, k, v = (relay.var(name, shape=(2, 4, 136)) for name in "qkv")
    after, report = apply(RestoreAttention(), module(q, k, v, spelled(q, k, v)))
    assert NAME not in ops(after) and any("longer than 128" in each for each in refusals(report))


def test_one_operand_for_all_items():
    q, k, v = (relay.var(name, shape=(batch, 4, 8)) for name, batch in (("q", 2), ("k", 1), ("v", 2)))
    _, report = apply(RestoreAttention(), module(q, k, v, spelled(q, k, v)))
    assert any("serves all items" in each for each in refusals(report))


@pytest.mark.parametrize("keys", [8, 4])
def test_keys_of_each_query_are_no_attention(keys):
    """Of relative positions: the batch of the product are the queries, as many as there are heads."""
    q, r, v = (
        relay.var(name, shape=shape)
        for name, shape in (("q", (8, 8, 8)), ("r", (8, keys, 8)), ("v", (8, keys, 8)))
    )
    scores = relay.transpose(product(relay.transpose(q, [1, 0, 2]), r), [1, 0, 2])
    y = product(relay.nn.softmax(scores), v, transpose_b=False)
    after, _ = apply(RestoreAttention(), module(q, r, v, y))
    assert NAME not in ops(after)


def test_one_head_of_one_image():
    q, k, v = (relay.var(name, shape=(1, 4, 8)) for name in "qkv")
    scores = relay.nn.softmax(relay.reshape(product(q, k), (1, 1, 4, 4)) * const(0.2))
    mod = module(q, k, v, product(relay.reshape(scores, (1, 4, 4)), v, transpose_b=False))
    after = assert_same_numbers(RestoreAttention(), mod, *(numbers(1, 4, 8, seed=seed) for seed in range(3)))
    assert NAME in ops(after)


def test_an_empty_batch():
    q, k, v = (relay.var(name, shape=(0, 4, 8)) for name in "qkv")
    after, report = apply(RestoreAttention(), module(q, k, v, spelled(q, k, v)))
    assert NAME not in ops(after) and "it is empty" in refusals(report)


def test_shapes_that_only_the_runtime_knows():
    q, k, v = (relay.var(name, shape=(2, relay.Any(), 8)) for name in "qkv")
    _, report = apply(RestoreAttention(), module(q, k, v, spelled(q, k, v)))
    assert any("dynamic" in each for each in refusals(report))


def test_half_precision_between_casts():
    names = [relay.var(name, shape=shape, dtype="float16") for name, shape in SHAPES.items()]
    y = relay.cast(spelled(*(relay.cast(name, "float32") for name in names)), "float16")
    after, _ = apply(RestoreAttention(), module(*names, y))
    assert set(ops(after)) == {NAME, "reshape"} and calls_of(after, NAME)[0].checked_type.dtype == "float16"


# --- what importers produce


class OfHeads(nn.Module):
    """As transformers' models spell it."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.last = (nn.Linear(32, 32) for _ in range(4))

    def split(self, x):
        return x.view(x.shape[0], -1, 4, 8).transpose(1, 2)

    def attend(self, q, k, v):
        weights = functional.softmax(torch.matmul(q, k.transpose(-1, -2)) / 8**0.5, dim=-1)
        return torch.matmul(functional.dropout(weights, 0.0, False), v)

    def forward(self, x):
        found = self.attend(*(self.split(layer(x)) for layer in (self.query, self.key, self.value)))
        return self.last(found.transpose(1, 2).reshape(x.shape))


class BySdpa(OfHeads):
    def attend(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)


class Causal(OfHeads):
    def attend(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class OfTorch(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = nn.MultiheadAttention(32, 4, batch_first=True), options

    def forward(self, x):
        return self.layer(x, x, x, **self.options)[0]


def of_swin():
    """Of windows that are shifted, and padded."""
    return ShiftedWindowAttention(32, [4, 4], [2, 2], 4)


def of_swin_v2():
    """Of cosines, each head with a factor of its own."""
    return ShiftedWindowAttentionV2(32, [4, 4], [2, 2], 4)


def of_maxvit():
    sizes = 32, 8, 4, "grid", (8, 8), 2
    return PartitionAttentionLayer(*sizes, nn.GELU, nn.LayerNorm, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "make, shape",
    [
        (of_swin, (1, 9, 10, 32)),
        (of_swin, (2, 9, 10, 32)),
        (of_swin_v2, (2, 9, 10, 32)),
        (of_maxvit, (1, 32, 8, 8)),
        (of_maxvit, (2, 32, 8, 8)),
    ],
    ids=["Swin", "two by Swin", "two by Swin v2", "MaxViT", "two by MaxViT"],
)
def test_windows(make, shape):
    torch.manual_seed(0)
    model, image = make().eval(), torch.rand(shape)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    after, _ = apply(RestoreAttention(), imported(model, image, False, None))
    assert "nn.softmax" not in ops(after) and len(calls_of(after, NAME)) == 1
    (found,) = run(after, image.numpy(), target=quick())
    np.testing.assert_allclose(found, model(image).detach().numpy(), 1e-4, 1e-5)


MODELS = {
    "matmul": (OfHeads, (2, 10, 32), True),
    "scaled_dot_product_attention": (BySdpa, (2, 10, 32), True),
    "a causal mask": (Causal, (2, 10, 32), False),
    "MultiheadAttention": (OfTorch, (2, 10, 32), True),
    "MultiheadAttention, without weights": (lambda: OfTorch(need_weights=False), (2, 10, 32), True),
    "YOLO": (lambda: Attention(128), (1, 128, 3, 4), False),
}


def imported(model, image, by_onnx, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if by_onnx:
            torch.onnx.export(model, (image,), str(path), opset_version=17)
            mod, params = frontends.from_onnx(str(path))[:2]
        else:
            mod, params = frontends.from_pytorch(model, [image])[:2]
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return relay.transform.InferType()(mod)


@pytest.mark.parametrize("by_onnx", [False, True], ids=["PyTorch", "ONNX"])
@pytest.mark.parametrize("case", MODELS)
def test_models(case, by_onnx, tmp_path):
    torch.manual_seed(0)
    make, shape, is_swapped = MODELS[case]
    model, image = make().eval(), torch.rand(shape)
    mod = imported(model, image, by_onnx, tmp_path / "model.onnx")
    after, _ = apply(RestoreAttention(), mod)
    (call,) = calls_of(after, NAME)
    assert "nn.softmax" not in ops(after)
    assert not is_swapped or list(map(str, call.attrs["layouts"])) == SWAPPED
    (found,) = run(after, image.numpy())
    np.testing.assert_allclose(found, model(image).detach().numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("case", MODELS)
def test_pipeline(case):
    """All in half precision, without a product that TVM computes."""
    make, shape, _ = MODELS[case]
    mod = imported(make().eval(), torch.rand(shape), False, None)
    after = detection_pipeline(TARGET, outputs="padded")(mod)
    (call,) = calls_of(after, NAME)
    assert {each.checked_type.dtype for each in call.args[:3]} == {"float16"}
    assert not {"nn.softmax", "nn.dense", "nn.batch_matmul"} & set(ops(after))


@pytest.mark.parametrize("case", MODELS)
def test_on_tensor_cores(emulated_cuda, case):
    """The kernels that the pipeline's result is compiled to."""
    torch.manual_seed(0)
    make, shape, _ = MODELS[case]
    model, image = make().eval(), torch.rand(shape)
    mod = RestoreAttention()(imported(model, image, False, None))
    mod = detection_pipeline(emulated_cuda.target, outputs="padded")(mod)
    assert calls_of(mod, NAME)
    (found,) = emulated_cuda.run_relay(mod, image.numpy())
    np.testing.assert_allclose(found, model(image).detach().numpy(), 1e-2, 1e-2)
