// What all scripts after it use: the data of the page, the colours of nodes, and helpers for the page's elements.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const SIDES = ["before", "after"];
const COLOURS = { // fill, border
  same: ["#ffffff", "#98a2b3"], changed: ["#fff3cd", "#c98a00"], removed: ["#fde0dd", "#d1392b"],
  added: ["#dcf5e3", "#1f8f4a"], other: ["#e3e9fb", "#5b76c9"],
};
const MEANS = {
  same: "as it was", changed: "of another type, layout or attribute", removed: "removed, or part of something new",
  added: "new", other: "input, output, control flow",
};
const CHOSEN = "#2f5bd0", MARKED = "#7a2fd0";
const MAX_LISTED = 300; // links below one title

function kindOf(node) { return node.fate === "same" && node.op.startsWith("(") ? "other" : node.fate; }
function coloursOf(node) { return COLOURS[kindOf(node)]; }
function otherThan(side) { return SIDES.find((each) => each !== side); }

function at(id) { return document.getElementById(id); }

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
