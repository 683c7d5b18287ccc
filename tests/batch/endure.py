"""Whether a job of many images loses none, and has none twice, while it is killed again and again.

    python -m tests.batch.endure [--engine local,ray] [--images 2000] [--broken 50]

A clean run by threads says what is to be found. Then the process of such a job is killed and started again,
ten times; the disk becomes full; and with Ray, ten processes that run the network are killed. Each time, all
images have to be there once, with the same detections, bit by bit, and the broken ones as errors.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.batch.tables import reasons, rows

ROWS = 20  # of a file: much may be lost only where much is not written yet
KILLS = 10
MARK = "TVM_PASSES_ENDURE"  # in the environment of our processes, by which they are found
JOB = "import json, sys; from tests.batch.endure import work; work(json.loads(sys.argv[1]))"
# In a namespace of its own, where anyone may mount.
ON_A_DISK = """
mount -t tmpfs -o size=$1 tmpfs "$2" || exit 3
"$3" -c "$4" "$5"
mount -o remount,size=1g "$2"
"$3" -c "$4" "$5" && cp -a "$2/." "$6"
"""


def work(options):
    """What a process does."""
    from tvm_passes import batch

    print("begun", flush=True)
    try:
        summary = batch.detect(**options, resume=True, rows_per_part=ROWS)
    except batch.BatchError as error:
        sys.exit(str(error))
    print(f"{summary.images} done now, {summary.done_before} before, in {summary.seconds:.3f} s")


@dataclass
class Trial:
    """The jobs on a folder of photographs."""

    folder: Path
    expected: dict  # {name of a broken file: reason}
    clean: dict = field(default_factory=dict)  # {name: row}
    table: list = field(default_factory=list)

    def options(self, name, **more):
        output = self.folder / name / "detections.parquet"
        paths = {"source": self.folder / "photos", "output": output, "model": self.folder / "model"}
        return {**{key: str(path) for key, path in paths.items()}, **more}

    def start(self, options):
        environment = {**os.environ, MARK: str(self.folder)}
        command = [sys.executable, "-c", JOB, json.dumps(options)]
        job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert job.stdout.readline() == "begun\n"
        return job

    def check(self, title, name, interruptions, seconds):
        """All is there once, as in the clean run."""
        output = self.folder / name / "detections.parquet"
        found, errors = rows(output), reasons(output.with_name("errors.parquet"))
        assert found == self.clean, f"{title}: {len(found)} images, {len(self.clean)} in the clean run"
        assert set(errors) == set(self.expected), title
        for file, reason in self.expected.items():
            assert errors[file].startswith(reason), f"{title}: {file} {errors[file]}"
        self.table.append([title, str(interruptions), str(len(found)), str(len(errors)), f"{seconds:.0f}"])
        print(" | ".join(self.table[-1]), flush=True)


def clean(trial):
    job = trial.start(trial.options("clean"))
    start = time.time()
    assert job.wait() == 0, job.stdout.read()
    trial.clean = rows(trial.folder / "clean" / "detections.parquet")
    took = time.time() - start
    trial.check("clean, by threads", "clean", 0, took)
    return took


def killed(trial, seconds):
    """The process of a job, by SIGKILL, at random moments, the last ones of which are near its end."""
    start, random_ = time.time(), random.Random(1)
    for number in range(KILLS):
        job = trial.start(trial.options("killed"))
        time.sleep(random_.uniform(0.1, 1.7) * seconds / (KILLS + 2))
        assert job.poll() is None, f"the job ended before kill {number + 1}: give more images"
        job.kill()
        job.wait()
    job = trial.start(trial.options("killed"))
    assert job.wait() == 0
    trial.check("threads, killed and resumed", "killed", KILLS, time.time() - start)


def disk_full(trial):
    """On a disk in memory of half the size that is needed, and then on a larger one."""
    start, disk = time.time(), trial.folder / "disk"
    disk.mkdir()
    (trial.folder / "full").mkdir()
    options = json.dumps(trial.options("disk"))
    written = (path for path in (trial.folder / "clean").rglob("*.parquet") if path.is_file())
    needed = sum(path.stat().st_size for path in written)
    arguments = [needed // 2, disk, sys.executable, JOB, options, trial.folder / "full"]
    script = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ON_A_DISK, "sh", *arguments]
    done = subprocess.run([*map(str, script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "is full: free some of it; what was written is whole" in done.stderr, done.stderr
    before = int(re.findall(r"done now, (\d+) before", done.stdout)[0])
    assert before, "nothing was written before the disk was full"
    trial.check("threads, disk full and resumed", "full", 1, time.time() - start)


def actors_killed(trial):
    """Processes of Ray that have loaded the network, at random, within seconds of each other."""
    start, random_ = time.time(), random.Random(2)
    job = trial.start(trial.options("ray", engine="ray", workers=2))
    killed = set()
    while len(killed) < KILLS:
        time.sleep(random_.uniform(0, 1))
        assert job.poll() is None, f"the job ended after {len(killed)} kills: give more images"
        living = set(actors(trial.folder)) - killed
        if living:
            victim = random_.choice(sorted(living))
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
    assert job.wait() == 0
    trial.check("Ray, actors killed", "ray", KILLS, time.time() - start)


def actors(folder):
    """The processes that a job started and that have loaded the network."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"ray::MapWorker" in (process / "cmdline").read_bytes()
                and f"{MARK}={folder}".encode() in (process / "environ").read_bytes()
                and str(folder / "model") in (process / "maps").read_text()
            ):
                yield int(process.name)
        except OSError:  # it has ended
            pass


def compile_network(folder):
    """In a process of its own."""
    from tests.batch.networks import painted_detector
    from tvm_passes import runtime

    mod = painted_detector(masks="encoded", keypoints=True, size=(96, 128))
    runtime.save(folder, runtime.build_library(mod, "llvm"), mod, "llvm", {"model": "painted"})


def main():
    from tests.batch import photographs
    from tests.benchmarks._common import cpu_name, markdown_table, publish

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="local,ray", help="which engines, with commas between them")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--broken", type=int, default=50, help="how many of them are")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        expected = photographs.write(folder / "photos", args.images, args.broken)
        compile_network(folder / "model")
        trial = Trial(folder, expected)
        seconds = clean(trial)
        if "local" in args.engine:
            killed(trial, seconds)
            disk_full(trial)
        if "ray" in args.engine:
            actors_killed(trial)
    facts = {
        "CPU": f"{cpu_name()}, {os.cpu_count()} threads",
        "Images": f"{args.images} files, {args.broken} of them broken in {len(photographs.BROKEN)} ways; "
        "JPEG of 300x300 to 1280x720 pixels, portrait and landscape",
        "Compared": "with the clean run: all columns of all rows, bit by bit, and the reasons of all errors",
        "Full disk": "a tmpfs of half the size of the clean run's tables, then a larger one",
    }
    said = "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
    table = markdown_table(
        ["job", "interruptions", "images", "errors", "seconds, with all starts"], trial.table
    )
    publish("batch_endurance", "Many images, while processes are killed", f"{said}\n\n{table}", cpu_name())


if __name__ == "__main__":
    main()
