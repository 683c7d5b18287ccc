// Lists the passes with what each did and refused, and leads from there to the nodes. Hands on `listPasses`.
"use strict";

function listPasses() {
  const parent = at("passes");
  parent.append(made("h3", "Passes, in order"));
  data.steps.forEach((step, index) => parent.append(detailsOf(step, index)));
}

function detailsOf(step, index) {
  const kinds = ["added", "changed", "removed"].filter((kind) => step.counts[kind]);
  const changes = kinds.map((kind) => `${step.counts[kind]} ${kind}`);
  const details = made("details"), summary = made("summary", step.name);
  const done = step.rewrites.length, refused = step.refusals.length;
  const counts = [done ? `${done}` : changes.length ? "*" : "", refused ? `${refused} refused` : ""];
  summary.append(made("span", counts.filter(Boolean).join(", "), "count"));
  details.append(summary);
  if (!done && !refused && !changes.length) details.className = "idle";
  if (changes.length) details.append(made("a", `Nodes: ${changes.join(", ")}`, "places", () => markTouched(index)));
  else details.append(made("div", "Nothing to do.", "places"));
  listOutcomes(details, index, step.rewrites, "rule", (outcome) => outcome.rule);
  listOutcomes(details, index, step.refusals, "reason", (outcome) => `${outcome.rule} refused: ${outcome.reason}`);
  return details;
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

// --- to the nodes

function markTouched(step) {
  const touched = (nodes) => [...nodes.keys()].filter((index) => nodes[index].steps.includes(step));
  mark(touched(panes.before.nodes), touched(panes.after.nodes));
}

function jump(step, location) {
  const before = nodesAt("before", step, location);
  const now = before.flatMap((index) => counterparts(panes.before.nodes[index]));
  const after = now.length ? [...new Set(now)] : nodesAt("after", step, location);
  mark(before, after);
  if (before.length) go("before", before[before.length - 1]);
  else if (after.length) go("after", after[after.length - 1]);
}

// The nodes at a source location, of those that a step touched if there are any.
function nodesAt(side, step, location) {
  const places = partsOf(location), nodes = panes[side].nodes;
  const isHere = (node) => partsOf(node.location).some((part) => places.includes(part));
  const here = [...nodes.keys()].filter((index) => isHere(nodes[index]));
  const touched = here.filter((index) => nodes[index].steps.includes(step));
  return touched.length ? touched : here;
}

function partsOf(location) { return location ? location.split(", ") : []; }
