"""A semantic map as shapes that `topi_ext.rasterize_map` takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

POINTS_OF_SIDE = 20
ACTIVE = 0  # among the statuses of a traffic light's face
PALETTE = {
    "road": ((17, 17, 31), "fill"),
    "none": ((255, 217, 82), "line"),  # the sides of a lane without an active light
    "red": ((255, 0, 0), "line"),
    "green": ((0, 255, 0), "line"),
    "yellow": ((255, 255, 0), "line"),
    "crosswalk": ((255, 117, 69), "line"),
}
STYLES = {name: number for number, name in enumerate(PALETTE)}


@dataclass
class Lane:
    """The sides of a lane, (N, 2) or (N, 3) in world coordinates; the colours of its light's faces, by id."""

    left: np.ndarray
    right: np.ndarray
    faces: dict[Any, str] = field(default_factory=dict)


class SemanticMap:
    """Lanes and crosswalks as shapes: the area of each lane, then both sides of each, then crosswalks.

    `points` and `offsets` say where they are, `styles` says how samples show them.
    """

    def __init__(self, lanes: Sequence[Lane], crosswalks: Iterable[ArrayLike] = ()) -> None:
        sides = [(resampled(lane.left), resampled(lane.right)[::-1]) for lane in lanes]
        areas = [np.concatenate(pair) for pair in sides]
        lines = [side for pair in sides for side in pair]
        closed = [np.concatenate([points[-1:], points])[:, :2] for points in map(np.asarray, crosswalks)]
        shapes = [*areas, *lines, *closed]
        self.points = np.concatenate([np.zeros((0, 2)), *shapes])
        self.offsets = np.cumsum([0, *map(len, shapes)]).astype("int32")
        counts = {"road": len(areas), "none": len(lines), "crosswalk": len(closed)}
        self._styles = np.repeat([STYLES[name] for name in counts], list(counts.values())).astype("int8")
        lines_of_face: dict[Any, list[int]] = {}
        style_of_face: dict[Any, int] = {}
        for number, lane in enumerate(lanes):
            for face, color in lane.faces.items():
                line = len(areas) + 2 * number
                lines_of_face.setdefault(face, []).extend([line, line + 1])
                style_of_face[face] = STYLES[color.lower()]
        self._of_face = {
            face: (np.array(lines), style_of_face[face]) for face, lines in lines_of_face.items()
        }

    @classmethod
    def from_map_api(cls, map_api: Any) -> SemanticMap:
        """The map of an l5kit `MapAPI`."""
        lanes = []
        for lane_id in map_api.bounds_info["lanes"]["ids"]:
            sides = map_api.get_lane_coords(lane_id)
            faces = {}
            for control in map_api.get_lane_traffic_control_ids(lane_id):
                try:
                    faces[control] = map_api.get_color_for_face(control)
                except ValueError:  # it is not a traffic light's face
                    continue
            lanes.append(Lane(sides["xyz_left"], sides["xyz_right"], faces))
        ids = map_api.bounds_info["crosswalks"]["ids"]
        return cls(lanes, [map_api.get_crosswalk_coords(crosswalk)["xyz"] for crosswalk in ids])

    def styles(self, tl_faces: Sequence[np.ndarray]) -> np.ndarray:
        """(B, shapes), int8, from the traffic light faces of each sample."""
        styles = np.tile(self._styles, (len(tl_faces), 1))
        for of_sample, faces in zip(styles, tl_faces):
            active = faces["face_id"][faces["traffic_light_face_status"][:, ACTIVE] > 0].tolist()
            for lines, style in (self._of_face[face] for face in active if face in self._of_face):
                of_sample[lines] = style
        return styles


def resampled(points: ArrayLike, count: int = POINTS_OF_SIDE) -> np.ndarray:
    """x and y of `count` points along a line, evenly spaced."""
    points = np.asarray(points, "float64")
    distances = np.concatenate([[0], np.linalg.norm(np.diff(points, axis=0), axis=1).cumsum()])
    steps = np.linspace(0, distances[-1], count)
    return np.column_stack([np.interp(steps, distances, points[:, axis]) for axis in range(2)])
