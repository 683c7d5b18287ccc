"""What nvcc says of a kernel, for every architecture that it knows of those that are supported."""

import re
import subprocess

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)


def assert_compiles_without_spills(source, folder, kernels=None, spilled=0):
    """`kernels`: how many there are in the source, where that is known. `spilled`: bytes that ptxas may put
    aside, as it does with variables of outer loops to run more threads at a time."""
    path = folder / "kernels.cu"
    path.write_text(source)
    known = subprocess.run(["nvcc", "--list-gpu-arch"], capture_output=True, text=True).stdout
    archs = [arch for arch in ARCHITECTURES if f"compute_{arch}\n" in known]
    targets = [word for arch in archs for word in ("-gencode", f"arch=compute_{arch},code=sm_{arch}")]
    command = ["nvcc", "-std=c++17", "-fatbin", "-Xptxas", "-v", *targets, "-o", folder / "out", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    frames = [line.strip() for line in done.stderr.splitlines() if "stack frame" in line]
    assert len(frames) % len(archs) == 0 and kernels in (None, len(frames) // len(archs))
    assert all(int(number) <= spilled for frame in frames for number in re.findall(r"\d+", frame)), frames
