"""Many mutations, one after the other, each in a process under watch, and what came of them."""

from __future__ import annotations

import os
import random
import re
import select
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from frontends import from_onnx
from tests.hostile.mutators import mutated
from tests.hostile.seeds import seed_models
from tests.hostile.trial import Outcome, Trial
from tvm_passes import default_pipeline, runtime

FOUND = Path(__file__).parent / "found"


@dataclass
class Campaign:
    """What was found so far."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (stage, kind)
    reasons: Counter[str] = field(default_factory=Counter)  # of refusals, without names and numbers
    bad: list[tuple[str, Outcome]] = field(default_factory=list)  # the name of the mutation
    slowest: tuple[float, str] = (0.0, "")

    def add(self, name: str, outcome: Outcome) -> None:
        self.counts[outcome.stage, outcome.kind] += 1
        if outcome.stage == "import":
            self.slowest = max(self.slowest, (outcome.seconds, name))
            if outcome.kind == "refused":
                self.reasons[reason_class(outcome.message)] += 1
        if outcome.is_bad:
            self.bad.append((name, outcome))


def reason_class(message: str) -> str:
    """A refusal without what differs from model to model."""
    message = re.sub(r"'[^']*'|\([\w.]*\)|/\S+", "…", message)
    return re.sub(r"-?\d[\d.e+]*", "N", message)[:110]


def run(
    count: int,
    seed: int,
    workers: int = 1,
    compile_every: int = 1,
    keep: Path | None = None,
    on_outcome: Callable[[Campaign], None] = lambda campaign: None,
) -> Campaign:
    """Try `count` mutations of the seed models; a file that is bad is kept in the folder `keep`.

    Each `compile_every`th that is imported is compiled and run too; 0 compiles none.
    """
    models = seed_models()
    names = sorted(models)
    warm_up(models)
    campaign, seen = Campaign(), set()
    running: list[tuple[str, Trial]] = []
    waiting = iter(range(count))
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder, "weights.bin")
        outside.write_bytes(bytes(64))
        while True:
            while len(running) < workers and (index := next(waiting, None)) is not None:
                chance = random.Random(f"{seed}.{index}")
                model = names[index % len(names)]
                data, mutators = mutated(models[model], chance)
                path = written(data, Path(folder, f"model{index}"), outside)
                label = f"{seed}-{index}-{model}-{'+'.join(mutators)}"
                to_compile = compile_every > 0 and index // len(names) % compile_every == 0
                running.append((label, Trial(path, chance.random() < 0.3, seen, to_compile)))
            if not running:
                return campaign
            for label, trial in [pair for pair in running if pair[1].poll()]:
                running = [pair for pair in running if pair[1] is not trial]
                for outcome in trial.outcomes:
                    campaign.add(label, outcome)
                    seen.add(outcome.digest)
                    if outcome.is_bad and keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{label[:80]}.onnx").write_bytes(trial.path.read_bytes())
                for file in trial.path.parent.iterdir():
                    file.unlink()
                trial.path.parent.rmdir()
                on_outcome(campaign)
            if running:
                select.select([trial.pipe for _, trial in running], [], [], 0.05)


def written(data: bytes, folder: Path, outside: Path) -> Path:
    """A model's file, with a file for its weights beside it and a link that leads outside."""
    folder.mkdir()
    (folder / "weights.bin").write_bytes(bytes(range(256)))
    os.symlink(outside, folder / "link.bin")
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def warm_up(models: dict) -> None:
    """What the first import and compilation set up is shared by the forked processes."""
    mod, _ = from_onnx(models["convolution"])
    runtime.build_library(default_pipeline()(mod), "llvm")
