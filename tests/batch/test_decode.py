"""Images of all modes become upright RGB; for what cannot be used there is a reason."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from tvm_passes.batch import BadImage
from tvm_passes.batch import decode as decode_module
from tvm_passes.batch.decode import ORIENTATION, decode

RED = (200, 40, 10)


def encoded(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def upright():
    """No two corners alike."""
    pixels = np.zeros((24, 40, 3), "uint8")
    pixels[:12, :20], pixels[:12, 20:], pixels[12:, :20] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    return pixels


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_formats(format):
    found = decode(encoded(Image.new("RGB", (9, 5), RED), format))
    assert found.shape == (5, 9, 3) and found.dtype == "uint8" and found.flags.writeable
    np.testing.assert_allclose(found, np.broadcast_to(RED, (5, 9, 3)), atol=6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_camera_was_turned(orientation):
    back = {2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}  # the turn that undoes each
    from tvm_passes.batch.decode import TURNS

    image = Image.fromarray(upright())
    stored = image.transpose(TURNS[back[orientation]]) if orientation > 1 else image
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    np.testing.assert_array_equal(decode(encoded(stored, exif=exif)), upright())


def outcome(data):
    try:
        return decode(data)
    except BadImage as reason:
        return str(reason)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0, "quality": 95}])
def test_a_plain_jpeg_is_what_pillow_makes_of_it(monkeypatch, options):
    """And so are damaged ones, and those that lack a part before their end."""
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (9, 12, 3), "uint8")).resize(
        (61, 45), Image.Resampling.BICUBIC
    )
    whole = encoded(image, "JPEG", **options)
    given = [whole]
    for at in rng.integers(0, len(whole) - 2, 150):
        given += [whole[:at] + bytes([rng.integers(256)]) + whole[at + 1 :], whole[:at] + whole[-2:]]
    found = list(map(outcome, given))
    monkeypatch.setattr(decode_module, "_of_plain_jpeg", lambda *_: None)
    for one, other in zip(found, map(outcome, given)):
        np.testing.assert_array_equal(one, other)
    assert any(isinstance(one, str) for one in found)


def test_a_plain_jpeg_does_without_pillow(monkeypatch):
    monkeypatch.setattr(decode_module, "open_upright", lambda *_: pytest.fail("Pillow was asked"))
    assert decode(encoded(Image.fromarray(upright()), "JPEG")).shape == (24, 40, 3)


def test_a_torchvision_that_fails_is_no_damage_of_an_image(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(ImportError):
        decode(encoded(Image.fromarray(upright()), "JPEG"))


def test_exif_that_is_damaged_does_not_lose_the_image():
    data = encoded(Image.fromarray(upright()), exif=b"Exif\0\0MM\0*\xff\xff\xff\xff damaged")
    np.testing.assert_array_equal(decode(data), upright())


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_modes(mode):
    image = Image.fromarray(upright()).convert(mode)
    found = decode(encoded(image, "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"))
    np.testing.assert_allclose(found, np.asarray(image.convert("RGB")), atol=2)


def test_inks_of_a_jpeg():
    """As Adobe writes them, which is inverted."""
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    np.testing.assert_allclose(decode(encoded(image, "JPEG"))[4, 4], (255, 0, 0), atol=8)


def test_a_palette_with_transparency():
    image = Image.fromarray(upright()).convert("P")
    found = decode(encoded(image, transparency=0))
    np.testing.assert_array_equal(found, np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_16_bits_are_scaled(format):
    values = np.linspace(0, 0xFFFF, 64).astype("uint16").reshape(8, 8)
    found = decode(encoded(Image.fromarray(values), format))
    np.testing.assert_array_equal(found[..., 1], values >> 8)
    assert found.min() == 0 and found.max() == 255


def png(width, height, data=b""):
    """A file that says that it is so large."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


JPEG = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), "uint8")), "JPEG")
BAD = {
    "empty": (b"", "is empty"),
    "text": (b"Dear all,", "is no image of a known format"),
    "a header only": (JPEG[:20], "is "),
    "half": (JPEG[: len(JPEG) // 2], "is truncated or damaged: image file is truncated"),
    "half a png": (encoded(Image.fromarray(upright()))[:80], "is truncated or damaged"),
    "half a webp": (encoded(Image.fromarray(upright()), "WEBP", lossless=True)[:60], "is "),
    "no pixels": (png(64, 64), "is truncated or damaged"),
    "a bomb": (png(20000, 20000), r"has 20000x20000 pixels|is too large"),
    "a small bomb": (png(9500, 9500), "has 9500x9500 pixels, more than the 89478485 that are allowed"),
    "floats": (encoded(Image.fromarray(np.ones((4, 4), "float32")), "TIFF"), "has floats as pixels"),
    "32 bits": (encoded(Image.fromarray(np.full((4, 4), 1 << 20, "int32")), "TIFF"), "has pixels of 32 bits"),
    "a program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "is no image of a known"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", BAD)
def test_why_an_image_cannot_be_used(name):
    data, reason = BAD[name]
    with pytest.raises(BadImage, match=reason):
        decode(data)


def test_the_limit_is_an_option():
    data = encoded(Image.new("RGB", (20, 10)))
    assert decode(data, max_pixels=200).shape == (10, 20, 3)
    with pytest.raises(BadImage, match="has 20x10 pixels, more than the 199 that are allowed"):
        decode(data, max_pixels=199)
