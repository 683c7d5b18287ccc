"""Write a pass: find an idiom, decide when it is legal to rewrite it, and replace it with something better.

    python -m tutorials.02_write_a_pass

Run it in the root of a clone; it takes a few seconds. Read it from the top: the pass is complete, and could
go into `tvm_passes/convolution/restore_leaky_relu.py` unchanged.

Some exporters express a leaky ReLU as `maximum(x, slope * x)`. TVM has `nn.leaky_relu` for it, which other
passes look for, such as those that fuse an activation into the convolution before it.
"""

from __future__ import annotations

import numpy as np
import torch
from rich.console import Console

import frontends
import tvm_passes
from tvm_passes.engine import Match, Refusal, Rule, RulePass

from tvm import relay
from tvm.relay.dataflow_pattern import is_constant, is_op, wildcard

console = Console()


# --- The rule. A rule is a class with a pattern, up to two checks, and the rewrite.


class MaximumOfScaled(Rule):
    """Replace `maximum(x, slope * x)` with `nn.leaky_relu(x, slope)`.

    Why legal: with a slope from 0 to 1, `slope * x` is no greater than a positive x, and no less than a
    negative one. A slope of 0 turns an infinite x into NaN, while a leaky ReLU leaves it as it is.
    """

    # Patterns that are class attributes have names: what `x` matches is `match.x` below. Both occurrences of
    # `x` must match the same tensor. The operands of `maximum` and `multiply` may be in either order.
    x, slope = wildcard(), is_constant()
    pattern = is_op("maximum")(x, is_op("multiply")(x, slope))

    def where(self, match: Match) -> bool:
        """What the pattern cannot express. Where this is False, there is no match and no report."""
        return match.slope.checked_type.dtype == "float32" and match.slope.data.numpy().ndim == 0

    def plan(self, match: Match) -> float | Refusal:
        """What the rewrite needs to know, or why it would be wrong here. This changes nothing."""
        slope = float(match.slope.data.numpy())
        if not 0 < slope <= 1:  # in this form, so that NaN is refused too
            return Refusal(f"a slope of {slope:g} is not above 0 and at most 1")
        return slope

    def rewrite(self, match: Match, plan: float) -> relay.Expr:
        return relay.nn.leaky_relu(match.x, plan)


# --- The pass: a list of rules, applied until none has an effect. It can be used wherever TVM's passes can.


class RestoreLeakyReLU(RulePass):
    """Replace the exporters' spelling of a leaky ReLU with the operator."""

    rules = (MaximumOfScaled,)


def main():
    mod, _ = frontends.from_pytorch(Network(), torch.zeros(1, 4, 2, 3))
    console.rule("Before")
    print(tvm_passes.as_text(mod))

    # `explain` applies passes and says what each rule did or refused to do, where, and why. Without a second
    # argument, it applies `default_pipeline()`. `verify_each_pass` checks after each pass that the module is
    # well formed and that its type has not changed.
    tvm_passes.verify_each_pass()
    report = tvm_passes.explain(mod, RestoreLeakyReLU())
    console.rule("What was done, and what was refused")
    print(report)

    console.rule("After")
    print(tvm_passes.as_text(report.module))

    # A wrong rewrite is the worst kind of bug, so a test compares results, for awkward numbers too.
    image = np.float32([-np.inf, -2, -0.0, 0, 3, np.inf]).reshape(1, 1, 2, 3).repeat(4, axis=1)
    before, after = (tvm_passes.runtime.compile(each, "llvm")(image) for each in (mod, report.module))
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])
    console.rule("The numbers are the same")

    # A pass must also leave its own result unchanged.
    again = tvm_passes.explain(report.module, RestoreLeakyReLU())
    assert again.module.same_as(report.module)
    print("A second application finds nothing more to do, and still refuses the other idiom:")
    print(again)
    tvm_passes.verify_each_pass(False)


class Network(torch.nn.Module):
    """Two idioms that look alike: one is a leaky ReLU, the other is not."""

    def forward(self, x):
        return {"leaky": torch.maximum(0.1 * x, x), "steep": torch.maximum(x, 1.5 * x)}


# What else a pass of this project needs:
#
# - its file in the folder for its purpose, and an import and a name in `tvm_passes/__init__.py`;
# - its place in `tvm_passes/pipeline.py`, with a reason if that is not obvious: this one goes before
#   FuseConv2dNHWC, which fuses activations into convolutions;
# - a test like `tests/passes/test_combine_transposes.py`: structure, numbers, every refusal by its reason,
#   and a second application that changes nothing. `tests/helpers.py` has the functions for that;
# - an example at the end of the docstring, from which `python -m docs.generate` makes a page.


if __name__ == "__main__":
    main()
