"""The page of `inspect --graph` in a headless browser: what is drawn and marked, searched, zoomed, linked."""

import io
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

import frontends
from tests.command.browser import browser_path, opened_browser
from tests.command.networks import HERE, SIZE, upscaler
from tvm_passes import RestoreDepthToSpace
from tvm_passes.command.graph_page import graph_page, write_graph_page
from tvm_passes.command.history import History, Node, Step, apply_and_track

import tvm
from tvm import relay

FILLS = {"same": "#ffffff", "changed": "#fff3cd", "removed": "#fde0dd", "added": "#dcf5e3"}
SECONDS = 10  # on a machine that other tests keep busy; alone it takes less than one

needs_browser = pytest.mark.skipif(
    browser_path() is None, reason="there is no Chromium here: apt install chromium"
)


@pytest.fixture(scope="module")
def history():
    """Of an upscaler whose shuffle is restored, and that then computes in half precision."""
    mod, params = frontends.from_pytorch(upscaler(), (torch.rand(1, 3, *SIZE),))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    to_half = relay.transform.ToMixedPrecision("float16", missing_op_mode=2)
    return apply_and_track(mod, tvm.transform.Sequential([RestoreDepthToSpace(), to_half]))


@pytest.fixture(scope="module")
def path(history, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "graph.html"
    write_graph_page(path, history, "an upscaler", {"target": "llvm"})
    return path


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as page:
        yield page


@pytest.fixture
def page(browser, path):
    """The page, opened anew; nothing may go wrong in it."""
    browser.open(path)
    yield browser
    assert browser.errors == []


def where(page, side, op, count=0):
    """The middle of the box of an operator, on the screen."""
    return page.evaluate(
        f"""(() => {{
            const pane = panes[{json.dumps(side)}], edge = pane.canvas.getBoundingClientRect();
            const indices = [...pane.nodes.keys()].filter(each => pane.nodes[each].op === {json.dumps(op)});
            const box = pane.boxes[pane.boxOf[indices[{count}]]];
            return [edge.x + (box.x - pane.x) * pane.scale, edge.y + (box.y - pane.y) * pane.scale];
        }})()"""
    )


def pixels(page):
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))


def text(page, selector):
    return page.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


@needs_browser
def test_both_graphs_are_drawn(page, history):
    for side, nodes in (("before", history.before), ("after", history.after)):
        calls = sum(not node.op.startswith("(") for node in nodes)
        assert text(page, f"#pane-{side} h2").endswith(f": {calls} operators")
    assert page.evaluate("document.title") == "an upscaler: before and after"
    assert "target: llvm" in text(page, "#about")


@needs_browser
def test_what_changed_is_marked(page, history):
    """By the colour of a box, on the screen, of each node at which nothing is folded."""
    page.evaluate("document.getElementById('fold').click()")
    page.press("f")
    shown = pixels(page)
    for side, nodes in (("before", history.before), ("after", history.after)):
        seen = {}
        for node in nodes:
            count = seen[node.op] = seen.get(node.op, -1) + 1
            if node.op.startswith("("):
                continue
            x, y = where(page, side, node.op, count)
            scale = page.evaluate(f"panes.{side}.scale")
            inside = shown[round(y - 14 * scale), round(x)]  # above the box's text
            assert "#" + bytes(inside.tolist()).hex() == FILLS[node.fate], (side, node.op)
    assert {node.fate for node in history.before} == {"same", "changed", "removed"}
    assert {"added", "changed"} <= {node.fate for node in history.after}


@needs_browser
def test_search_finds_marks_and_goes_there(page, history):
    page.press("/")
    page.type("transpose")
    assert text(page, "#hits") == "1 before, 0 after"
    assert "Found before: 1" in text(page, "#found") and "Found after: none" in text(page, "#found")
    page.press("Enter")
    assert text(page, "#details .op") == "transpose"
    assert "removed by RestoreDepthToSpace" in text(page, "#details")
    x, y = where(page, "before", "transpose")
    pane = page.evaluate("panes.before.canvas.getBoundingClientRect().toJSON()")
    assert x == pytest.approx(pane["x"] + pane["width"] / 2, abs=2)
    assert y == pytest.approx(pane["y"] + pane["height"] / 2, abs=2)


@needs_browser
@pytest.mark.parametrize(
    "words, found", [("pixel_shuffle_0 reshape", 2), ("float32[1, 12,", 2), ("axes=[0", 1)]
)
def test_places_types_and_attributes_are_searched(page, words, found):
    page.click_on("#search")
    page.type(words)
    assert text(page, "#hits").startswith(f"{found} before")


@needs_browser
def test_the_wheel_zooms_at_the_pointer(page):
    x, y = where(page, "before", "nn.conv2d")
    before, scale = pixels(page), page.evaluate("panes.before.scale")
    page.wheel(x, y, -300)
    assert page.evaluate("panes.before.scale") == pytest.approx(scale * math.exp(300 * 0.0016), rel=1e-6)
    assert where(page, "before", "nn.conv2d") == pytest.approx(
        [x, y], abs=0.5
    )  # the pointer is at whole pixels
    assert (pixels(page) != before).any()
    page.wheel(x, y, 100000)
    assert 0 < page.evaluate("panes.before.scale") < 0.1


@needs_browser
@pytest.mark.parametrize("larger, smaller", [("#in", "#out"), ("+", "-")])
def test_buttons_and_keys_zoom(page, larger, smaller):
    do = page.click_on if larger.startswith("#") else page.press
    scale = page.evaluate("panes.after.scale")
    do(larger)
    assert page.evaluate("panes.after.scale") == pytest.approx(1.25 * scale)
    do(smaller)
    assert page.evaluate("panes.after.scale") == pytest.approx(scale)


@needs_browser
def test_fit_shows_all(page):
    page.click_on("#fit")
    for side in ("before", "after"):
        pane = page.evaluate(f"panes.{side}.canvas.getBoundingClientRect().toJSON()")
        for op in ("(input)", "(output)"):
            x, y = where(page, side, op)
            assert pane["x"] < x < pane["x"] + pane["width"] and pane["y"] < y < pane["y"] + pane["height"]


@needs_browser
def test_dragging_moves(page):
    x, y = where(page, "before", "nn.conv2d")
    page.drag(x, y + 30, 50, 70)
    assert where(page, "before", "nn.conv2d") == pytest.approx([x + 50, y + 70], abs=0.01)


@needs_browser
def test_a_click_tells_of_a_node_and_what_was_there(page):
    page.evaluate("document.getElementById('fold').click()")
    page.press("f")
    page.click(*where(page, "after", "nn.depth_to_space"))
    told = text(page, "#details")
    assert told.startswith("nn.depth_to_space") and "added by RestoreDepthToSpace" in told
    assert "block_size" in told and "aten::pixel_shuffle_0" in told
    assert told.count("reshape") == 2 and "In place of" in told
    page.evaluate(
        "[...document.querySelectorAll('#details a')].find(a => a.innerText.startsWith('transpose')).click()"
    )
    page.drawn()
    assert text(page, "#details .op") == "transpose"
    page.press("Escape")
    assert "Click a node" in text(page, "#details")


@needs_browser
def test_a_pass_leads_to_what_it_did(page):
    listed = page.evaluate("[...document.querySelectorAll('#passes summary')].map(each => each.innerText)")
    assert [each.split()[0] for each in listed] == ["RestoreDepthToSpace", "ToMixedPrecision"]
    page.click_on("#passes summary")
    page.click_on("#passes details[open] div.places a")
    assert text(page, "#hits") == "3 before, 1 after"


@needs_browser
def test_a_link_to_a_node(page, path, history):
    index = next(place for place, node in enumerate(history.after) if node.op == "sigmoid")
    page.open(path, f"#after={index}")
    assert text(page, "#details .op") == "sigmoid"
    page.evaluate("location.hash = 'find=sigmoid'")
    page.drawn()
    assert text(page, "#hits") == "1 before, 1 after"


@needs_browser
def test_a_large_graph_opens_soon(browser, tmp_path):
    """3,000 nodes on each side in branches that join, none of which can be folded."""
    nodes = [Node("(input)", {"name": "x"}, "float32[1]", "", [], [])]
    for index in range(1, 3000):
        sources = {index - 1, max(index - 7, 0), (index * 7919) % index if index % 40 == 0 else index - 1}
        fate = "removed" if index % 3 == 0 else "same"
        nodes.append(
            Node("add", {}, "float32[1]", f"aten::add_{index}", [], [(each, None) for each in sources], fate)
        )
    path = tmp_path / "large.html"
    write_graph_page(path, History(nodes, nodes, [Step("Some", 0.0)], None), "large", {})
    assert min(browser.open(path) for _ in range(3)) < SECONDS
    assert text(browser, "#pane-after h2") == "After: 2999 operators"
    assert browser.errors == []


@needs_browser
def test_nothing_in_a_model_is_taken_for_code(browser, tmp_path):
    wicked = "</script><img src=x onerror=alert(1)><script>window.harmed = true</script>"
    nodes = [Node(wicked, {wicked: wicked}, wicked, wicked, [wicked], [])]
    path = tmp_path / "wicked.html"
    write_graph_page(path, History(nodes, nodes, [Step(wicked, 0.0)], None), wicked, {wicked: wicked})
    browser.open(path, "#before=0")
    assert browser.evaluate("window.harmed") is None and browser.evaluate("document.images.length") == 0
    assert text(browser, "#details .op") == wicked
    assert browser.errors == []


def test_the_page_needs_nothing_else(history):
    page = graph_page(history, "title", {})
    assert "{{" not in page and "default-src 'none'" in page
    assert not any(word in page for word in ('src="', 'href="', "@import", "url("))


def test_inspect_writes_it(tvm_passes_command, tmp_path):
    path = tmp_path / "out.html"
    answer = tvm_passes_command("inspect", f"{HERE}:upscaler_and_image", "--target", "llvm", "--graph", path)
    assert answer.status == 0 and str(path) in answer.err
    written = path.read_text()
    data = json.loads(written.split('id="data">')[1].split("</script>")[0])
    assert "nn.depth_to_space" in {node["op"] for node in data["after"]}
    assert data["about"]["pipeline"] == "subpixel"
