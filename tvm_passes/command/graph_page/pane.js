// A pane, one of the two graphs on its canvas: which folds are open, what part is seen, and how the pointer, the wheel
// and the arrow keys move it. Hands on `panes`, by side; a click on a node calls `select` of selection.js.
"use strict";

const NEAREST = 2.5, FARTHEST = 0.02; // scales

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

  isMarked(box) { return box.members.some((member) => this.marked.has(member)); }

  draw() {
    if (!this.isShown || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      drawGraph(this);
      drawOverview(this);
    });
  }

  // --- boxes and folds

  // Sets boxes, edges, boxOf, lines, width and height.
  layOut() {
    Object.assign(this, boxesOf(this.nodes, this.into, (fold) => this.open.has(fold)));
    Object.assign(this, place(this.boxes, this.edges));
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

  // --- what part is seen

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

  // By pixels on the screen.
  move(across, down) {
    this.x += across / this.scale;
    this.y += down / this.scale;
    this.draw();
  }

  // The point under (left, top), on the screen, stays there.
  zoom(factor, left, top) {
    const scale = Math.min(NEAREST, Math.max(FARTHEST, this.scale * factor));
    this.x += left / this.scale - left / scale;
    this.y += top / this.scale - top / scale;
    this.scale = scale;
    this.draw();
  }

  zoomMiddle(factor) { this.zoom(factor, this.size[0] / 2, this.size[1] / 2); }

  // --- what the pointer is on

  boxAt(left, top) {
    const x = left / this.scale + this.x, y = top / this.scale + this.y;
    return this.boxes.find((box) => Math.abs(box.x - x) <= box.width / 2 && Math.abs(box.y - y) <= BOX_HEIGHT / 2);
  }

  // Where it comes from, and of a fold what is in it.
  summary(box) {
    if (box.members.length === 1) return this.nodes[box.last].location;
    const counts = new Map();
    for (const member of box.members) counts.set(this.nodes[member].op, (counts.get(this.nodes[member].op) ?? 0) + 1);
    return [...counts].map(([op, count]) => `${count} ${op}`).join("\n") + "\nClick to unfold";
  }

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

  // --- what the user does

  listen() {
    this.listenToPointer();
    this.listenToOverview();
    this.canvas.addEventListener("wheel", (event) => this.turn(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => {
      const height = this.size[1];
      const moves = {
        ArrowLeft: [-80, 0], ArrowRight: [80, 0], ArrowUp: [0, -80], ArrowDown: [0, 80],
        PageUp: [0, -height], PageDown: [0, height],
      };
      if (moves[event.key]) this.move(...moves[event.key]);
    });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // Dragging moves the graph; a press and release in one place is a click.
  listenToPointer() {
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
  }

  // The wheel zooms; with shift alone it moves the graph sideways.
  turn(event) {
    event.preventDefault();
    const step = event.deltaMode ? 30 : 1;
    if (event.ctrlKey || event.metaKey || !event.shiftKey) {
      this.zoom(Math.exp(-event.deltaY * step * 0.0016), event.offsetX, event.offsetY);
    } else this.move(event.deltaY * step, 0);
  }

  listenToOverview() {
    const goThere = (event) => {
      if (event.buttons !== 1) return;
      this.y = (event.offsetY / this.overview.clientHeight) * this.height - this.size[1] / 2 / this.scale;
      this.x = (event.offsetX / this.overview.clientWidth) * this.width - this.size[0] / 2 / this.scale;
      this.draw();
    };
    this.overview.addEventListener("pointerdown", goThere);
    this.overview.addEventListener("pointermove", goThere);
  }
}

const panes = { before: new Pane("before"), after: new Pane("after") };

function drawAll() { for (const side of SIDES) panes[side].draw(); }
