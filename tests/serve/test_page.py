"""The page of the service in a headless browser: what it draws of an image that is dropped on it."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.batch.networks import painted, save
from tests.command.browser import HEIGHT, WIDTH, browser_path
from tests.serve.running import running
from topi_ext.encode_masks.reference import encoded
from tvm_passes.batch import BadImage, Detector
from tvm_passes.batch.decode import decode
from tvm_passes.serve import Limits

for name in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(name)
if browser_path() is None:
    pytest.skip("there is no Chromium here: apt install chromium", allow_module_level=True)

from tvm_passes.serve import answers  # noqa: E402

pytestmark = pytest.mark.slow
RED, GREEN = (20, 30, 60, 90), (100, 50, 180, 140)
SHARE = 0.45  # of a mask's color


@pytest.fixture(scope="module")
def url(detector_folder):
    detector = Detector(detector_folder("encoded"))

    async def detect(image, threshold):
        try:
            array, placed = detector.prepare(decode(image))
        except BadImage as reason:
            return answers.Answer(400, answers.error(f"the image {reason}"))
        (found,) = detector.run([array])
        row = detector.finish("", found, placed)
        return answers.Answer(200, answers.detections(row, detector.labels, threshold), 1)

    with running(detect, Limits()) as url:
        yield url


@pytest.fixture
def page(browser, url):
    """The page, opened anew; nothing may go wrong in it that the test does not take."""
    browser.open(url)
    browser.evaluate("document.getElementById('threshold').value = 0")
    yield browser
    errors, browser.errors = browser.errors, []
    assert errors == []


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    return save(tmp_path_factory.mktemp("photo") / "photo.png", painted(160, 200, RED, GREEN))


def status(page):
    return page.evaluate("document.getElementById('status').textContent")


def wait_for_detections(page):
    page.wait_for("document.getElementById('status').textContent.includes('detections')")


def canvas(page):
    """The pixels of the canvas."""
    url = page.evaluate("document.getElementById('canvas').toDataURL('image/png')")
    data = base64.b64decode(url.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def color(page, label):
    return np.array(
        page.evaluate(
            f"""import('/page/drawing.js').then(({{ color }}) => {{
                const context = new OffscreenCanvas(1, 1).getContext('2d');
                context.fillStyle = color({label});
                context.fillRect(0, 0, 1, 1);
                return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
            }})"""
        )
    )


def test_a_dropped_image_is_drawn_with_what_is_in_it(page, photo):
    page.drop(photo, 300, 300)
    wait_for_detections(page)
    assert status(page) == "2 of 2 detections, in 200x160 pixels."
    shown = canvas(page)
    assert shown.shape == (160, 200, 3)
    for label, (left, top, right, bottom) in enumerate((RED, GREEN)):
        own = color(page, label)
        for x, y in (
            (left, (top + bottom) // 2),
            (right, (top + bottom) // 2),
            ((left + right) // 2, bottom),
        ):
            np.testing.assert_allclose(shown[y, x], own, atol=2)  # the box
        np.testing.assert_allclose(shown[(top + bottom) // 2, (left + right) // 2], own, atol=2)  # a keypoint
        painted_color = np.array([20, 20, 20])
        painted_color[label] = 255
        inside = shown[(top + bottom) // 2 + 20, (left + right) // 2 + 10]
        np.testing.assert_allclose(inside, painted_color * (1 - SHARE) + own * SHARE, atol=4)  # the mask
    assert (shown[5, 5] == 20).all() and (shown[155, 90] == 20).all()


def test_what_is_in_the_image_is_told(page, photo):
    page.choose("#file", photo)
    wait_for_detections(page)
    rows = (
        "[...document.querySelectorAll('#rows tr')].map(row => row.innerText.split('\\t').map(x => x.trim()))"
    )
    assert page.evaluate(rows) == [
        ["green", "0.211", "100, 50, 180, 140"],
        ["red", "0.070", "20, 30, 60, 90"],
    ]
    assert page.evaluate("document.getElementById('canvas').ariaLabel") == "green, red"


def test_the_threshold_by_the_keyboard(page, photo):
    page.choose("#file", photo)
    wait_for_detections(page)
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "threshold"
    for _ in range(15):
        page.press("ArrowRight")
    assert page.evaluate("document.getElementById('score').value") == "0.15"
    assert status(page).startswith("1 of 2 detections")
    left, top, _, bottom = RED
    assert (canvas(page)[(top + bottom) // 2, left] == [255, 20, 20]).all()


def test_a_pasted_image(page, photo):
    text = json.dumps(photo.read_bytes().hex())
    page.evaluate(
        f"""(() => {{
            const bytes = Uint8Array.from({text}.match(/../g), each => parseInt(each, 16));
            const clipboardData = new DataTransfer();
            clipboardData.items.add(new File([bytes], "", {{type: "image/png"}}));
            document.dispatchEvent(new ClipboardEvent("paste", {{clipboardData}}));
        }})()"""
    )
    wait_for_detections(page)
    assert status(page).startswith("2 of 2")


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("broken.png", b"Dear all,", "The image is no image of a known format (JPEG, "),
        ("notes.txt", b"Dear all,", "The content type is text/plain: post an image "),
    ],
)
def test_an_error_is_told(page, photo, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    page.drop(photo, 300, 300)
    wait_for_detections(page)
    page.drop(tmp_path / name, 300, 300)
    page.wait_for("!document.getElementById('error').hidden")
    assert page.evaluate("document.getElementById('error').textContent").startswith(said)
    assert page.evaluate("document.getElementById('canvas').hidden")
    (error,) = page.errors  # the browser's own note of the status
    assert "Failed to load resource" in error
    page.errors.clear()
    page.drop(photo, 300, 300)
    wait_for_detections(page)
    assert page.evaluate("document.getElementById('error').hidden")


def test_an_image_that_the_browser_cannot_show(page, tmp_path):
    path = save(tmp_path / "photo.tif", painted(160, 200, RED, GREEN))
    page.drop(path, 300, 300)
    wait_for_detections(page)
    assert "cannot show the image" in status(page)
    assert (canvas(page)[5, 5] == 0x77).all()


def test_an_image_of_a_phone_on_a_phone(page, tmp_path):
    """Turned by EXIF, larger than the canvas, and on a narrow screen."""
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = painted(2400, 1200, (300, 400, 700, 1200))
    Image.fromarray(np.rot90(upright)).save(tmp_path / "photo.jpg", exif=exif, quality=95)
    page.resize(390, 800, mobile=True)
    try:
        page.drop(tmp_path / "photo.jpg", 100, 300)
        wait_for_detections(page)
        assert status(page) == "1 of 1 detections, in 1200x2400 pixels."
        shown = canvas(page)
        assert shown.shape == (1600, 800, 3)
        np.testing.assert_allclose(shown[400, 200], color(page, 0), atol=3)
        assert shown[700, 320, 0] > 240 and shown[1300, 320].max() < 40
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("document.getElementById('canvas').getBoundingClientRect().right") <= 390
    finally:
        page.resize(WIDTH, HEIGHT)


@pytest.mark.parametrize("size", [(7, 5), (40, 30), (64, 50)])
def test_masks_are_decoded_as_they_were_encoded(page, size):
    """In their own size, and in another one by the nearest pixel."""
    rng = np.random.default_rng(0)
    images = [rng.random(size) < share for share in (0.0, 0.02, 0.5, 1.0)]
    height, width = 20, 31
    rows, columns = ((2 * np.arange(n) + 1) * m // (2 * n) for n, m in ((height, size[0]), (width, size[1])))
    for image in images:
        (string,) = encoded(image[None].astype("uint8"), capacity=4 * image.size + 8)
        mask = {"size": size, "counts": bytes(string).rstrip(b"\0").decode()}
        for shown, expected in ((size, image), ((height, width), image[rows][:, columns])):
            found = page.evaluate(
                f"""import('/page/masks.js').then(({{ forEachColumn }}) => {{
                    const pixels = Array.from({{length: {shown[0]}}}, () => Array({shown[1]}).fill(0));
                    forEachColumn({json.dumps(mask)}, {shown[0]}, {shown[1]}, (x, top, bottom) => {{
                        for (let y = top; y < bottom; y++) pixels[y][x]++;
                    }});
                    return pixels;
                }})"""
            )
            np.testing.assert_array_equal(found, expected)
