"""Import Mask R-CNN, apply the passes, compile it, run it, compare it with PyTorch, and profile it.

    python -m tutorials.01_compile_mask_rcnn                  # on the CPU, a small image
    python -m tutorials.01_compile_mask_rcnn --target cuda --short-side 800    # in float16, as one CUDA graph

Run it in the root of a clone. It writes two images: detections.png shows the detections, and profile.png the
time by kind of operator, versus stock TVM. On two cores it takes about five minutes, most of them in TVM's
compiler, and half as long with `--no-stock`.
"""

from functools import partial

import torch

import frontends
import tvm_passes
from topi_ext import cpu_target
from tvm_passes import runtime
from tvm_passes.command.chart import write_chart
from tvm_passes.command.progress import quiet, step

import tvm
from tvm import relay

from . import detectors

BEFORE, AFTER = "before", "after"


def main(arguments=None):
    args = parsed(arguments)
    with quiet():  # TVM warns about every kernel that is not tuned
        run(args)


def run(args):
    target = cpu_target() if args.target == "llvm" else tvm.target.Target(args.target)
    on_cuda = target.kind.name == "cuda"
    args.output.mkdir(parents=True, exist_ok=True)
    photo = detectors.photograph(args.image)
    image = detectors.as_tensor(photo, args.short_side)
    model, class_names = detectors.detector("maskrcnn_resnet50_fpn", image, args.weights)

    with step("Import from PyTorch"):
        mod, params = frontends.from_pytorch(model, image)
        mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    with step("Apply the passes"):
        # With static shapes and padded outputs, the graph executor runs it as one CUDA graph.
        outputs = "padded" if on_cuda else "dynamic"
        report = tvm_passes.explain(mod, tvm_passes.detection_pipeline(target, outputs=outputs))
    print(report)
    with step(f"Compile for {target}"):
        compiled = runtime.compile(report.module, target, cut=on_cuda)
    print(compiled)

    inputs = image.cuda() if on_cuda else image
    model = model.to(inputs.device)
    found = detectors.as_arrays(compiled(inputs))
    with torch.inference_mode():
        detectors.compare(detectors.as_arrays(model([inputs])[0]), found)
    detectors.draw(photo, found, image, class_names, args.output / "detections.png")

    models = {AFTER: (compiled, inputs)}
    if not args.no_stock:
        with step("Stock TVM: import"):
            mod, params = detectors.stock_import(model.cpu(), image[None])
        with step("Stock TVM: compile"):
            models = {BEFORE: (runtime.compile(mod, target, params), inputs[None]), **models}
    with step("Run and profile"), torch.inference_mode():
        calls = {name: partial(each, given) for name, (each, given) in models.items()}
        calls["PyTorch"] = partial(model.to(inputs.device), [inputs])
        wait = torch.cuda.synchronize if on_cuda else lambda: None
        times = {name: runtime.call_ms(call, wait) for name, call in calls.items()}
        kinds = {
            name: runtime.ms_by_kind(runtime.profile(each, given.cpu().numpy()))
            for name, (each, given) in models.items()
        }
    for name, ms in times.items():
        print(f"An image takes {ms:.1f} ms ({name}).")
    path = args.output / "profile.png"
    height, width = image.shape[1:]
    title = f"Mask R-CNN, {height}x{width}, {args.target}" + ("; before: stock TVM" * (not args.no_stock))
    write_chart(path, title, times, kinds)
    print(f"Where the time goes: {path}")


def parsed(arguments):
    parser = detectors.parser(__doc__, short_side=160)
    parser.add_argument(
        "--target", default="llvm", help="llvm or cuda; the rest of the target is filled in (%(default)s)"
    )
    parser.add_argument(
        "--no-stock", action="store_true", help="leave out stock TVM, which takes half of the time"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
