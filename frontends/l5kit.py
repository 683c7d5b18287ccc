"""l5kit's rasterisers for a whole batch of samples, on a CPU or a GPU; l5kit itself is not needed.

    rasterizer = SemBoxRasterizer(context, 0.5, 10, SemanticMap(lanes, crosswalks), target="cuda")
    pictures = rasterizer.rasterize(history_frames, history_agents, history_tl_faces, agents)

The four arguments are lists, with an entry for each sample: what l5kit's own `rasterize` takes. Frames,
agents and faces are l5kit's structured NumPy arrays. Pictures are those that l5kit draws with OpenCV, to the
bit, with two exceptions. Sides of lanes are drawn state by state, those without a light, then red, green and
yellow; l5kit begins with the state of the first lane in view. And `mode="union"` leaves no holes where boxes
overlap.
"""

import functools
from ctypes import c_void_p

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

import topi_ext

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

from ._l5kit_map import PALETTE, Lane, SemanticMap
from ._l5kit_records import AGENT_DTYPE, FRAME_DTYPE, TL_FACE_DTYPE, boxes_by_layer, pose, raster_poses

__all__ = [
    "AGENT_DTYPE",
    "FRAME_DTYPE",
    "TL_FACE_DTYPE",
    "BoxRasterizer",
    "Lane",
    "RenderContext",
    "SemBoxRasterizer",
    "SemanticMap",
    "SemanticRasterizer",
    "boxes_by_layer",
]
FADING = 0.85  # of a colour, from a frame to the one before


class RenderContext:
    """What a raster shows: its width and height in pixels, metres to a pixel, and where its centre is."""

    def __init__(self, raster_size_px, pixel_size_m, center_in_raster_ratio, set_origin_to_bottom=True):
        if pixel_size_m[0] != pixel_size_m[1]:
            raise NotImplementedError("pixels must be square")
        self.raster_size_px = np.asarray(raster_size_px)
        self.pixel_size_m = np.asarray(pixel_size_m, "float64")
        self.center_in_raster_ratio = np.asarray(center_in_raster_ratio, "float64")
        (x, y), scale = self.center_in_raster_ratio * self.raster_size_px, 1 / self.pixel_size_m
        self.raster_from_local = np.array([[scale[0], 0, x], [0, scale[1], y], [0, 0, 1]])
        if set_origin_to_bottom:
            self.raster_from_local = np.diag([1.0, -1, 1]) @ self.raster_from_local
            self.raster_from_local[1, 2] += self.raster_size_px[1]

    def raster_from_world(self, position_m, angle_rad):
        """The matrix from world coordinates to pixels, for somebody at this place who looks that way."""
        return self.raster_from_poses(pose(position_m, angle_rad))

    def raster_from_poses(self, poses):
        """The same for matrices to world coordinates, (..., 3, 3)."""
        return self.raster_from_local @ np.linalg.inv(poses)


class _Rasterizer:
    """Draws one or more things, one beside the other as channels."""

    def __init__(self, render_context, things, target, layout, output):
        if output not in ("numpy", "torch"):
            raise ValueError(f"output must be numpy or torch, not {output}")
        self.render_context, self._things = render_context, tuple(things)
        self._layout, self._output = layout, output
        self._target = tvm.target.Target(target)

    def rasterize(self, history_frames, history_agents, history_tl_faces, agents=None):
        """The pictures of a batch, float32 from 0 to 1: an array of NumPy, or of torch on the device.

        Of each sample: its frames, newest first; the agents and the traffic light faces of each frame; and
        the agent that is in the centre, or None for the AV.
        """
        if not len(history_frames):
            raise ValueError("there is no sample to rasterize")
        agents = [None] * len(history_frames) if agents is None else agents
        batch = history_frames, history_agents, history_tl_faces, agents
        matrices = self.render_context.raster_from_poses(raster_poses(history_frames, agents))
        device = tvm.device(self._target.kind.name)
        inputs = [array for thing in self._things for array in thing.inputs(device, *batch)]
        size = tuple(map(int, self.render_context.raster_size_px[::-1]))
        codes = tuple(thing.code for thing in self._things)
        machine = _compiled(codes, size, self._layout, str(self._target))
        if self._output == "torch" and self._target.kind.name == "cuda":
            device.set_raw_stream(c_void_p(torch.cuda.current_stream().cuda_stream))  # an int would be cut
        arrays = (*inputs, matrices)
        result = machine.invoke("main", *(_on(device, array) for array in arrays))
        return result.numpy() if self._output == "numpy" else from_dlpack(result.to_dlpack())

    def num_channels(self):
        return sum(thing.channels for thing in self._things)

    def to_rgb(self, pictures, agent_color=(0, 0, 1), ego_color=(0, 1, 0)):
        """Of one sample or many, to look at, uint8: boxes in colours that fade into the past, on the map."""
        pictures = pictures.cpu().numpy() if isinstance(pictures, torch.Tensor) else np.asarray(pictures)
        pictures = pictures if self._layout == "NHWC" else np.moveaxis(pictures, -3, -1)
        rgb = np.zeros((*pictures.shape[:-1], 3), "uint8")
        for thing in reversed(self._things):  # the map first
            part, pictures = np.split(pictures, [-thing.channels], axis=-1)[::-1]
            drawn = thing.to_rgb(part, agent_color, ego_color)
            rgb = np.where(drawn.any(axis=-1, keepdims=True), drawn, rgb)
        return rgb


def _on(device, array):
    return array if isinstance(array, tvm.nd.NDArray) else tvm.nd.array(array, device)


class BoxRasterizer(_Rasterizer):
    """Boxes: the channels are the agents of each frame, newest first, and then the ego of each."""

    def __init__(
        self,
        render_context,
        filter_agents_threshold,
        history_num_frames,
        render_ego_history=True,
        *,
        mode="parity",
        target="llvm",
        layout="NHWC",
        output="numpy",
    ):
        boxes = _Boxes(history_num_frames + 1, mode, filter_agents_threshold, render_ego_history)
        super().__init__(render_context, [boxes], target, layout, output)


class SemanticRasterizer(_Rasterizer):
    """Lanes, the states of their lights, and crosswalks, in RGB."""

    def __init__(self, render_context, semantic_map, *, target="llvm", layout="NHWC", output="numpy"):
        super().__init__(render_context, [_Map(semantic_map)], target, layout, output)


class SemBoxRasterizer(_Rasterizer):
    """The channels of `BoxRasterizer`, then those of `SemanticRasterizer`."""

    def __init__(
        self,
        render_context,
        filter_agents_threshold,
        history_num_frames,
        semantic_map,
        render_ego_history=True,
        *,
        mode="parity",
        target="llvm",
        layout="NHWC",
        output="numpy",
    ):
        boxes = _Boxes(history_num_frames + 1, mode, filter_agents_threshold, render_ego_history)
        super().__init__(render_context, [boxes, _Map(semantic_map)], target, layout, output)


# --- what is drawn


class _Boxes:
    """For each frame a layer of agents, and one of the ego."""

    def __init__(self, frames, mode, threshold, render_ego_history):
        self._options = frames, threshold, render_ego_history
        self.channels = 2 * frames
        self.code = _draw_boxes, self.channels, mode

    def inputs(self, _device, history_frames, history_agents, _tl_faces, agents):
        return boxes_by_layer(history_frames, history_agents, agents, *self._options)

    def to_rgb(self, frames, agent_color, ego_color):
        agents, egos = np.split(frames, 2, axis=-1)
        return (np.clip(_faded(agents, agent_color) + _faded(egos, ego_color), 0, 1) * 255).astype("uint8")


def _faded(frames, color):
    picture = np.zeros((*frames.shape[:-1], 3), "float32")
    for frame in np.moveaxis(frames, -1, 0)[::-1]:  # the oldest first
        picture *= FADING
        picture[frame > 0] = color
    return picture


class _Map:
    """A semantic map, whose points stay on the device."""

    def __init__(self, semantic_map):
        self._map, self._on_device = semantic_map, {}
        self.channels, self.code = 3, (_draw_map,)

    def inputs(self, device, _frames, _agents, history_tl_faces, _selected):
        if device not in self._on_device:
            arrays = self._map.points, self._map.offsets
            self._on_device[device] = [tvm.nd.array(array, device) for array in arrays]
        return *self._on_device[device], self._map.styles([faces[0] for faces in history_tl_faces])

    def to_rgb(self, picture, *_colors):
        return (picture * 255).astype("uint8")


# --- code for any number of samples, compiled once; each function gives variables, and a picture of them


@functools.cache
def _compiled(codes, image_size, layout, target):
    matrices = relay.var("matrices", shape=(relay.Any(), 3, 3), dtype="float64")
    drawn = [draw(matrices, image_size, layout, *args) for draw, *args in codes]
    variables = [variable for own, _ in drawn for variable in own]
    pictures = [picture for _, picture in drawn]
    result = pictures[0] if len(pictures) == 1 else relay.concatenate(pictures, layout.index("C"))
    target = tvm.target.Target(target, host="llvm")
    with tvm.transform.PassContext(opt_level=3):
        mod = tvm.IRModule.from_expr(relay.Function([*variables, matrices], result))
        executable = relay.vm.compile(mod, target)
    return VirtualMachine(executable, tvm.device(target.kind.name))


def _draw_boxes(matrices, image_size, layout, channels, mode):
    boxes = relay.var("boxes", shape=(relay.Any(), 6), dtype="float64")
    layers = relay.var("layers", shape=(relay.Any(), channels + 1), dtype="int32")
    variables = [boxes, layers]
    return variables, topi_ext.rasterize_boxes(*variables, matrices, image_size, mode=mode, layout=layout)


def _draw_map(matrices, image_size, layout):
    points = relay.var("points", shape=(relay.Any(), 2), dtype="float64")
    offsets = relay.var("offsets", shape=(relay.Any(),), dtype="int32")
    styles = relay.var("styles", shape=(relay.Any(), relay.Any()), dtype="int8")
    variables, palette = [points, offsets, styles], PALETTE.values()
    return variables, topi_ext.rasterize_map(*variables, matrices, image_size, palette=palette, layout=layout)
