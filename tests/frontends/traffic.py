"""A made-up town and the traffic in it, as l5kit has them: for tests, benchmarks and the tutorial."""

from dataclasses import dataclass

import numpy as np

from frontends.l5kit import AGENT_DTYPE, FRAME_DTYPE, TL_FACE_DTYPE, Lane

WIDTH = 3.5  # of a lane, in metres
LANES = 2  # of a road, in each direction
JUNCTION = 16.0  # from the middle of a junction to where its roads begin
SECONDS = 0.1  # between frames
CAR = 3  # the place of the label
KINDS = {  # of agents: length, width, height, speed, share
    "car": (4.7, 1.95, 1.6, 9, 0.74),
    "truck": (9.0, 2.6, 3.2, 8, 0.1),
    "cyclist": (1.8, 0.7, 1.7, 5, 0.1),
    "pedestrian": (0.8, 0.8, 1.7, 1.3, 0.06),
}


@dataclass
class Town:
    lanes: list  # of `Lane`
    crosswalks: list  # of (4, 2)
    centres: list  # of each lane, the points of its middle
    junctions: np.ndarray


def town(blocks, spacing=60.0, seed=0):
    """Roads between `blocks` times `blocks` junctions, every other one with lights."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.arange(blocks) * spacing] * 2), -1).reshape(-1, 2)
    junctions = grid + rng.uniform(-5, 5, grid.shape)
    made = Town([], [], [], junctions)
    arms = [[] for _ in junctions]  # of each junction: the other one, and the direction to there
    for a, b in _neighbours(blocks):
        direction = (junctions[b] - junctions[a]) / np.linalg.norm(junctions[b] - junctions[a])
        arms[a].append((b, direction))
        arms[b].append((a, -direction))
        bend = rng.normal(0, 0.8)
        for start, end, along, side in ((a, b, direction, 1), (b, a, -direction, -1)):
            ends = junctions[start] + along * JUNCTION, junctions[end] - along * JUNCTION
            for lane in range(LANES):
                _add_lane(made, _road(*ends, along, (lane + 0.5) * WIDTH, side * bend), {})
    for number, (junction, of_junction) in enumerate(zip(junctions, arms)):
        _add_junction(made, junction, of_junction, number if number % 2 == 0 else None)
    return made


def _neighbours(blocks):
    for number in range(blocks * blocks):
        if number % blocks < blocks - 1:
            yield number, number + 1
        if number // blocks < blocks - 1:
            yield number, number + blocks


def _right_of(direction):
    return np.array([direction[1], -direction[0]])


def _road(start, end, direction, offset, bend):
    at = np.linspace(0, 1, 12)[:, None]
    middle = start + (end - start) * at + _right_of(direction) * (bend * np.sin(np.pi * at) ** 2)
    return middle + _right_of(direction) * offset


def _add_junction(made, junction, arms, light):
    """Lanes from each arm to each other: straight on, and turns from the outer ones."""
    for _, from_ in arms:
        into = -from_  # the direction of who comes in on this arm
        axis = "EW" if abs(into[0]) > abs(into[1]) else "NS"
        faces = (
            {}
            if light is None
            else {f"{light}-{axis}-{color}": color for color in ("RED", "GREEN", "YELLOW")}
        )
        for _, out in arms:
            turn = into[0] * out[1] - into[1] * out[0]
            if out @ from_ > 0.9:
                continue
            for lane in range(LANES) if abs(turn) < 0.5 else [0 if turn > 0 else LANES - 1]:
                offset = (lane + 0.5) * WIDTH
                start = junction + from_ * JUNCTION + _right_of(into) * offset
                end = junction + out * JUNCTION + _right_of(out) * offset
                reach = 0.55 * np.linalg.norm(end - start)
                _add_lane(made, _bezier(start, start + into * reach, end - out * reach, end), faces)
        across = _right_of(from_) * LANES * WIDTH
        near, far = junction + from_ * (JUNCTION - 4), junction + from_ * (JUNCTION - 1)
        made.crosswalks.append(np.array([near - across, near + across, far + across, far - across]))


def _bezier(a, b, c, d, count=14):
    t = np.linspace(0, 1, count)[:, None]
    return a * (1 - t) ** 3 + 3 * b * t * (1 - t) ** 2 + 3 * c * t**2 * (1 - t) + d * t**3


def _add_lane(made, middle, faces):
    directions = np.gradient(middle, axis=0)
    normals = directions[:, ::-1] * [-1, 1] / np.linalg.norm(directions, axis=1, keepdims=True)
    sides = (
        np.column_stack([middle + side * WIDTH / 2 * normals, np.zeros(len(middle))]) for side in (1, -1)
    )
    made.lanes.append(Lane(*sides, faces))
    made.centres.append(middle)


# --- traffic


@dataclass
class Batch:
    """What l5kit's rasterisers take, for each sample."""

    frames: list
    agents: list
    tl_faces: list
    selected: list

    def __iter__(self):
        return iter((self.frames, self.agents, self.tl_faces, self.selected))


def traffic(made, samples, frames, agents, seed=0, around=70.0, select=0.5):
    """Samples somewhere in the middle of a town, with so many agents around; `select` is how many have a
    selected agent."""
    rng = np.random.default_rng(seed)
    low, high = np.quantile(made.junctions, [0.3, 0.7], axis=0)
    middles = np.array([middle[len(middle) // 2] for middle in made.centres])
    candidates = np.flatnonzero((middles > low - 10).all(axis=1) & (middles < high + 10).all(axis=1))
    batch = Batch([], [], [], [])
    for _ in range(samples):
        lane = rng.choice(candidates)
        near = np.flatnonzero(np.linalg.norm(middles - middles[lane], axis=1) < around)
        ego, others = _moving(made, [lane], frames, rng), _moving(made, rng.choice(near, agents), frames, rng)
        batch.frames.append(_frames(ego[0]))
        history = [_agents(others, frame, rng) for frame in range(frames)]
        batch.agents.append(history)
        batch.tl_faces.append([_lights(made, rng)] * frames)
        batch.selected.append(history[0][rng.integers(agents)] if agents and rng.random() < select else None)
    return batch


def _moving(made, lanes, frames, rng):
    """Of each lane somebody who follows it, as far from the others as a few tries allow: their kind, their
    places newest first, their yaws, and their speed."""
    kinds, shares = list(KINDS.values()), np.array([kind[-1] for kind in KINDS.values()])
    movers = []
    for lane in lanes:
        kind = kinds[rng.choice(len(kinds), p=shares / shares.sum())] if len(lanes) > 1 else kinds[0]
        speed = max(rng.normal(kind[3], kind[3] / 3), 0) * (rng.random() > 0.25)
        for _ in range(8):
            places, yaws = _track(made.centres[lane], rng.random(), speed, frames)
            if all(
                np.hypot(*(places[0] - other[1][0])) > (kind[0] + other[0][0]) / 2 + 1 for other in movers
            ):
                break
            lane = rng.choice(lanes)
        movers.append((kind, places, yaws, speed))
    return movers


def _track(middle, share, speed, frames):
    """Places and yaws of who is at this share of a lane, and has come from before it at this speed."""
    along = np.concatenate([[0], np.linalg.norm(np.diff(middle, axis=0), axis=1).cumsum()])
    at = share * along[-1] - speed * SECONDS * np.arange(frames)
    inside = np.clip(at, 0, along[-1])
    ahead = np.clip(inside + 0.5, 0, along[-1]), np.clip(inside - 0.5, 0, along[-1])
    places, fore, aft = (
        np.column_stack([np.interp(where, along, middle[:, axis]) for axis in range(2)])
        for where in (inside, *ahead)
    )
    directions = (fore - aft) / np.linalg.norm(fore - aft, axis=1, keepdims=True)
    return places + directions * (at - inside)[:, None], np.arctan2(directions[:, 1], directions[:, 0])


def _frames(ego):
    _, places, yaws, _ = ego
    frames = np.zeros(len(places), FRAME_DTYPE)
    frames["ego_translation"][:, :2] = places
    frames["ego_rotation"][:, 0, 0] = frames["ego_rotation"][:, 1, 1] = np.cos(yaws)
    frames["ego_rotation"][:, 1, 0], frames["ego_rotation"][:, 0, 1] = np.sin(yaws), -np.sin(yaws)
    frames["ego_rotation"][:, 2, 2] = 1
    return frames


def _agents(movers, frame, rng):
    agents = np.zeros(len(movers), AGENT_DTYPE)
    for number, (agent, (kind, places, yaws, speed)) in enumerate(zip(agents, movers)):
        agent["centroid"], agent["extent"], agent["yaw"] = places[frame], kind[:3], yaws[frame]
        agent["velocity"] = speed * np.cos(yaws[frame]), speed * np.sin(yaws[frame])
        agent["track_id"] = number + 1
        agent["label_probabilities"][[CAR, 1]] = (0.9, 0.1) if number % 12 else (0.2, 0.8)
    return agents


def _lights(made, rng):
    """One face of each light is active."""
    faces = sorted({face.rsplit("-", 1)[0] for lane in made.lanes for face in lane.faces})
    states = {face: rng.choice(["RED", "GREEN", "YELLOW"], p=[0.45, 0.4, 0.15]) for face in faces}
    for face in faces:  # one axis of a junction has green at most
        other = face.replace("EW", "NS")
        if face != other and states[face] != "RED":
            states[other] = "RED"
    records = np.zeros(len(faces), TL_FACE_DTYPE)
    records["face_id"] = [f"{face}-{states[face]}" for face in faces]
    records["traffic_light_face_status"][:, 0] = 1
    return records
