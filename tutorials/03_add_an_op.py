"""Add an operator: types, shapes, an oracle, a kernel for the CPU and one for CUDA.

    python -m tutorials.03_add_an_op

Run it in the root of a clone; it takes some seconds, and needs no GPU. An operator is a folder of `topi_ext`.
This one is `tutorials/box_iou`, small and complete; read its files in this order:

- `op.py` is the function that users call, with the conventions where two libraries would differ, and what
  Relay has to know: types, shapes, and by `register` which module has the kernels for a target;
- `reference.py` is the oracle: the same in NumPy, as plain as can be, so that it is seen to be right;
- `kernel.py` writes one element, with `tvm.tir.ir_builder`; `cpu.py` and `cuda.py` say who writes which.

`topi_ext.authoring` has what these files share with the operators of `topi_ext`.

Then see here that it works, as its test would.
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

    console.rule("What it does not take, it refuses")
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
    print("There is no GPU that TVM can use. On a device that the CPU emulates, as in the tests:")
    try:
        with emulate_cuda() as cuda:
            compare(lambda *arrays: cuda.run_relay(mod["main"], *arrays, executor="vm")[0])
    except CannotEmulate as reason:
        print(reason)


def compare(run):
    """With the oracle, on awkward shapes."""
    for count in (0, 1, 1000):
        boxes, others = some_boxes(5, seed=0), some_boxes(count, seed=1)
        boxes[0, 2:] = boxes[0, :2]  # one without area
        np.testing.assert_allclose(run(boxes, others), reference.box_iou(boxes, others), rtol=1e-6)
        print(f"5 boxes with {count}: as the oracle, to a relative 1e-6")


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


# What is left to do, for an operator of this project:
#
# - its folder in `topi_ext/`, an import and a name in `topi_ext/__init__.py`, an example in the docstring, of
#   which `python -m docs.generate` makes a page;
# - a test as `tests/ops/test_transform_points.py` is one: both targets against the oracle, on awkward shapes
#   and inputs, every refusal, and CUDA compiled for every architecture. The fixture `emulated_cuda` runs CUDA
#   kernels on the CPU, and finds accesses out of bounds and races; the mark `gpu` is for what needs a GPU;
# - a few lines in `topi_ext/torch/functions.py` make it a function of torch tensors;
# - if it claims to be fast, a benchmark versus its peer, in `tests/benchmarks/`.


if __name__ == "__main__":
    main()
