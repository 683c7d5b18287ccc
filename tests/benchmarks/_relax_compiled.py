"""Compile what `bench_relax` times on a GPU, with TVM 0.27; there need be no GPU here."""

import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import frontends.relax
from tests.benchmarks._models import ON_GPU
from tests.benchmarks._relax_cases import CASES, NETWORK
from topi_ext.cudnn.session import LIBRARY
from tvm_passes import runtime
from tvm_passes.relax import convolution_pipeline

import tvm
from tvm import relax

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "libs": [LIBRARY]}, host="llvm")
KERNELS, STOCK, REFUSED, NETWORK_FOLDER = "kernels.so", "stock.so", "refused.json", "network"


def compile_into(folder):
    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    ours = {name: case.ours for name, case in CASES.items()}
    compiled(module_of(ours)).export_library(str(folder / KERNELS))
    names = [name for name, case in CASES.items() if case.stock is not None]
    reasons = {name: why_refused(name) for name in names}
    stock = {name: CASES[name].stock for name in names if reasons[name] is None}
    compiled(module_of(stock)).export_library(str(folder / STOCK))
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    (folder / REFUSED).write_text(json.dumps(refused))
    network, inputs = ON_GPU[NETWORK].build()
    mod = convolution_pipeline(TARGET)(frontends.relax.from_pytorch(network, *inputs))
    runtime.save(folder / NETWORK_FOLDER, runtime.build_library(mod, TARGET), mod, TARGET)


def why_refused(name):
    """Why TVM does not compile its own operator; None if it does."""
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:
        try:
            return apart.submit(_why_refused, name).result()
        except BrokenProcessPool:
            return "its compiler crashes"


def _why_refused(name):
    try:
        compiled(module_of({name: CASES[name].stock}))
    except Exception as error:  # TVM raises many types
        return [type(error).__name__, *str(error).strip().splitlines()][-1]
    return None


def module_of(builds):
    """A module with a function for each case, named by its place among all."""
    builder = relax.BlockBuilder()
    for name, build in builds.items():
        types = [relax.TensorType(each.shape, str(each.dtype)) for each in CASES[name].arrays()]
        parameters = [relax.Var(f"x{at}", type_) for at, type_ in enumerate(types)]
        with builder.function(function_of(name), parameters):
            with builder.dataflow():
                result = builder.emit_output(builder.emit(build(*parameters)))
            builder.emit_func_output(result)
    return builder.get()


def compiled(module):
    with TARGET:
        return tvm.compile(module, target=TARGET)


def function_of(name):
    return f"case{[*CASES].index(name)}"
