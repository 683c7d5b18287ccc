"""Export Faster R-CNN to ONNX, import it for camera images, compile it, run it, and compare it with PyTorch.

    python -m tutorials.04_compile_faster_rcnn_onnx

Run it in the root of a clone. The compiled model takes uint8 images as a camera delivers them, and does
the preprocessing itself. On two cores this takes about two minutes. It writes the ONNX model and
faster_rcnn.png, which shows the detections.
"""

import torch

import frontends
import tvm_passes
from topi_ext import cpu_target
from tvm_passes import runtime
from tvm_passes.command.progress import quiet, step

from . import detectors


def main(arguments=None):
    args = detectors.parser(__doc__, short_side=256).parse_args(arguments)
    with quiet():  # the tracer warns about sizes that it treats as constants, TVM about untuned kernels
        run(args)


def run(args):
    target = cpu_target()
    args.output.mkdir(parents=True, exist_ok=True)
    photo = detectors.photograph(args.image)
    image = detectors.as_tensor(photo, args.short_side)
    model, class_names = detectors.detector("fasterrcnn_mobilenet_v3_large_320_fpn", image, args.weights)

    path = args.output / "faster_rcnn.onnx"
    with step("Export to ONNX"):
        names = ["boxes", "labels", "scores"]
        torch.onnx.export(
            model, image[None], str(path), opset_version=16, input_names=["image"], output_names=names
        )
    with step("Import from ONNX"):
        camera = frontends.Camera(*image.shape[1:], channels="BGR")
        mod, _ = frontends.from_onnx(path, camera=camera)
    with step("Apply the passes"):
        report = tvm_passes.explain(mod, tvm_passes.detection_pipeline(target))
    print(report)
    with step(f"Compile for {target}"):
        compiled = runtime.compile(report.module, target)
    print(compiled)

    frame = (image.permute(1, 2, 0).flip(2) * 255).round().to(torch.uint8)  # as from OpenCV's VideoCapture
    found = detectors.as_arrays(compiled(frame[None].contiguous()))
    with torch.no_grad():
        detectors.compare(detectors.as_arrays(model([image])[0]), found)
    detectors.draw(photo, found, image, class_names, args.output / "faster_rcnn.png")


if __name__ == "__main__":
    main()
