// Finds nodes by words, marks and lists them. Hands on `search`, `nextHit`, and `mark`, which passes.js uses as well.
"use strict";

let hits = [], current = -1; // pairs [side, index], and the one that was gone to last

function search(text) {
  const wanted = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const [before, after] = SIDES.map((side) => matching(panes[side].nodes, wanted));
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

// The nodes that have all words; none if there are no words.
function matching(nodes, wanted) {
  if (!wanted.length) return [];
  return [...nodes.keys()].filter((index) => {
    const node = nodes[index];
    const attributes = Object.entries(node.attrs).map(([name, value]) => `${name}=${value}`);
    const all = [node.op, node.location, node.type, ...attributes].join(" ").toLowerCase();
    return wanted.every((word) => all.includes(word));
  });
}

function nextHit(step) {
  if (!hits.length) return;
  current = (current + step + hits.length) % hits.length;
  go(...hits[current]);
}

function mark(before, after) {
  panes.before.marked = new Set(before);
  panes.after.marked = new Set(after);
  at("hits").textContent = before.length || after.length ? `${before.length} before, ${after.length} after` : "";
  drawAll();
}
