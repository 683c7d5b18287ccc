"""Which TVM an import gives, in fresh interpreters; and the corrections applied to it."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topi_ext.bootstrap import find_libraries, tvm_in_use

import tvm

CHECK = "import {first}, tvm; from tvm import relay; print(relay.op.get('nn.depth_to_space').name)"


def python(code, **environment):
    """Run code in a fresh interpreter that finds this project and the given PYTHONPATH first."""
    path = os.pathsep.join([environment.pop("PYTHONPATH", ""), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


def make_tvm(folder, with_relay, version="9.9"):
    """A stand-in for somebody's installed TVM."""
    package = Path(folder, "tvm")
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    if with_relay:
        (package / "relay").mkdir()
        (package / "relay" / "__init__.py").write_text("")
    return str(folder)


@pytest.mark.parametrize("first", ["tvm_passes", "topi_ext", "frontends"])
def test_each_package_gives_a_tvm_with_relay(first):
    answer = python(CHECK.format(first=first))
    assert answer.stdout.strip() == "nn.depth_to_space", answer.stderr


def test_a_tvm_without_relay_is_passed_over(tmp_path):
    without = make_tvm(tmp_path, with_relay=False)
    answer = python(CHECK.format(first="tvm_passes"), PYTHONPATH=without)
    assert answer.stdout.strip() == "nn.depth_to_space", answer.stderr


def test_a_users_own_build_wins(tmp_path):
    own = make_tvm(tmp_path, with_relay=True)
    folder = Path(find_libraries.__file__).parent
    search_alone = (  # the rest of topi_ext needs a whole TVM
        "import sys, types\n"
        "for name in ('topi_ext', 'topi_ext.bootstrap'): sys.modules[name] = types.ModuleType(name)\n"
        f"sys.modules['topi_ext.bootstrap'].__path__ = [{str(folder)!r}]\n"
        "from topi_ext.bootstrap.find_tvm import import_tvm\n"
        "found = import_tvm(); print(found.version, found.origin)"
    )
    answer = python(search_alone, PYTHONPATH=own)
    assert answer.stdout.strip() == "9.9 on the path", answer.stderr


def test_a_tvm_without_relay_already_imported_is_an_error_that_says_what_to_do(tmp_path):
    without = make_tvm(tmp_path, with_relay=False)
    answer = python("import tvm, topi_ext", PYTHONPATH=without)
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the TVM that is already imported")
    assert "pip install bitblas==0.1.0" in last


def test_no_tvm_at_all_is_an_error_that_says_what_to_do():
    hide = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name in ('tvm', 'bitblas') else real(name, *rest)\n"
        "import topi_ext"
    )
    last = python(hide).stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: no TVM with Relay was found: this clone is not installed: run `pip")
    assert "pip install bitblas==0.1.0" in last


def test_a_version_that_is_not_known_is_an_error(tmp_path):
    without = make_tvm(tmp_path, with_relay=False)
    answer = python("import topi_ext", PYTHONPATH=without, TVM_PASSES_IR="relax")
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the TVM that is on the path, 9.9 from ")
    assert "only 0.27.* is known" in last and 'pip install "apache-tvm==0.27.*"' in last


def test_the_switch_takes_two_words():
    last = python("import topi_ext", TVM_PASSES_IR="tir").stderr.strip().splitlines()[-1]
    assert last == "ImportError: TVM_PASSES_IR must be relay or relax, not 'tir'"


@pytest.mark.parametrize("package", ["frontends.relax", "tvm_passes.relax"])
def test_what_is_for_relax_needs_it(package):
    last = python(f"import {package}").stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: {package} needs TVM 0.27, and this process has 0.17")


def test_importing_it_downloads_and_spawns_nothing():
    code = (
        "import socket, subprocess\n"
        "def refuse(*_, **__): raise AssertionError('tried to reach out')\n"
        "socket.socket.connect = refuse; subprocess.Popen.__init__ = refuse\n"
        "import tvm_passes, frontends, topi_ext, tvm\n"
        "from tvm import relay\n"
        "x = relay.var('x', shape=(2,))\n"
        "relay.build(tvm.IRModule.from_expr(relay.Function([x], x + x)), 'llvm')\n"
        "print('quiet')"
    )
    answer = python(code)
    assert answer.stdout.strip() == "quiet", answer.stderr


def test_a_tuning_log_location_of_the_user_stays():
    code = "import os, tvm_passes; print(os.environ['TOPHUB_LOCATION'])"
    assert python(code, TOPHUB_LOCATION="elsewhere").stdout.strip() == "elsewhere"


@pytest.mark.skipif(find_libraries.driver_version() is not None, reason="this machine has a driver")
def test_without_a_driver_tvm_and_torch_see_no_gpu():
    code = "import tvm_passes, tvm, torch; print(tvm.cuda(0).exist, torch.cuda.is_available())"
    answer = python(code)
    assert answer.stdout.strip() == "False False", answer.stderr


def stand_in(folder, age):
    """An empty stub in a folder, so many seconds older than its source, which is the real one."""
    path = folder / find_libraries.DRIVER_STAND_IN.name
    shutil.copy(find_libraries.DRIVER_STAND_IN.with_suffix(".c"), folder)
    path.write_bytes(b"")
    written = path.with_suffix(".c").stat().st_mtime
    os.utime(path, (written - age, written - age))
    return path


def test_a_stub_that_is_older_than_its_source_is_compiled_anew(tmp_path):
    path = stand_in(tmp_path, age=1)
    find_libraries.compile_if_older(path)
    assert ctypes.CDLL(str(path)).cuLaunchKernelEx() == 100
    assert {each.name for each in tmp_path.iterdir()} == {path.name, path.with_suffix(".c").name}


def test_a_stub_that_is_up_to_date_stays(tmp_path):
    path = stand_in(tmp_path, age=0)
    find_libraries.compile_if_older(path)
    assert path.read_bytes() == b""


def test_an_old_stub_without_a_compiler_is_told(tmp_path, monkeypatch):
    path = stand_in(tmp_path, age=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(
        UserWarning, match=f"{path.name} is older than its source .*: this clone is not installed"
    ):
        find_libraries.compile_if_older(path)
    assert path.read_bytes() == b""


@pytest.mark.gpu
def test_with_a_driver_the_real_one_is_used():
    assert find_libraries.driver_version() is not None
    assert "NVIDIA" in tvm.cuda(0).device_name


@pytest.mark.parametrize("is_loaded_already", [False, True])
def test_cudnn_is_the_one_that_is_loaded_or_that_of_the_wheels(tmp_path, is_loaded_already):
    """torch, imported later, would be given another one that is loaded by then, and cannot do with it."""
    in_wheels = [path for path in find_libraries._in_wheels("cudnn", find_libraries.CUDNN) if path.exists()]
    if not in_wheels:
        pytest.skip("needs the wheel of cuDNN, which torch's wheels for CUDA bring along")
    of_the_system = tmp_path / find_libraries.CUDNN
    source = tmp_path / "stand_in.c"
    source.write_text("int stand_in;")
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-Wl,-soname,{of_the_system.name}", "-o", of_the_system, source],
        check=True,
    )
    code = (
        "import ctypes, sys\n"
        "from topi_ext.bootstrap.find_libraries import CUDNN, load_cudnn\n"
        f"if {is_loaded_already}: ctypes.CDLL(CUDNN)\n"
        "load_cudnn()\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if line.strip().endswith(CUDNN)})"
    )
    answer = python(code, LD_LIBRARY_PATH=str(tmp_path))
    expected = of_the_system if is_loaded_already else in_wheels[0].resolve()
    assert answer.stdout.strip() == str(expected), answer.stderr


def test_what_is_in_use_is_told():
    assert tvm_in_use.version == tvm.__version__
    assert Path(tvm.__file__).parent == tvm_in_use.folder
