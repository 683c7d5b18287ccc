"""A worker of the service in this process: batches of what waits, and a network that fails."""

import asyncio
import json

import numpy as np
import pytest

from tests.batch.networks import png
from tests.command.networks import bright_pixels
from tvm_passes import runtime
from tvm_passes.batch.decode import decode
from tvm_passes.serve.gather import Gather
from tvm_passes.serve.replica import Replica


class Compute:
    """Notes its batches, and ends them when it is told to."""

    def __init__(self):
        self.batches, self.ends = [], []

    async def __call__(self, items):
        self.batches.append(items)
        self.ends.append(asyncio.Event())
        await self.ends[-1].wait()
        if "worse" in items:
            raise ValueError("worse")
        return [ValueError("bad") if item == "bad" else item * 2 for item in items]

    async def end_all(self, awaited):
        """Each batch as soon as it has begun, until something is done."""
        while not awaited.done():
            for end in self.ends:
                end.set()
            await asyncio.sleep(0)


def test_what_waits_is_taken_together():
    async def played():
        compute = Compute()
        gather = Gather(compute, size=3, at_once=2)
        asked = [asyncio.ensure_future(gather(number)) for number in range(7)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert compute.batches == [[0], [1]]  # nobody waits where there is room
        asked[3].cancel()  # and nobody computes what nobody waits for
        compute.ends[0].set()
        await asked[0]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert compute.batches == [[0], [1], [2, 4, 5]]
        found = asyncio.gather(*(each for each in asked if not each.cancelled()))
        await compute.end_all(found)
        assert compute.batches[3:] == [[6]]
        return await found

    assert asyncio.run(played()) == [0, 2, 4, 8, 10, 12]


@pytest.mark.parametrize("size, said", [(2, ["bad", "goodgood", "worse", "worse"]), (4, ["worse"] * 4)])
def test_an_error_is_that_of_its_item_or_its_batch(size, said):
    async def played():
        compute = Compute()
        gather = Gather(compute, size, at_once=1)
        first = asyncio.ensure_future(gather("first"))
        asked = [asyncio.ensure_future(gather(item)) for item in ("bad", "good", "worse", "good")]
        found = asyncio.gather(*asked, return_exceptions=True)
        await compute.end_all(found)
        await first
        return await found

    assert list(map(str, asyncio.run(played()))) == said


@pytest.fixture(scope="module")
def worker(detector_folder):
    return Replica(str(detector_folder("four")), threads=2, patience=60)


def test_broken_images_do_not_harm_those_beside_them(worker):
    images = [png(60, 80, (10, 10, 50, 50)), b"", png(90, 70, None, (5, 5, 60, 60)), b"GIF89a"]
    replies = asyncio.run(worker.detect([(image, 0.01) for image in images]))
    assert [reply.status for reply in replies] == [200, 400] * 2
    for reply, label, size in zip(replies[::2], (0, 1), ((60, 80), (90, 70))):
        answer = json.loads(reply.body)
        assert (answer["height"], answer["width"]) == size
        assert [found["label"] for found in answer["detections"]] == [label]
    assert "is empty" in json.loads(replies[1].body)["error"]
    assert [reply.batch for reply in replies] == [2, 0] * 2
    (alone,) = asyncio.run(worker.detect([(b"", 0.0)]))
    assert alone.status == 400


def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    worker = Replica(str(tmp_path), threads=1, patience=60)
    assert "has no manifest.json" in asyncio.run(worker.about())["problem"]
    assert [reply.status for reply in asyncio.run(worker.detect([(b"", 0.0)] * 2))] == [500] * 2


def test_a_network_that_is_no_detector_is_told(tmp_path):
    """Serve tried it again and again, and then told of a deployment that failed."""
    mod, _ = bright_pixels()
    runtime.save(tmp_path, runtime.build_library(mod, "llvm"), mod, "llvm")
    worker = Replica(str(tmp_path), threads=1, patience=60)
    assert "no boxes, scores and labels are recognized" in asyncio.run(worker.about())["problem"]


# --- a worker whose network fails


class Failing(Replica):
    """Its network fails on everything when it is broken."""

    def __init__(self, is_broken=False):
        self._detector, self._blank, self.is_broken = self, "blank", is_broken
        self._began, self._patience, self.has_left = None, 0.0, False

    def run(self, images):
        if self.is_broken:
            raise RuntimeError("CUDA: an illegal memory access was encountered")
        return [np.zeros(1)] * len(images)


def test_only_the_image_that_is_the_reason_fails(worker, monkeypatch):
    real, odd = worker._detector.run, png(60, 80, None, None, (10, 10, 50, 50))
    blue = worker._detector.prepare(decode(odd))[0]

    def run(arrays):
        if any((array == blue).all() for array in arrays):
            raise RuntimeError("CUDA: misaligned")
        return real(arrays)

    monkeypatch.setattr(worker._detector, "run", run)
    even = png(60, 80, (10, 10, 50, 50))
    replies = asyncio.run(worker.detect([(even, 0.0), (odd, 0.0), (even, 0.0)]))
    assert [reply.status for reply in replies] == [200, 500, 200]
    assert "misaligned" in json.loads(replies[1].body)["error"]


def test_a_worker_whose_device_failed_leaves(monkeypatch):
    class Left(BaseException):
        pass

    def leave(status):
        raise Left

    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(Left):
        Failing(is_broken=True)._found_in(["even"])


def test_a_run_that_hangs_is_not_healthy():
    worker = Failing()
    worker.check_health()
    worker._began = -1.0
    with pytest.raises(RuntimeError, match="has not answered"):
        worker.check_health()
