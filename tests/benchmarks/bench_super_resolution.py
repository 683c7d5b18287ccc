"""Time super-resolution networks versus torch: `python -m tests.benchmarks.bench_super_resolution`.

They are spandrel's, as large as their authors trained them, or with fewer blocks where that says "of". Each
is prepared in a process of its own, all at once, and then they are timed one after the other. `--target cpu`
times the CPU instead, in float32 and on smaller images, one network at a time.
"""

import os
import subprocess
import sys
import time
import warnings
from copy import deepcopy
from functools import partial

import torch

import frontends
import topi_ext
import tvm_passes
from tests.benchmarks import _common as common
from tests.benchmarks import _versus_compiled as versus_compiled
from tests.benchmarks._versus_compiled import off_by
from tests.benchmarks.bench_zoo import facts_and_rows, in_time, parser
from tests.benchmarks.timing import in_turn
from tests.zoo.models.super_resolution import SPANDREL, class_of
from topi_ext.conv2d_nhwc import onednn

from tvm import relay

MODULE = "tests.benchmarks.bench_super_resolution"
# name: (whose class in the zoo, arguments, channels, height and width)
SMALL, LARGE, SQUARE = (270, 480), (540, 960), (256, 256)
SWIN = {
    "img_size": 64,
    "embed_dim": 180,
    "depths": (6,),
    "num_heads": (6,),
    "upscale": 4,
    "upsampler": "pixelshuffle",
}
NETWORKS = {
    "Compact x4": ("Compact", {}, 3, LARGE),
    "SPAN x4": ("SPAN", {"num_in_ch": 3, "num_out_ch": 3}, 3, LARGE),
    "ESRGAN x4, 6 of 23 blocks": ("ESRGAN", {"num_blocks": 6}, 3, SMALL),
    "ESRGAN x2, 6 of 23 blocks": (
        "ESRGAN+, x2 from unshuffled",
        {"in_nc": 12, "num_blocks": 6, "shuffle_factor": 2},
        3,
        LARGE,
    ),
    "RCAN x4, 2 of 10 groups": ("RCAN", {"scale": 4, "n_resgroups": 2}, 3, SMALL),
    "RealCUGAN x2": ("RealCUGAN x2", {}, 3, LARGE),
    "DnCNN": ("DnCNN", {"in_nc": 3, "out_nc": 3, "nb": 20, "act_mode": "R"}, 3, LARGE),
    "DRUNet": ("DRUNet", {"in_nc": 3, "out_nc": 3}, 3, (512, 512)),
    "SwiftSRGAN x4": ("SwiftSRGAN", {}, 3, LARGE),
    "PLKSR x4, 8 of 28 blocks": ("PLKSR", {"n_blocks": 8}, 3, SMALL),
    "SAFMN x4": ("SAFMN", {"dim": 36}, 3, LARGE),
    "NAFNet": ("NAFNet", {"width": 32, "enc_blk_nums": [1, 1, 1, 4], "dec_blk_nums": [1] * 4}, 3, (512, 512)),
    "MoSR x2, 8 of 24 blocks": ("MoSR", {"n_block": 8, "upscale": 2}, 3, SMALL),
    "SwinIR x4, 1 of 6 groups": ("SwinIR", {**SWIN, "window_size": 8, "mlp_ratio": 2}, 3, SQUARE),
    "Swin2SR x4, 1 of 6 groups": ("Swin2SR", {**SWIN, "window_size": 8, "mlp_ratio": 2}, 3, SQUARE),
    "HAT x4, 1 of 6 groups": (
        "HAT",
        {**SWIN, "window_size": 16, "mlp_ratio": 2, "squeeze_factor": 30, "compress_ratio": 3},
        3,
        SQUARE,
    ),
    "DAT x4, 1 of 6 groups": (
        "DAT",
        {
            "img_size": 64,
            "embed_dim": 180,
            "split_size": [8, 32],
            "depth": [6],
            "num_heads": [6],
            "upscale": 4,
        },
        3,
        SQUARE,
    ),
    "FDAT x4, 1 of 4 groups": ("FDAT", {"num_groups": 1}, 3, SQUARE),
}
SECONDS_ON_CPU, ROUNDS_ON_CPU = 300, 5  # that torch.compile may take, and that are timed
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
LAYOUTS = {"": torch.contiguous_format, ", NHWC": torch.channels_last}
ON_CPU = """Milliseconds of the processor, with one thread, in float32: the median of calls. It is less
disturbed by other work on the machine than the host's clock is. `torch.compile` has its default mode; NHWC is
channels_last. Off: the largest difference from torch, in parts of the largest element."""


def main():
    arguments = parser(__doc__, "networks with this in their name")
    targets = "cuda; cpu, which is topi_ext.cpu_target(); or a target of LLVM"
    arguments.add_argument("--target", default="cuda", help=targets)
    args = arguments.parse_args()
    warnings.simplefilter("ignore")
    names = [name for name in NETWORKS if not args.only or any(text in name for text in args.only)]
    if args.one:
        measure(args.one, args.to, time.monotonic() + args.seconds)
    elif args.target == "cuda":
        facts, rows = facts_and_rows(names, args.seconds, MODULE)
        publish([*facts, "", versus_compiled.TEXT], rows)
    else:
        if not ONE_THREAD.items() <= os.environ.items():  # they are read as the libraries are loaded
            command = [sys.executable, "-m", MODULE, *sys.argv[1:]]
            sys.exit(subprocess.call(command, env={**os.environ, **ONE_THREAD}))
        target = str(topi_ext.cpu_target()) if args.target == "cpu" else args.target
        rows = [{"name": name, **on_cpu(name, target)} for name in names]
        facts = [
            f"- CPU: {common.cpu_name()}",
            f"- torch: {torch.__version__}, oneDNN: {onednn.version()}",
        ]
        publish([*facts, f"- Target: `{target}`", "", ON_CPU], rows, common.cpu_name())


def measure(name, to, deadline):
    """Prepare a network, say so, wait for a line on the standard input, and time it."""
    network, image = network_of(name)
    # From float32, as they come: in float16, torch cannot trace all of them.
    prepare = partial(prepared, network, image, common.tensor_core_target("cudnn-frontend"))
    versus_compiled.measure(prepare, network, image, to, deadline)


def on_cpu(name, target):
    network, image = network_of(name, part=4)
    start = time.monotonic()
    ours, pixels = prepared(network, image, target), image.numpy()
    seconds = time.monotonic() - start
    with torch.no_grad():
        wanted = network(image.clone())
        calls = {}
        for layout, of_layout in LAYOUTS.items():
            given, own = image.clone(memory_format=of_layout), deepcopy(network).to(memory_format=of_layout)
            calls[f"eager{layout}"] = partial(own, given)
            by_compiler = in_time(partial(torch.compile(own), given), SECONDS_ON_CPU)
            if by_compiler is not None:
                calls[f"torch.compile{layout}"] = by_compiler
        times = in_turn({"ours": partial(ours, pixels), **calls}, ROUNDS_ON_CPU)["processor"]
    off = {"ours": off_by(ours(pixels), wanted), "torch": 0.0}
    row = {"ours": times.pop("ours"), "times": times, "seconds": seconds, "off": off}
    print(name, row, flush=True)
    return row


def network_of(name, part=1):
    whose, options, channels, (height, width) = NETWORKS[name]
    torch.manual_seed(0)
    network = class_of(*SPANDREL[whose][:2])(**options).eval()
    generator = torch.Generator().manual_seed(0)
    return network, torch.rand(1, channels, height // part, width // part, generator=generator)


def prepared(network, image, target):
    mod, params = frontends.from_pytorch(network, image)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    mod = tvm_passes.subpixel_pipeline(target)(mod)
    return tvm_passes.runtime.compile(mod, target, copy_outputs=False)


def publish(facts, rows, machine=None):
    text = "\n".join([*facts, "", versus_compiled.table(rows)])
    common.publish("super_resolution", "Super-resolution networks of others", text, machine)


if __name__ == "__main__":
    main()
