"""ConcatenateInPlace: structure, numbers, memory, refusals, and nothing more the second time."""

import json

import numpy as np
import pytest
import torch

import frontends
import topi_ext
from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    module,
    numbers,
    ops,
    refusals,
    run,
)
from tests.models.super_resolution import super_resolution_model
from tests.ops.test_conv2d_nhwc_cudnn import GPU_TARGET, cudnn_alone  # noqa: F401  (a fixture)
from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from tests.runtime.test_aliases import in_place
from tvm_passes import ConcatenateInPlace, runtime, subpixel_pipeline
from tvm_passes.engine.graph import calls_of

from tvm import relay
from tvm.relay.transform import InferTypeLocal

TARGET = "cuda -arch=sm_80"
SHAPE = 1, 6, 8, 16
NAME = "topi_ext.conv2d_nhwc_in_place"


def image(shape=SHAPE, name="x"):
    return relay.var(name, shape=shape, dtype="float16")


def convolution(x, filters=8, seed=1, **options):
    """By a 3x3 kernel, with bias and activation, unless the options say otherwise."""
    channels, groups = int(InferTypeLocal(x).shape[3]), options.get("groups", 1)
    kernel = options.pop("kernel", 3)
    weight = numbers(filters, kernel, kernel, channels // groups, seed=seed) / (channels * kernel**2) ** 0.5
    options = {"bias": relay.const(numbers(filters, seed=seed + 1)), "activation": "relu", **options}
    options.setdefault("padding", kernel // 2)
    return topi_ext.conv2d_nhwc(x, relay.const(weight.astype("float16")), **options)


def concatenated(*parts):
    return relay.concatenate(parts, 3)


def pair(x):
    first = convolution(x)
    return concatenated(first, convolution(first, 16, seed=2))


def behind_first(x):
    """The part that is computed first is behind the other one."""
    first = convolution(x)
    return concatenated(convolution(first, 16, seed=2), first)


def dense(x, count=3):
    """Each convolution reads all results before it; the last one adds the first of them."""
    parts = [x]
    for at in range(count):
        data = concatenated(*parts) if at else x
        parts.append(convolution(data, seed=at + 2))
    return convolution(concatenated(*parts), int(InferTypeLocal(x).shape[3]), seed=9, residual=x)


def dense_blocks(x):
    return dense(dense(convolution(x, 16, seed=20)))


def nested(x):
    """Each result is concatenated to all before it, which are concatenated already."""
    data = first = convolution(x, 16)
    for at in range(3):
        data = concatenated(data, convolution(data, seed=at + 2))
    return convolution(data, 16, residual=first)


def half(x):
    """As YOLO does: half of the channels go on, and all are concatenated with what becomes of them."""
    whole = convolution(x, 32, kernel=1)
    part = relay.strided_slice(whole, [16], [32], axes=[3])
    inner = convolution(convolution(part, 8, seed=2), 16, seed=3, residual=part)
    last = convolution(convolution(inner, 8, seed=4), 16, seed=5, residual=inner)
    return convolution(concatenated(whole, inner, last), 24, seed=6, kernel=1)


def read_elsewhere_too(x):
    """The first result, which has another reader, is copied."""
    first = convolution(x, 16)
    return relay.Tuple([dense(first), relay.exp(first)])


def sliced(x):
    """Nothing is concatenated."""
    whole = convolution(x, 32)
    parts = [relay.strided_slice(whole, [at], [at + 16], axes=[3]) for at in (0, 16)]
    return convolution(parts[0], 16, residual=parts[1])


def twice_sliced(x):
    part = relay.strided_slice(convolution(x, 40), [8], [40], axes=[3])
    return convolution(relay.strided_slice(part, [8], [24], axes=[3]))


def replaced(x):
    """Some channels are replaced by what is computed of them: the others are copied first."""
    whole = convolution(x, 32, kernel=1)
    part, others = (relay.strided_slice(whole, [at], [at + 16], axes=[3]) for at in (0, 16))
    return convolution(concatenated(convolution(part, 16, seed=2), others), 16, seed=3)


def replaced_and_read(x):
    """What reads both, as they are concatenated elsewhere too, reads what the convolution has written."""
    whole = convolution(x, 32, kernel=1)
    part, others = (relay.strided_slice(whole, [at], [at + 16], axes=[3]) for at in (0, 16))
    inner = convolution(part, 16, seed=2)
    some = concatenated(inner, others)
    last = convolution(some, 8, seed=3)
    return convolution(concatenated(inner, others, last), 16, seed=4)


def beside_its_slice(x):
    """A slice comes behind the convolution from which it is cut."""
    whole = convolution(x, 16)
    part = relay.strided_slice(whole, [8], [16], axes=[3])
    return convolution(concatenated(part, whole, convolution(x, 8, seed=2)), 16, seed=3)


GRAPHS = {  # with the numbers of calls in place, of those whose memory is their destination's, and of copies
    "a pair": (pair, 2, 1, 0),
    "behind the first": (behind_first, 2, 1, 0),
    "a dense block of an input": (dense, 3, 3, 1),
    "dense blocks": (dense_blocks, 9, 6, 0),
    "nested": (nested, 5, 3, 0),
    "half of the channels": (half, 5, 2, 0),
    "read elsewhere, too": (read_elsewhere_too, 3, 3, 1),
    "sliced": (sliced, 1, 0, 0),
    "replaced": (replaced, 1, 1, 1),
    "replaced and read": (replaced_and_read, 2, 2, 1),
    "twice sliced": (twice_sliced, 1, 0, 0),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name):
    make, calls, shared, copies = GRAPHS[name]
    mod = module(x := image(), make(x))
    after = assert_same_numbers(
        ConcatenateInPlace(TARGET), mod, numbers(*SHAPE).astype("float16"), rtol=4e-3, atol=4e-3
    )
    assert "concatenate" not in ops(after)
    assert ops(after).count("strided_slice") == (
        1 if "replaced" in name else 0
    )  # of the channels that are copied
    assert (len(calls_of(after, NAME)), ops(after).count("nn.pad")) == (calls, copies)
    assert_no_second_change(ConcatenateInPlace(TARGET), after)
    graph = json.loads(runtime.build_library(after, TARGET).module["get_graph_json"]())
    assert in_place(graph) == shared


@pytest.mark.parametrize(
    "name", ["dense blocks", "half of the channels", "a dense block of an input", "replaced and read"]
)
def test_results_on_the_device(emulated_cuda, fake_cuda, name):  # noqa: F811
    """With the memory plan, on an emulated device, twice on other numbers."""
    mod = module(x := image(), GRAPHS[name][0](x))
    after = ConcatenateInPlace(TARGET)(mod)
    model = runtime.compile(after, emulated_cuda.target, device=emulated_cuda.device, cuda_graph=False)
    for seed in range(2):
        array = numbers(*SHAPE, seed=seed).astype("float16")
        np.testing.assert_allclose(model(array), *run(mod, array), rtol=4e-3, atol=4e-3)


def test_a_batch():
    shape = 2, *SHAPE[1:]
    mod = module(x := image(shape), dense_blocks(x))
    array = numbers(*shape).astype("float16")
    after = assert_same_numbers(ConcatenateInPlace(TARGET), mod, array, rtol=4e-3, atol=4e-3)
    assert "concatenate" not in ops(after)


def test_a_whole_that_is_read_by_anything():
    x = image()
    whole = pair(x)
    mod = module(x, relay.Tuple([whole, relay.nn.max_pool2d(whole, layout="NHWC"), relay.sum(whole, 3)]))
    array = numbers(*SHAPE).astype("float16")
    after = assert_same_numbers(ConcatenateInPlace(TARGET), mod, array, rtol=4e-3, atol=4e-3)
    assert "concatenate" not in ops(after)


@pytest.mark.parametrize("target", ["llvm", None])
def test_other_targets(target):
    mod = module(x := image(), dense(x))
    after, report = apply(ConcatenateInPlace(target), mod)
    assert after.same_as(mod) and not refusals(report)


def test_in_the_pipeline():
    """Of all dense blocks of a network no concatenation is left, and none is split before."""
    model = super_resolution_model("rrdb", channels=16, growth=8, blocks=1)
    mod, params = frontends.from_pytorch(model, torch.rand(1, 3, 12, 20))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    after = subpixel_pipeline("cuda -arch=sm_90")(mod)
    assert "concatenate" not in ops(after)
    assert len(calls_of(after, NAME)) == 15 and ops(after).count("nn.pad") == 1


# --- what is refused


def after_first(make):
    """A convolution, and what `make` computes of it, concatenated."""

    def graph(x):
        first = convolution(x)
        return concatenated(first, make(first))

    return graph


def read_by_a_pooling(x):
    first = convolution(x)
    second = convolution(first, seed=2)
    return relay.Tuple([concatenated(first, second), relay.nn.max_pool2d(second, layout="NHWC")])


def concatenated_otherwise(x):
    first = convolution(x)
    second = convolution(first, seed=2)
    return relay.Tuple([concatenated(first, second), relay.concatenate([second, second], 1)])


def returned_too(x):
    first = convolution(x)
    second = convolution(first, seed=2)
    return relay.Tuple([concatenated(first, second), second])


def weights_of_another(x):
    """A result that is used as weights is not read in place."""
    first = convolution(x)
    second = convolution(first, 8, seed=2)
    used = topi_ext.conv2d_nhwc(image((1, 6, 8, 8), "y"), relay.reshape(second, (48, 1, 1, 8)))
    return relay.Tuple([concatenated(first, second), used])


NO_CONVOLUTION = "a part is not the result of a convolution, nor the first one that is computed"
ALIGNED = "the channels of a part are not a multiple of 8"
SLICED = "the channels of the slice are not in multiples of 8"
REFUSALS = [
    (after_first(lambda y: relay.nn.max_pool2d(y, (3, 3), padding=1, layout="NHWC")), NO_CONVOLUTION),
    (after_first(lambda y: convolution(y, 12)), ALIGNED),
    (after_first(lambda y: convolution(y, 8, groups=8)), "the convolution is grouped"),
    (
        after_first(lambda y: convolution(y, 32, strides=2, block_size=2)),
        "the filters are shuffled into pixels",
    ),
    (
        lambda x: concatenated(convolution(x), convolution(relay.const(np.ones(SHAPE, "float16")))),
        "the convolution is of constants, which TVM folds",
    ),
    (lambda x: concatenated(*[convolution(x)] * 2), "a part is concatenated twice"),
    (read_by_a_pooling, "a part would be copied for nn.max_pool2d, which reads it, too"),
    (lambda x: relay.exp(pair(x)), "nothing is copied: TVM concatenates in the kernel of exp"),
    (concatenated_otherwise, "a part would be copied for concatenate, which reads it, too"),
    (beside_its_slice, NO_CONVOLUTION),
    (returned_too, "a part would be copied for the caller, which reads it, too"),
    (weights_of_another, "a part would be copied for reshape, which reads it, too"),
    (lambda x: convolution(relay.strided_slice(convolution(x, 24), [4], [12], axes=[3])), SLICED),
    (lambda x: convolution(relay.strided_slice(convolution(x, 20), [8], [16], axes=[3])), SLICED),
    (
        lambda x: convolution(relay.strided_slice(convolution(x, 24), [8], [16], axes=[3]), 8, groups=8),
        "the convolution is grouped",
    ),
]


@pytest.mark.parametrize("make, reason", REFUSALS)
def test_refused(make, reason):
    x = image()
    result = make(x)
    others = [each for each in relay.analysis.free_vars(result) if not each.same_as(x)]
    mod = module(x, *others, result)
    after, report = apply(ConcatenateInPlace(TARGET), mod)
    assert after.same_as(mod) and refusals(report) == [reason] * len(refusals(report)) != []


def test_refused_where_the_virtual_machine_runs_it():
    x, rows = image(), relay.var("rows", shape=(relay.Any(),))
    mod = module(x, rows, relay.Tuple([pair(x), relay.exp(rows)]))
    after, report = apply(ConcatenateInPlace(TARGET), mod)
    (reason,) = refusals(report)
    assert after.same_as(mod) and "virtual machine would copy the tensor for each part" in reason


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("target", [GPU_TARGET, "cuda"])
@pytest.mark.parametrize("name", GRAPHS)
def test_gpu(request, target, name):
    """Replayed as a CUDA graph, equal to without the pass."""
    if target == GPU_TARGET:
        request.getfixturevalue("cudnn_alone")
    mod = module(x := image(), GRAPHS[name][0](x))
    after = ConcatenateInPlace(target)(mod)
    models = [runtime.compile(each, target) for each in (mod, after)]
    for seed in range(4):
        array = numbers(*SHAPE, seed=seed).astype("float16")
        plain, found = (model(array) for model in models)
        for one, other in zip(as_list(plain), as_list(found)):
            np.testing.assert_allclose(other, one, rtol=4e-3, atol=4e-3)


def as_list(results):
    return list(results.values()) if isinstance(results, dict) else [results]


@pytest.mark.gpu
def test_gpu_dense_blocks_of_a_network():
    """Of 64 and 32 channels, as they are in use, and as torch computes them."""
    model = super_resolution_model("rrdb", blocks=1)
    x = torch.rand(1, 3, 66, 120)
    mod, params = frontends.from_pytorch(model, x)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    machine = f"{GPU_TARGET} -arch=sm_{''.join(map(str, torch.cuda.get_device_capability()))}"
    after = subpixel_pipeline(machine)(mod)
    assert "concatenate" not in ops(after)
    compiled = runtime.compile(after, machine)
    with torch.no_grad():
        expected = model(x).numpy()
    for _ in range(3):
        np.testing.assert_allclose(compiled(x.numpy()), expected, rtol=0.05, atol=0.05)
