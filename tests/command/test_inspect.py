"""`tvm-passes inspect`: what the table, the JSON and the history behind both say of a model."""

import json

import pytest
import torch

import frontends
from tests.command.networks import HERE, SIZE, upscaler, write_onnx
from topi_ext.conv2d_nhwc import onednn
from tvm_passes import RestoreDepthToSpace
from tvm_passes.command.history import apply_and_track, operators

import tvm
from tvm import relay

UPSCALER = f"{HERE}:upscaler_and_image"


def test_the_table_says_what_each_pass_did(tvm_passes_command):
    answer = tvm_passes_command("inspect", UPSCALER, "--target", "llvm")
    assert answer.status == 0
    (row,) = (line for line in answer.out.splitlines() if "PixelShuffle" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "PixelShuffle",
        "1",
        "",
        "aten::pixel_shuffle_0",
    ]
    assert "│ RestoreDepthToSpace " in answer.out and "nodes: 1 added, 3 removed" in answer.out
    assert "Nothing to do: RestoreWarpAffine, RestoreWarpPerspective, Canonicalize" in answer.out
    (row,) = (line for line in answer.out.splitlines() if " nn.depth_to_space " in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["nn.depth_to_space", "0", "1"]
    assert "Pipeline: subpixel, for llvm" in answer.err


def test_json_has_what_the_passes_report(tvm_passes_command):
    answer = tvm_passes_command("inspect", UPSCALER, "--target", "llvm", "--json")
    found = json.loads(answer.out)
    assert (found["model"], found["pipeline"]) == (UPSCALER, "subpixel")
    (restored,) = (each for each in found["passes"] if each["name"] == "RestoreDepthToSpace")
    assert restored["rewrites"] == [{"rule": "PixelShuffle", "location": "aten::pixel_shuffle_0"}]
    assert restored["refusals"] == []
    before, after = found["operators"]["before"], found["operators"]["after"]
    assert before["transpose"] == 1 and "nn.depth_to_space" not in before
    assert after["nn.depth_to_space"] == 1 and "transpose" not in after


def test_refusals_come_with_reason_and_place(tvm_passes_command):
    arguments = "inspect", f"{HERE}:first_bright_pixels"
    reason, place = "the slice cuts an axis of unknown length", "aten::slice_0"
    assert f"{place}: {reason}" in tvm_passes_command(*arguments).out
    found = json.loads(tvm_passes_command(*arguments, "--json").out)
    refusals = [refusal for each in found["passes"] for refusal in each["refusals"]]
    assert refusals == [{"rule": "StaticSlice", "location": place, "reason": reason}]


@pytest.mark.parametrize(
    "model, options, sentences",
    [
        (
            "detector",
            [],
            [
                "Class-aware NMS over 32 boxes and up to 5 classes restored; "
                "shapes are dynamic (static ones by --outputs padded); float32."
            ],
        ),
        (
            "detector",
            ["--target", "cuda -arch=sm_90"],
            [
                "Class-aware NMS over 32 boxes and up to 5 classes restored; "
                "static up to the outputs, which are cut to what is found; float16 on tensor cores."
            ],
        ),
        (
            "detector(offset=20)",
            ["--outputs", "padded"],
            [
                "Single-class NMS over 32 boxes; static; float32.",
                "An NMS is left as the model has it at torchvision::nms_0: an offset of 20.0 may let boxes "
                "of different classes overlap (docs/restored_nms.md shows the spellings that are known).",
            ],
        ),
        (
            "sums_of_bright_pixels",
            ["--outputs", "padded", "--pipeline", "detection"],
            [
                "No NMS; shapes are dynamic.",
                "Shapes stay dynamic: cumsum: it computes along the rows "
                "(a constant number of rows there, such as a top-k takes, makes them static).",
            ],
        ),
        pytest.param(
            "upscaler_and_image",
            ["--dtype", "bfloat16"],
            ["No NMS; depth_to_space computed 1 alone; static; bfloat16."],
            marks=pytest.mark.skipif(not onednn.multiplies("bfloat16"), reason="this processor has none"),
        ),
        (
            "upscaler_and_image",
            ["--target", "cuda -arch=sm_90"],
            ["No NMS; depth_to_space computed 1 alone; static; float16 on tensor cores."],
        ),
    ],
)
def test_it_begins_with_sentences(tvm_passes_command, model, options, sentences):
    answer = tvm_passes_command("inspect", f"{HERE}:{model}", *options, "--json")
    assert json.loads(answer.out)["summary"] == sentences


def test_the_sentences_are_above_the_table(tvm_passes_command):
    answer = tvm_passes_command("inspect", f"{HERE}:detector")
    assert answer.out.startswith("Class-aware NMS over 32 boxes")


@pytest.mark.parametrize(
    "model", [f"{HERE}:colours", f"{HERE}:bright_pixels", f"{HERE}:colours(dtype='float16')"]
)
def test_relay_modules_of_functions(tvm_passes_command, model):
    assert tvm_passes_command("inspect", model).status == 0


def test_sizes_of_onnx_files(tvm_passes_command, tmp_path):
    path = write_onnx(tmp_path / "network.onnx", "Relu", "Sigmoid", shape=("n", 3, "height", "width"))
    found = json.loads(tvm_passes_command("inspect", path, "--size", "8x16", "--json").out)
    assert found["operators"]["before"] == {"nn.relu": 1, "sigmoid": 1}


def test_a_pass_in_place_of_a_pipeline(tvm_passes_command):
    answer = tvm_passes_command("inspect", UPSCALER, "--json", "--pipeline", "tvm_passes:RestoreDepthToSpace")
    assert [each["name"] for each in json.loads(answer.out)["passes"]] == ["RestoreDepthToSpace"]


def test_a_camera_is_part_of_the_graph(tvm_passes_command):
    arguments = "inspect", UPSCALER, "--camera", "30x40:BGR", "--json"
    before = json.loads(tvm_passes_command(*arguments).out)["operators"]["before"]
    assert before["cast"] == 1


@pytest.mark.slow
def test_a_detector_of_torchvision(tvm_passes_command):
    answer = tvm_passes_command("inspect", "torchvision:ssdlite320_mobilenet_v3_large", "--json")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert "random, with seed 0" in answer.err
    assert found["pipeline"] == "detection"
    assert found["operators"]["after"]["topi_ext.batched_nms"] == 1
    assert found["operators"]["after"]["topi_ext.preprocess"] == 1


# --- the history, which the graph page draws


def history_of_the_upscaler(passes):
    mod, params = frontends.from_pytorch(upscaler(), (torch.rand(1, 3, *SIZE),))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return apply_and_track(mod, passes)


def test_each_node_has_a_fate():
    history = history_of_the_upscaler(RestoreDepthToSpace())
    before = {node.op: node for node in history.before}
    after = {node.op: node for node in history.after}
    assert {before[name].fate for name in ("reshape", "transpose")} == {"removed"}
    assert before["nn.conv2d"].fate == after["sigmoid"].fate == "same"
    shuffle = after["nn.depth_to_space"]
    assert shuffle.fate == "added" and shuffle.steps == [0]
    replaced = [history.before[index].op for index in shuffle.replaced]
    assert sorted(replaced) == ["reshape", "reshape", "transpose"]
    assert history.steps[0].counts == {"added": 1, "removed": 3}


def test_same_nodes_are_peers():
    history = history_of_the_upscaler(RestoreDepthToSpace())
    for index, node in enumerate(history.before):
        assert (node.peer is None) == (node.fate == "removed")
        assert node.peer is None or history.after[node.peer].peer == index


def test_a_change_of_type_is_no_replacement():
    to_half = relay.transform.ToMixedPrecision("float16")
    history = history_of_the_upscaler(tvm.transform.Sequential([to_half]))
    before = next(node for node in history.before if node.op == "nn.conv2d")
    assert before.fate == "changed"
    assert history.after[before.peer].type.startswith("float16")


def test_a_pass_that_does_nothing():
    history = history_of_the_upscaler(tvm.transform.Sequential([]))
    assert [node.fate for node in history.after] == ["same"] * len(history.before)
    assert operators(history.before) == operators(history.after)
    assert all(node is not other for node, other in zip(history.before, history.after))
