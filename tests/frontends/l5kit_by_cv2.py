"""Samples drawn as l5kit draws them, one by one with NumPy and OpenCV, for tests and benchmarks."""

import cv2
import numpy as np

from frontends.l5kit.map import PALETTE, resampled
from tests.ops.drawn_by_cv2 import SUBPIXEL, in_image, product

KEPT_LABELS = list(range(3, 16))
AV_EXTENT = 4.87, 1.85, 1.8


class DrawnByCv2:
    """l5kit's SemBoxRasterizer, drawing the sides of lanes in the order of states that is documented."""

    def __init__(self, context, threshold, history_num_frames, lanes, crosswalks, render_ego_history=True):
        self.context, self.threshold, self.frames = context, threshold, history_num_frames + 1
        self.render_ego_history = render_ego_history
        self.width, self.height = map(int, context.raster_size_px)
        # l5kit computes these once and keeps them.
        self.sides = np.array([[resampled(lane.left), resampled(lane.right)[::-1]] for lane in lanes])
        self.faces, self.crosswalks = [lane.faces for lane in lanes], crosswalks
        self.lane_bounds = np.stack([self.sides.min(axis=(1, 2)), self.sides.max(axis=(1, 2))], 1)
        corners = [(points.min(axis=0), points.max(axis=0)) for points in crosswalks]
        self.crosswalk_bounds = np.array(corners).reshape(-1, 2, 2)

    def rasterize(self, frames, agents, tl_faces, selected):
        place, yaw = frames[0]["ego_translation"], _yaw(frames[0])
        if selected is not None:
            place, yaw = selected["centroid"], selected["yaw"]
        matrix = self.context.raster_from_world(place, yaw)
        return np.concatenate(
            [self.boxes(frames, agents, selected, matrix), self.map(tl_faces[0], matrix)], -1
        )

    def boxes(self, frames, agents, selected, matrix):
        shape = self.height, self.width, self.frames
        agent_images, ego_images = np.zeros(shape, "uint8"), np.zeros(shape, "uint8")
        for i, (frame, others) in enumerate(zip(frames[: self.frames], agents)):
            others = others[others["label_probabilities"][:, KEPT_LABELS].sum(axis=1) > self.threshold]
            av = np.zeros(1, others.dtype)
            av["centroid"], av["yaw"] = frame["ego_translation"][:2], _yaw(frame)
            av["extent"] = AV_EXTENT
            ego = av
            if selected is not None:
                ego = others[others["track_id"] == selected["track_id"]]
                others = np.append(others, av)
                if len(ego):
                    others = others[others != ego[0]]
            agent_images[..., i] = self._draw_boxes(others, matrix)
            if len(ego) and (self.render_ego_history or i == 0):
                ego_images[..., i] = self._draw_boxes(ego, matrix)
        return np.concatenate([agent_images, ego_images], -1).astype("float32") / 255

    def _draw_boxes(self, agents, matrix):
        image = np.zeros((self.height, self.width), "uint8")
        corners = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]]) * 0.5 * agents["extent"][:, None, :2]
        sine, cosine = np.sin(agents["yaw"]), np.cos(agents["yaw"])
        turned = [product(corners, column) for column in ((cosine, -sine), (sine, cosine))]
        corners = (np.stack(turned, -1) + agents["centroid"][:, None, :2]).reshape(-1, 2)
        cv2.fillPoly(image, in_image(corners, matrix).reshape(-1, 4, 2), 255, **SUBPIXEL)
        return image

    def map(self, tl_faces, matrix):
        image = np.full((self.height, self.width, 3), 255, "uint8")
        active = set(tl_faces[tl_faces["traffic_light_face_status"][:, 0] > 0]["face_id"].tolist())
        lanes, crosswalks = (
            self.seen(bounds, matrix) for bounds in (self.lane_bounds, self.crosswalk_bounds)
        )
        if len(lanes):
            states = ["none"] * len(lanes)
            for i, lane in enumerate(lanes):
                for face in self.faces[lane].keys() & active:
                    states[i] = self.faces[lane][face].lower()
            sides = in_image(self.sides[lanes].reshape(-1, 2), matrix).reshape(len(lanes), 2, -1, 2)
            for area in sides.reshape(len(lanes), -1, 2):
                cv2.fillPoly(image, [area], PALETTE["road"][0], **SUBPIXEL)
            for state in ("none", "red", "green", "yellow"):
                lines = sides[np.array(states) == state].reshape(-1, sides.shape[2], 2)
                cv2.polylines(image, lines, False, PALETTE[state][0], **SUBPIXEL)
        corners = [in_image(self.crosswalks[i], matrix) for i in crosswalks]
        cv2.polylines(image, corners, True, PALETTE["crosswalk"][0], **SUBPIXEL)
        return image.astype("float32") / 255

    def seen(self, bounds, matrix):
        """Which of these are in the square around the raster, as l5kit asks."""
        centre = (np.linalg.inv(matrix) @ [self.width / 2, self.height / 2, 1])[:2]
        reach = float(np.linalg.norm(self.context.raster_size_px * self.context.pixel_size_m)) / 2
        inside = (centre > bounds[:, 0] - reach) & (centre < bounds[:, 1] + reach)
        return np.flatnonzero(inside.all(axis=1))


def _yaw(frame):
    return np.arctan2(frame["ego_rotation"][1, 0], frame["ego_rotation"][0, 0])
