"""An emulated CUDA device, so that every CUDA schedule has a test that runs it on any machine.

TVM generates CUDA source as ever; g++ compiles it, and each block of a kernel runs its threads one after
the other, each up to the next barrier. That finds what a GPU answers with a hang or junk: barriers and warp
functions that not all threads reach, accesses out of bounds, races, launches beyond the limits, endless
loops. A test takes the fixture `emulated_cuda` (see `EmulatedCuda` for all of it):

    def test_my_op(emulated_cuda):
        (out,) = emulated_cuda.run_relay(function, data)  # or executor="vm"
        kernel = emulated_cuda.build(prim_func)  # takes arrays on emulated_cuda.device
        emulated_cuda.run_kernel(cuda_source, "name", grid, block, [array, 3])
        emulated_cuda.set_arch(90)  # what follows is built for Hopper

A test of a real GPU takes the mark `gpu` instead. Where there is one, CUDA_VISIBLE_DEVICES= in front of
pytest hides it and runs the tests of the emulated device, which are skipped otherwise.

Out of reach: speed; inline PTX, but for what `__EMULATED_CUDA__` leaves out (runtime/tensor_cores.h has the
matrix instructions as functions); threads of different blocks that wait for each other; packed functions that
want a real device pointer (DLPack to torch, cuDNN); what only weak memory ordering makes wrong. Buffers that
a graph executor's memory plan shares are checked to the end of the larger one.
"""

from topi_ext.bootstrap import tvm_in_use

from .compile_source import CannotEmulate

if tvm_in_use.has_relay:  # tests/relax/emulated_cuda.py is for the other TVM
    from .emulated_cuda import EmulatedCuda, emulate_cuda

__all__ = ["CannotEmulate", "EmulatedCuda", "emulate_cuda"]
