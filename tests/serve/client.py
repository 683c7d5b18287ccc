"""A client that says exactly what it is told to, and how it was answered."""

import http.client
import json
import socket
import time
import uuid
from typing import NamedTuple
from urllib.parse import urlsplit

SECONDS = 120  # for an answer: a worker that is killed needs up to a minute to come back


class Reply(NamedTuple):
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


def ask(url, path, body=None, content_type="image/png", **headers):
    """GET, or POST of a body."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
    try:
        if body is not None and content_type:
            headers["content-type"] = content_type
        connection.request("GET" if body is None else "POST", path, body, headers)
        return _reply(connection.getresponse())
    finally:
        connection.close()


def say(url, *parts, then=lambda: None):
    """Send parts of a request as they are, do something, and wait for the answer."""
    parsed = urlsplit(url)
    with socket.create_connection((parsed.hostname, parsed.port), timeout=SECONDS) as connection:
        for part in parts:
            connection.sendall(part)
        then()
        response = http.client.HTTPResponse(connection)
        response.begin()
        return _reply(response)


def head(length, content_type="image/png", path="/detect"):
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: here",
        f"Content-Type: {content_type}",
        f"Content-Length: {length}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def form(*parts):
    """(content type, body) of a form with these parts: (name, file name or None, content)."""
    boundary = uuid.uuid4().hex
    body = b""
    for name, filename, content in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", body + f"--{boundary}--\r\n".encode()


def metric(url, name):
    """The value of a metric, with its labels as Prometheus writes them."""
    lines = ask(url, "/metrics").body.decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.split()[0] == name)


def until(is_true, seconds=SECONDS):
    """Wait for something that is asked again and again."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.02)


def _reply(response):
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, response.read())
