"""What does not wait for TVM: help, the version, wrong arguments, models that are none, and Ctrl-C."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_passes.version import VERSION

ROOT = Path(__file__).parents[2]

RUN = """
import sys
from tvm_passes_cli.main import main
status = main(sys.argv[1:])
assert not {"tvm", "tvm_passes", "torch"} & {*sys.modules}
sys.exit(status)
"""
SAID = {
    "--help": (0, "calibrate"),
    "--version": (0, f"tvm-passes {VERSION}"),
    "serve --help": (0, "--max-queued"),
    "": (2, "tvm-passes: the following arguments are required: COMMAND"),
    "frobnicate": (2, "invalid choice: 'frobnicate'"),
    "inspect relu.onnx --pipeline fast": (2, "there is no pipeline fast: give auto, detection, subpixel"),
    "inspect absent.onnx": (1, "there is no file absent.onnx: give"),
    "inspect tests/command/networks.py": (1, "as networks:function"),
    "inspect tests/command/networks.py:net": (1, "give its name as a module, as networks:net"),
    f"inspect {'a' * 300}": (1, "cannot be read: File name too long"),
    f"serve {'a' * 300}": (1, "cannot be read: File name too long"),
    "run absent --image photo.png": (1, "there is no folder absent: give a folder that tvm-passes compile"),
    "detect photos -o found --model absent": (1, "there is no folder absent: give a folder"),
    "serve tests": (1, "tests has no manifest.json: give a folder that tvm-passes compile wrote"),
    "serve README.md": (1, "README.md is a file: give a folder that tvm-passes compile wrote"),
    "compile weights.pt -o network": (1, "unpickling a file may run code in it"),
}


@pytest.mark.parametrize("arguments", SAID)
def test_what_needs_no_tvm_does_not_import_it(arguments):
    run = [sys.executable, "-c", RUN, *arguments.split()]
    answer = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    status, said = SAID[arguments]
    assert answer.returncode == status and said in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr


INTERRUPTED = """
import os, signal, sys
from tvm_passes_cli.main import console

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background

class Interrupts:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = sys.argv[2:]
sys.exit(console())
"""


@pytest.mark.parametrize("module", ["tvm_passes", "rich", "tvm"])
def test_an_interrupt_while_packages_are_imported(module, tmp_path):
    (tmp_path / "relu.onnx").touch()
    run = [sys.executable, "-c", INTERRUPTED, module, "inspect", str(tmp_path / "relu.onnx")]
    answer = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (128 + signal.SIGINT, "Stopped.\n")


def test_an_interrupt_while_python_ends_shows_no_trace():
    late = "import atexit, os, signal; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))"
    run = [sys.executable, "-c", late + INTERRUPTED, "none", "--version"]
    answer = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (-signal.SIGINT, "")
