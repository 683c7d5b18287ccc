// Draws the two graphs, and lets the user find, select and follow nodes.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const SIDES = ["before", "after"];
const COLOURS = { // fill, border
  same: ["#ffffff", "#98a2b3"], changed: ["#fff3cd", "#c98a00"], removed: ["#fde0dd", "#d1392b"],
  added: ["#dcf5e3", "#1f8f4a"], other: ["#e3e9fb", "#5b76c9"],
};
const MEANS = { same: "as it was", changed: "of another type, layout or attribute", removed: "removed, or part of something new", added: "new", other: "input, output, control flow" };
const NEAREST = 2.5, READABLE = 0.32, MAX_LISTED = 300;
const at = (id) => document.getElementById(id);

function made(tag, text, classes, onClick) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (classes) element.className = classes;
  if (onClick) {
    element.addEventListener("click", onClick);
    if (tag === "a") {
      element.tabIndex = 0;
      element.addEventListener("keydown", (event) => event.key === "Enter" && onClick());
    }
  }
  return element;
}

// --- a pane

class Pane {
  constructor(side) {
    this.side = side;
    this.nodes = data[side];
    this.users = usersOf(this.nodes);
    this.into = foldsOf(this.nodes);
    this.open = new Set();
    this.marked = new Set(); // nodes that were searched or that a pass touched
    this.selected = null;
    this.scale = 1;
    this.x = this.y = 0; // the point of the graph in the upper left corner
    this.element = at("pane-" + side);
    this.canvas = this.element.querySelector(".graph");
    this.overview = this.element.querySelector(".overview");
    this.layOut();
    this.listen();
  }

  get isShown() { return !this.element.hidden; }

  layOut() {
    Object.assign(this, boxesOf(this.nodes, this.into, (fold) => this.open.has(fold)));
    Object.assign(this, place(this.boxes, this.edges));
    this.linesOf = new Map();
    const calls = this.nodes.filter((node) => !node.op.startsWith("(")).length;
    this.element.querySelector("h2").textContent = `${this.side === "before" ? "Before" : "After"}: ${calls} operators`;
  }

  isFoldable() { return this.into.some((fold, index) => fold !== index); }

  unfold(index) {
    const fold = this.into[index];
    if (this.open.has(fold) || this.boxes[this.boxOf[index]].members.length === 1) return;
    this.open.add(fold);
    this.layOut();
  }

  foldAll(folded) {
    this.open = new Set(folded ? [] : this.into);
    this.layOut();
  }

  // --- where things are

  get size() { return [this.canvas.clientWidth, this.canvas.clientHeight]; }

  fit() {
    const [width, height] = this.size;
    this.scale = Math.min((width - 40) / this.width, (height - 70) / this.height, 1.2);
    this.x = this.width / 2 - width / 2 / this.scale;
    this.y = -45 / this.scale;
    this.draw();
  }

  top() {
    this.scale = 0.8;
    const first = this.boxes.reduce((a, b) => (b.y < a.y ? b : a), this.boxes[0]);
    this.centre(first, 0.15);
  }

  centre(box, share = 0.5) {
    const [width, height] = this.size;
    this.x = box.x - width / 2 / this.scale;
    this.y = box.y - (height * share) / this.scale;
  }

  show(index) {
    this.unfold(index);
    this.scale = Math.max(this.scale, 0.6);
    this.centre(this.boxes[this.boxOf[index]]);
    this.draw();
  }

  boxAt(left, top) {
    const x = left / this.scale + this.x, y = top / this.scale + this.y;
    return this.boxes.find((box) => Math.abs(box.x - x) <= box.width / 2 && Math.abs(box.y - y) <= BOX_HEIGHT / 2);
  }

  // What the pointer is on: where it comes from, and of a fold what is in it.
  summary(box) {
    if (box.members.length === 1) return this.nodes[box.last].location;
    const counts = new Map();
    for (const member of box.members) counts.set(this.nodes[member].op, (counts.get(this.nodes[member].op) ?? 0) + 1);
    return [...counts].map(([op, count]) => `${count} ${op}`).join("\n") + "\nClick to unfold";
  }

  // --- what the user does

  listen() {
    const canvas = this.canvas;
    let from = null, moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      from = [event.clientX, event.clientY, this.x, this.y];
      moved = false;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from) {
        const box = this.boxAt(event.offsetX, event.offsetY);
        canvas.style.cursor = box ? "pointer" : "";
        canvas.title = box ? this.summary(box) : "";
        return;
      }
      const dx = event.clientX - from[0], dy = event.clientY - from[1];
      if (Math.abs(dx) + Math.abs(dy) > 4) moved = true;
      if (!moved) return;
      canvas.classList.add("dragged");
      this.x = from[2] - dx / this.scale;
      this.y = from[3] - dy / this.scale;
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      canvas.classList.remove("dragged");
      const box = !moved && from && this.boxAt(event.offsetX, event.offsetY);
      from = null;
      if (moved) return;
      if (!box) select(this.side, null);
      else this.click(box);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const step = event.deltaMode ? 30 : 1;
      if (event.ctrlKey || event.metaKey || !event.shiftKey) {
        this.zoom(Math.exp(-event.deltaY * step * 0.0016), event.offsetX, event.offsetY);
      } else {
        this.x += (event.deltaY * step) / this.scale;
        this.draw();
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const [width, height] = this.size;
      const moves = { ArrowLeft: [-80, 0], ArrowRight: [80, 0], ArrowUp: [0, -80], ArrowDown: [0, 80], PageUp: [0, -height], PageDown: [0, height] };
      if (moves[event.key]) {
        this.x += moves[event.key][0] / this.scale;
        this.y += moves[event.key][1] / this.scale;
        this.draw();
      }
    });
    const jump = (event) => {
      if (event.buttons !== 1) return;
      this.y = (event.offsetY / this.overview.clientHeight) * this.height - this.size[1] / 2 / this.scale;
      this.x = (event.offsetX / this.overview.clientWidth) * this.width - this.size[0] / 2 / this.scale;
      this.draw();
    };
    this.overview.addEventListener("pointerdown", jump);
    this.overview.addEventListener("pointermove", jump);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  zoom(factor, left, top) {
    const scale = Math.min(NEAREST, Math.max(0.02, this.scale * factor));
    this.x += left / this.scale - left / scale;
    this.y += top / this.scale - top / scale;
    this.scale = scale;
    this.draw();
  }

  zoomMiddle(factor) { this.zoom(factor, this.size[0] / 2, this.size[1] / 2); }

  // A fold opens under the pointer: its last node stays where the box was.
  click(box) {
    if (box.members.length > 1) {
      const { x, y } = box;
      this.unfold(box.last);
      const now = this.boxes[this.boxOf[box.last]];
      this.x += now.x - x;
      this.y += now.y - y;
    }
    select(this.side, box.last);
  }

  // --- drawing

  draw() {
    if (!this.isShown || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.drawGraph();
      this.drawOverview();
    });
  }

  fresh(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  drawGraph() {
    const context = this.fresh(this.canvas);
    const [width, height] = this.size;
    const right = this.x + width / this.scale, bottom = this.y + height / this.scale;
    context.scale(this.scale, this.scale);
    context.translate(-this.x, -this.y);
    const chosen = this.selected === null ? null : this.boxOf[this.selected];
    for (const isNear of [false, true]) {
      context.beginPath();
      context.strokeStyle = isNear ? "#2f5bd0" : "#b4bccb";
      context.lineWidth = Math.max(isNear ? 2 : 1, (isNear ? 1.2 : 0.5) / this.scale);
      for (const line of this.lines) {
        const isOwn = chosen !== null && (line.from === chosen || line.to === chosen);
        if (isOwn !== isNear) continue;
        if (line.y2 < this.y || line.y1 > bottom || Math.max(line.x1, line.x2) < this.x || Math.min(line.x1, line.x2) > right) continue;
        const middle = (line.y1 + line.y2) / 2;
        context.moveTo(line.x1, line.y1);
        context.bezierCurveTo(line.x1, middle, line.x2, middle, line.x2, line.y2);
        if (line.passes) context.lineTo(line.x2, line.y2 + BOX_HEIGHT);
      }
      context.stroke();
    }
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.boxes.forEach((box, index) => {
      if (box.y + BOX_HEIGHT < this.y || box.y - BOX_HEIGHT > bottom) return;
      if (box.x + box.width < this.x || box.x - box.width > right) return;
      this.drawBox(context, box, index === chosen);
    });
  }

  drawBox(context, box, isChosen) {
    const node = this.nodes[box.last], left = box.x - box.width / 2, top = box.y - BOX_HEIGHT / 2;
    const [fill, border] = coloursOf(node);
    const isMarked = box.members.some((member) => this.marked.has(member));
    const afar = this.scale < READABLE;
    context.fillStyle = !afar ? fill : node.fate === "same" ? "#dfe3ea" : border;
    context.strokeStyle = isChosen ? "#2f5bd0" : isMarked ? "#7a2fd0" : border;
    context.lineWidth = isChosen || isMarked ? Math.max(3, 2 / this.scale) : 1.2;
    if (box.members.length > 1) {
      context.strokeRect(left + 4, top + 4, box.width, BOX_HEIGHT);
      context.fillRect(left + 4, top + 4, box.width, BOX_HEIGHT);
    }
    context.beginPath();
    context.roundRect(left, top, box.width, BOX_HEIGHT, node.op.startsWith("(") ? 18 : 5);
    context.fill();
    context.stroke();
    if (afar) return;
    context.fillStyle = "#1d2330";
    context.font = "600 12px system-ui, 'DejaVu Sans', sans-serif";
    context.fillText(box.title, box.x, box.y - 7, box.width - 8);
    context.fillStyle = "#667085";
    context.font = "10.5px system-ui, 'DejaVu Sans', sans-serif";
    context.fillText(box.subtitle, box.x, box.y + 8, box.width - 8);
  }

  // All of the graph in a strip: what changed is seen from afar.
  drawOverview() {
    const context = this.fresh(this.overview);
    const [width, height] = [this.overview.clientWidth, this.overview.clientHeight];
    const across = width / this.width, down = height / this.height;
    const dot = (box, colour, size) => {
      context.fillStyle = colour;
      context.fillRect(box.x * across - size, box.y * down - size / 2, 2 * size, size);
    };
    const order = ["same", "other", "changed", "removed", "added"];
    const painted = [...this.boxes].sort((a, b) => order.indexOf(kindOf(this.nodes[a.last])) - order.indexOf(kindOf(this.nodes[b.last])));
    for (const box of painted) dot(box, kindOf(this.nodes[box.last]) === "same" ? "#cfd5e0" : coloursOf(this.nodes[box.last])[1], 2.5);
    for (const box of this.boxes) if (box.members.some((member) => this.marked.has(member))) dot(box, "#7a2fd0", 4);
    context.strokeStyle = "#2f5bd0";
    const [seenWidth, seenHeight] = this.size;
    const [left, top] = [Math.max(1, this.x * across), Math.max(1, this.y * down)];
    context.strokeRect(left, top, Math.min(width - 1, (this.x + seenWidth / this.scale) * across) - left, Math.min(height - 1, (this.y + seenHeight / this.scale) * down) - top);
  }
}

function kindOf(node) { return node.fate === "same" && node.op.startsWith("(") ? "other" : node.fate; }
function coloursOf(node) { return COLOURS[kindOf(node)]; }

const panes = { before: new Pane("before"), after: new Pane("after") };

// --- selecting

function select(side, index, address = true) {
  for (const each of SIDES) panes[each].selected = null;
  if (index !== null) {
    const other = SIDES.find((each) => each !== side), there = counterparts(panes[side].nodes[index]);
    panes[side].unfold(index);
    panes[side].selected = index;
    if (there.length) {
      panes[other].selected = there[there.length - 1];
      panes[other].show(panes[other].selected);
    }
  }
  tell(side, index);
  if (address) history.replaceState(null, "", index === null ? " " : `#${side}=${index}`);
  drawAll();
}

function go(side, index) {
  if (!panes[side].isShown) show("both");
  panes[side].show(index);
  select(side, index);
}

function drawAll() { for (const side of SIDES) panes[side].draw(); }

function tell(side, index) {
  const details = at("details");
  details.replaceChildren();
  if (index === null) {
    details.append(made("p", "Click a node: its type, attributes and place in the source model come here."));
    return;
  }
  const pane = panes[side], node = pane.nodes[index];
  details.append(made("div", node.op, "op"), made("div", fateOf(node)));
  const peer = node.peer === null ? null : panes[SIDES.find((each) => each !== side)].nodes[node.peer];
  const was = (value, other) => (peer && other !== value ? (side === "before" ? `${value}, then ${other}` : `${other}, then ${value}`) : value);
  const rows = [["type", was(node.type, peer && peer.type)], ["source", node.location || "(not known)"]];
  table(details, "", rows);
  const names = [...new Set([...Object.keys(node.attrs), ...Object.keys(peer ? peer.attrs : {})])];
  table(details, "Attributes", names.map((name) => [name, was(node.attrs[name] ?? "(none)", peer && (peer.attrs[name] ?? "(none)"))]));
  table(details, "Weights", node.weights.map((weight, place) => [String(place), weight]));
  links(details, "Takes", node.inputs.map(([source, output]) => [side, source, output === null ? "" : ` output ${output}`]));
  links(details, "Used by", pane.users[index].map((user) => [side, user, ""]));
  const other = SIDES.find((each) => each !== side);
  links(details, side === "before" ? "In its place" : "In place of", node.replaced.map((each) => [other, each, ""]));
}

// Of a node in the other graph: itself, or what was there before or is now.
function counterparts(node) { return node.peer === null ? node.replaced : [node.peer]; }

function partsOf(location) { return location ? location.split(", ") : []; }

function fateOf(node) {
  if (node.fate === "same") return "as it was";
  return `${node.fate} by ${[...new Set(node.steps.map((step) => data.steps[step].name))].join(", ")}`;
}

function table(parent, title, rows) {
  if (!rows.length) return;
  if (title) parent.append(made("h3", title));
  const body = made("table");
  for (const [name, value] of rows) {
    const row = made("tr");
    row.append(made("td", name), made("td", value));
    body.append(row);
  }
  parent.append(body);
}

function links(parent, title, targets) {
  if (!targets.length) return;
  parent.append(made("h3", title));
  for (const [side, index, more] of targets.slice(0, MAX_LISTED)) parent.append(link(side, index, more));
}

function link(side, index, more = "") {
  const node = panes[side].nodes[index];
  const name = node.op.startsWith("(") ? `${node.attrs.name ?? ""} ${node.op}` : node.op;
  const element = made("a", `${name}${more} `, "", () => go(side, index));
  element.append(made("span", node.location || node.type, "side"));
  return element;
}

// --- searching, and the passes

function mark(before, after) {
  panes.before.marked = new Set(before);
  panes.after.marked = new Set(after);
  at("hits").textContent = before.length || after.length ? `${before.length} before, ${after.length} after` : "";
  drawAll();
}

let hits = [], current = -1;

function search(text) {
  const wanted = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const matching = (side) => {
    if (!wanted.length) return [];
    return [...panes[side].nodes.keys()].filter((index) => {
      const node = panes[side].nodes[index];
      const all = [node.op, node.location, node.type, ...Object.entries(node.attrs).map(([name, value]) => `${name}=${value}`)];
      const joined = all.join(" ").toLowerCase();
      return wanted.every((word) => joined.includes(word));
    });
  };
  const [before, after] = SIDES.map(matching);
  hits = [...before.map((index) => ["before", index]), ...after.map((index) => ["after", index])];
  current = -1;
  mark(before, after);
  const found = at("found");
  found.hidden = !wanted.length;
  found.replaceChildren();
  for (const [title, side, indices] of [["Found before", "before", before], ["Found after", "after", after]]) {
    links(found, `${title}: ${indices.length}`, indices.map((index) => [side, index, ""]));
    if (!indices.length) found.append(made("h3", `${title}: none`));
  }
}

function nextHit(step) {
  if (!hits.length) return;
  current = (current + step + hits.length) % hits.length;
  go(...hits[current]);
}

// The nodes at a source location, of those that a step touched if there are any.
function nodesAt(side, step, location) {
  const places = partsOf(location), nodes = panes[side].nodes;
  const here = [...nodes.keys()].filter((index) => partsOf(nodes[index].location).some((part) => places.includes(part)));
  const touched = here.filter((index) => nodes[index].steps.includes(step));
  return touched.length ? touched : here;
}

function jump(step, location) {
  const before = nodesAt("before", step, location);
  const now = before.flatMap((index) => counterparts(panes.before.nodes[index]));
  const after = now.length ? [...new Set(now)] : nodesAt("after", step, location);
  mark(before, after);
  if (before.length) go("before", before[before.length - 1]);
  else if (after.length) go("after", after[after.length - 1]);
}

function listPasses() {
  const parent = at("passes");
  parent.append(made("h3", "Passes, in order"));
  data.steps.forEach((step, index) => {
    const changes = ["added", "changed", "removed"].filter((kind) => step.counts[kind]).map((kind) => `${step.counts[kind]} ${kind}`);
    const details = made("details"), summary = made("summary", step.name);
    const done = step.rewrites.length, refused = step.refusals.length;
    const count = [done ? `${done}` : changes.length ? "*" : "", refused ? `${refused} refused` : ""].filter(Boolean).join(", ");
    summary.append(made("span", count, "count"));
    details.append(summary);
    if (!done && !refused && !changes.length) details.className = "idle";
    if (changes.length) {
      details.append(made("a", `Nodes: ${changes.join(", ")}`, "places", () => {
        const [before, after] = SIDES.map((side) => [...panes[side].nodes.keys()].filter((each) => panes[side].nodes[each].steps.includes(index)));
        mark(before, after);
      }));
    } else details.append(made("div", "Nothing to do.", "places"));
    listOutcomes(details, index, step.rewrites, "rule", (outcome) => outcome.rule);
    listOutcomes(details, index, step.refusals, "reason", (outcome) => `${outcome.rule} refused: ${outcome.reason}`);
    parent.append(details);
  });
}

function listOutcomes(parent, step, outcomes, classes, titleOf) {
  const groups = new Map();
  for (const outcome of outcomes) {
    const title = titleOf(outcome);
    if (!groups.has(title)) groups.set(title, []);
    groups.get(title).push(outcome.location);
  }
  for (const [title, locations] of groups) {
    parent.append(made("div", `${title}: ${locations.length}`, classes));
    const places = made("div", undefined, "places");
    for (const location of [...new Set(locations)].slice(0, MAX_LISTED)) {
      places.append(location ? made("a", location, "", () => jump(step, location)) : made("span", "(place not known)"));
    }
    parent.append(places);
  }
}

function listColours() {
  const legend = at("legend");
  for (const [kind, [fill, border]] of Object.entries(COLOURS)) {
    const row = made("div"), key = made("span", undefined, "key");
    key.style.background = fill;
    key.style.borderColor = border;
    row.append(key, MEANS[kind]);
    legend.append(row);
  }
}

// --- the whole page

function show(which) {
  for (const side of SIDES) at("pane-" + side).hidden = which !== "both" && which !== side;
  for (const button of document.querySelectorAll("[data-show]")) button.classList.toggle("on", button.dataset.show === which);
  drawAll();
}

function followAddress() {
  const [name, value] = decodeURIComponent(location.hash.slice(1)).split(/=(.*)/);
  if (name === "find") {
    at("search").value = value;
    search(value);
    nextHit(1);
  } else if (SIDES.includes(name) && panes[name].nodes[Number(value)]) go(name, Number(value));
}

document.title = `${data.title}: before and after`;
at("title").textContent = data.title;
at("about").textContent = Object.entries(data.about).map(([name, value]) => `${name}: ${value}`).join("  ·  ");
listPasses();
listColours();
show("both");
for (const button of document.querySelectorAll("[data-show]")) button.addEventListener("click", () => show(button.dataset.show));
at("search").addEventListener("input", (event) => search(event.target.value));
at("search").addEventListener("keydown", (event) => event.key === "Enter" && nextHit(event.shiftKey ? -1 : 1));
const KEYS = {
  f: () => SIDES.forEach((side) => panes[side].fit()),
  "+": () => SIDES.forEach((side) => panes[side].zoomMiddle(1.25)),
  "-": () => SIDES.forEach((side) => panes[side].zoomMiddle(0.8)),
  Escape: () => select("before", null),
};
for (const [id, key] of [["fit", "f"], ["in", "+"], ["out", "-"]]) at(id).addEventListener("click", KEYS[key]);
at("fold").hidden = !SIDES.some((side) => panes[side].isFoldable());
at("fold").addEventListener("click", (event) => {
  const folds = event.target.textContent === "Fold";
  for (const side of SIDES) {
    panes[side].foldAll(folds);
    if (panes[side].selected !== null) panes[side].show(panes[side].selected);
    else panes[side].fit();
  }
  event.target.textContent = folds ? "Unfold all" : "Fold";
});
document.addEventListener("keydown", (event) => {
  if (event.target === at("search")) return event.key === "Escape" && at("search").blur();
  if (event.key === "/") {
    event.preventDefault();
    at("search").focus();
  } else if (!event.ctrlKey && !event.metaKey) KEYS[event.key]?.();
});
SIDES.forEach((side) => panes[side].top());
window.addEventListener("hashchange", followAddress);
followAddress();
