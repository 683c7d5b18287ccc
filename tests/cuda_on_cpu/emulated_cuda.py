"""The target "cuda" without a GPU: TVM builds for it as ever, and the kernels run on the host."""

import contextlib
import ctypes
from functools import cache
from unittest import mock

import numpy as np

import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.runtime import vm as vm_runtime

from .compile_source import LAUNCH_TAGS, CannotEmulate, compile_source, emulator_library

# Fixed, so that nothing is asked of a device.
TARGET = "cuda -arch=sm_{arch} -max_num_threads=1024 -thread_warp_size=32 -max_shared_memory_per_block=49152"
STEPS_PER_THREAD = 100_000_000
# What TVM's schedules ask of a device, by the number of DeviceAttrKind.
DEVICE_ATTRIBUTES = {
    0: 1,  # it exists
    1: 1024,  # threads per block
    2: 32,  # warp size
    3: 48 << 10,  # shared memory per block
    4: "8.0",  # compute capability
    5: "emulated CUDA device",
    7: 108,  # multiprocessors
    8: "[1024, 1024, 64]",  # threads per block, along each axis
}
FIND_RACES = "Set `sanitize = 'thread'` before building: it names the two accesses."


@contextlib.contextmanager
def emulate_cuda():
    """While it lasts, "cuda" is the emulated device; raises `CannotEmulate` where that is not possible.

    A process with a real GPU cannot have both, since TVM keeps and reuses memory of the device. Hide the GPU
    (CUDA_VISIBLE_DEVICES= python -m pytest) to run these tests on such a machine.
    """
    emulator = _emulator()
    cuda = EmulatedCuda(emulator)
    build_source = tvm.get_global_func("target.build.cuda")
    replaced = {
        "tvm_callback_cuda_compile": lambda _code, _target: "/ no PTX is needed",
        "target.build.cuda": lambda mod, target: cuda._build_device_module(build_source(mod, target), mod),
        "profiling.timer.cuda": tvm.get_global_func("profiling.timer.cpu"),
    }
    originals = {name: tvm.get_global_func(name) for name in replaced}
    for name, function in replaced.items():
        tvm.register_func(name, function, override=True)
    emulator.emulator_enter()
    try:
        with mock.patch.object(tvm.runtime.Device, "_GetDeviceAttr", _get_device_attribute):
            yield cuda
    finally:
        emulator.emulator_leave()
        for name, function in originals.items():
            tvm.register_func(name, function, override=True)


class EmulatedCuda:
    """The emulated device, and what a test wants to do with it.

    `target` and `device` are used as any other, with `relay.build`, `relay.vm.compile` or `tvm.build`.
    `sources` holds the CUDA source of everything built so far.
    `sanitize`, read when something is built: None; "address" reports each access outside the kernel's
    buffers and shared arrays; "thread" also each pair of accesses that no barrier or atomic orders.
    `flags`: more options for g++, also read then, as ("-ffp-contract=fast", "-mfma") to contract like nvcc.
    """

    def __init__(self, emulator):
        self.set_arch(80)
        self.device = tvm.cuda(0)
        self.sources = []
        self.sanitize = "address"
        self.flags = ()
        self._emulator = emulator
        self.run_in_order()
        self.set_steps_per_thread(STEPS_PER_THREAD)

    # --- how kernels run

    def set_arch(self, arch):
        """What is built from now on is for this architecture: 80, or 90 with its larger shared memory."""
        self.target = tvm.target.Target(TARGET.format(arch=arch), host="llvm")
        self._arch = arch * 10

    def run_in_order(self):
        """Run blocks and threads by their number, the default."""
        self._emulator.emulator_set_order(0, 0)

    def shuffle_order(self, seed):
        """Run the blocks, and between barriers the threads, of the kernels that follow in a random order."""
        self._emulator.emulator_set_order(1, seed)

    def set_steps_per_thread(self, steps):
        """How many basic blocks a thread may run before its kernel counts as endless."""
        self._emulator.emulator_set_steps_per_thread(steps)

    def assert_same_in_any_order(self, run, seeds=range(4)):
        """Call `run` with threads in order and in an order for each seed: its arrays must be the same."""
        expected = _as_list(run())
        try:
            for seed in seeds:
                self.shuffle_order(seed)
                same = all(map(_identical, expected, _as_list(run())))
                assert same, (
                    f"a race: another order of threads (seed {seed}) gives another result. {FIND_RACES}"
                )
        finally:
            self.run_in_order()

    # --- ways to run something

    def run_relay(self, mod, *inputs, params=None, executor="graph", opt_level=3):
        """Build a Relay function or module and run `main` on NumPy arrays; answers a list of NumPy arrays."""
        mod = mod if isinstance(mod, tvm.IRModule) else tvm.IRModule.from_expr(mod)
        with tvm.transform.PassContext(opt_level=opt_level):
            if executor == "vm":
                executable = relay.vm.compile(mod, self.target, params=params)
            else:
                library = relay.build(mod, self.target, params=params)
        inputs = [tvm.nd.array(value, self.device) for value in inputs]
        if executor == "vm":
            # "naive": the default allocator rounds sizes to pages, where the bounds check cannot see.
            machine = vm_runtime.VirtualMachine(executable, self.device, memory_cfg="naive")
            return _flatten(machine.run(*inputs))
        module = graph_executor.GraphModule(library["default"](self.device))
        for i, value in enumerate(inputs):
            module.set_input(i, value)
        module.run()
        return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]

    def build(self, function, *args, **kwargs):
        """`tvm.build` for this target, of a PrimFunc, an IRModule or a schedule and its arguments."""
        return tvm.build(function, *args, target=self.target, **kwargs)

    def run_kernel(self, source, name, grid, block, args, dynamic_shared=0):
        """Launch a kernel of CUDA source; NumPy arrays in `args` go to the device and come back."""
        library = compile_source(source, {name: list(LAUNCH_TAGS)}, self.sanitize, self.flags, self._arch)
        module = tvm.runtime.load_module(str(library))
        on_device = [tvm.nd.array(a, self.device) if isinstance(a, np.ndarray) else a for a in args]
        values = [_address(a) if isinstance(a, tvm.nd.NDArray) else a for a in on_device]
        module[name](*values, *_three(grid), *_three(block), dynamic_shared)
        for host, array in zip(args, on_device):
            if isinstance(host, np.ndarray):
                host[...] = array.numpy()

    def _build_device_module(self, cuda_module, mod):
        source = cuda_module.get_source()
        self.sources.append(source)
        params = {
            function.attrs["global_symbol"]: [str(tag) for tag in function.attrs["tir.kernel_launch_params"]]
            for function in mod.functions.values()
        }
        library = compile_source(source, params, self.sanitize, self.flags, self._arch)
        return tvm.runtime.load_module(str(library))


@cache
def _emulator():
    if tvm.cuda(0).exist:
        raise CannotEmulate("this process has a real GPU; run this test with CUDA_VISIBLE_DEVICES= in front")
    emulator = ctypes.CDLL(str(emulator_library()), mode=ctypes.RTLD_GLOBAL)
    emulator.emulator_prepare.restype = ctypes.c_char_p
    emulator.emulator_prepare.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    emulator.emulator_set_order.argtypes = [ctypes.c_int, ctypes.c_uint64]
    emulator.emulator_set_steps_per_thread.argtypes = [ctypes.c_long]
    cuda, cpu = (tvm.get_global_func(f"device_api.{kind}")() for kind in ("cuda", "cpu"))
    reason = emulator.emulator_prepare(cuda, cpu)
    if reason:
        raise CannotEmulate(f"this TVM cannot be given an emulated device: {reason.decode()}")
    return emulator


def _get_device_attribute(_device, device_type, device_id, attribute):
    if device_type == tvm.runtime.Device.kDLCUDA:
        return DEVICE_ATTRIBUTES.get(attribute)
    return tvm.runtime._ffi_api.GetDeviceAttr(device_type, device_id, attribute)


def _address(array):
    tensor = array.handle.contents
    return ctypes.c_void_p(tensor.data + tensor.byte_offset)


def _three(extents):
    extents = (extents,) if isinstance(extents, int) else tuple(extents)
    return extents + (1,) * (3 - len(extents))


def _as_list(outputs):
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _identical(a, b):
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _flatten(value):
    if isinstance(value, tvm.nd.NDArray):
        return [value.numpy()]
    return [array for part in value for array in _flatten(part)]
