"""Add an operator: types, shapes, an oracle, a kernel for the CPU and one for CUDA.

    python -m tutorials.03_add_an_op

Run it in the root of a clone; it takes a few seconds, and needs no GPU. An operator is a folder of
`topi_ext`. This one is `tutorials/box_iou`, small and complete; read its files in this order:

- `op.py` is the function that users call, with the conventions on which libraries differ, and what Relay has
  to know: types, shapes, and, by `register`, which module has the kernels for a target;
- `reference.py` is the oracle: the same in NumPy, so plain that it is obviously correct;
- `kernel.py` computes one element, with `tvm.tir.ir_builder`; `cpu.py` and `cuda.py` map them to threads.

`topi_ext.authoring` has what these files share with the operators of `topi_ext`.

This script then checks that the operator works, as its test would.
"""

import shutil

import numpy as np
from rich.console import Console

import tvm_passes
from tests.cuda_on_cpu import CannotEmulate, emulate_cuda
from tutorials.box_iou import box_iou, reference

import tvm
from tvm import relay

console = Console()


def main():
    console.rule("An operator like any other")
    boxes, others = relay.var("boxes", shape=(5, 4)), relay.var("others", shape=(relay.Any(), 4))
    print(tvm_passes.as_text(tvm.IRModule.from_expr(relay.max(box_iou(boxes, others), axis=1))))

    console.rule("On the CPU")
    mod = tvm.IRModule.from_expr(box_iou(boxes, others))
    compare(tvm_passes.runtime.compile(mod, "llvm"))

    console.rule("Unsupported arguments are refused")
    for wrong in (relay.var("wrong", shape=(5, 5)), relay.var("wrong", shape=(5, 4), dtype="int32")):
        print(refusal(box_iou(wrong, others)))

    console.rule("On CUDA")
    if shutil.which("nvcc"):
        with tvm.transform.PassContext(opt_level=3):
            relay.vm.compile(mod, tvm.target.Target("cuda -arch=sm_80", host="llvm"))
        print("nvcc compiles it.")
    if tvm.cuda(0).exist:
        compare(tvm_passes.runtime.compile(mod, "cuda"))
        return
    print("There is no GPU that TVM can use. On a device emulated by the CPU, as in the tests:")
    try:
        with emulate_cuda() as cuda:
            compare(lambda *arrays: cuda.run_relay(mod["main"], *arrays, executor="vm")[0])
    except CannotEmulate as reason:
        print(reason)


def compare(run):
    """Compare with the oracle, on awkward shapes."""
    for count in (0, 1, 1000):
        boxes, others = some_boxes(5, seed=0), some_boxes(count, seed=1)
        boxes[0, 2:] = boxes[0, :2]  # a box with zero area
        np.testing.assert_allclose(run(boxes, others), reference.box_iou(boxes, others), rtol=1e-6)
        print(f"5 boxes with {count}: as the oracle, within a relative error of 1e-6")


def some_boxes(count, seed):
    corners = np.random.default_rng(seed).uniform(0, 100, (count, 2, 2)).astype("float32")
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def refusal(expression):
    """The last line of the error that a wrong type gives."""
    try:
        relay.transform.InferType()(tvm.IRModule.from_expr(expression))
    except tvm.TVMError as error:
        return next(line for line in str(error).splitlines()[::-1] if "box_iou:" in line)
    raise AssertionError("this should have been refused")


# What else an operator of this project needs:
#
# - its folder in `topi_ext/`, an import and a name in `topi_ext/__init__.py`, and an example in the
#   docstring, from which `python -m docs.generate` makes a page;
# - a test like `tests/ops/test_transform_points.py`: both targets versus the oracle, on awkward shapes and
#   inputs, every refusal, and CUDA compiled for every architecture. The fixture `emulated_cuda` runs CUDA
#   kernels on the CPU, and finds out-of-bounds accesses and races; tests that need a GPU are marked `gpu`;
# - a few lines in `topi_ext/torch/functions.py` make it a function of torch tensors;
# - if it claims to be fast, a benchmark versus its peer, in `tests/benchmarks/`.


if __name__ == "__main__":
    main()
