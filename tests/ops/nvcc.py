"""What nvcc says of a kernel, for every architecture that it knows of those that are supported."""

import subprocess

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
NOTHING_SPILLED = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"


def assert_compiles_without_spills(source, folder, kernels=None):
    """`kernels`: how many there are in the source, where that is known."""
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
    assert set(frames) == {NOTHING_SPILLED}
