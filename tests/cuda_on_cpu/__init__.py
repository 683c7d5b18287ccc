"""An emulated CUDA device, so that every CUDA schedule has a test that runs it on any machine.

TVM generates CUDA source as ever; g++ compiles it, and each block of a kernel runs its threads one after
the other, each up to the next barrier. That finds what a GPU answers with a hang or junk: barriers and warp
functions that not all threads reach, accesses out of bounds, races, launches beyond the limits, endless
loops. A test takes the fixture `emulated_cuda` (see `EmulatedCuda` for all of it):

    def test_my_op(emulated_cuda):
        (out,) = emulated_cuda.run_relay(function, data)  # or executor="vm"
        kernel = emulated_cuda.build(prim_func)  # takes arrays on emulated_cuda.device
        emulated_cuda.run_kernel(cuda_source, "name", grid, block, [array, 3])

Out of reach: speed, inline PTX, tensor cores, threads of different blocks that wait for each other, packed
functions on the device (DLPack to torch, cuDNN), memory that weak ordering alone makes wrong.
"""

from .compile_source import CannotEmulate
from .emulated_cuda import EmulatedCuda, emulate_cuda

__all__ = ["CannotEmulate", "EmulatedCuda", "emulate_cuda"]
