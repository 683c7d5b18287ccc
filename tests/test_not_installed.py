"""Where something is missing, imports and the command say what to run, and the doctor works all the same."""

import pytest

from tests.test_find_tvm import python
from topi_ext.bootstrap import find_libraries
from topi_ext.bootstrap.not_installed import NotInstalled, says_what_to_do

RUN = 'this clone is not installed: run `pip install -e ".[relay]"` in '
NO_STAND_IN = """
import ctypes
real = ctypes.CDLL.__init__
def refuse(self, name, *args, **kwargs):
    if "libcuda.so" in str(name) or "libcuda_absent" in str(name):
        raise OSError("no such library")
    real(self, name, *args, **kwargs)
ctypes.CDLL.__init__ = refuse
"""
HIDE = """
import importlib.util, sys
hidden, real = {hidden!r}, importlib.util.find_spec
class Hides:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hides())
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in hidden else real(name, *rest)
"""
needs_no_driver = pytest.mark.skipif(
    find_libraries.driver_version() is not None, reason="this machine has a driver"
)
MISSING = {
    "the stand-in of the driver": pytest.param(
        NO_STAND_IN, f"libcuda.so.1, to which TVM links, is missing: {RUN}", marks=needs_no_driver
    ),
    "bitblas": (HIDE.format(hidden=["bitblas", "tvm"]), f"no TVM with Relay was found: {RUN}"),
    "numpy": (HIDE.format(hidden=["numpy"]), f"numpy is missing: {RUN}"),
    "torch": (HIDE.format(hidden=["torch"]), f"torch is missing: {RUN}"),
    "onnx": (HIDE.format(hidden=["onnx"]), f"onnx is missing: {RUN}"),
    "rich": (HIDE.format(hidden=["rich"]), f"rich is missing: {RUN}"),
    "all": (HIDE.format(hidden=["bitblas", "tvm", "numpy", "onnx", "rich", "torch", "torchvision"]), RUN),
}
CASES = pytest.mark.parametrize("hide, said", list(MISSING.values()), ids=list(MISSING))


@CASES
def test_an_import_says_what_to_run(hide, said):
    answer = python(f"{hide}\nfrom frontends import from_onnx\nfrom tvm_passes import detection_pipeline")
    last = answer.stderr.strip().splitlines()[-1]
    assert said in last, answer.stderr


def test_the_import_of_the_passes_alone_says_it_at_once():
    answer = python(f"{HIDE.format(hidden=['bitblas', 'tvm'])}\nimport tvm_passes")
    assert f"RuntimeWarning: tvm_passes cannot be used: no TVM with Relay was found: {RUN}" in answer.stderr


@CASES
def test_the_doctor_works(hide, said):
    run = "import runpy; sys.argv = ['-m', 'doctor']; runpy.run_module('tvm_passes', run_name='__main__')"
    answer = python(f"{hide}\nimport sys; {run}", COLUMNS="400")
    assert answer.returncode == 1 and "Traceback" not in answer.stderr, answer.stderr
    assert "The main job cannot run without " in answer.stdout


@CASES
def test_the_command_says_what_to_run(hide, said, tmp_path):
    network = tmp_path / "network.onnx"
    network.touch()  # an absent one is told before anything is imported
    run = f"import runpy; sys.argv = ['-m', 'inspect', {str(network)!r}]; "
    run += "runpy.run_module('tvm_passes', run_name='__main__')"
    answer = python(f"{hide}\nimport sys; {run}", COLUMNS="400")
    assert answer.returncode == 1 and "Traceback" not in answer.stderr, answer.stderr
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith("tvm-passes inspect: ") and said in last


def test_mistakes_in_code_stay_what_they_are():
    for error in ModuleNotFoundError(name="frontends.abc"), ModuleNotFoundError(), OSError("disk full"):
        with pytest.raises(type(error)) as raised, says_what_to_do():
            raise error
        assert not isinstance(raised.value, NotInstalled)
