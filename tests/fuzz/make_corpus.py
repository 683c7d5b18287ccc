"""Draw the networks that CI runs: `python -m tests.fuzz.make_corpus --seed 0 --models 60`.

A seed draws other networks where NNSmith, Z3 or hypothesis is another version, and CI is to fail for what
changed here only. So it runs networks that are kept in `corpus`: those of NNSmith as ONNX, ours as text.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx

from .general import Generator
from .own import as_text, describe

CORPUS = Path(__file__).parent / "corpus"
OWN = CORPUS / "own.txt"
MAX_BYTES = 16_384  # of a network with its inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=int, default=60, help="of either kind")
    options = parser.parse_args()
    CORPUS.mkdir(exist_ok=True)
    seeds = range(options.seed, options.seed + options.models)
    OWN.write_text("".join(as_text(describe(seed)) for seed in seeds))
    generate = Generator()
    for seed in seeds:
        try:
            model, _, inputs = generate(seed)
        except Exception:  # NNSmith's solver found no network, or PyTorch could not export it
            continue
        size = model.ByteSize() + sum(array.nbytes for array in inputs.values())
        if size <= MAX_BYTES:
            onnx.save(model, CORPUS / f"{seed:03}.onnx")
            np.savez_compressed(CORPUS / f"{seed:03}.npz", **inputs)


if __name__ == "__main__":
    main()
