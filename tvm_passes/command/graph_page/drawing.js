// Draws a pane: `drawGraph` the part of the graph that is seen, `drawOverview` all of it in the strip beside. Both
// read the pane and change nothing in it.
"use strict";

const READABLE = 0.32; // scale below which a box is drawn without its text
const BOLD_FONT = "600 12px system-ui, 'DejaVu Sans', sans-serif";
const SMALL_FONT = "10.5px system-ui, 'DejaVu Sans', sans-serif";

// An empty canvas with as many pixels as the screen has for it.
function fresh(canvas) {
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

// --- the graph

function drawGraph(pane) {
  const context = fresh(pane.canvas);
  const [width, height] = pane.size;
  const seen = { left: pane.x, top: pane.y, right: pane.x + width / pane.scale, bottom: pane.y + height / pane.scale };
  context.scale(pane.scale, pane.scale);
  context.translate(-pane.x, -pane.y);
  const chosen = pane.selected === null ? null : pane.boxOf[pane.selected];
  const isOwn = (line) => chosen !== null && (line.from === chosen || line.to === chosen);
  drawLines(context, pane, pane.lines.filter((line) => !isOwn(line)), seen, "#b4bccb", 1, 0.5);
  drawLines(context, pane, pane.lines.filter(isOwn), seen, CHOSEN, 2, 1.2);
  context.textAlign = "center";
  context.textBaseline = "middle";
  pane.boxes.forEach((box, index) => {
    if (box.y + BOX_HEIGHT < seen.top || box.y - BOX_HEIGHT > seen.bottom) return;
    if (box.x + box.width < seen.left || box.x - box.width > seen.right) return;
    drawBox(context, pane, box, index === chosen);
  });
}

// The width is that of the graph, but no less than `least` pixels on the screen.
function drawLines(context, pane, lines, seen, colour, width, least) {
  context.beginPath();
  context.strokeStyle = colour;
  context.lineWidth = Math.max(width, least / pane.scale);
  for (const line of lines) {
    if (line.y2 < seen.top || line.y1 > seen.bottom) continue;
    if (Math.max(line.x1, line.x2) < seen.left || Math.min(line.x1, line.x2) > seen.right) continue;
    const middle = (line.y1 + line.y2) / 2;
    context.moveTo(line.x1, line.y1);
    context.bezierCurveTo(line.x1, middle, line.x2, middle, line.x2, line.y2);
    if (line.passes) context.lineTo(line.x2, line.y2 + BOX_HEIGHT);
  }
  context.stroke();
}

function drawBox(context, pane, box, isChosen) {
  const node = pane.nodes[box.last], left = box.x - box.width / 2, top = box.y - BOX_HEIGHT / 2;
  const [fill, border] = coloursOf(node);
  const isMarked = pane.isMarked(box);
  const afar = pane.scale < READABLE;
  context.fillStyle = !afar ? fill : node.fate === "same" ? "#dfe3ea" : border;
  context.strokeStyle = isChosen ? CHOSEN : isMarked ? MARKED : border;
  context.lineWidth = isChosen || isMarked ? Math.max(3, 2 / pane.scale) : 1.2;
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
  context.font = BOLD_FONT;
  context.fillText(box.title, box.x, box.y - 7, box.width - 8);
  context.fillStyle = "#667085";
  context.font = SMALL_FONT;
  context.fillText(box.subtitle, box.x, box.y + 8, box.width - 8);
}

// --- the overview

// All of the graph in a strip: what changed is seen from afar.
function drawOverview(pane) {
  const context = fresh(pane.overview);
  const [width, height] = [pane.overview.clientWidth, pane.overview.clientHeight];
  const across = width / pane.width, down = height / pane.height;
  const dot = (box, colour, size) => {
    context.fillStyle = colour;
    context.fillRect(box.x * across - size, box.y * down - size / 2, 2 * size, size);
  };
  const order = ["same", "other", "changed", "removed", "added"]; // a later one covers an earlier one
  const kind = (box) => kindOf(pane.nodes[box.last]);
  const painted = [...pane.boxes].sort((a, b) => order.indexOf(kind(a)) - order.indexOf(kind(b)));
  for (const box of painted) dot(box, kind(box) === "same" ? "#cfd5e0" : coloursOf(pane.nodes[box.last])[1], 2.5);
  for (const box of pane.boxes) if (pane.isMarked(box)) dot(box, MARKED, 4);
  context.strokeStyle = CHOSEN;
  const [seenWidth, seenHeight] = pane.size;
  const left = Math.max(1, pane.x * across), top = Math.max(1, pane.y * down);
  const right = Math.min(width - 1, (pane.x + seenWidth / pane.scale) * across);
  const bottom = Math.min(height - 1, (pane.y + seenHeight / pane.scale) * down);
  context.strokeRect(left, top, right - left, bottom - top);
}
