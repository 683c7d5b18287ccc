// Draws an image and what was found in it.
import { forEachColumn } from "./masks.js";

const MAX_LENGTH = 1600; // of a side of the canvas, in pixels
const OPACITY = 0.45; // of masks

// A color for each label, far from those of its neighbours.
export function color(label) {
  return `hsl(${(((label * 137.5) % 360) + 360) % 360} 90% 60%)`;
}

export function nameOf(found) {
  return found.name ?? `class ${found.label}`;
}

// `image` may be null, where the browser cannot show it; the size is that of the answer.
export function draw(canvas, image, { height, width }, detections) {
  const scale = Math.min(1, MAX_LENGTH / Math.max(height, width));
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#777";
  context.fillRect(0, 0, canvas.width, canvas.height);
  if (image) context.drawImage(image, 0, 0, canvas.width, canvas.height);
  drawMasks(context, detections.filter(found => found.mask));
  const across = canvas.width / width, down = canvas.height / height;
  const zoom = canvas.width / (canvas.clientWidth || canvas.width); // lines and text look the same on any screen
  const thickness = 2 * zoom;
  for (const found of [...detections].reverse()) { // the best ones on top
    const [left, top, right, bottom] = found.box;
    context.strokeStyle = context.fillStyle = color(found.label);
    context.lineWidth = thickness;
    context.strokeRect(left * across, top * down, (right - left) * across, (bottom - top) * down);
    for (const [x, y, seen] of found.keypoints ?? []) {
      if (!(seen > 0) || x === null || y === null) continue;
      context.beginPath();
      context.arc(x * across, y * down, 1.5 * thickness, 0, 2 * Math.PI);
      context.fill();
    }
    drawText(context, `${nameOf(found)} ${found.score.toFixed(2)}`, left * across, top * down, 13 * zoom);
  }
}

function drawText(context, text, x, y, size) {
  const { width } = context.canvas;
  context.font = `${size}px system-ui, sans-serif`;
  const length = context.measureText(text).width + 0.6 * size;
  const left = Math.max(0, Math.min(x, width - length)), top = y >= 1.3 * size ? y - 1.3 * size : y;
  context.fillRect(left, top, length, 1.3 * size);
  context.fillStyle = "#000";
  context.textBaseline = "middle";
  context.fillText(text, left + 0.3 * size, top + 0.65 * size);
}

function drawMasks(context, detections) {
  if (!detections.length) return;
  const { width, height } = context.canvas, shown = context.getImageData(0, 0, width, height);
  for (const found of detections) {
    const tint = rgb(color(found.label));
    forEachColumn(found.mask, height, width, (x, top, bottom) => {
      for (let at = 4 * (top * width + x), y = top; y < bottom; y++, at += 4 * width) {
        for (let channel = 0; channel < 3; channel++) {
          shown.data[at + channel] += (tint[channel] - shown.data[at + channel]) * OPACITY;
        }
      }
    });
  }
  context.putImageData(shown, 0, 0);
}

function rgb(text) {
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  context.fillStyle = text;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data;
}
