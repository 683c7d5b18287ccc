"""The doctor: its table, its verdict, and that it runs where TVM is missing."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.test_find_tvm import make_tvm, python
from topi_ext.conv2d_nhwc import onednn
from topi_ext.cudnn import session
from topi_ext.onednn import calls
from tvm_passes.command import doctor as doctor_module
from tvm_passes.command.doctor import Finding, doctor


def test_a_healthy_installation(capsys):
    assert doctor() == 0
    told = capsys.readouterr().out
    for name in ("TVM with Relay", "LLVM", "NVIDIA GPU", "nvcc", "cuDNN", "torch", "torchvision", "onnx"):
        assert name in told
    assert "The main job can run." in told


@pytest.mark.parametrize("needed, status", [(True, 1), (False, 0)])
def test_what_is_missing_is_named_with_its_cost_and_cure(monkeypatch, capsys, needed, status):
    absent = Finding("a thing", "", "nothing goes", "pip install 'thing[extra]'", needed)
    monkeypatch.setattr(doctor_module, "_cudnn", lambda: absent)
    assert doctor() == status
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "a thing" in told and "nothing goes" in told and "'thing[extra]'" in told
    assert ("cannot run without a thing" in told) == needed


@pytest.mark.parametrize(
    "name, reason",
    [
        ("none.so", "not compiled"),
        ("calls.py", "calls.py cannot be loaded ("),
        ("../bootstrap/libcuda_absent.so", "an older source"),
    ],
)
def test_calls_of_onednn_by_python_are_told(monkeypatch, name, reason):
    monkeypatch.setattr(calls, "LIBRARY", calls.LIBRARY.parent / name)
    monkeypatch.setattr(calls, "_native", lambda: None)
    finding = doctor_module._calls()
    assert not finding.found and reason in finding.costs


@pytest.mark.parametrize("library", [None, object()])
def test_onednn(monkeypatch, library):
    monkeypatch.setattr(onednn, "version", lambda: library and "3.2.0")
    finding = doctor_module._onednn()
    assert finding.found.startswith("3.2.0") == bool(library)
    assert finding.get == ("" if library else "pip install onednn-cpu-gomp")
    assert not finding.needed


def test_cudnn_without_its_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    finding = doctor_module._cudnn()
    assert not finding.found and 'pip install "tvm-vision-passes[cudnn]"' in finding.get


def test_cudnn_without_its_library(monkeypatch):
    monkeypatch.setattr(session, "load_cudnn", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    unable = SimpleNamespace(backend_version=mock.Mock(side_effect=RuntimeError("no symbol cudnnGetVersion")))
    monkeypatch.setitem(sys.modules, "cudnn", unable)
    finding = doctor_module._cudnn()
    assert not finding.found and "libcudnn.so.9 is missing: pip install" in finding.get


@pytest.mark.parametrize(
    "name, cost, cure",
    [
        ("pillow", "cannot read images: run, detect, serve", "pip install pillow"),
        ("pyarrow", "cannot write tables of detections: detect", 'pip install "tvm-vision-passes[batch]"'),
        ("ray", "serve, detect --engine ray", 'pip install "tvm-vision-passes[ray]"'),
    ],
)
def test_what_the_jobs_need(monkeypatch, capsys, name, cost, cure):
    """They are named where they are missing, and the main job does without them."""
    real = importlib.util.find_spec
    module = {"pillow": "PIL"}.get(name, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda each: None if each == module else real(each))
    found = {}
    monkeypatch.setattr(doctor_module, "_print", lambda findings: found.update({f.name: f for f in findings}))
    assert doctor() == 0
    assert not found[name].found and cost in found[name].costs and found[name].get == cure


def test_from_the_command_line():
    answer = subprocess.run(
        [sys.executable, "-m", "tvm_passes", "doctor"],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "TVM with Relay" in answer.stdout


def test_it_runs_where_there_is_no_tvm(tmp_path):
    without = make_tvm(tmp_path, with_relay=False)
    hide_the_carrier = "import importlib.util as u; real = u.find_spec; " + (
        "u.find_spec = lambda name, *rest: None if name == 'bitblas' else real(name, *rest); "
    )
    run = (
        "import runpy, sys; sys.argv = ['-m', 'doctor']; runpy.run_module('tvm_passes', run_name='__main__')"
    )
    answer = python(hide_the_carrier + run, PYTHONPATH=without)
    assert answer.returncode == 1, answer.stderr
    told = " ".join(answer.stdout.replace("│", " ").split())
    assert "missing TVM with Relay" in told and "has no Relay" in told
