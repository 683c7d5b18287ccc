"""What is known of a request and of its answer without a server."""

import asyncio
import json

import numpy as np
import pytest

from tests.serve.client import form
from tvm_passes.serve import Limits, ServeError, answers
from tvm_passes.serve.bodies import Bodies
from tvm_passes.serve.errors import Refused
from tvm_passes.serve.line import Line
from tvm_passes.serve.multipart import check_type, image_in

IMAGE = b"\x89PNG\r\n\r\n--\r\n\x00--x"


def refused(call, *arguments):
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value.status, caught.value.reason


# --- forms


def test_a_file_in_a_form():
    content_type, body = form(("threshold", None, b"0.5"), ("file", "a.png", IMAGE), ("other", "", b""))
    check_type(content_type)
    assert image_in(body, content_type) == IMAGE
    assert image_in(IMAGE, "image/png") == IMAGE
    assert image_in(b"preamble\r\n" + body, content_type) == IMAGE


def test_a_form_of_several_files():
    """Of which one would be answered, and nobody would know which."""
    content_type, body = form(("file", "a.png", IMAGE), ("file", "b.png", IMAGE))
    assert refused(image_in, body, content_type) == (
        400,
        "the form has 2 files, and an answer is of one: post each in a request",
    )


def test_forms_without_a_file():
    content_type, body = form(("file", None, IMAGE))
    assert refused(image_in, body, content_type)[0] == 400
    assert "no file" in refused(image_in, b"garbage", content_type)[1]
    assert "no boundary" in refused(image_in, body, "multipart/form-data")[1]
    head = body[: body.index(b"\r\n\r\n")]
    assert "no file" in refused(image_in, head, content_type)[1]


@pytest.mark.parametrize("given", ["", "text/plain", "application/json", "image", "multipart/mixed"])
def test_other_types(given):
    status, reason = refused(check_type, given)
    assert status == 415 and (given or "missing") in reason


# --- bodies


def read(*chunks, length=None, memory=100, pause=0.0, timeout=60):
    async def arriving():
        for chunk in chunks:
            await asyncio.sleep(pause)
            yield chunk

    return asyncio.run(Bodies(Limits(max_bytes=10, timeout=timeout), memory).read(arriving(), length))


def test_a_body_in_parts():
    assert read(b"12345", b"", b"67890") == b"1234567890" == read(b"1234567890", length="10")
    assert read() == b""


@pytest.mark.parametrize(
    "options, status",
    [
        ({"length": "11"}, 413),
        ({"length": "-1"}, 400),
        ({"length": "²"}, 400),
        ({"memory": 9}, 503),
        ({"pause": 0.06, "timeout": 0.1}, 408),
    ],
)
def test_bodies_that_are_refused(options, status):
    with pytest.raises(Refused) as caught:
        read(b"12345", b"67890", **options)
    assert caught.value.status == status


def test_a_body_that_does_not_say_how_long_it_is():
    with pytest.raises(Refused) as caught:
        read(b"12345", b"67890", b"1")
    assert caught.value.status == 413


def test_memory_is_given_back():
    bodies = Bodies(Limits(max_bytes=10), memory=15)

    async def arriving(length):
        yield b"1" * length

    async def all_of_them():
        for length in (10, 11, 10):
            try:
                yield len(await bodies.read(arriving(length), None))
            except Refused as reason:
                yield reason.status

    async def collected():
        return [each async for each in all_of_them()]

    assert asyncio.run(collected()) == [10, 413, 10]


# --- who waits


def test_the_line_is_bounded():
    line = Line(at_once=2, max_queued=1)
    with line.place(), line.place():
        assert (line.computing, line.waiting) == (2, 0)
        with line.place():
            assert (line.computing, line.waiting) == (2, 1)
            status, reason = refused(line.check)
            assert status == 503 and reason.startswith("1 requests wait")
        line.check()
    assert (line.computing, line.waiting) == (0, 0)


def test_who_is_told_to_retry():
    assert Refused(503, "full").headers == {"retry-after": "1"} and not Refused(400, "bad").headers


@pytest.mark.parametrize(
    "options", [{"max_queued": -1}, {"max_bytes": 0}, {"timeout": 0}, {"timeout": float("nan")}]
)
def test_limits_that_make_no_sense(options):
    (name,) = options
    with pytest.raises(ServeError, match=name):
        Limits(**options)


# --- answers


def row(**columns):
    return {
        "model": "m",
        "height": 4,
        "width": 6,
        "boxes": np.float32([[0, 1, 2, 3], [1, 1, 2, 2], [0, 0, 1, 1]]),
        "scores": np.float32([0.25, 0.75, np.nan]),
        "labels": np.int64([7, 1, 0]),
        "masks": None,
        "keypoints": None,
        **columns,
    }


def test_detections_as_json():
    answer = json.loads(answers.detections(row(), ["zero", "öne"], 0.0))
    assert answer == {
        "model": "m",
        "height": 4,
        "width": 6,
        "detections": [
            {"box": [1, 1, 2, 2], "score": 0.75, "label": 1, "name": "öne"},
            {"box": [0, 1, 2, 3], "score": 0.25, "label": 7},
        ],
    }
    assert len(json.loads(answers.detections(row(), [], 0.5))["detections"]) == 1


def test_masks_and_keypoints_as_json():
    points = np.float32([[[1, 2, 1]], [[np.inf, 2, 0]], [[0, 0, 0]]])
    full = row(masks=[b"ab", b"cd", b"ef"], keypoints=points)
    first, second = json.loads(answers.detections(full, [], 0.0))["detections"]
    assert first["mask"] == {"size": [4, 6], "counts": "cd"} and first["keypoints"] == [[None, 2, 0]]
    assert second["keypoints"] == [[1, 2, 1]]
