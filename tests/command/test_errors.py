"""Whatever goes wrong, the command says it in one line, with what to do, and its status is not 0."""

import gc
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.command.networks import HERE, write_onnx

COLOURS = f"{HERE}:colours"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The folder in which the commands of these tests run."""
    monkeypatch.chdir(tmp_path)
    write_onnx(tmp_path / "relu.onnx", "Relu")
    write_onnx(tmp_path / "empty.onnx")
    write_onnx(tmp_path / "nothing.onnx", "Identity")
    write_onnx(tmp_path / "unknown.onnx", "Frobnicate")
    write_onnx(tmp_path / "foreign.onnx", "Frobnicate", domain="com.acme")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "relu.onnx").read_bytes()[:60])
    (tmp_path / "no_bytes.onnx").write_bytes(b"")
    (tmp_path / "letter.txt").write_text("Dear all,")
    (tmp_path / "weights.pt").write_bytes(b"cos\nsystem\n(S'touch unpickled'\ntR.")
    (tmp_path / "folder").mkdir()
    return tmp_path


MODELS = {
    "absent.onnx": "there is no file absent.onnx",
    "resnet18": "there is no file resnet18: give an ONNX file, torchvision:NAME, or module:function",
    "letter.txt": "letter.txt is not an ONNX model",
    "cut.onnx": "cut.onnx is not an ONNX model",
    "no_bytes.onnx": "no_bytes.onnx is not an ONNX model",
    "empty.onnx": "empty.onnx contains no operator: give a model that computes something",
    "nothing.onnx": "nothing.onnx contains no operator",
    "unknown.onnx": "no converter for the operator of the node 'node0' (Frobnicate): export the model",
    "foreign.onnx": "(com.acme.Frobnicate)",
    "weights.pt": "unpickling a file may run code in it",
    "folder": "folder is a folder: give",
    "torchvision:maskrcnn_resnet50": "there is maskrcnn_resnet50_fpn",
    "torchvision:resnet18(": "is neither a name nor a call",
    "torchvision:resnet18(3)": "has an argument without a name: give such as resnet18(num_classes=2)",
    "sys:exit(3)": "a function that it called ended with sys.exit(3)",
    "torchvision:resnet18(nonsense=1)": "unexpected keyword argument 'nonsense'",
    "no_such_module:model": "cannot import no_such_module",
    "math:squareroot": "math has no squareroot",
    "math:squ": "math has no squ",
    "math:fmo": "math has no fmo; there is fmod",
    f"{HERE}:net": "net has no example inputs: give --size",
    f"{HERE}:takes_a_number": "cannot be called so (missing a required argument: 'number'): give",
    "torchvision:deeplab": "there is deeplabv3_mobilenet_v3_large, deeplabv3_resnet101, deeplabv3_resnet50",
    "math:pi": "is not callable: give a function",
    "./math:sqrt": "'./math' is not the name of a module: give such as package.module:sqrt",
    ":sqrt": "'' is not the name of a module",
    "": "the name of the model is empty: give an ONNX file",
    "math:sqrt(__import__('os').getpid())": "is neither a name nor a call with literals",
    f"{HERE}:number": "returns int: it must return an nn.Module",
    f"{HERE}:upscaler": "has no example inputs: give --size or --input-shape",
    f"{HERE}:fails": "the weights are in the other building (--verbose shows where)",
}


@pytest.mark.parametrize("model", MODELS)
def test_models_that_are_none(tvm_passes_command, files, model):
    answer = tvm_passes_command("inspect", model)
    assert answer.status == 1
    assert MODELS[model] in answer.error
    assert answer.out == "" and "Traceback" not in answer.err
    assert not (files / "unpickled").exists()


def changed(path, change):
    import onnx

    model = onnx.load(path)
    change(model.graph.node[0], model)
    return model.SerializeToString()


BATCHES = {  # which cannot be compiled for several images
    COLOURS: "returns a module of TVM, which has a batch size: leave out --batch",
    "flat.onnx": "flat.onnx does not take a batch of images: leave out --batch",
    "fixed.onnx": r"returns float32 \[1, 3, 24, 32\], not one for each image: export it with",
    f"{HERE}:pair_and_images": r"takes \[1, 3, 24, 32\], \[1, 3, 24, 32\], not a batch of images",
}


@pytest.mark.parametrize("model", BATCHES)
def test_models_that_take_no_batch(tvm_passes_command, files, model):
    write_onnx(files / "flat.onnx", "Relu", shape=(3, 24))
    (files / "fixed.onnx").write_bytes(fixed_to_one_image(files / "relu.onnx"))
    answer = tvm_passes_command("compile", model, "-o", files / "out", "--batch", "2")
    assert answer.status == 1 and re.search(BATCHES[model], answer.error), answer.error
    assert not (files / "out").exists()


@pytest.mark.parametrize("text", ["0", "1,", "a", "1;8", ""])
def test_batch_sizes_that_are_none(tvm_passes_command, files, text):
    answer = tvm_passes_command("compile", COLOURS, "-o", files / "out", "--batch", text)
    assert answer.status == 2
    assert f"'{text}' is not a list of numbers of images: give such as 1,8" in answer.error


def fixed_to_one_image(path):
    """The mean of all images, which says that there is one."""
    import onnx

    model = onnx.load(path)
    node = model.graph.node[0]
    node.op_type = "ReduceMean"
    node.attribute.extend(
        [onnx.helper.make_attribute("axes", [0]), onnx.helper.make_attribute("keepdims", 1)]
    )
    return model.SerializeToString()


BROKEN = {  # what is done to a file, and what is said of it
    "half": (lambda path: path.read_bytes()[: path.stat().st_size // 2], "is not an ONNX model"),
    "empty": (lambda path: b"", "it has no graph"),
    "noise": (lambda path: bytes(range(256)), "is not an ONNX model"),
    "not UTF-8": (lambda path: path.read_bytes().replace(b"image", b"pictu\xffe"), "image.onnx|UTF-8"),
    "cycle": (
        lambda path: changed(path, lambda node, _: node.input.__setitem__(0, node.output[0])),
        r"'node0' \(Relu\) reads 'value0', which only it or a later node computes",
    ),
    "too many inputs": (
        lambda path: changed(path, lambda node, _: node.input.append("image")),
        r"'node0' \(Relu\) has 2 inputs; Relu has 1",
    ),
    "no name": (
        lambda path: changed(path, lambda _, model: setattr(model.graph.input[0], "name", "")),
        "an input of the graph 'test' has no name|has no name",
    ),
    "huge": (
        lambda path: changed(
            path,
            lambda _, model: setattr(model.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 2**62),
        ),
        "the input 'image' is too large",
    ),
    "outside": (
        lambda path: changed(path, add_weights_outside),
        "are in '/etc/passwd', which is outside the model's folder",
    ),
}


def add_weights_outside(node, model):
    weight = model.graph.initializer.add(name="weight", data_type=1, dims=[1], data_location=1)
    weight.external_data.add(key="location", value="/etc/passwd")


@pytest.mark.parametrize("command", ["inspect", "compile -o out", "profile", "inspect --size 8x8"])
@pytest.mark.parametrize("kind", BROKEN)
def test_files_that_are_broken(tvm_passes_command, files, kind, command):
    make, said = BROKEN[kind]
    path = files / "image.onnx"
    path.write_bytes(make(files / "relu.onnx"))
    name, *options = command.split()
    answer = tvm_passes_command(name, path, *options)
    assert answer.status == 1 and re.search(said, answer.error), answer.error
    assert "Traceback" not in answer.err and not (files / "out").exists()


OPTIONS = {
    "--target cudda": "give llvm",
    "--pipeline os:getcwd": "returns str, which is not a TVM pass",
    "--pipeline convolution": "the pipeline convolution is for Relax: give auto, detection, subpixel",
    "--outputs cut": "--outputs is for detectors",
    "--masks encoded": "--masks is for detectors",
    "--weights trained": "an ONNX file has its own",
    "--input-shape other=1,3,8,8": "has 'other', which is not an input",
    "--input-shape x=1,3,8,8 --input-shape x=1,3,4,4": "gives x twice, with different shapes",
    "--input-shape 1,3,8,8 --input-shape 1,3,4,4": "give all --input-shape by name, or one without",
    "--graph no/where.html": "there is no folder no",
    "--graph folder": "folder is a folder: give the name of a file",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options_that_do_not_fit(tvm_passes_command, files, options):
    answer = tvm_passes_command("inspect", "relu.onnx", *options.split())
    assert answer.status == 1 and OPTIONS[options] in answer.error


COMMAND_LINES = {
    "": "required: COMMAND",
    "inspect": "required: MODEL",
    "inspekt relu.onnx": "invalid choice: 'inspekt'",
    "compile relu.onnx": "required: -o/--output",
    "inspect relu.onnx --size 8": "'8' is not a size: give height and width, such as 480x640",
    "inspect relu.onnx --size 0x8": "is not a size",
    "inspect relu.onnx --input-shape 1,3,a": "'1,3,a' is not a shape",
    "inspect relu.onnx --camera 8x8:GRB": "ends neither in RGB nor in BGR",
    "inspect relu.onnx --dtype int8": "invalid choice",
}


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_command_lines_that_cannot_be_read(tvm_passes_command, line):
    answer = tvm_passes_command(*line.split())
    assert answer.status == 2
    assert COMMAND_LINES[line] in answer.error and "--help" in answer.error


OF_FUNCTIONS = {
    "upscaler --size 8x8 --weights trained": "--weights is for torchvision:NAME",
    "pair --input-shape other=1,3,8,8": "takes input1, input2, and --input-shape has other: give the first",
    "pair --input-shape input2=1,2": "and --input-shape has input2: give the first ones by their names",
    "pair --input-shape input1=1,2 --input-shape input1=1,3": "gives input1 twice, with different shapes",
    "pair --input-shape input1=1,2 --input-shape 1,3": "give all --input-shape by name, or all in order",
}


@pytest.mark.parametrize("line", OF_FUNCTIONS)
def test_options_that_do_not_fit_a_function(tvm_passes_command, line):
    answer = tvm_passes_command("inspect", *f"{HERE}:{line}".split())
    assert answer.status == 1 and OF_FUNCTIONS[line] in answer.error, answer.error


def test_shapes_by_name_in_any_order(tvm_passes_command):
    shapes = "--input-shape", "input2=6,5", "--input-shape", "input1=6,4"
    answer = tvm_passes_command("inspect", f"{HERE}:pair", *shapes)
    assert answer.status == 0, answer.error


FULL = {  # a disk that is full
    "inspect relu.onnx --graph": "full.html",
    "profile relu.onnx --csv": "full.csv",
    "run {compiled} --image photo.png -o": "full.NPZ",
}


@pytest.mark.parametrize("line", FULL)
def test_a_disk_that_is_full(tvm_passes_command, files, compiled, line, monkeypatch):
    from PIL import Image

    unraised = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    Image.new("RGB", (32, 24)).save("photo.png")
    os.symlink("/dev/full", FULL[line])
    answer = tvm_passes_command(*line.format(compiled=compiled).split(), FULL[line])
    assert answer.status == 1
    assert f"cannot write {FULL[line]} (No space left on device): free some space" in answer.error
    gc.collect()
    assert not [
        each for each in unraised if FULL[line] in repr(each.object)
    ]  # as of a file that is still open


def test_relay_modules_have_their_shapes(tvm_passes_command):
    answer = tvm_passes_command("inspect", COLOURS, "--size", "8x8")
    assert answer.status == 1 and "leave out the sizes" in answer.error


OUTPUTS = {  # by the command that writes them, which must not find out at its end
    "inspect relu.onnx --graph": "graph.html",
    "compile relu.onnx -o": "locked/network",
    "profile relu.onnx --chart": "chart.png",
}


@pytest.mark.parametrize("line", OUTPUTS)
def test_outputs_without_a_permission(tvm_passes_command, files, monkeypatch, line):
    monkeypatch.setattr("os.access", lambda path, _: False)  # root may write anywhere
    answer = tvm_passes_command(*line.split(), OUTPUTS[line])
    assert answer.status == 1 and "there is no permission to write to" in answer.error
    assert "Find" not in answer.err


@pytest.mark.parametrize("line", ["compile relu.onnx -o network", "profile relu.onnx"])
def test_a_target_of_another_machine(tvm_passes_command, files, line):
    answer = tvm_passes_command(*line.split(), "--target", "llvm -mtriple=aarch64-linux-gnu")
    assert answer.status == 1 and "--target: the target is for aarch64-linux-gnu, and this" in answer.error
    assert "Find" not in answer.err


@pytest.mark.parametrize(
    "kind, reason", [("vulkan", "this TVM was built without vulkan"), ("c", "source code")]
)
def test_a_target_that_tvm_does_not_build(tvm_passes_command, files, kind, reason):
    answer = tvm_passes_command("compile", "relu.onnx", "-o", "network", "--target", kind)
    assert answer.status == 1 and reason in answer.error and 'give "llvm"' in answer.error
    assert "Find" not in answer.err


def test_names_that_are_empty(tvm_passes_command, files):
    """As those of variables that are not set: an empty path is the current folder."""
    answer = tvm_passes_command("compile", "relu.onnx", "-o", "")
    assert answer.status == 1 and "the name of the folder to write is empty: give a name" in answer.error
    for line in (
        ["run", "", "--image", "photo.png"],
        ["serve", ""],
        ["detect", ".", "-o", "x", "--model", ""],
    ):
        assert "the name of the folder is empty: give a folder that" in tvm_passes_command(*line).error


def test_a_folder_in_a_file(tvm_passes_command, files):
    answer = tvm_passes_command("compile", "relu.onnx", "-o", "letter.txt/network")
    assert answer.status == 1 and "letter.txt is a file: give a folder" in answer.error
    assert "Find" not in answer.err


def test_a_model_of_several_inputs_wants_their_names(tvm_passes_command, files):
    import onnx

    model = onnx.load("relu.onnx")
    model.graph.input.append(onnx.helper.make_tensor_value_info("mask", 1, (1,)))
    onnx.save(model, "two.onnx")
    answer = tvm_passes_command("inspect", "two.onnx", "--size", "8x8")
    assert answer.status == 1 and "inputs image, mask: give --input-shape NAME=" in answer.error


RUNS = {
    "absent --image photo.png": "there is no folder absent: give a folder that tvm-passes compile wrote",
    "folder --image photo.png": "folder has no manifest.json",
    "letter.txt --image photo.png": "letter.txt",
}


@pytest.mark.parametrize("arguments", RUNS)
def test_folders_that_were_not_compiled_to(tvm_passes_command, files, arguments):
    answer = tvm_passes_command("run", *arguments.split())
    assert answer.status == 1 and RUNS[arguments] in answer.error


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    from tvm_passes_cli.main import main

    folder = tmp_path_factory.mktemp("compiled")
    assert main(["compile", COLOURS, "-o", str(folder)]) == 0
    return folder


def test_images_that_are_none(tvm_passes_command, files, compiled):
    from PIL import Image

    Image.new("RGB", (32, 24)).save("photo.png")
    os.mkfifo("pipe")
    cases = {
        ("absent.png",): "there is no image absent.png",
        ("letter.txt",): "cannot read an image from letter.txt",
        ("folder",): "cannot read an image from folder, which is not a file: give one",
        ("pipe",): "cannot read an image from pipe, which is not a file: give one",
        ("photo.png", "-o", "out.docx"): "cannot write out.docx",
        ("photo.png", "-o", "out"): "cannot write out, which names no format of images: give such as out.png",
        ("photo.png", "-o", "no/out.png"): "there is no folder no",
        ("photo.png", "--score", "nan"): "'nan' is not a score: give a number from 0 to 1",
        ("photo.png", "--labels", "absent.txt"): "give one name per line",
    }
    for arguments, expected in cases.items():
        answer = tvm_passes_command("run", compiled, "--image", *arguments)
        assert answer.status in (1, 2) and expected in answer.error
        assert "-o" not in arguments or "Run" not in answer.err  # it is said at once


def test_a_chart_of_no_format(tvm_passes_command, files):
    answer = tvm_passes_command("profile", "relu.onnx", "--chart", "times")
    assert answer.status == 1 and "cannot write times, which names no format of charts" in answer.error
    assert "Find" not in answer.err


def test_verbose_shows_the_trace(tvm_passes_command):
    answer = tvm_passes_command("inspect", f"{HERE}:fails", "--verbose")
    assert answer.status == 1
    assert "Traceback" in answer.err and "in fails" in answer.err
    assert "--verbose" not in answer.error


def test_an_interrupt_that_tvm_loses(tvm_passes_command, monkeypatch):
    """In a callback of a pass, it comes out as the last error that was raised in one before."""

    def run(_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise AttributeError("Span object has no attributed spans") from None

    monkeypatch.setattr("tvm_passes.command.main._run", run)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    try:
        answer = tvm_passes_command("doctor")
        assert answer.status == 130 and answer.err == "Stopped.\n"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reader_that_has_read_enough(files):
    """Such as `| head -1`: the table goes into a pipe that nobody reads any more."""
    run = [sys.executable, "-m", "tvm_passes", "inspect", "relu.onnx"]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        answer = subprocess.run(
            run, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )
    finally:
        os.close(writes)
    assert answer.returncode == 128 + signal.SIGPIPE
    assert "tvm-passes inspect:" not in answer.stderr


def test_help_is_no_error(tvm_passes_command):
    answer = tvm_passes_command("inspect", "--help")
    assert answer.status == 0 and "torchvision:maskrcnn_resnet50_fpn" in answer.out


def test_the_shell_gets_the_status(files):
    run = [sys.executable, "-m", "tvm_passes", "inspect", "letter.txt"]
    answer = subprocess.run(run, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert answer.returncode == 1 and answer.stdout == ""
    *progress, error = answer.stderr.splitlines()
    assert error.startswith("tvm-passes inspect: cannot import letter.txt")
    assert all(re.fullmatch(r"Find letter.txt: \d+\.\d s", line) for line in progress)


def test_a_terminal_of_ascii_is_shown_what_it_can_show(files):
    (files / "relu.onnx").rename(files / "réseau.onnx")
    run = [sys.executable, "-m", "tvm_passes", "inspect", "réseau.onnx"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    ascii_only["PYTHONCOERCECLOCALE"] = "0"
    answer = subprocess.run(run, capture_output=True, env=ascii_only, timeout=300, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.isascii() and b"Import r" in answer.stderr


def test_a_disk_that_is_full_is_not_a_format(tmp_path):
    from PIL import Image

    from tvm_passes.command.errors import CommandError
    from tvm_passes.command.images import write_image

    (tmp_path / "out.png").symlink_to("/dev/full")
    with pytest.raises(CommandError, match=r"out.png \(No space left on device\): free some space"):
        write_image(Image.new("RGB", (300, 300)), tmp_path / "out.png")
    with pytest.raises(CommandError, match=r"cannot write mode RGBA as JPEG\): give a name such as out.png"):
        write_image(Image.new("RGBA", (3, 3)), tmp_path / "out.jpg")
