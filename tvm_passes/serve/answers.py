"""What is found in an image, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """Of a replica: a status of HTTP, JSON, and how many images were computed together."""

    status: int
    body: bytes
    batch: int = 0


def as_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def error(reason: str) -> bytes:
    return as_json({"error": reason})


def detections(row: Mapping[str, Any], labels: Sequence[str], threshold: float) -> bytes:
    """A row of the table of `tvm-passes detect` as JSON; detections in the order of their scores."""
    scores = row["scores"].tolist()
    kept = sorted((i for i, score in enumerate(scores) if score >= threshold), key=lambda i: -scores[i])
    size = {"height": row["height"], "width": row["width"]}
    found = [_detection(row, index, labels) for index in kept]
    return as_json({"model": row["model"], **size, "detections": found})


def _detection(row: Mapping[str, Any], index: int, labels: Sequence[str]) -> dict[str, Any]:
    label = int(row["labels"][index])
    found: dict[str, Any] = {
        "box": row["boxes"][index].tolist(),
        "score": float(row["scores"][index]),
        "label": label,
    }
    if 0 <= label < len(labels):
        found["name"] = labels[label]
    if row["masks"] is not None:
        counts = row["masks"][index].decode("ascii")
        found["mask"] = {"size": [row["height"], row["width"]], "counts": counts}
    if row["keypoints"] is not None:
        found["keypoints"] = [list(map(_finite, point)) for point in row["keypoints"][index].tolist()]
    return found


def _finite(value: float) -> float | None:
    """JSON has no other numbers."""
    return value if math.isfinite(value) else None
