"""Rasterisers with l5kit's names, on top of the operators of `topi_ext`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

import topi_ext
from tvm_passes import runtime

import tvm
from tvm import relay

from .map import PALETTE, SemanticMap
from .records import boxes_by_layer, pose, raster_poses

FADING = 0.85  # factor of a colour, from a frame to the one before


class RenderContext:
    """What a raster shows: its width and height in pixels, metres per pixel, and where its centre is."""

    def __init__(
        self,
        raster_size_px: ArrayLike,
        pixel_size_m: Sequence[float],
        center_in_raster_ratio: ArrayLike,
        set_origin_to_bottom: bool = True,
    ) -> None:
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

    def raster_from_world(self, position_m: Sequence[float] | np.ndarray, angle_rad: float) -> np.ndarray:
        """The matrix from world coordinates to pixels, for an observer with this position and heading."""
        return self.raster_from_poses(pose(position_m, angle_rad))

    def raster_from_poses(self, poses: np.ndarray) -> np.ndarray:
        """The same for poses as matrices to world coordinates, (..., 3, 3)."""
        return self.raster_from_local @ np.linalg.inv(poses)


class _Rasterizer:
    """Draws one or more things, side by side as channels."""

    def __init__(
        self,
        render_context: RenderContext,
        things: Iterable[_Boxes | _Map],
        target: str | tvm.target.Target,
        layout: str,
        output: str,
    ) -> None:
        if output not in ("numpy", "torch"):
            raise ValueError(f"output must be numpy or torch, not {output}")
        self.render_context, self._things = render_context, tuple(things)
        self._layout, self._output = layout, output
        self._target = tvm.target.Target(target)

    def rasterize(
        self,
        history_frames: Sequence[np.ndarray],
        history_agents: Sequence[Sequence[np.ndarray]],
        history_tl_faces: Sequence[Sequence[np.ndarray]],
        agents: Sequence[np.ndarray | None] | None = None,
    ) -> np.ndarray | torch.Tensor:
        """The images of a batch, float32 from 0 to 1: an array of NumPy, or a tensor of torch on the device.

        The arguments are, for each sample: its frames, newest first; the agents and the traffic light faces
        of each frame; and the agent in the centre, or None for the AV.
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
        draw = _compiled(codes, size, self._layout, str(self._target))
        if self._output == "torch":  # a torch input gives a torch output, on torch's stream
            on_torch = "cuda:0" if self._target.kind.name == "cuda" else "cpu"
            return draw(*inputs, torch.from_numpy(matrices).to(on_torch))
        images = draw(*inputs, matrices)
        return images if isinstance(images, np.ndarray) else images.numpy()

    def num_channels(self) -> int:
        return sum(thing.channels for thing in self._things)

    def to_rgb(
        self,
        images: np.ndarray | torch.Tensor,
        agent_color: Sequence[float] = (0, 0, 1),
        ego_color: Sequence[float] = (0, 1, 0),
    ) -> np.ndarray:
        """RGB images of one sample or many, uint8: boxes in colours that fade into the past, on the map."""
        images = images.cpu().numpy() if isinstance(images, torch.Tensor) else np.asarray(images)
        images = images if self._layout == "NHWC" else np.moveaxis(images, -3, -1)
        rgb = np.zeros((*images.shape[:-1], 3), "uint8")
        for thing in reversed(self._things):  # the map first
            part, images = np.split(images, [-thing.channels], axis=-1)[::-1]
            drawn = thing.to_rgb(part, agent_color, ego_color)
            rgb = np.where(drawn.any(axis=-1, keepdims=True), drawn, rgb)
        return rgb


class BoxRasterizer(_Rasterizer):
    """Boxes: the channels are the agents of each frame, newest first, then the ego of each frame."""

    def __init__(
        self,
        render_context: RenderContext,
        filter_agents_threshold: float,
        history_num_frames: int,
        render_ego_history: bool = True,
        *,
        mode: str = "parity",
        target: str | tvm.target.Target = "llvm",
        layout: str = "NHWC",
        output: str = "numpy",
    ) -> None:
        boxes = _Boxes(history_num_frames + 1, mode, filter_agents_threshold, render_ego_history)
        super().__init__(render_context, [boxes], target, layout, output)


class SemanticRasterizer(_Rasterizer):
    """Lanes, the states of their lights, and crosswalks, in RGB."""

    def __init__(
        self,
        render_context: RenderContext,
        semantic_map: SemanticMap,
        *,
        target: str | tvm.target.Target = "llvm",
        layout: str = "NHWC",
        output: str = "numpy",
    ) -> None:
        super().__init__(render_context, [_Map(semantic_map)], target, layout, output)


class SemBoxRasterizer(_Rasterizer):
    """The channels of `BoxRasterizer`, then those of `SemanticRasterizer`."""

    def __init__(
        self,
        render_context: RenderContext,
        filter_agents_threshold: float,
        history_num_frames: int,
        semantic_map: SemanticMap,
        render_ego_history: bool = True,
        *,
        mode: str = "parity",
        target: str | tvm.target.Target = "llvm",
        layout: str = "NHWC",
        output: str = "numpy",
    ) -> None:
        boxes = _Boxes(history_num_frames + 1, mode, filter_agents_threshold, render_ego_history)
        super().__init__(render_context, [boxes, _Map(semantic_map)], target, layout, output)


# --- what is drawn


class _Boxes:
    """For each frame a layer of agents, and one of the ego."""

    def __init__(self, frames: int, mode: str, threshold: float, render_ego_history: bool) -> None:
        self._options = frames, threshold, render_ego_history
        self.channels = 2 * frames
        self.code = _draw_boxes, self.channels, mode

    def inputs(
        self,
        _device: tvm.runtime.Device,
        history_frames: Sequence[np.ndarray],
        history_agents: Sequence[Sequence[np.ndarray]],
        _tl_faces: Sequence[Sequence[np.ndarray]],
        agents: Sequence[np.ndarray | None],
    ) -> tuple[np.ndarray, np.ndarray]:
        return boxes_by_layer(history_frames, history_agents, agents, *self._options)

    def to_rgb(
        self, frames: np.ndarray, agent_color: Sequence[float], ego_color: Sequence[float]
    ) -> np.ndarray:
        agents, egos = np.split(frames, 2, axis=-1)
        return (np.clip(_faded(agents, agent_color) + _faded(egos, ego_color), 0, 1) * 255).astype("uint8")


def _faded(frames: np.ndarray, color: Sequence[float]) -> np.ndarray:
    image = np.zeros((*frames.shape[:-1], 3), "float32")
    for frame in np.moveaxis(frames, -1, 0)[::-1]:  # the oldest first
        image *= FADING
        image[frame > 0] = color
    return image


class _Map:
    """A semantic map, whose points stay on the device."""

    def __init__(self, semantic_map: SemanticMap) -> None:
        self._map = semantic_map
        self._on_device: dict[tvm.runtime.Device, list[tvm.nd.NDArray]] = {}
        self.channels, self.code = 3, (_draw_map,)

    def inputs(
        self,
        device: tvm.runtime.Device,
        _frames: Sequence[np.ndarray],
        _agents: Sequence[Sequence[np.ndarray]],
        history_tl_faces: Sequence[Sequence[np.ndarray]],
        _selected: Sequence[np.ndarray | None],
    ) -> tuple[Any, ...]:
        if device not in self._on_device:
            arrays = self._map.points, self._map.offsets
            self._on_device[device] = [tvm.nd.array(array, device) for array in arrays]
        return *self._on_device[device], self._map.styles([faces[0] for faces in history_tl_faces])

    def to_rgb(self, image: np.ndarray, *_colors: Sequence[float]) -> np.ndarray:
        return (image * 255).astype("uint8")


# --- code for any number of samples, compiled once; each function gives variables and the image made of them


@functools.cache
def _compiled(
    codes: tuple[tuple[Any, ...], ...], image_size: tuple[int, int], layout: str, target: str
) -> runtime.Model:
    matrices = relay.var("matrices", shape=(relay.Any(), 3, 3), dtype="float64")
    drawn = [draw(matrices, image_size, layout, *args) for draw, *args in codes]
    variables = [variable for own, _ in drawn for variable in own]
    images = [image for _, image in drawn]
    result = images[0] if len(images) == 1 else relay.concatenate(images, layout.index("C"))
    mod = tvm.IRModule.from_expr(relay.Function([*variables, matrices], result))
    return runtime.compile(mod, tvm.target.Target(target, host="llvm"), copy_outputs=False)


def _draw_boxes(
    matrices: relay.Var, image_size: tuple[int, int], layout: str, channels: int, mode: str
) -> tuple[list[relay.Var], relay.Expr]:
    boxes = relay.var("boxes", shape=(relay.Any(), 6), dtype="float64")
    layers = relay.var("layers", shape=(relay.Any(), channels + 1), dtype="int32")
    image = topi_ext.rasterize_boxes(boxes, layers, matrices, image_size, mode=mode, layout=layout)
    return [boxes, layers], image


def _draw_map(
    matrices: relay.Var, image_size: tuple[int, int], layout: str
) -> tuple[list[relay.Var], relay.Expr]:
    points = relay.var("points", shape=(relay.Any(), 2), dtype="float64")
    offsets = relay.var("offsets", shape=(relay.Any(),), dtype="int32")
    styles = relay.var("styles", shape=(relay.Any(), relay.Any()), dtype="int8")
    image = topi_ext.rasterize_map(
        points, offsets, styles, matrices, image_size, palette=PALETTE.values(), layout=layout
    )
    return [points, offsets, styles], image
