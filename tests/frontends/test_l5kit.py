"""l5kit's rasterisers, drawn by TVM: as l5kit with OpenCV draws the same samples, to the bit."""

import functools

import numpy as np
import pytest
import torch

from frontends.l5kit import (
    AGENT_DTYPE,
    BoxRasterizer,
    RenderContext,
    SemanticMap,
    SemanticRasterizer,
    SemBoxRasterizer,
)
from frontends.l5kit.map import resampled
from tests.frontends.l5kit_by_cv2 import DrawnByCv2
from tests.frontends.traffic import town, traffic
from tests.runtime.fake_cuda import fake_cuda  # noqa: F401  (a fixture)

import tvm

HISTORY, THRESHOLD = 3, 0.5


@functools.cache
def city():
    return town(5)


@functools.cache
def city_map():
    return SemanticMap(city().lanes, city().crosswalks)


@functools.cache
def samples(count=12, frames=HISTORY + 1, agents=25, **options):
    return traffic(city(), count, frames, agents, **options)


def context(size=(112, 112), center=(0.25, 0.5), flipped=True, pixel=0.5):
    return RenderContext(np.array(size), np.array([pixel, pixel]), np.array(center), flipped)


def by_cv2(batch, context=None, threshold=THRESHOLD, history=HISTORY, **options):
    drawn = DrawnByCv2(context, threshold, history, city().lanes, city().crosswalks, **options)
    return np.stack([drawn.rasterize(*sample) for sample in zip(*batch)])


def boxes(batch, context=None, threshold=THRESHOLD, history=HISTORY, **options):
    return BoxRasterizer(context or globals()["context"](), threshold, history, **options).rasterize(*batch)


# --- what l5kit expects of its own


@pytest.mark.parametrize("flipped, expected", [(True, [98, 88, 108]), (False, [102, 112, 92])])
def test_render_context(flipped, expected):
    matrix = context((200, 200), (0.5, 0.5), flipped, pixel=1).raster_from_world(np.array([0, -2]), 0)
    points = matrix @ np.array([[0, 10, -10], [0, 10, -10], [1, 1, 1]])
    np.testing.assert_allclose(points[:2], [[100, 110, 90], expected])


def test_pixels_must_be_square():
    with pytest.raises(NotImplementedError):
        RenderContext((9, 9), (0.5, 0.4), (0.5, 0.5), True)


@pytest.mark.parametrize("center", [(0.5, 0.5), (0.25, 0.5), (0.75, 0.5), (0.5, 0.25), (0.5, 0.75)])
def test_the_ego_is_seen_in_any_centre(center):
    images = boxes(samples(select=0.0), context(center=center))
    assert (images[..., HISTORY + 1].sum(axis=(1, 2)) > 0).all()
    rows, columns = (images[0, ..., HISTORY + 1] == 1).nonzero()
    seen = columns.mean() / 112, 1 - rows.mean() / 112
    np.testing.assert_allclose(seen, center, atol=0.02)


def test_threshold():
    everything, nothing = (boxes(samples(), threshold=threshold) for threshold in (-1, 1.0))
    agents = np.s_[:, :, :, : HISTORY + 1]
    unselected = [agent is None for agent in samples().selected]
    assert everything[agents].sum() > boxes(samples())[agents].sum() > nothing[agents].sum()
    assert not nothing[agents][unselected].any()


def test_every_agent_may_be_the_ego():
    frames, agents, faces, _ = (part[0] for part in samples())
    others = agents[0]
    images = boxes(
        [[frames] * len(others), [agents] * len(others), [faces] * len(others), list(others)], threshold=-1
    )
    assert (images[..., HISTORY + 1].sum(axis=(1, 2)) > 0).all()


@pytest.mark.parametrize("history", [0, 2, 5])
def test_shapes_and_ranges(history):
    context_ = context((90, 70))
    batch = samples(frames=history + 1, count=3)
    whole = SemBoxRasterizer(context_, THRESHOLD, history, city_map())
    for rasterizer in (BoxRasterizer(context_, THRESHOLD, history), whole):
        images = rasterizer.rasterize(*batch)
        assert images.shape == (3, 70, 90, rasterizer.num_channels())
        assert images.dtype == "float32" and images.min() == 0 and images.max() == 1
    assert whole.num_channels() == 2 * (history + 1) + 3


def test_no_agents():
    frames, _, faces, _ = samples()
    none = [[np.zeros(0, AGENT_DTYPE)] * (HISTORY + 1)] * len(frames)
    images = boxes([frames, none, faces, None])
    assert not images[..., : HISTORY + 1].any() and images[..., HISTORY + 1 :].any()


def test_the_core_of_a_box_is_full():
    frames, _, faces, _ = (part[:1] for part in samples(select=0.0))
    agent = np.zeros(1, AGENT_DTYPE)
    agent["centroid"], agent["extent"] = frames[0][0]["ego_translation"][:2], 20
    agent["label_probabilities"][:, 3] = 1
    image = boxes([frames, [[agent]], faces, None], context((100, 100), (0.5, 0.5), pixel=1))[0, ..., 0]
    assert (image[45:55, 45:55] == 1).all() and image.sum() < 24**2 * 1.5


# --- as l5kit draws with OpenCV


@pytest.mark.parametrize("flipped, size", [(True, (112, 112)), (False, (90, 60))])
def test_as_opencv(flipped, size):
    rasterizer = SemBoxRasterizer(context(size, flipped=flipped), THRESHOLD, HISTORY, city_map())
    found = rasterizer.rasterize(*samples())
    expected = by_cv2(samples(), rasterizer.render_context)
    assert (expected[..., :-3] > 0).mean() > 0.002 and (expected[..., -3:] < 1).mean() > 0.1
    assert sum(agent is not None for agent in samples().selected) in range(2, 11)
    np.testing.assert_array_equal(found, expected)


def test_without_the_history_of_the_ego():
    found = boxes(samples(), render_ego_history=False)
    np.testing.assert_array_equal(found, by_cv2(samples(), context(), render_ego_history=False)[..., :-3])
    assert not found[..., HISTORY + 2 :].any()


def test_history_that_is_missing_is_empty():
    short = [[part[:2] for part in parts] for parts in list(samples())[:3]]
    found = boxes([*short, samples().selected])
    np.testing.assert_array_equal(found, by_cv2([*short, samples().selected], context())[..., :-3])
    assert not found[..., 2 : HISTORY + 1].any() and not found[..., HISTORY + 3 :].any()


def test_an_agent_that_was_not_there_before():
    frames, agents, faces, _ = (part[0] for part in samples())
    selected = agents[0][3]
    history = [agents[0], *(own[own["track_id"] != selected["track_id"]] for own in agents[1:])]
    batch = [[frames], [history], [faces], [selected]]
    found = boxes(batch, threshold=-1)
    np.testing.assert_array_equal(found, by_cv2(batch, context(), threshold=-1)[..., :-3])
    assert found[..., HISTORY + 1].any() and not found[..., HISTORY + 2 :].any()


def test_union_leaves_no_holes():
    parity, union = (boxes(samples(agents=80), mode=mode) for mode in ("parity", "union"))
    assert (union >= parity).all() and (union > parity).any()


def test_layouts_and_kinds_of_arrays():
    expected = boxes(samples())
    found = boxes(samples(), layout="NCHW", output="torch")
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.permute(0, 2, 3, 1), expected)
    first = found.clone()
    boxes(samples(seed=1), layout="NCHW", output="torch")
    assert torch.equal(first, found)  # a later call leaves the images of an earlier one


def test_on_cuda(emulated_cuda, fake_cuda):  # noqa: F811
    rasterizer = SemBoxRasterizer(context((40, 40)), THRESHOLD, 1, city_map(), target=emulated_cuda.target)
    batch = samples(count=2, frames=2, agents=12)
    np.testing.assert_array_equal(rasterizer.rasterize(*batch), by_cv2(batch, context((40, 40)), history=1))


@pytest.mark.gpu
def test_the_stream_of_tvm_stays_on_gpu():
    """Drawing on torch's stream leaves the one that TVM was on."""
    rasterizer = BoxRasterizer(context(), THRESHOLD, HISTORY, target="cuda", output="torch")
    with torch.cuda.stream(torch.cuda.Stream()):
        found = rasterizer.rasterize(*samples())
    assert not tvm.get_global_func("runtime.get_cuda_stream")().value
    torch.cuda.synchronize()
    np.testing.assert_array_equal(
        found.cpu(), BoxRasterizer(context(), THRESHOLD, HISTORY).rasterize(*samples())
    )


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_on_gpu(layout):
    batch, size = samples(count=32, frames=11, agents=60), (224, 224)
    rasterizer = SemBoxRasterizer(
        context(size), THRESHOLD, 10, city_map(), target="cuda", layout=layout, output="torch"
    )
    found = rasterizer.rasterize(*batch)
    assert found.is_cuda
    found = found if layout == "NHWC" else found.permute(0, 2, 3, 1)
    np.testing.assert_array_equal(found.cpu(), by_cv2(batch, context(size), history=10))


# --- images to look at


def test_to_rgb():
    rasterizer = SemBoxRasterizer(context(), THRESHOLD, HISTORY, city_map())
    images = rasterizer.rasterize(*samples())
    rgb = rasterizer.to_rgb(images)
    assert rgb.shape == (12, 112, 112, 3) and rgb.dtype == np.uint8
    np.testing.assert_array_equal(rasterizer.to_rgb(images[0]), rgb[0])
    newest, ego = images[..., 0] > 0, images[..., HISTORY + 1] > 0
    empty = ~(images[..., :-3] > 0).any(axis=3)
    assert (rgb[newest][:, 2] == 255).all() and (rgb[ego][:, 1] == 255).all()
    np.testing.assert_array_equal(rgb[empty], (images[..., -3:] * 255).astype("uint8")[empty])
    old = (images[..., 1] > 0) & ~newest & ~(images[..., HISTORY + 1 : -3] > 0).any(axis=3)
    assert old.any() and set(map(tuple, rgb[old])) == {(0, 0, int(0.85 * 255))}


def test_to_rgb_of_planes():
    rasterizers = [SemanticRasterizer(context(), city_map(), layout=layout) for layout in ("NHWC", "NCHW")]
    first, second = (rasterizer.to_rgb(rasterizer.rasterize(*samples())) for rasterizer in rasterizers)
    np.testing.assert_array_equal(first, second)


# --- maps, and what is refused


class MapOfApi:
    """The methods of l5kit's `MapAPI` that tell of lanes and crosswalks."""

    def __init__(self, made):
        self._made = made
        lanes, crosswalks = (list(map(str, range(len(part)))) for part in (made.lanes, made.crosswalks))
        self.bounds_info = {"lanes": {"ids": lanes}, "crosswalks": {"ids": crosswalks}}

    def get_lane_coords(self, lane):
        lane = self._made.lanes[int(lane)]
        return {"xyz_left": lane.left, "xyz_right": lane.right}

    def get_lane_traffic_control_ids(self, lane):
        return {*self._made.lanes[int(lane)].faces, "a stop sign"}

    def get_color_for_face(self, face):
        if face == "a stop sign":
            raise ValueError(f"Face {face} has no valid color")
        return face.split("-")[-1]

    def get_crosswalk_coords(self, crosswalk):
        return {"xyz": np.column_stack([self._made.crosswalks[int(crosswalk)], np.zeros(4)])}


def test_a_map_of_map_api():
    found = SemanticMap.from_map_api(MapOfApi(city()))
    np.testing.assert_array_equal(found.points, city_map().points)
    np.testing.assert_array_equal(found.offsets, city_map().offsets)
    faces = [sample[0] for sample in samples().tl_faces]
    np.testing.assert_array_equal(found.styles(faces), city_map().styles(faces))
    assert len(np.unique(found.styles(faces))) == 6


def test_sides_of_lanes_are_resampled():
    side = np.array([[0, 0, 0], [3, 0, 4], [3, 10, 4]])  # 5 and 10 metres long
    np.testing.assert_allclose(resampled(side, 4), [[0, 0], [3, 0], [3, 5], [3, 10]])


def test_an_empty_map_is_white():
    assert (SemanticRasterizer(context(), SemanticMap([])).rasterize(*samples()) == 1).all()


def test_what_it_cannot_take_is_refused():
    with pytest.raises(ValueError, match="no sample"):
        boxes([[], [], [], []])
    with pytest.raises(ValueError, match="output must be numpy or torch, not jax"):
        boxes(samples(), output="jax")
    with pytest.raises(ValueError, match="mode must be union or parity"):
        boxes(samples(), mode="xor")
    with pytest.raises((ValueError, tvm.TVMError)):
        boxes(samples(), target="no such target")
