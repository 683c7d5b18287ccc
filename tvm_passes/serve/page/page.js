// The page: takes an image by drop, paste or choice, posts it, and shows the answer.
import { color, draw, nameOf } from "./drawing.js";

const element = id => document.getElementById(id);
const canvas = element("canvas"), threshold = element("threshold");
let asked = null; // the AbortController of the last request
let shown = null; // {image, answer}

async function take(file) {
  asked?.abort();
  const mine = (asked = new AbortController());
  tell(`Looking at ${file.name || "the image"} …`);
  shown = null;
  show();
  try {
    const [image, answer] = await Promise.all([opened(file), ask(file, mine.signal)]);
    if (mine !== asked) return;
    shown = { image, answer };
    show();
  } catch (error) {
    if (mine === asked) fail(error.message);
  }
}

// As the browser sees it, turned upright; null if it does not know the format.
function opened(file) {
  return createImageBitmap(file).catch(() => null);
}

async function ask(file, signal) {
  const type = file.type || "image/unknown"; // of formats that the browser does not know
  let response;
  try {
    response = await fetch("detect", { method: "POST", headers: { "content-type": type }, body: file, signal });
  } catch (error) {
    throw new Error(`The service cannot be reached (${error.message}).`);
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(`${sentence(answer.error ?? response.statusText)} (${response.status})`);
  return answer;
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function show() {
  element("score").value = Number(threshold.value).toFixed(2);
  canvas.hidden = element("table").hidden = !shown;
  if (!shown) return;
  const { image, answer } = shown;
  const kept = answer.detections.filter(found => found.score >= threshold.value);
  draw(canvas, image, answer, kept);
  const note = image ? "" : " This browser cannot show the image itself.";
  tell(`${kept.length} of ${answer.detections.length} detections, in ${answer.width}x${answer.height} pixels.${note}`);
  canvas.setAttribute("aria-label", kept.map(nameOf).join(", ") || "Nothing was found");
  element("rows").replaceChildren(...kept.map(tableRow));
}

function tableRow(found) {
  const row = document.createElement("tr"), sample = document.createElement("span");
  sample.style.background = color(found.label);
  const box = found.box.map(value => Math.round(value)).join(", ");
  for (const text of [nameOf(found), found.score.toFixed(3), box]) row.insertCell().append(text);
  row.cells[0].prepend(sample);
  return row;
}

function tell(text) {
  element("status").textContent = text;
  element("error").hidden = true;
}

function fail(text) {
  element("status").textContent = "";
  element("error").textContent = text;
  element("error").hidden = false;
}

function takeOne(files) {
  if (files.length) take(files[0]);
}

element("file").addEventListener("change", event => {
  takeOne(event.target.files);
});
threshold.addEventListener("input", show);
window.addEventListener("resize", show);
document.querySelector("form").addEventListener("submit", event => event.preventDefault());
document.addEventListener("paste", event => takeOne(event.clipboardData.files));
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, event => {
    event.preventDefault();
    document.body.classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop") takeOne(event.dataTransfer.files);
  });
}
