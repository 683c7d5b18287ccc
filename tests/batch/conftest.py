"""Compiled detectors, a folder of photographs, and what a table has."""

import pytest

from tests.batch.networks import painted, painted_detector, save
from tvm_passes import runtime
from tvm_passes.batch.network import Network

KINDS = {
    "encoded": {"masks": "encoded", "keypoints": True},
    "raw": {"masks": "raw"},
    "pasted": {"masks": "pasted"},
    "four": {"batch": 4},
}
SIZES = 1, 2, 5  # of the kind "sizes"


@pytest.fixture(scope="session")
def detector_folder(tmp_path_factory):
    """A function that gives the folder of a compiled detector, by its kind."""
    root = tmp_path_factory.mktemp("detectors")

    def compiled(kind):
        folder = root / kind
        if not folder.exists():
            about = {"model": kind, "labels": ["red", "green", "blue"]}
            if kind == "sizes":
                mods = {size: painted_detector(size) for size in SIZES}
                networks = {size: (runtime.build_library(mod, "llvm"), mod) for size, mod in mods.items()}
                runtime.save_sizes(folder, networks, "llvm", about)
            else:
                mod = painted_detector(**KINDS[kind])
                runtime.save(folder, runtime.build_library(mod, "llvm"), mod, "llvm", about)
        return folder

    return compiled


@pytest.fixture
def sizes_that_ran(monkeypatch):
    """The batch sizes of the networks that are called, in order."""
    real, ran = Network.start, []

    def call(self, images):
        ran.append(self.images.number)
        return real(self, images)

    monkeypatch.setattr(Network, "start", call)
    return ran


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Twelve images of many sizes, some in folders, and four files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        width, height = 100 + 7 * number, 160 - 9 * number
        name = f"day{number % 3}/{number}.png" if number % 2 else f"{number}.png"
        box = (10, 20, 40 + number, 50)
        save(folder / name, painted(height, width, box, None if number % 4 else (50, 10, 90, 40)))
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("Dear all,")
    whole = save(folder / "cut.jpg", painted(90, 90, (10, 10, 80, 80))).read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "day1" / "gone.png").symlink_to(folder / "nowhere.png")
    (folder / "notes.txt").write_text("which are not images")
    return folder
