"""What becomes of a request whose worker dies or fails, by a handle of Ray Serve that a test plays."""

import asyncio

import pytest

pytest.importorskip("ray.serve")

from ray.exceptions import ActorDiedError, RayTaskError

from tvm_passes.serve.answers import Answer
from tvm_passes.serve.errors import Refused
from tvm_passes.serve.replicas import Replicas

FOUND = Answer(200, b"{}", 1)


class Handle:
    """Answers with the outcomes that it is given, in order; one that is a number takes these seconds."""

    def __init__(self, *outcomes):
        self.outcomes, self.is_cancelled = list(outcomes), False
        self.detect = self

    def remote(self, *_):
        return self

    def cancel(self):
        self.is_cancelled = True

    def __await__(self):
        return self._outcome().__await__()

    async def _outcome(self):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, float):
            await asyncio.sleep(outcome)
        return tuple(outcome)


def detect(handle, seconds=10):
    replicas, retries = Replicas(handle, 1, 1), []
    replicas.on_retry = lambda: retries.append(1)
    answer = asyncio.run(asyncio.wait_for(replicas.detect(b"", 0.0), seconds))
    return answer, len(retries)


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_another_worker_computes_what_a_dead_one_had(deaths):
    assert detect(Handle(*[ActorDiedError()] * deaths, FOUND)) == (FOUND, deaths)


def test_an_image_that_kills_workers_does_not_kill_all_of_them():
    handle = Handle(*[ActorDiedError()] * 9)
    with pytest.raises(Refused) as caught:
        detect(handle)
    assert caught.value.status == 503 and len(handle.outcomes) == 6


def test_a_failure_is_not_tried_again():
    handle = Handle(RayTaskError("detect", "traceback", ValueError("no")), FOUND)
    with pytest.raises(Refused) as caught:
        detect(handle)
    assert caught.value.status == 500 and handle.outcomes == [FOUND]


def test_nobody_computes_what_nobody_waits_for():
    handle = Handle(5.0)
    with pytest.raises(asyncio.TimeoutError):
        detect(handle, 0.05)
    assert handle.is_cancelled
