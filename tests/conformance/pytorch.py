"""PyTorch's own samples through `from_pytorch`, the default pipeline and LLVM, compared with PyTorch.

    python -m tests.conformance.pytorch [--only NAME] [--dtype float32] [--first] [--stock] [--json FILE]

prints what comes of each sample that is not right, then a count. A sample is

- right: shape, dtype and numbers are PyTorch's, with NaN in the same places;
- refused: an ImportFailure of one clear line that names the operator;
- wrong: other numbers, another shape or another dtype;
- unclear: any other exception;
- crash: the end of the process, or no result within SECONDS.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import tvm_passes
from frontends import ImportFailure, from_pytorch
from tests.conformance.isolated import Died, each
from tests.conformance.outcome import Outcome, differs, last_line, refusal
from tests.conformance.pytorch_samples import DTYPES, Call, Sample, calls, run, samples
from tests.helpers import quick, runner

import tvm
from tvm import relay

SECONDS = 100
KINDS = ("right", "refused", "wrong", "crash", "unclear")
# rtol and atol; PyTorch computes float16 in float32 and rounds once, TVM rounds after each operator.
TOLERANCES = {"float32": (1e-4, 1e-5), "float16": (1e-2, 1e-2), "int64": (1e-4, 1e-5), "bool": (1e-4, 1e-5)}
# Of equal elements, which types but float32 often have, torch leaves open whose index it gives: so many
# results count.
ANY_OF_EQUALS = {"argsort": 0, "kthvalue": 1, "sort": 1, "topk": 1}


@dataclasses.dataclass(frozen=True)
class Result:
    sample: Sample
    outcome: Outcome


def try_samples(chosen: list[Sample], stock: bool = False) -> Any:
    """Yield the result of each sample, also of those that end the process."""
    found = each(try_stock if stock else try_ours, chosen, SECONDS)
    for sample, outcome in zip(chosen, found):
        yield Result(sample, Outcome("crash", str(outcome)) if isinstance(outcome, Died) else outcome)


def try_ours(sample: Sample) -> Outcome:
    call = calls(sample.operator, sample.dtype)[sample.number]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mod, params = from_pytorch(call, call.tensors)
    except ImportFailure as failure:
        message = str(failure)
        if message.startswith("torch cannot trace ") and "\n" not in message:
            return Outcome("refused", message)  # torch's own words
        return refusal(message) if "::" in message else Outcome("unclear", message)
    except Exception as error:
        return Outcome("unclear", f"import: {last_line(error)}")
    return _compare(sample, call, tvm_passes.default_pipeline(), mod, params)


def try_stock(sample: Sample) -> Outcome:
    """What TVM's own importer makes of a sample, which refuses by whatever exception."""
    call = calls(sample.operator, sample.dtype)[sample.number]
    infos = [
        (f"input{place}", (tuple(tensor.shape), str(tensor.dtype).replace("torch.", "")))
        for place, tensor in enumerate(call.tensors)
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(call, call.tensors, check_trace=False, strict=False)
            mod, params = relay.frontend.from_pytorch(traced, infos)
        names = {var.name_hint for var in mod["main"].params}
    except Exception as error:
        return Outcome("refused", last_line(error))
    used = [tensor for tensor, (name, _) in zip(call.tensors, infos) if name in names]
    return _compare(sample, call, tvm.transform.Sequential([]), mod, params, used)


def _compare(
    sample: Sample, call: Call, passes: Any, mod: Any, params: dict[str, Any], tensors: Any = None
) -> Outcome:
    expected = [tensor.numpy() for tensor in tree_leaves(run(call))]
    weights = [params[var.name_hint] for var in mod["main"].params if var.name_hint in params]
    inputs = [tensor.resolve_neg().resolve_conj().numpy() for tensor in tensors or call.tensors]
    try:
        compute = runner(passes(mod), quick())
    except Exception as error:
        return Outcome("unclear", f"compile: {last_line(error)}")
    try:
        found = compute(*inputs, *(weight.numpy() for weight in weights))
    except Exception as error:
        return Outcome("unclear", f"run: {last_line(error)}")
    if sample.operator in ANY_OF_EQUALS and sample.dtype != "float32":
        count = ANY_OF_EQUALS[sample.operator]
        found, expected = found[:count], expected[:count]
    difference = differs(found, expected, *TOLERANCES[sample.dtype])
    return Outcome("wrong", difference) if difference else Outcome("right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="an operator, such as nn.functional.pad, in all its variants")
    parser.add_argument("--dtype", choices=DTYPES, help="by default all")
    parser.add_argument("--first", action="store_true", help="only the first sample of each operator")
    parser.add_argument("--stock", action="store_true", help="TVM's own importer, for comparison")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    arguments = parser.parse_args()
    dtypes = [arguments.dtype] if arguments.dtype else DTYPES
    results = []
    for dtype in dtypes:
        chosen = samples(dtype, arguments.only)
        chosen = [sample for sample in chosen if not (arguments.first and sample.number)]
        for result in try_samples(chosen, arguments.stock):
            results.append(result)
            if result.outcome.kind != "right":
                print(
                    f"{result.outcome.kind:8} {result.sample.name}: {result.outcome.reason[:300]}", flush=True
                )
        counts = collections.Counter(r.outcome.kind for r in results if r.sample.dtype == dtype)
        operators = len({r.sample.operator for r in results if r.sample.dtype == dtype})
        text = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        print(f"{dtype}: {sum(counts.values())} samples of {operators} operators: {text}", flush=True)
    if arguments.json:
        rows = [
            [*dataclasses.astuple(result.sample), *dataclasses.astuple(result.outcome)] for result in results
        ]
        arguments.json.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
