"""l5kit's records, and batches of them as arrays that the rasterisers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

AGENT_DTYPE = np.dtype(
    [
        ("centroid", "float64", (2,)),
        ("extent", "float32", (3,)),  # length, width, height
        ("yaw", "float32"),
        ("velocity", "float32", (2,)),
        ("track_id", "uint64"),
        ("label_probabilities", "float32", (17,)),
    ]
)
FRAME_DTYPE = np.dtype(
    [
        ("timestamp", "int64"),
        ("agent_index_interval", "int64", (2,)),
        ("traffic_light_faces_index_interval", "int64", (2,)),
        ("ego_translation", "float64", (3,)),
        ("ego_rotation", "float64", (3, 3)),
    ]
)
TL_FACE_DTYPE = np.dtype(
    [("face_id", "<U16"), ("traffic_light_id", "<U16"), ("traffic_light_face_status", "float32", (3,))]
)
KEPT_LABELS = slice(3, 16)  # from car to animal: all but not set, unknown, and two don't-care labels
USED_FIELDS = "centroid", "extent", "yaw", "track_id", "label_probabilities"
AV_SIZE = 4.87, 1.85  # length and width of the vehicle that records


def raster_poses(history_frames: Sequence[np.ndarray], agents: Sequence[np.ndarray | None]) -> np.ndarray:
    """The pose of each sample's raster as a matrix: that of the selected agent, or of the AV."""
    first = np.stack([frames[0] for frames in history_frames])
    places, yaws = first["ego_translation"][:, :2].copy(), [*_yaw(first["ego_rotation"])]
    for sample, agent in enumerate(agents):
        if agent is not None:
            places[sample], yaws[sample] = agent["centroid"], agent["yaw"]
    return np.stack([pose(place, yaw) for place, yaw in zip(places, yaws)])


def pose(position: Sequence[float] | np.ndarray, angle: float) -> np.ndarray:
    """The matrix to world coordinates; cosine and sine of an agent's yaw are float32, as in l5kit."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, -sine, position[0]], [sine, cosine, position[1]], [0, 0, 1]], "float64")


def boxes_by_layer(
    history_frames: Sequence[np.ndarray],
    history_agents: Sequence[Sequence[np.ndarray]],
    agents: Sequence[np.ndarray | None],
    frame_count: int,
    threshold: float,
    render_ego_history: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """`boxes` and `layers` of `topi_ext.rasterize_boxes`: each sample's agents, frame by frame, then its ego.

    The ego is the selected agent, if there is one, and then the AV is one of the agents.
    """
    samples = len(history_frames)
    frames = [frames[:frame_count] for frames in history_frames]
    of_frames = [agents for history, own in zip(history_agents, frames) for agents in history[: len(own)]]
    lengths = [min(len(own), len(history)) for own, history in zip(frames, history_agents)]
    sample = np.repeat(np.arange(samples), lengths)
    frame = np.concatenate([np.arange(length) for length in lengths])
    avs = np.concatenate([own[:length] for own, length in zip(frames, lengths)])
    of_frame = np.repeat(np.arange(len(of_frames)), [len(agents) for agents in of_frames])
    # NumPy is slow at concatenating records.
    others = {name: np.concatenate([agents[name] for agents in of_frames]) for name in USED_FIELDS}
    kept = others["label_probabilities"][:, KEPT_LABELS].sum(axis=1) > threshold
    others, of_frame = {name: values[kept] for name, values in others.items()}, of_frame[kept]

    is_selected = np.array([agent is not None for agent in agents])
    track_ids = np.array([0 if agent is None else agent["track_id"] for agent in agents], "uint64")
    is_ego = is_selected[sample[of_frame]] & (others["track_id"] == track_ids[sample[of_frame]])
    is_ego = np.concatenate([is_ego, ~is_selected[sample]])
    of_frame = np.concatenate([of_frame, np.arange(len(avs))])
    boxes = np.concatenate([_boxes(others), _av_boxes(avs)])
    layer = (2 * sample[of_frame] + is_ego) * frame_count + frame[of_frame]
    if not render_ego_history:
        shown = ~is_ego | (frame[of_frame] == 0)
        boxes, layer = boxes[shown], layer[shown]
    counts = np.bincount(layer, minlength=2 * samples * frame_count)
    starts = np.concatenate([[0], counts.cumsum()]).astype("int32")
    layers = starts[np.arange(samples)[:, None] * (2 * frame_count) + np.arange(2 * frame_count + 1)]
    return boxes[layer.argsort(kind="stable")], layers


def _boxes(agents: Mapping[str, np.ndarray]) -> np.ndarray:
    return _with_heading(agents["centroid"], agents["extent"][:, :2], agents["yaw"])


def _av_boxes(frames: np.ndarray) -> np.ndarray:
    sizes = np.broadcast_to(np.array(AV_SIZE, "float32"), (len(frames), 2))
    return _with_heading(
        frames["ego_translation"][:, :2], sizes, _yaw(frames["ego_rotation"]).astype("float32")
    )


def _with_heading(centres: np.ndarray, sizes: np.ndarray, yaws: np.ndarray) -> np.ndarray:
    """Cosine and sine are in float32, as l5kit computes them: its images depend on their last bits."""
    return np.column_stack([centres, sizes, np.cos(yaws), np.sin(yaws)]).astype("float64")


def _yaw(rotations: np.ndarray) -> np.ndarray:
    return np.arctan2(rotations[:, 1, 0], rotations[:, 0, 0])
