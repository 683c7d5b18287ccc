// The whole page: title, legend, buttons, keys and the address; starts it all. Hands on `show`, by which one or both
// graphs are seen.
"use strict";

const KEYS = {
  f: () => SIDES.forEach((side) => panes[side].fit()),
  "+": () => SIDES.forEach((side) => panes[side].zoomMiddle(1.25)),
  "-": () => SIDES.forEach((side) => panes[side].zoomMiddle(0.8)),
  Escape: () => select("before", null),
};

function show(which) {
  for (const side of SIDES) at("pane-" + side).hidden = which !== "both" && which !== side;
  for (const button of showButtons()) button.classList.toggle("on", button.dataset.show === which);
  drawAll();
}

function showButtons() { return document.querySelectorAll("[data-show]"); }

function writeTitle() {
  document.title = `${data.title}: before and after`;
  at("title").textContent = data.title;
  at("about").textContent = Object.entries(data.about).map(([name, value]) => `${name}: ${value}`).join("  ·  ");
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

// An address names a node of a side, `#before=3`, or words to search, `#find=conv2d`.
function followAddress() {
  const [name, value] = decodeURIComponent(location.hash.slice(1)).split(/=(.*)/);
  if (name === "find") {
    at("search").value = value;
    search(value);
    nextHit(1);
  } else if (SIDES.includes(name) && panes[name].nodes[Number(value)]) go(name, Number(value));
}

// --- what the user does

function listenToButtons() {
  for (const button of showButtons()) button.addEventListener("click", () => show(button.dataset.show));
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
}

function listenToSearch() {
  at("search").addEventListener("input", (event) => search(event.target.value));
  at("search").addEventListener("keydown", (event) => event.key === "Enter" && nextHit(event.shiftKey ? -1 : 1));
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.target === at("search")) return event.key === "Escape" && at("search").blur();
    if (event.key === "/") {
      event.preventDefault();
      at("search").focus();
    } else if (!event.ctrlKey && !event.metaKey) KEYS[event.key]?.();
  });
}

writeTitle();
listPasses();
listColours();
show("both");
listenToButtons();
listenToSearch();
listenToKeys();
SIDES.forEach((side) => panes[side].top());
window.addEventListener("hashchange", followAddress);
followAddress();
