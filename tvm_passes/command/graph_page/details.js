// What is said of the selected node, beside the graphs. Hands on `tell`, and `links`, a list of nodes of which each
// leads to its place.
"use strict";

function tell(side, index) {
  const details = at("details");
  details.replaceChildren();
  if (index === null) {
    details.append(made("p", "Click a node: its type, attributes and place in the source model come here."));
    return;
  }
  const pane = panes[side], node = pane.nodes[index], other = otherThan(side);
  details.append(made("div", node.op, "op"), made("div", fateOf(node)));
  const peer = node.peer === null ? null : panes[other].nodes[node.peer];
  const was = (value, there) => {
    if (!peer || there === value) return value;
    return side === "before" ? `${value}, then ${there}` : `${there}, then ${value}`;
  };
  table(details, "", [["type", was(node.type, peer && peer.type)], ["source", node.location || "(not known)"]]);
  const names = [...new Set([...Object.keys(node.attrs), ...Object.keys(peer ? peer.attrs : {})])];
  const attribute = (of, name) => of.attrs[name] ?? "(none)";
  table(details, "Attributes", names.map((name) => [name, was(attribute(node, name), peer && attribute(peer, name))]));
  table(details, "Weights", node.weights.map((weight, place) => [String(place), weight]));
  const ofTuple = (output) => (output === null ? "" : ` output ${output}`);
  links(details, "Takes", node.inputs.map(([source, output]) => [side, source, ofTuple(output)]));
  links(details, "Used by", pane.users[index].map((user) => [side, user, ""]));
  links(details, side === "before" ? "In its place" : "In place of", node.replaced.map((each) => [other, each, ""]));
}

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

function link(side, index, more) {
  const node = panes[side].nodes[index];
  const name = node.op.startsWith("(") ? `${node.attrs.name ?? ""} ${node.op}` : node.op;
  const element = made("a", `${name}${more} `, "", () => go(side, index));
  element.append(made("span", node.location || node.type, "side"));
  return element;
}
