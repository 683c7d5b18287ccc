"""A detector of images of any size: fitted in, run in batches, and brought back to the pixels of each."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Union

import numpy as np

from .. import runtime
from .decode import MAX_PIXELS, decode
from .errors import BadImage, BatchError
from .failing import raising, start_each
from .found import Found
from .letterbox import Placed, Prepared, letterbox
from .masks import Masks, start_masks
from .network import load_networks
from .on_gpu import OnGpu
from .optional import pyarrow
from .table import detections_schema, table_of

Row = dict[str, Any]  # of the table of detections: see `table.py`
Batch = Union[int, str]


def labels_of(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes, from 0 on; none where the folder has no names."""
    return tuple(map(str, manifest["about"].get("labels") or ()))


class Detector:
    """A detector that was compiled to a folder, for images of any size.

    It can be called with a batch as Ray Data has them, a dict of columns: "bytes", encoded images, or
    "image", uint8 arrays (height, width, 3). The result is a pyarrow.Table with a row for each image: the
    columns of the table of `detect`, and "error", the reason why an image could not be used, or null.
    "image_id" is the column "image_id" or "path" of the batch, if there is one.

        options = {"folder": "detector"}
        ds.map_batches(Detector, fn_constructor_kwargs=options, num_gpus=1, concurrency=(1, 4))

    Parameters
    ----------
    folder : str
        What `tvm_passes.runtime.save` or `tvm-passes compile` wrote. It takes one image of floats from 0 to
        1, or of uint8, or a batch of those.
    device : str, optional
        Such as "cuda:1"; by default the first one of the target's kind.
    batch : int or "auto"
        How many images are computed at once: a size that the folder was compiled for. "auto" is the largest.
        Fewer images take the smallest size that holds them.
    max_pixels : int
        Larger images are refused before they are decoded.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        device: str | None = None,
        *,
        batch: Batch = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self._networks = load_networks(folder, device, batch)
        self.batch = max(self._networks)
        self._gpu = OnGpu.of(self._networks[self.batch].model)
        self._turn = threading.Lock()  # of whoever begins a run, until its outputs are on their way
        self.max_pixels = max_pixels
        manifest = runtime.read_manifest(folder)
        self.model = str(manifest["about"].get("model") or Path(folder).resolve().name)
        self.manifest = str(manifest["sha256"])
        self.labels = labels_of(manifest)

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        encoded = "bytes" in batch
        if not encoded and "image" not in batch:
            raise BatchError(f'a batch must have a column "bytes" or "image", and has {", ".join(batch)}')
        images = batch["bytes" if encoded else "image"]
        ids = batch.get("image_id", batch.get("path", [""] * len(images)))
        if isinstance(images, (bytes, str)) or len(ids) != len(images):
            raise BatchError(f"the columns of a batch must be lists of one length, not of {_lengths(batch)}")
        rows, prepared = [], {}
        for place, (image_id, image) in enumerate(zip(ids, images)):
            rows.append({**self._row(str(image_id)), "error": None})
            try:
                prepared[place] = self.prepare(self._decoded(image) if encoded else _checked(image))
            except BadImage as reason:
                rows[place]["error"] = str(reason)
        places = list(prepared)
        for begin in range(0, len(places), self.batch):
            part = places[begin : begin + self.batch]
            ids = [rows[place]["image_id"] for place in part]
            found = self.run_each([prepared[place][0] for place in part], ids)
            with self.own_stream():
                finishes = self.start_finish(ids, found, [prepared[place][1] for place in part])
                for place, finish in zip(part, finishes):
                    try:
                        rows[place].update(finish())
                    except BadImage as reason:
                        rows[place]["error"] = str(reason)
        pa = pyarrow()
        # Of known types, also where a batch has no detection or no error.
        return table_of(rows, detections_schema().append(pa.field("error", pa.string())))

    def _decoded(self, data: Any) -> np.ndarray:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise BadImage(f"is {type(data).__name__}, not the bytes of an encoded image")
        return decode(bytes(data), self.max_pixels)

    def prepare(self, image: np.ndarray) -> tuple[Prepared, Placed]:
        """An image as `start` takes it, and where it is in the network's input; from any thread."""
        images = self._networks[self.batch].images
        fit = self._gpu.letterbox if self._gpu else letterbox
        return fit(image, images.taken, images.channels)

    def fitted(self, images: Sequence[Prepared]) -> list[Prepared]:
        """Prepared images in the size of the network's input, on the GPU that runs it."""
        return self._gpu.arrived(images) if self._gpu else list(images)

    def own_stream(self) -> AbstractContextManager[object]:
        """The stream of this thread, in which a GPU finishes images while the network runs.

        A thread that does nothing else enters it once, which is faster.
        """
        return self._gpu.own_stream() if self._gpu else contextlib.nullcontext()

    def start(self, images: Sequence[Prepared]) -> Callable[[], list[Found]]:
        """Begin to run the network on prepared images, of which there are at most `batch`.

        What this returns waits, and gives what is found. Meanwhile, a GPU works, and takes the next batch,
        whose run is queued on the same stream of torch.
        """
        size = min(size for size in self._networks if size >= len(images))
        with self._turn:
            return self._networks[size].start(self.fitted(images))

    def run(self, images: Sequence[Prepared]) -> list[Found]:
        """What the network finds in prepared images, of which there are at most `batch`."""
        return self.start(images)()

    def start_each(
        self, images: Sequence[Prepared], ids: Sequence[str]
    ) -> Callable[[], list[Found | BadImage]]:
        """As `start`; where the network fails on one image, the reason takes the place of what is found."""
        return start_each(self.start, images, ids)

    def run_each(self, images: Sequence[Prepared], ids: Sequence[str]) -> list[Found | BadImage]:
        """What the network finds in each image, or the reason why it fails on this one."""
        return self.start_each(images, ids)()

    def start_finish(
        self, ids: Sequence[str], found: Sequence[Found | BadImage], placed: Sequence[Placed]
    ) -> list[Callable[[], Row]]:
        """Begin to bring what was found to the pixels of the images; from any thread, in its `own_stream`.

        What this returns for each image waits, and gives the row. Boxes are clipped to the image; detections
        without a box in it are left out.
        """
        finishes: list[Callable[[], Row]] = []
        waiting: list[Masks] = []
        for image_id, one, where in zip(ids, found, placed):
            if isinstance(one, BadImage):
                finishes.append(raising(one))
                continue
            row, masks = self._brought_back(image_id, one, where)
            if masks is None:
                finishes.append(partial(dict, row))
            else:
                waiting.append(masks)
                finishes.append(partial(_with_masks, row, masks))
        start_masks(self._gpu, waiting)
        return finishes

    def finish(self, image_id: str, found: Found | BadImage, placed: Placed) -> Row:
        """What was found, in the pixels of the image; from any thread. See `start_finish`."""
        with self.own_stream():
            (finish,) = self.start_finish([image_id], [found], [placed])
            return finish()

    def _brought_back(self, image_id: str, found: Found, placed: Placed) -> tuple[Row, Masks | None]:
        """The row without masks, and the masks that are still to be encoded."""
        height, width = placed.image
        factor, limit = (np.array(each * 2, "float32") for each in (placed.factor, (width, height)))
        whole = found["boxes"].astype("float32") * factor
        boxes = whole.clip(0, limit)
        kept = np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(axis=1))  # not those of NaN
        row = self._row(image_id)
        row.update(height=height, width=width, boxes=boxes[kept])
        row["scores"] = found["scores"][kept].astype("float32")
        row["labels"] = found["labels"][kept].astype("int64")
        if "keypoints" in found:
            points = found["keypoints"][kept].astype("float32")
            points[..., :2] = (points[..., :2] * factor[:2]).clip(0, limit[:2])
            row["keypoints"] = points
        if "masks" not in found:
            return row, None
        masks = found["masks"]
        return row, Masks(masks if len(kept) == len(masks) else masks[kept], whole[kept], placed)

    @property
    def sizes(self) -> list[int]:
        """The numbers of images that a run is compiled for; others are filled up to the next one."""
        return sorted(self._networks)

    def _row(self, image_id: str) -> Row:
        """A row of an image without detections."""
        return {
            "image_id": image_id,
            "height": None,
            "width": None,
            "boxes": np.empty((0, 4), "float32"),
            "scores": np.empty(0, "float32"),
            "labels": np.empty(0, "int64"),
            "masks": None,
            "keypoints": None,
            "model": self.model,
            "manifest": self.manifest,
        }


def _lengths(batch: Mapping[str, Any]) -> str:
    return ", ".join(
        type(column).__name__ if isinstance(column, (bytes, str)) else str(len(column))
        for column in batch.values()
    )


def _checked(image: Any) -> np.ndarray:
    """Other pixels, such as floats from 0 to 1, would be taken for these."""
    shape: tuple[int, ...] = getattr(image, "shape", ())
    dtype = getattr(image, "dtype", type(image).__name__)
    if not isinstance(image, np.ndarray) or dtype != "uint8" or len(shape) != 3 or shape[2] != 3:
        raise BadImage(f"is {dtype} {tuple(shape)}, not uint8 (height, width, 3)")
    if not image.size:
        raise BadImage("is empty")
    return image


def _with_masks(row: Row, masks: Masks) -> Row:
    return {**row, "masks": masks.encoded()}
