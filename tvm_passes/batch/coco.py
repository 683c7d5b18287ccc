"""A table of detections as one JSON file in the format of COCO's ground truth, with scores."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import run_lengths
from .table import parts, read_part, whole_file

Row = dict[str, Any]


def write_coco(table: Path, path: Path, labels: Sequence[str] = ()) -> None:
    """Images have numbers from 1 on, in the order of their ids, which are the file names."""
    names = sorted(row["image_id"] for row in _rows(table, ["image_id"]))
    numbers = {name: number for number, name in enumerate(names, 1)}
    found: set[int] = set()

    def images() -> Iterator[Row]:
        for row in _rows(table, ["image_id", "height", "width"]):
            name = row.pop("image_id")
            yield {"id": numbers[name], "file_name": name, **row}

    def annotations() -> Iterator[Row]:
        number = 0
        for row in _rows(table):
            found.update(row["labels"])
            for index in range(len(row["boxes"])):
                number += 1
                yield {"id": number, "image_id": numbers[row["image_id"]], **_annotation(row, index)}

    def categories() -> Iterator[Row]:
        for label in sorted(found | set(range(len(labels)))):
            yield {"id": label, "name": labels[label] if 0 <= label < len(labels) else str(label)}

    lists = {"images": images(), "annotations": annotations(), "categories": categories()}
    with whole_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8")
        for index, (name, rows) in enumerate(lists.items()):
            text.write(f'{"," if index else "{"}"{name}": [')
            for place, row in enumerate(rows):
                text.write(("," if place else "") + "\n" + json.dumps(row))
            text.write("]\n")
        text.write("}\n")
        text.detach()  # which writes the rest, and leaves the file open


def _rows(table: Path, columns: list[str] | None = None) -> Iterator[Row]:
    for path in parts(table):
        yield from read_part(path, columns).to_pylist()


def _annotation(row: Row, index: int) -> Row:
    left, top, right, bottom = row["boxes"][index]
    result = {
        "category_id": row["labels"][index],
        "score": row["scores"][index],
        "bbox": [left, top, right - left, bottom - top],
        "area": (right - left) * (bottom - top),
        "iscrowd": 0,
    }
    if row["masks"] is not None:
        mask = row["masks"][index]
        result["segmentation"] = {"size": [row["height"], row["width"]], "counts": mask.decode("ascii")}
        result["area"] = run_lengths.area(mask)
    if row["keypoints"] is not None:
        points = np.array(row["keypoints"][index])
        points[:, 2] = np.where(points[:, 2] > 0, 2, 0)  # seen, or not there
        result["keypoints"] = points.ravel().tolist()
        result["num_keypoints"] = int((points[:, 2] > 0).sum())
    return result
