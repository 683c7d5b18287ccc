"""What many tests do: build small modules, run them, compare."""

import numpy as np

import tvm_passes
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph
from tvm_passes.engine.without_collector import without_collector
from tvm_passes.runtime.lowered_once import LoweredOnce
from tvm_passes.runtime.typed_once import TypedOnce

import tvm
from tvm import relay


def module(*inputs_and_result):
    """A module whose `main` takes the variables and gives the last argument."""
    *inputs, result = inputs_and_result
    return tvm.IRModule.from_expr(relay.Function(list(inputs), result))


def ops(mod, name="main"):
    """The names of the operators that a function calls, in order."""
    return [op_name(node) for node in Graph(mod[name]).nodes if op_name(node)]


def run(mod, *arrays, target="llvm", device=None):
    """The outputs of `main` in TVM's virtual machine, as a list of NumPy arrays."""
    return runner(mod, target, device)(*arrays)


def quick(target="llvm"):
    """The target for kernels that run once, for their numbers: LLVM compiles them without optimising."""
    return tvm.target.Target({**tvm.target.Target(target).export(), "opt-level": 0})


def runner(mod, target="llvm", device=None):
    """`run` for a module that is compiled once and run on many arrays."""
    device = device or tvm.device(tvm.target.Target(target).kind.name)
    # TVM never frees what it analyses in that pass, which is all constants of a network. The instruments are
    # those of `runtime.compile`, by which a network of unknown sizes takes a third less time.
    instruments = [TypedOnce(), LoweredOnce()]
    level_3 = tvm.transform.PassContext(
        opt_level=3, disabled_pass=["ManifestLifetimes"], instruments=instruments
    )
    with without_collector(), level_3:
        executable = relay.vm.compile(mod, target)
    machine = tvm.runtime.vm.VirtualMachine(executable, device)

    def run_once(*arrays):
        result = machine.run(*(tvm.nd.array(array, device) for array in arrays))
        return [part.numpy() for part in (result if not isinstance(result, tvm.nd.NDArray) else [result])]

    return run_once


def apply(passes, mod):
    """The module after `passes`, verified after each, and the report of what they did."""
    tvm_passes.verify_each_pass()
    try:
        report = tvm_passes.explain(mod, passes)
    finally:
        tvm_passes.verify_each_pass(False)
    return report.module, report


def refusals(report):
    """The reasons for every refusal in a report."""
    return [outcome.reason for pass_report in report.passes for outcome in pass_report.refusals]


def assert_same_numbers(passes, mod, *arrays, rtol=1e-6, atol=1e-6):
    """Assert that a module computes the same before and after `passes`; give the module after."""
    after, _ = apply(passes, mod)
    outputs, outputs_after = run(mod, *arrays), run(after, *arrays)
    assert len(outputs) == len(outputs_after)
    for expected, found in zip(outputs, outputs_after):
        assert expected.dtype == found.dtype
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
    return after


def assert_no_second_change(passes, mod):
    """Assert that passes find nothing more to do in their own result."""
    again, report = apply(passes, mod)
    assert again.same_as(mod)
    assert not any(pass_report.rewrites for pass_report in report.passes)


def numbers(*shape, dtype="float32", seed=0):
    """A seeded array from a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def convolution(data, filters, channels, kernel=3, seed=1, **options):
    """An nn.conv2d with seeded constant weights, "same" unless `padding` says otherwise."""
    weight = numbers(filters, channels, kernel, kernel, seed=seed) / (channels * kernel**2) ** 0.5
    layout = options.get("kernel_layout", "OIHW")
    weight = weight.astype("float32").transpose(["OIHW".index(axis) for axis in layout])
    options.setdefault("padding", kernel // 2)
    return relay.nn.conv2d(
        data, relay.const(weight), channels=filters, kernel_size=(kernel, kernel), **options
    )


def per_channel(count, seed=2, rank=3):
    """A seeded constant for each channel of NCHW, as it is added to an image."""
    return relay.const(numbers(count, *[1] * (rank - 1), seed=seed))
