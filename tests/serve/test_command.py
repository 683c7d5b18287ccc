"""The errors of `tvm-passes serve`, before anything is started."""

import contextlib
import signal
import socket
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--replicas", "0"], "'0' is not a number of processes: give one, or auto"),
        (["--max-queued", "-1"], "max_queued must be at least 0, not -1"),
        (["--timeout", "0"], "timeout must be a positive number of seconds, not 0.0"),
        (["--max-bytes", "0"], "max_bytes must be at least 1, not 0"),
    ],
)
def test_options(tvm_passes_command, tmp_path, options, reason):
    (tmp_path / "manifest.json").touch()
    answer = tvm_passes_command("serve", tmp_path, *options)
    assert answer.status in (1, 2) and reason in answer.error


@pytest.mark.parametrize("missing", ["ray", "uvicorn"])
def test_what_is_missing(tvm_passes_command, tmp_path, monkeypatch, missing):
    (tmp_path / "manifest.json").touch()
    for name in ("ray", "ray.serve", "starlette", "uvicorn", "prometheus_client"):
        monkeypatch.setitem(sys.modules, name, type(sys)(name))
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"{missing}.serve", raising=False)
    answer = tvm_passes_command("serve", tmp_path)
    assert answer.status == 1
    assert f"{missing} is missing" in answer.error and "tvm-vision-passes[ray]" in answer.error


def test_a_folder_or_an_address_that_cannot_be_used(tvm_passes_command, tmp_path):
    pytest.importorskip("ray.serve")
    assert "has no manifest.json" in tvm_passes_command("serve", tmp_path, "--port", "0").error
    (tmp_path / "manifest.json").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = tvm_passes_command("serve", tmp_path, "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}" in answer.error and "give another --host" in answer.error


def test_what_is_no_detector_is_refused_before_ray_starts(tvm_passes_command, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.serve")
    from tests.command.networks import HERE

    monkeypatch.setattr(ray, "init", None)
    assert tvm_passes_command("compile", f"{HERE}:upscaler_and_image", "-o", tmp_path).status == 0
    answer = tvm_passes_command("serve", tmp_path, "--port", "0")
    assert answer.status == 1 and "no boxes, scores and labels are recognized: name the" in answer.error


def test_the_start_is_shown_until_it_is_ready(tvm_passes_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("detector").mkdir()
    Path("detector", "manifest.json").touch()

    def run(folder, on_ready, **_):
        on_ready("http://here/")
        raise KeyboardInterrupt

    monkeypatch.setattr("tvm_passes.serve.run", run)
    monkeypatch.setattr("tvm_passes.command.serve.step", shown)
    steps.clear()
    answer = tvm_passes_command("serve", "detector")
    assert answer.status == 130 and steps == ["Start the workers of detector", "end"]
    assert "Serving detector at http://here/" in answer.err and "Stopped." in answer.err


def test_a_signal_to_end_is_no_error(tvm_passes_command, tmp_path, monkeypatch):
    """As `docker stop` and systemd send it; Ray's handler makes it an exit."""
    (tmp_path / "manifest.json").touch()
    monkeypatch.setattr("tvm_passes.serve.run", lambda *_, **__: sys.exit(signal.SIGTERM))
    answer = tvm_passes_command("serve", tmp_path)
    assert answer.status == 128 + signal.SIGTERM and answer.err.rstrip() == "Stopped."


steps = []


@contextlib.contextmanager
def shown(name):
    steps.append(name)
    yield
    steps.append("end")
