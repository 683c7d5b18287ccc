"""The convolution on CUDA: an implicit matrix product on tensor cores. `plan` says how it is cut into tiles.

Of the sums, four neighbouring threads hold eight (or 16, or 32) filters of a pixel. The instructions deal out
two of each eight to a thread, so the filters are put into shared memory in such an order that a thread holds
neighbours: it then has up to 16 contiguous bytes of the result, and writes them without asking another
thread. In NHWC, depth to space is but another address of these bytes.
"""

import re

import tvm
from tvm import te
from tvm.topi.generic import schedule_extern

from .kernel import emit
from .plan import known_arch, plan_for


def conv2d_nhwc(problem, data, weight, bias, residual, slope, target):
    """See `topi_ext.conv2d_nhwc`."""
    arch = arch_of(target)
    if problem.dtype == "float32":
        raise tvm.TVMError(
            "topi_ext.conv2d_nhwc: on CUDA, data is float16 or bfloat16: tensor cores do not multiply "
            "float32 in full precision. Cast to one of these, or use nn.conv2d"
        )
    if known_arch(arch) is None or (problem.dtype == "bfloat16" and arch < 80):
        needed = "80" if problem.dtype == "bfloat16" else "75"
        raise tvm.TVMError(
            f"topi_ext.conv2d_nhwc: {problem.dtype} needs tensor cores of sm_{needed} or newer, and the "
            f"target is sm_{arch}. Say what you have with `-arch=sm_XX` in the target"
        )
    plan = plan_for(problem, known_arch(arch))
    inputs = {"data": data, "weight": weight, "bias": bias, "residual": residual, "slope": slope}
    inputs = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    return te.extern(
        problem.shape,
        list(inputs.values()),
        lambda ins, outs: emit(plan, dict(zip([*inputs, "result"], [*ins, *outs]))),
        dtype=problem.dtype,
        name="conv2d_nhwc",
        tag="conv2d_nhwc_gpu",
    )


def schedule(outs):
    return schedule_extern(outs)


def arch_of(target):
    found = re.fullmatch(r"sm_(\d+)\w?", str(target.attrs.get("arch", "")))
    return int(found.group(1)) if found else 0
