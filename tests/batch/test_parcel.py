"""What arrives is what was sent, small or large, and no memory stays behind."""

import contextlib
import errno
import os
import pickle
import threading
from multiprocessing import Pipe

import numpy as np
import pyarrow as pa
import pytest

from tvm_passes.batch import BatchError, parcel
from tvm_passes.batch.chunks import pickled
from tvm_passes.batch.item import Held
from tvm_passes.batch.parcel import Receiver, Sender

LARGE = 4 * parcel.SMALL
VALUES = [
    "images, please",
    None,
    [b"x" * LARGE, "and something small"],
    {"zeros": np.zeros(LARGE, "uint8"), "empty": np.zeros((0, 4), "float32")},
    pa.table({"mask": [b"a" * LARGE, None], "number": [1, 2]}),
]


def boxes():
    """How many files in memory there are; others may be opened and closed by threads of other tests."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found += "memfd:tvm-passes" in os.readlink(f"/proc/self/fd/{descriptor}")
    return found


def exchanged(values):
    """The values at the other end of a connection, in order."""
    here, there = Pipe()
    with here, there:
        sender, receiver = Sender(here), Receiver(there)
        thread = threading.Thread(target=lambda: [sender.send(value) for value in values])
        thread.start()
        received = [receiver.receive() for _ in values]
        thread.join()
    return received


@pytest.mark.parametrize("in_files", [True, False])
def test_values_arrive(in_files, monkeypatch):
    """Also where there are no files in memory."""
    if not in_files:
        monkeypatch.delattr(os, "memfd_create")
    before = boxes()
    *simple, arrays, table = exchanged(VALUES)
    assert simple == VALUES[:3] and table == VALUES[4]
    for name, array in VALUES[3].items():
        np.testing.assert_array_equal(arrays[name], array)
    assert boxes() == before


def test_boxes_are_used_again(monkeypatch):
    """As soon as a value has been received; until then, others have boxes of their own, or one for once."""
    made = []
    new = parcel._new_box
    monkeypatch.setattr(parcel, "_new_box", lambda *size, **of: made.append(size) or new(*size, **of))
    values = [[bytes([number]) * LARGE] for number in range(parcel.BOXES + 3)]
    here, there = Pipe()
    with here, there:
        sender, receiver = Sender(here), Receiver(there)
        for value in values:  # a large one cannot wait in the connection
            sender.send(value)
        assert len(made) == len(values)
        assert [receiver.receive() for _ in values] == values
        for value in values:
            sender.send(value)
            assert receiver.receive() == value
        assert len(made) == len(values)
        larger = [b"y" * 2 * parcel.LEAST]
        sender.send(larger)
        assert receiver.receive() == larger and len(made) == len(values) + 1


def test_huge_values_leave_no_box(monkeypatch):
    monkeypatch.setattr(parcel, "MOST", LARGE)
    here, there = Pipe()
    with here, there:
        sender, receiver = Sender(here), Receiver(there)
        for value in ([b"x" * 2 * LARGE], [b"y" * LARGE]):
            sender.send(value)
            assert receiver.receive() == value
        assert not sender._boxes and not receiver._boxes


def test_what_was_received_stays():
    """Also when its box is used again."""
    here, there = Pipe()
    with here, there:
        sender, receiver = Sender(here), Receiver(there)
        sender.send(np.zeros(LARGE, "uint8"))
        first = receiver.receive()
        sender.send(np.ones(LARGE, "uint8"))
        assert receiver.receive().all() and not first.any()


def test_held_bytes_are_not_copied_into_what_is_pickled():
    data = b"x" * LARGE
    small, buffer = pickled(Held(data))
    assert small.nbytes < 200 and buffer.obj is data
    assert pickle.loads(small, buffers=[buffer])() == data
    for protocol in (2, 5):
        assert pickle.loads(pickle.dumps(Held(data), protocol))() == data


def test_memory_that_is_full(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    here, there = Pipe()
    with here, there:
        before = boxes()
        message = "no memory for what goes to another process: .* No space left"
        with pytest.raises(BatchError, match=message):
            Sender(here).send(VALUES[2])
        assert boxes() == before


def test_nobody_at_the_other_end():
    here, there = Pipe()
    there.close()
    before = boxes()
    with here, pytest.raises(OSError):
        Sender(here).send(VALUES[2])
    assert boxes() == before
