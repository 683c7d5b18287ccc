"""Write a pass: find an idiom, say when it is legal to rewrite it, and put something better there.

    python -m tutorials.02_write_a_pass

Run it in the root of a clone; it takes some seconds. Read it from the top: the pass is complete, and would go
into `tvm_passes/convolution/restore_leaky_relu.py` as it is here.

Some exporters spell a leaky ReLU as `maximum(x, slope * x)`. TVM knows `nn.leaky_relu`: other passes, such as
those that fuse an activation into the convolution before it, look for that.
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


# --- The rule. A rule is a class with a pattern, up to two questions, and the rewrite.


class MaximumOfScaled(Rule):
    """Replace `maximum(x, slope * x)` with `nn.leaky_relu(x, slope)`.

    Why legal: with a slope from 0 to 1, `slope * x` is no greater than a positive x, and no less than a
    negative one. A slope of 0 makes NaN of an infinite x, which a leaky ReLU leaves as it is.
    """

    # Patterns that are attributes get names: what `x` matches is `match.x` below. The `x` that stands in two
    # places must be one and the same tensor in both. Either operand of `maximum` and `multiply` may be first.
    x, slope = wildcard(), is_constant()
    pattern = is_op("maximum")(x, is_op("multiply")(x, slope))

    def where(self, match: Match) -> bool:
        """What the pattern means but cannot say. Where this is False there is no match, and no report."""
        return match.slope.checked_type.dtype == "float32" and match.slope.data.numpy().ndim == 0

    def plan(self, match: Match) -> float | Refusal:
        """What the rewrite needs to know, or why it would be wrong here. It changes nothing."""
        slope = float(match.slope.data.numpy())
        if not 0 < slope <= 1:  # this way round, so that NaN is refused too
            return Refusal(f"a slope of {slope:g} is not above 0 and at most 1")
        return slope

    def rewrite(self, match: Match, plan: float) -> relay.Expr:
        return relay.nn.leaky_relu(match.x, plan)


# --- The pass: a list of rules, which are applied until none does anything. It goes wherever TVM's passes go.


class RestoreLeakyReLU(RulePass):
    """Replace what exporters spell a leaky ReLU with by the operator."""

    rules = (MaximumOfScaled,)


def main():
    mod, _ = frontends.from_pytorch(Network(), torch.zeros(1, 4, 2, 3))
    console.rule("Before")
    print(tvm_passes.as_text(mod))

    # `explain` applies passes and says what each rule did, and what it refused to do, where, and why. Without
    # a second argument it applies all passes of this project. The switch checks the module after each pass:
    # it is to be well formed, and of the same type.
    tvm_passes.verify_each_pass()
    report = tvm_passes.explain(mod, RestoreLeakyReLU())
    console.rule("What was done, and what not")
    print(report)

    console.rule("After")
    print(tvm_passes.as_text(report.module))

    # A wrong rewrite is the worst of bugs, so a test compares numbers, awkward ones among them.
    image = np.float32([-np.inf, -2, -0.0, 0, 3, np.inf]).reshape(1, 1, 2, 3).repeat(4, axis=1)
    before, after = (tvm_passes.runtime.compile(each, "llvm")(image) for each in (mod, report.module))
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])
    console.rule("The numbers are the same")

    # And a pass is to leave its own result alone.
    again = tvm_passes.explain(report.module, RestoreLeakyReLU())
    assert again.module.same_as(report.module)
    print("A second application finds no more to do, and still refuses the other:")
    print(again)
    tvm_passes.verify_each_pass(False)


class Network(torch.nn.Module):
    """Two that look alike: one is a leaky ReLU, the other is not."""

    def forward(self, x):
        return {"leaky": torch.maximum(0.1 * x, x), "steep": torch.maximum(x, 1.5 * x)}


# What is left to do, for a pass of this project:
#
# - its file in the folder of its purpose, an import and a name in `tvm_passes/__init__.py`;
# - its place in `tvm_passes/pipeline.py`, with the reason for it if it needs one: this one goes before
#   FuseConv2dNHWC, which takes activations into convolutions;
# - a test as `tests/passes/test_combine_transposes.py` is one: structure, numbers, every refusal by its
#   reason, and a second application that changes nothing. `tests/helpers.py` has what that takes;
# - an example at the end of the docstring, of which `python -m docs.generate` makes a page.


if __name__ == "__main__":
    main()
