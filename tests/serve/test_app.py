"""How requests are answered: each status, by a service that needs no network and no Ray."""

import asyncio
import threading

import pytest

from tests.serve.client import ask, form, head, metric, say, until
from tests.serve.running import running
from tvm_passes.serve import Limits

for name in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(name)

from tvm_passes.serve import app, server  # noqa: E402
from tvm_passes.serve.answers import Answer, error  # noqa: E402
from tvm_passes.serve.errors import Refused  # noqa: E402

LIMITS = Limits(max_queued=1, timeout=60, max_bytes=2000)
HASTY = Limits(timeout=0.3)
gate = threading.Event()  # images that are b"wait" are computed when it is open


async def detect(image, threshold):
    if image == b"wait":
        while not gate.is_set():
            await asyncio.sleep(0.01)
    if image == b"dead":
        raise Refused(503, "workers died")
    if image == b"odd":
        raise ValueError("which nobody foresaw")
    if image == b"bad":
        return Answer(400, error("the image is bad"))
    return Answer(200, b'{"threshold":%g,"length":%d}' % (threshold, len(image)), 3)


@pytest.fixture(scope="module")
def url():
    with pytest.MonkeyPatch.context() as patch:
        for module, seconds in ((app, "LINGER"), (server, "SECONDS_FOR_A_HEAD")):
            patch.setattr(module, seconds, 60)  # on a busy machine, clients of these tests are slow
        with running(detect, LIMITS) as url:
            yield url


@pytest.fixture
def hasty_url():
    """Of a service that waits for nothing."""
    with running(detect, HASTY) as url:
        yield url


def test_an_image(url):
    reply = ask(url, "/detect?threshold=0.5", b"1234")
    assert reply.status == 200 and reply.json == {"threshold": 0.5, "length": 4}
    assert reply.headers["content-type"] == "application/json"


def test_an_image_in_a_form(url):
    content_type, body = form(("file", "a.jpg", b"12345"))
    assert ask(url, "/detect", body, content_type).json["length"] == 5


def test_an_image_in_chunks(url):
    assert ask(url, "/detect", iter([b"12", b"345"])).json["length"] == 5


@pytest.mark.parametrize(
    "path, body, content_type, status, reason",
    [
        ("/detect", b"bad", "image/png", 400, "the image is bad"),
        ("/detect", b"1", "text/html", 415, "text/html"),
        ("/detect", b"1", "", 415, "missing"),
        ("/detect", b"dead", "image/png", 503, "workers died"),
        ("/detect", b"odd", "image/png", 500, "its log says why"),
        ("/detect", bytes(2001), "image/png", 413, "2000 bytes"),
        ("/detect", iter([bytes(1500)] * 2), "image/png", 413, "2000 bytes"),
        ("/detect", b"1", "multipart/form-data; boundary=x", 400, "no file"),
        ("/detect?threshold=high", b"1", "image/png", 400, "'high'"),
        ("/detect?threshold=nan", b"1", "image/png", 400, "'nan'"),
        ("/detect?thresold=0.5", b"1", "image/png", 400, "there is no parameter 'thresold': give threshold"),
        ("/detect?threshold=0.1&threshold=1", b"1", "image/png", 400, "threshold is there 2 times"),
    ],
)
def test_what_is_refused(url, path, body, content_type, status, reason):
    before = metric(url, f'tvm_passes_requests_total{{status="{status}"}}')
    reply = ask(url, path, body, content_type)
    assert reply.status == status and reason in reply.error
    assert ("retry-after" in reply.headers) == (status == 503)
    assert metric(url, f'tvm_passes_requests_total{{status="{status}"}}') == before + 1


def test_no_other_path_or_method(url):
    reply = ask(url, "/detect")
    assert (reply.status, reply.error) == (405, "/detect does not take GET, but POST")
    assert reply.headers["allow"] == "POST" and "to /detect" in ask(url, "/nothing").error
    for path in ("/etc/passwd", "/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/docs"):
        assert ask(url, path).status == 404


def test_an_image_that_takes_long(hasty_url):
    gate.clear()
    reply = ask(hasty_url, "/detect", b"wait")
    assert reply.status == 504 and "0.3 seconds" in reply.error
    assert metric(hasty_url, 'tvm_passes_requests_total{status="504"}') == 1


def test_a_slow_body(hasty_url):
    reply = say(hasty_url, head(100), b"12")
    assert reply.status == 408 and "0.3 seconds" in reply.error
    assert reply.headers["connection"] == "close"


def test_a_long_body_is_refused_before_it_is_sent(url):
    assert say(url, head(10**9)).status == 413


def test_a_client_that_sends_all_before_it_listens_sees_why(url):
    """Much more than the buffers of sockets hold."""
    assert ask(url, "/detect", bytes(30 * 2**20)).status == 413


def test_garbage(url):
    assert say(url, b"\x16\x03\x01garbage\r\n\r\n").status == 400
    assert say(url, head("many")).status == 400


@pytest.mark.parametrize("sent", [b"", b"POST /detect HTTP/1.1\r\nHost:"])
def test_a_head_that_never_ends(url, sent, monkeypatch):
    """The service closes the connection, long before the client gives up."""
    monkeypatch.setattr(server, "SECONDS_FOR_A_HEAD", 0.3)
    with pytest.raises(ConnectionError):
        say(url, sent)


def test_no_more_wait_than_may(url):
    """One is computed, one waits, and the third is answered at once, before its body has come."""
    gate.clear()
    replies = []
    clients = [threading.Thread(target=lambda: replies.append(ask(url, "/detect", b"wait"))) for _ in "12"]
    for client in clients:
        client.start()
    until(lambda: metric(url, "tvm_passes_waiting_requests") == 1)
    reply = say(url, head(1000))
    assert (reply.status, reply.headers["retry-after"]) == (503, "1") and "1 requests wait" in reply.error
    gate.set()
    for client in clients:
        client.join()
    assert [reply.status for reply in replies] == [200, 200]
    assert metric(url, "tvm_passes_waiting_requests") == metric(url, "tvm_passes_computing_requests") == 0


def test_a_client_that_goes_leaves_nothing_behind(url):
    with pytest.raises(TimeoutError):
        say(url, head(100), then=_give_up)
    until(lambda: metric(url, 'tvm_passes_requests_total{status="499"}') == 1)
    assert metric(url, "tvm_passes_computing_requests") == 0


def _give_up():
    raise TimeoutError


def test_metrics(url):
    before = {name: metric(url, f"tvm_passes_{name}") for name in ("request_seconds_count", "batch_size_sum")}
    ask(url, "/detect", b"1")
    assert metric(url, "tvm_passes_request_seconds_count") == before["request_seconds_count"] + 1
    assert metric(url, "tvm_passes_batch_size_sum") == before["batch_size_sum"] + 3
    reply = ask(url, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert 'tvm_passes_request_seconds_bucket{le="0.05"}' in reply.body.decode()


@pytest.mark.parametrize("replicas, status", [({"RUNNING": 1, "STARTING": 1}, 200), ({"STARTING": 2}, 503)])
def test_health(replicas, status):
    async def health():
        return replicas

    with running(detect, LIMITS, health=health) as url:
        reply = ask(url, "/healthz")
    assert reply.status == status and reply.json["replicas"] == replicas


def test_the_page_takes_nothing_from_elsewhere(url):
    for path in ("/", "/page/page.js", "/page/page.css", "/page/masks.js", "/page/drawing.js"):
        reply = ask(url, path)
        assert reply.status == 200 and "default-src 'none'" in reply.headers["content-security-policy"]
        assert not any(word in reply.body for word in (b"http:", b"https:", b"url(", b"@import"))
