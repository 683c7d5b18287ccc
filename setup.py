"""Build of tvm-vision-passes; everything but the three native libraries below is plain Python."""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:  # setuptools 70.1 and later carry it; older ones take it from the wheel package
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel


class BuildPlainLibrary(build_ext):
    """Name the library alike for every Python: it holds no Python code."""

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".so"


class AnyPythonWheel(bdist_wheel):
    """One wheel a platform serves every Python 3."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(
    cmdclass={"build_ext": BuildPlainLibrary, "bdist_wheel": AnyPythonWheel},
    ext_modules=[
        # Stands in for the NVIDIA driver's library on machines without one; see find_libraries.py.
        Extension(
            "topi_ext.bootstrap.libcuda_absent",
            ["topi_ext/bootstrap/libcuda_absent.c"],
            extra_link_args=["-Wl,-soname,libcuda.so.1"],
        ),
        # TVM's loops on OpenMP's threads, where the compiler has OpenMP; see threads.py.
        Extension(
            "topi_ext.bootstrap.openmp_threads",
            ["topi_ext/bootstrap/openmp_threads.c"],
            extra_compile_args=["-fopenmp"],
            extra_link_args=["-fopenmp"],
            optional=True,
        ),
        # Calls of oneDNN without Python; see calls.py.
        Extension(
            "topi_ext.onednn.remembered_calls",
            ["topi_ext/onednn/remembered_calls.c"],
            extra_compile_args=["-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        ),
    ],
)
