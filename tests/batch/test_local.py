"""Several devices at once: each has its own images, and none has to wait for the others."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from tvm_passes.batch.figures import Figures
from tvm_passes.batch.local import run_in_threads
from tvm_passes.batch.results import Failed
from tvm_passes.batch.sources import Item

COUNT, BAD = 60, "7"


class _Device:
    """A detector that takes images which it has fitted itself, and no others."""

    batch, max_pixels = 3, 64

    def __init__(self, seconds):
        self.seconds, self.finished = seconds, []

    def prepare(self, _image):
        return self, None

    def run_each(self, images, ids):
        assert images == [self] * len(ids)
        time.sleep(self.seconds)
        return list(ids)

    def finish(self, image_id, found, _placed):
        assert found == image_id
        self.finished.append(image_id)
        return {"image_id": image_id}


def items(count):
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(file, "PNG")
    return (Item(str(at), lambda at=at: b"" if str(at) == BAD else file.getvalue()) for at in range(count))


@pytest.mark.parametrize("decoders", [1, 5])
def test_each_device_has_images_of_its_own(decoders):
    devices = [_Device(0.002), _Device(0.02)]
    results = list(run_in_threads(items(COUNT), devices, Figures(), decoders))
    (failed,) = (result for result in results if isinstance(result, Failed))
    found = {result["image_id"] for result in results if result is not failed}
    assert failed.id == BAD and found == {str(at) for at in range(COUNT)} - {BAD}
    assert len(results) == COUNT
    fast, slow = (len(device.finished) for device in devices)
    assert fast > slow > 0


def test_an_error_of_one_device_ends_the_job():
    devices = [_Device(0.001), _Device(0.001)]
    devices[1].run_each = lambda images, ids: 1 / 0
    with pytest.raises(ZeroDivisionError):
        list(run_in_threads(items(COUNT), devices, Figures(), 2))
