"""`tvm-passes serve` with Ray: what it answers, whatever happens to its workers."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.batch.networks import png
from tests.serve.client import ask, metric, until
from tests.serve.processes import descendants, served
from tvm_passes.batch import Detector
from tvm_passes.batch.decode import decode
from tvm_passes.serve import answers

pytest.importorskip("ray.serve")
pytestmark = pytest.mark.slow

# The timeout is that of a machine on which Ray takes a minute to start another worker.
QUEUED, TIMEOUT, BATCH, BATCHES = 8, 120, 4, 3


@pytest.fixture(scope="module")
def folder(detector_folder):
    return detector_folder("four")


@pytest.fixture(scope="module")
def service(folder):
    options = "--max-queued", QUEUED, "--timeout", TIMEOUT, "--max-bytes", 10**5
    with served(folder, *options) as service:
        yield service


IMAGES = [png(100 + 9 * i, 160 - 7 * i, (10, 20, 40 + i, 60), (50, 10, 80, 40 + i)) for i in range(BATCH)]


def post(service, image=IMAGES[0]):
    return ask(service.url, "/detect", image)


def test_the_answer_is_what_the_detector_finds(service, folder):
    detector = Detector(folder)
    for image in IMAGES:
        array, placed = detector.prepare(decode(image))
        (found,) = detector.run([array])
        expected = answers.detections(detector.finish("", found, placed), detector.labels, 0.0)
        reply = post(service, image)
        assert reply.status == 200 and reply.body == expected
    assert {found["name"] for found in reply.json["detections"]} >= {"red", "green"}


def test_broken_images(service):
    for image, reason in (
        (b"", "is empty"),
        (b"\x89PNG", "no image of a known format"),
        (IMAGES[0][:90], "trunc"),
    ):
        reply = post(service, image)
        assert reply.status == 400 and reason in reply.error
    assert post(service, bytes(10**5 + 1)).status == 413


def test_health(service):
    assert ask(service.url, "/healthz").json == {"status": "ok", "replicas": {"RUNNING": 1}}


def test_images_are_computed_together_and_no_more_wait_than_may(service):
    """While the worker is stopped, as many wait as fit its batches and the queue; others are told at once."""
    (pid,) = service.replicas()
    before = metric(service.url, 'tvm_passes_batch_size_bucket{le="2.0"}')
    places = BATCHES * BATCH + QUEUED
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(places) as clients:
            replies = [clients.submit(post, service, IMAGES[i % BATCH]) for i in range(places)]
            until(lambda: metric(service.url, "tvm_passes_waiting_requests") == QUEUED)
            late = post(service)
            assert late.status == 503 and late.headers["retry-after"] == "1"
            os.kill(pid, signal.SIGCONT)
            assert [reply.result().status for reply in replies] == [200] * places
    finally:
        os.kill(pid, signal.SIGCONT)
    small = metric(service.url, 'tvm_passes_batch_size_bucket{le="2.0"}') - before
    assert small <= BATCHES + 1  # the first ones, which were taken alone, and the last one


def test_a_killed_worker_loses_no_request(service):
    """Those that it had are computed by the next one."""
    (pid,) = service.replicas()
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(BATCH) as clients:
        replies = [clients.submit(post, service, image) for image in IMAGES]
        until(lambda: metric(service.url, "tvm_passes_computing_requests") == BATCH)
        os.kill(pid, signal.SIGKILL)
        assert [reply.result().status for reply in replies] == [200] * BATCH
    (successor,) = service.replicas()
    assert successor != pid
    until(lambda: ask(service.url, "/healthz").json["replicas"] == {"RUNNING": 1})


def test_ctrl_c_ends_all_processes(folder, service):
    """The last test of this module, as the service is gone then."""
    started = descendants(service.pid)
    assert len(started) > 3
    status = service.interrupt()
    assert status == 130 and service.said[-1] == "Stopped.\n"
    until(lambda: not any(map(is_there, started)))


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
