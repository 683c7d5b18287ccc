"""What arrives is what was sent, small or large, and no memory stays behind."""

import os
import threading
from multiprocessing import Pipe

import numpy as np
import pyarrow as pa
import pytest

from tvm_passes.batch import BatchError, parcel
from tvm_passes.batch.parcel import Parcel, receive

LARGE = 4 * parcel.SMALL
VALUES = [
    "images, please",
    None,
    [b"x" * LARGE, "and something small"],
    {"zeros": np.zeros(LARGE, "uint8"), "empty": np.zeros((0, 4), "float32")},
    pa.table({"mask": [b"a" * LARGE, None], "number": [1, 2]}),
]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def exchanged(values):
    """The values at the other end of a connection, in order."""
    here, there = Pipe()
    with here, there:
        sender = threading.Thread(target=lambda: [Parcel(value).send(here) for value in values])
        sender.start()
        received = [receive(there) for _ in values]
        sender.join()
    return received


@pytest.mark.parametrize("in_files", [True, False])
def test_values_arrive(in_files, monkeypatch):
    """Also where there are no files in memory."""
    if not in_files:
        monkeypatch.delattr(os, "memfd_create")
    before = descriptors()
    *simple, arrays, table = exchanged(VALUES)
    assert simple == VALUES[:3] and table == VALUES[4]
    for name, array in VALUES[3].items():
        np.testing.assert_array_equal(arrays[name], array)
    assert descriptors() == before


def test_memory_that_is_full(monkeypatch):
    def full(_name):
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(os, "memfd_create", full)
    before = descriptors()
    with pytest.raises(BatchError, match=r"no memory for what goes to another process: .* No space left"):
        Parcel(VALUES[2])
    assert descriptors() == before


def test_nobody_at_the_other_end():
    here, there = Pipe()
    there.close()
    before = descriptors()
    with here, pytest.raises(OSError):
        Parcel(VALUES[2]).send(here)
    assert descriptors() == before - 1
