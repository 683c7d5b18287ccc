"""What becomes of a request whose worker dies or fails, by a handle of Ray Serve that a test plays."""

import asyncio

import pytest

pytest.importorskip("ray.serve")

from ray.exceptions import ActorDiedError, RayTaskError

from tvm_passes.serve.answers import Answer
from tvm_passes.serve.errors import Refused
from tvm_passes.serve.replicas import Replicas

FOUND = Answer(200, b"{}", 1)
DEAD = ActorDiedError()


class Handle:
    """Answers to calls with the outcomes that it is given, in order; `deadly` kills whatever computes it."""

    def __init__(self, *outcomes, deadly=None):
        self.outcomes, self.deadly, self.calls = list(outcomes), deadly, []
        self.detect = self

    def remote(self, items):
        self.calls.append([image for image, _ in items])
        return self._outcome(items)

    async def _outcome(self, items):
        outcome = self.outcomes.pop(0) if self.outcomes else FOUND
        if any(image == self.deadly for image, _ in items):
            outcome = DEAD
        if isinstance(outcome, BaseException):
            raise outcome
        return [tuple(outcome)] * len(items)


def detect(handle, *images, batch=4):
    """The answers, or the exceptions, and how many retries there were."""

    async def asked():
        replicas, retries = Replicas(handle, 1, batch), []
        replicas.on_retry = retries.append
        found = await asyncio.gather(
            *(replicas.detect(image, 0.0) for image in images), return_exceptions=True
        )
        return found, sum(retries)

    return asyncio.run(asked())


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_another_worker_computes_what_a_dead_one_had(deaths):
    assert detect(Handle(*[DEAD] * deaths), b"1") == ([FOUND], deaths)


def test_an_image_that_kills_workers_takes_no_others_with_it():
    """The first three are alone in their batches, as nothing else waits then."""
    handle = Handle(deadly=b"deadly")
    *good, bad, last = detect(handle, b"1", b"2", b"3", b"4", b"deadly", b"5")[0]
    assert [*good, last] == [FOUND] * 5
    assert isinstance(bad, Refused) and bad.status == 503
    assert [b"4", b"deadly", b"5"] in handle.calls and handle.calls.count([b"deadly"]) == 2


def test_a_failure_is_not_tried_again():
    handle = Handle(RayTaskError("detect", "traceback", ValueError("no")))
    (refused,), retries = detect(handle, b"1")
    assert isinstance(refused, Refused) and refused.status == 500
    assert not retries and len(handle.calls) == 1
