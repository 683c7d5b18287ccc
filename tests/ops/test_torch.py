"""The operators on torch tensors: as in a graph, without copies, and with one kernel for many shapes."""

import concurrent.futures
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torchvision

import topi_ext
import topi_ext.torch as ops
from tests.helpers import numbers
from tests.ops.detections import clustered_detections
from tests.ops.objects import heatmaps, objects
from tests.ops.regions import SCALES, by_torchvision, pyramid, regions
from tests.ops.warps import random_images, rotations
from topi_ext.batched_nms import reference as nms_reference
from topi_ext.deformable_attention import reference as attention_reference
from topi_ext.encode_masks import reference as encode_reference
from topi_ext.preprocess import reference as preprocess_reference
from topi_ext.torch import _call
from topi_ext.torch._kernels import ALIGNMENT, Arguments, Kernel
from topi_ext.warp_affine import reference

import tvm

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", GPU])
def device(request):
    return request.param


@pytest.fixture
def compiled(monkeypatch):
    """The kernels compiled since the test began."""
    kernels = {}
    monkeypatch.setattr(_call, "_kernels", kernels)
    monkeypatch.setattr(_call, "_paths", {})
    return kernels


def tensors(device, *arrays):
    return [torch.from_numpy(array).to(device) for array in arrays]


# --- each operator


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_warp_affine(device, compiled, dtype, layout):
    for count, size, out_size in ((2, (30, 40), (33, 44)), (5, (17, 64), (20, 64)), (0, (9, 9), (5, 5))):
        data, matrices = random_images(count, size, 3, layout, dtype), rotations(count, size)
        found = ops.warp_affine(*tensors(device, data, matrices), out_size, mode="cv2_fixed", layout=layout)
        expected = reference.warp_affine(data, matrices, out_size, mode="cv2_fixed", layout=layout)
        assert found.device.type == device and found.dtype == getattr(torch, dtype)
        np.testing.assert_allclose(
            found.cpu().numpy(), expected, rtol=0, atol=0 if dtype == "uint8" else 1e-3
        )
    assert len(compiled) == 1


def test_one_matrix_and_another_type(device):
    data, matrices = random_images(3, (30, 40)), rotations(1, (30, 40))
    found = ops.warp_affine(*tensors(device, data, matrices[0]), (30, 40), out_dtype="float16")
    expected = reference.warp_affine(data, matrices[0], (30, 40), out_dtype="float32")
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-3, atol=1e-2)


def test_nms(device, compiled):
    for n in (0, 1, 7, 1000):
        boxes, scores = tensors(device, *clustered_detections(n, 1)[:2])
        indices, count = ops.nms(boxes, scores, 0.5)
        assert indices.shape == (n,) and count.shape == ()
        assert torch.equal(indices[:count], torchvision.ops.nms(boxes, scores, 0.5))
    assert len(compiled) == 1


def test_batched_nms(device, compiled):
    for n, threshold in ((300, 0.5), (41, 0.3)):
        arrays = clustered_detections(n, 5)
        options = {"score_threshold": 0.2, "max_output_size": 50}
        indices, count = ops.batched_nms(*tensors(device, *arrays), threshold, **options)
        expected, number = nms_reference.batched_nms(*arrays, threshold, **options)
        assert count == number
        np.testing.assert_array_equal(indices.cpu(), expected)
    assert len(compiled) == 1


def test_batched_nms_of_a_batch(device):
    arrays = [np.stack(parts) for parts in zip(*(clustered_detections(200, 5, seed) for seed in range(3)))]
    valid = np.array([200, 0, 57], "int32")
    *given, valid_count = tensors(device, *arrays, valid)
    indices, count = ops.batched_nms(*given, torch.tensor(0.5, device=device), valid_count=valid_count)
    expected, number = nms_reference.batched_nms(*arrays, 0.5, valid_count=valid)
    np.testing.assert_array_equal(count.cpu(), number)
    np.testing.assert_array_equal(indices.cpu(), expected)


def test_roi_align(device, compiled):
    for count, size in ((20, (64, 80)), (0, (32, 48)), (3, (32, 48))):
        feature, rois = tensors(device, pyramid(*size, levels=1)[0], regions(count))
        found = ops.roi_align(feature, rois, pooled_size=7, spatial_scale=0.25, sampling_ratio=2)
        expected = torchvision.ops.roi_align(feature, rois, 7, 0.25, 2)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(compiled) == 1


@pytest.mark.parametrize("name", ["roi_pool", "ps_roi_pool"])
def test_roi_pool(device, compiled, name):
    for count, size in ((20, (64, 80)), (0, (32, 48)), (3, (32, 48))):
        feature, rois = tensors(device, pyramid(*size, levels=1)[0], regions(count))
        found = getattr(ops, name)(feature, rois, pooled_size=2, spatial_scale=0.25)
        expected = getattr(torchvision.ops, name)(feature, rois, 2, 0.25)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert len(compiled) == 1


@pytest.mark.parametrize("axis", [1, -1])
def test_layer_norm(device, compiled, axis):
    for shape in ((2, 12, 12), (0, 12, 12), (5, 12, 12)):
        data, gamma, beta = tensors(device, *(numbers(*each) for each in (shape, [12], [12])))
        found = ops.layer_norm(data, gamma, beta, axis=axis)
        moved = data.movedim(axis, -1)
        expected = torch.nn.functional.layer_norm(moved, (12,), gamma, beta).movedim(-1, axis)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert len(compiled) == 1


@pytest.mark.parametrize("axis", [1, -1])
def test_group_norm(device, compiled, axis):
    for size in ((2, 5, 7), (0, 5, 7), (1, 9, 3)):
        shape = (size[0], 12, *size[1:]) if axis == 1 else (*size, 12)
        data, gamma, beta = tensors(device, *(numbers(*each) for each in (shape, [12], [12])))
        found = ops.group_norm(data, gamma, beta, groups=3, axis=axis, activation="relu")
        expected = torch.nn.functional.group_norm(data.movedim(axis, 1), 3, gamma, beta).movedim(1, axis)
        torch.testing.assert_close(found, expected.relu(), rtol=1e-5, atol=1e-5)
    assert len(compiled) == 1


def test_multiscale_roi_align(device, compiled):
    options = {"pooled_size": 7, "scales": SCALES, "sampling_ratio": 2}
    for size, count in (((64, 80), 30), ((96, 64), 7)):
        features, rois = pyramid(*size), regions(count)
        *given, on_device = tensors(device, *features, rois)
        found = ops.multiscale_roi_align(given, on_device, **options)
        torch.testing.assert_close(found.cpu(), by_torchvision(features, rois, 7, 2), rtol=1e-4, atol=1e-4)
    assert len(compiled) == 1


def test_deformable_attention(device, compiled):
    levels, random = [(6, 5, 2), (3, 3, 1)], np.random.default_rng(0)
    for items, queries in ((2, 9), (1, 0), (3, 30)):
        shapes = (items, 39, 8), (items, queries, 3, 2), (items, queries, 3)
        arrays = [random.uniform(-1, 1, shape).astype("float32") for shape in shapes]
        found = ops.deformable_attention(*tensors(device, *arrays), levels=levels)
        expected = attention_reference.deformable_attention(*arrays, levels=levels)
        np.testing.assert_allclose(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert len(compiled) == 1


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_paste_masks(device, compiled, threshold):
    for count in (5, 0, 11):
        masks, boxes = tensors(device, *objects(count, (60, 80)))
        found = ops.paste_masks(masks, boxes, (60, 80), threshold=threshold)
        expected = torchvision.models.detection.roi_heads.paste_masks_in_image(masks, boxes, (60, 80))
        expected = expected if threshold is None else (expected >= threshold).to(torch.uint8)
        torch.testing.assert_close(found, expected.reshape(found.shape), rtol=1e-5, atol=1e-5)
    assert len(compiled) == 1


@pytest.mark.parametrize("form", ["rle", "bits"])
def test_encode_masks(device, compiled, form):
    for count, size in ((5, (60, 80)), (0, (60, 80)), (11, (33, 1))):
        arrays = objects(count, size, 7)
        found = ops.encode_masks(*tensors(device, *arrays), size, threshold=0.4, form=form)
        expected = encode_reference.encode_masks(*arrays, size, threshold=0.4, form=form)
        np.testing.assert_array_equal(found.cpu().numpy(), expected)
    assert len(compiled) == 1
    with pytest.raises(ValueError, match="not 65536x32768"):
        ops.encode_masks(*tensors(device, *arrays), (1 << 16, 1 << 15))


def test_heatmaps_to_keypoints(device, compiled):
    for count in (5, 0, 11):
        maps, rois = tensors(device, *heatmaps(count, 3, (9, 9)))
        expected = torchvision.models.detection.roi_heads.heatmaps_to_keypoints(maps, rois)
        for found, wanted in zip(ops.heatmaps_to_keypoints(maps, rois), expected):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    assert len(compiled) == 1


def test_preprocess(device, compiled):
    options = {"mean": [100, 110, 120], "std": [50, 60, 70], "dtype": "float16"}
    for count in (1, 3):
        images = random_images(count, (30, 40), layout="NHWC")
        found = ops.preprocess(*tensors(device, images), (45, 60), (64, 64), **options)
        expected = preprocess_reference.preprocess(images, (45, 60), (64, 64), **options)
        assert found.dtype == torch.float16
        np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-3, atol=2e-3)
    assert len(compiled) == 1


# --- memory, threads, processes, streams


def test_nothing_is_copied(monkeypatch):
    given = []
    call = Arguments.call
    monkeypatch.setattr(
        Arguments, "call", lambda self, addresses: (given.extend(addresses), call(self, addresses))
    )
    data, matrices = torch.rand(2, 3, 30, 40), torch.rand(2, 2, 3)
    found = ops.warp_affine(data, matrices, (30, 40))
    assert given == [tensor.data_ptr() for tensor in (data, matrices, found)]


def test_any_address():
    data, matrices = random_images(3, (5, 7), 1), rotations(3, (5, 7))
    data, matrices = tensors("cpu", data, matrices)
    for first in range(3):
        assert data[first:].data_ptr() % ALIGNMENT or first == 0
        found = ops.warp_affine(data[first:], matrices[first:], (5, 7))
        assert torch.equal(found, ops.warp_affine(data, matrices, (5, 7))[first:])


def test_many_threads_compile_one_kernel(compiled, monkeypatch):
    made = []
    monkeypatch.setattr(_call, "Kernel", lambda *args: made.append(1) or Kernel(*args))
    data, matrices = tensors("cpu", random_images(2, (30, 40)), rotations(2, (30, 40)))
    expected = ops.warp_affine(data, matrices, (30, 40), border_value=1)
    compiled.clear()
    _call._paths.clear()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ops.warp_affine(data, matrices, (30, 40), border_value=1), range(32)))
    assert len(made) == 2
    assert all(torch.equal(one, expected) for one in found)


class Warped(torch.utils.data.Dataset):
    """Images, each warped where a DataLoader asks for it."""

    def __init__(self, data, matrices):
        self.data, self.matrices = data, matrices

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return ops.warp_affine(self.data[i : i + 1], self.matrices[i : i + 1], (30, 40))[0]


@pytest.mark.timeout(120)
def test_in_forked_workers(monkeypatch):
    """With more than one thread, of which none is there in the worker."""
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    data, matrices = tensors("cpu", random_images(4, (30, 40)), rotations(4, (30, 40)))
    expected = ops.warp_affine(data, matrices, (30, 40))
    loader = torch.utils.data.DataLoader(
        Warped(data, matrices), batch_size=2, num_workers=1, multiprocessing_context="fork", timeout=60
    )
    assert torch.equal(torch.cat(list(loader)), expected)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads cannot be listed here")
def test_threads_are_bound_to_no_core():
    script = """if True:
        import os, torch, topi_ext.torch
        topi_ext.torch.warp_affine(torch.zeros(8, 1, 64, 64), torch.eye(2, 3), (64, 64))
        cores = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
        assert all(of_thread == cores[0] for of_thread in cores), cores
    """
    environment = {**os.environ, "TVM_NUM_THREADS": "2"}
    environment.pop("TVM_BIND_THREADS", None)
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@pytest.mark.gpu
def test_runs_on_the_current_stream():
    data, matrices = tensors("cuda", random_images(16, (256, 256)), rotations(16, (256, 256)))
    expected = ops.warp_affine(data, matrices, (256, 256))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(data)
        torch.cuda._sleep(100_000_000)
        late.copy_(data)  # a kernel on another stream would read zeros
        found = ops.warp_affine(late, matrices, (256, 256))
    stream.synchronize()
    assert torch.equal(found, expected)
    assert not tvm.get_global_func("runtime.get_cuda_stream")().value  # TVM's own is what it was


@pytest.mark.gpu
def test_in_a_cuda_graph():
    data, matrices = tensors("cuda", random_images(4, (64, 64)), rotations(4, (64, 64)))
    boxes, scores = tensors("cuda", *clustered_detections(500, 1)[:2])

    def run():
        return ops.warp_affine(data, matrices, (64, 64)), *ops.nms(boxes, scores, 0.5)

    expected = [result.clone() for result in run()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, found, expected))


# --- on the emulated device, where torch has no tensors


def on_emulated(cuda, build, arrays, axes, sizes=None):
    """What a kernel for any length of these axes gives, in memory that comes from here alone."""
    sizes = sizes or {}
    types = [(str(array.dtype), names) for array, names in zip(arrays, axes)]
    kernel = Kernel(build, types, tuple(sizes), cuda.target)
    kernel.compile()
    pairs = (pair for array, names in zip(arrays, axes) for pair in zip(names, array.shape))
    outputs = kernel.types({**dict(pairs), **sizes})
    inputs = [(array.shape, str(array.dtype)) for array in arrays]
    arguments = Arguments(kernel.function, [*inputs, *outputs], cuda.device)
    memory = [tvm.nd.empty(shape, dtype, cuda.device) for shape, dtype in outputs]
    given = [tvm.nd.array(array, cuda.device) for array in arrays]
    arguments.call([array.handle.contents.data or 0 for array in (*given, *memory)])
    return [output.numpy() for output in memory[: kernel.results]], len(memory)


@pytest.mark.parametrize("n", [0, 1, 500])
def test_workspace_is_given(emulated_cuda, n):
    arrays = [*clustered_detections(n, 3), np.array(0.5, "float32")]
    axes = [("N", 4), ("N",), ("N",), ()]
    (indices, count), outputs = on_emulated(emulated_cuda, topi_ext.batched_nms, arrays, axes)
    assert outputs > 2
    expected, number = nms_reference.batched_nms(*arrays[:3], 0.5)
    np.testing.assert_array_equal(indices, expected)
    assert count == number


@pytest.mark.parametrize("threshold", [0.4, 0.0])  # 0: pixels outside boxes count
@pytest.mark.parametrize("form", ["rle", "bits"])
def test_sizes_of_images(emulated_cuda, form, threshold):
    def build(masks, boxes, *image_size):
        return topi_ext.encode_masks(masks, boxes, image_size, form=form, threshold=threshold)

    for height, width in ((40, 37), (33, 64)):
        arrays = objects(3, (height, width), 7)
        axes, sizes = [("N", 1, 7, 7), ("N", 4)], {"height": height, "width": width}
        (encoded,), _ = on_emulated(emulated_cuda, build, arrays, axes, sizes)
        expected = encode_reference.encode_masks(*arrays, (height, width), form=form, threshold=threshold)
        np.testing.assert_array_equal(encoded, expected)


@pytest.mark.parametrize("width", [44, 45])
def test_sizes_of_the_result(emulated_cuda, width):
    def build(data, matrix, height, width):
        return topi_ext.warp_affine(data, matrix, (height, width), out_dtype="float16")

    arrays, sizes = [random_images(2, (30, 40)), rotations(2, (30, 40))], {"Y": 33, "X": width}
    (found,), outputs = on_emulated(emulated_cuda, build, arrays, [("N", 3, "H", "W"), ("N", 2, 3)], sizes)
    expected = reference.warp_affine(*arrays, (33, width), out_dtype="float32")
    assert outputs == 1 and found.dtype == "float16"
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)


# --- what is refused

IMAGES, MATRICES = torch.zeros(2, 3, 8, 8), torch.zeros(2, 2, 3)


@pytest.mark.parametrize(
    "error, reason, run",
    [
        (
            TypeError,
            "data must be a tensor, not a ndarray",
            lambda: ops.warp_affine(IMAGES.numpy(), MATRICES, (4, 4)),
        ),
        (ValueError, "data must be of type uint8, ", lambda: ops.warp_affine(IMAGES.int(), MATRICES, (4, 4))),
        (
            ValueError,
            r"must have the shape \(N, C, H, W\), not \(3, 8",
            lambda: ops.warp_affine(IMAGES[0], MATRICES, (4, 4)),
        ),
        (
            ValueError,
            r"\(N, 2, 3\), not \(1, 2, 3\); N is 2",
            lambda: ops.warp_affine(IMAGES, MATRICES[:1], (4, 4)),
        ),
        (ValueError, "data must be contiguous", lambda: ops.warp_affine(IMAGES.mT, MATRICES, (4, 4))),
        (
            ValueError,
            "data is on cpu, but matrix on meta",
            lambda: ops.warp_affine(IMAGES, MATRICES.to("meta"), (4, 4)),
        ),
        (
            ValueError,
            "tensors on cpu and cuda, not on meta",
            lambda: ops.warp_affine(IMAGES.to("meta"), MATRICES.to("meta"), (4, 4)),
        ),
        (ValueError, "out_size must be above 0", lambda: ops.warp_affine(IMAGES, MATRICES, (4, 0))),
        (
            ValueError,
            "two whole numbers, height and width, not 4",
            lambda: ops.warp_affine(IMAGES, MATRICES, 4),
        ),
        (ValueError, r"two whole .* not \(4.5, 4\)", lambda: ops.warp_affine(IMAGES, MATRICES, (4.5, 4))),
        (ValueError, r"out_size .* not \(4, 4, 4\)", lambda: ops.warp_affine(IMAGES, MATRICES, (4, 4, 4))),
        (
            ValueError,
            "image_size must be two whole numbers",
            lambda: ops.paste_masks(torch.zeros(2, 1, 4, 4), torch.zeros(2, 4), 9),
        ),
        (
            ValueError,
            "preprocess: size must be two whole numbers",
            lambda: ops.preprocess(IMAGES, 8, mean=[0.0], std=[1.0]),
        ),
        (TypeError, "scores must be a tensor, not a list", lambda: ops.nms(torch.zeros(2, 4), [0, 1], 0.5)),
        (
            TypeError,
            "rois must be a tensor, not a list",
            lambda: ops.roi_align(
                IMAGES, [torch.zeros(2, 4)], pooled_size=2, spatial_scale=1, sampling_ratio=1
            ),
        ),
        (
            ValueError,
            "mode must be one of exact, cv2_fixed",
            lambda: ops.warp_affine(IMAGES, MATRICES, (4, 4), mode="cv2"),
        ),
        (
            ValueError,
            "of 1 to 32766 pixels a side",
            lambda: ops.warp_affine(torch.zeros(1, 1, 1, 40000), MATRICES[0], (4, 4), mode="cv2_fixed"),
        ),
        (
            ValueError,
            r"masks must have the shape \(N, 1, M, M\), not \(2, 1, 4, 5\)",
            lambda: ops.paste_masks(torch.zeros(2, 1, 4, 5), torch.zeros(2, 4), (9, 9)),
        ),
        (ValueError, "boxes must have the shape", lambda: ops.nms(torch.zeros(2, 5), torch.zeros(2), 0.5)),
        (
            ValueError,
            r"rois must have the shape \(R, 5\)",
            lambda: ops.roi_align(
                IMAGES, torch.zeros(2, 3), pooled_size=2, spatial_scale=1, sampling_ratio=1
            ),
        ),
    ],
)
def test_what_is_wrong_is_said(error, reason, run):
    with pytest.raises(error, match=reason):
        run()


def test_no_gradient_is_said():
    image = torch.rand(1, 3, 8, 8, requires_grad=True)
    with pytest.raises(
        RuntimeError, match=r"no gradient: give data.detach\(\), or call it under torch.no_grad"
    ):
        ops.warp_affine(image, MATRICES[0], (4, 4))
    with torch.no_grad():
        assert not ops.warp_affine(image, MATRICES[0], (4, 4)).requires_grad


def test_tensors_that_are_yet_to_be_negated():
    matrix = torch._neg_view(-MATRICES)
    assert matrix.is_neg()
    assert torch.equal(ops.warp_affine(IMAGES, matrix, (4, 4)), ops.warp_affine(IMAGES, MATRICES, (4, 4)))


def test_sparse_tensors():
    with pytest.raises(TypeError, match="data must be a dense tensor"):
        ops.warp_affine(IMAGES.to_sparse(), MATRICES, (4, 4))
