"""Work on batches that come through a channel."""

import pytest

from tvm_passes.batch.channel import CLOSED, NOTHING, Batches, Channel, one_ahead


def channel_of(*items, is_closed=True):
    channel = Channel(len(items) + 1)
    for item in items:
        channel.put(item)
    if is_closed:
        channel.close()
    return channel


@pytest.mark.parametrize("number, expected", [(2, [[1, 2], [3, 4], [5]]), (5, [[1, 2, 3, 4, 5]])])
def test_batches(number, expected):
    batches = Batches(channel_of(1, 2, 3, 4, 5), number)
    assert [batches.get() for _ in expected] == expected
    assert batches.get() is CLOSED and batches.get() is CLOSED


def test_a_batch_waits_for_the_rest_of_it():
    channel = channel_of(1, 2, is_closed=False)
    batches = Batches(channel, 3)
    assert batches.get(0) is NOTHING
    channel.put(3)
    assert batches.get(0) == [1, 2, 3]


def done_by(get):
    done = []
    one_ahead(get, lambda item: done.append(f"begin {item}") or item, lambda item: done.append(f"end {item}"))
    return done


def test_the_next_item_is_begun_before_one_is_ended():
    expected = ["begin a", "begin b", "end a", "begin c", "end b", "end c"]
    assert done_by(channel_of("a", "b", "c").get) == expected
    assert done_by(channel_of().get) == []


def test_what_is_not_there_yet_is_not_waited_for():
    timeouts, items = [], iter(["a", NOTHING, "b", "c", CLOSED])

    def get(timeout):
        timeouts.append(timeout)
        return next(items)

    assert done_by(get) == ["begin a", "end a", "begin b", "begin c", "end b", "end c"]
    assert timeouts == [None, 0, None, 0, 0]
