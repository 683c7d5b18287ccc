"""Many photographs of mixed sizes, with broken files of each kind among them; the same ones every time."""

import os

import numpy as np
from PIL import Image

from tests.batch.networks import painted, save

SIZES = [(480, 640), (640, 480), (360, 640), (768, 512), (300, 300), (1280, 720), (720, 1280)]


def write(folder, images, broken):
    """Returns {name of a broken file: how the reason of its error begins}."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    places = {int(place) for place in random.permutation(images)[:broken]}
    expected = {}
    for number in range(images):
        name = f"{number % 7}/{number:05}.jpg"
        whole = _photograph(folder / name, random)
        if number in places:
            make, reason = BROKEN[len(expected) % len(BROKEN)]
            make(whole)
            expected[name] = reason
    return expected


def _photograph(path, random):
    """Two or three bright boxes on noise, as a camera's JPEG."""
    height, width = SIZES[random.integers(len(SIZES))]
    boxes = []
    for _ in range(3):
        left, right = sorted(random.integers(0, width, 2))
        top, bottom = sorted(random.integers(0, height, 2))
        boxes.append((left, top, right, bottom) if random.random() < 0.8 else None)
    noise = random.integers(0, 64, (height // 8 + 1, width // 8 + 1, 3), "uint8")
    background = noise.repeat(8, 0).repeat(8, 1)[:height, :width]
    return save(path, np.maximum(painted(height, width, *boxes), background), quality=90)


def _empty(path):
    path.write_bytes(b"")


def _text(path):
    path.write_text("Dear all,\n" * 100)


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _gone(path):
    path.unlink()
    path.symlink_to("nowhere.jpg")


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _bomb(path):
    Image.new("1", (20_000, 20_000)).save(path, "PNG")


def _floats(path):
    Image.fromarray(np.zeros((8, 8), "float32")).save(path, "TIFF")


BROKEN = [
    (_empty, "is empty"),
    (_text, "is no image of a known format"),
    (_cut, "is truncated or damaged"),
    (_gone, "does not exist"),
    (_pipe, "is not a file"),
    (_bomb, "is too large: Image size (400000000 pixels)"),
    (_floats, "has floats as pixels"),
]
