// Selects a node, and with it what it is or was in the other graph. Hands on `select` for a node that is in view, `go`
// for one that has to be brought there, and `counterparts`.
"use strict";

function select(side, index) {
  for (const each of SIDES) panes[each].selected = null;
  if (index !== null) {
    const other = otherThan(side), there = counterparts(panes[side].nodes[index]);
    panes[side].unfold(index);
    panes[side].selected = index;
    if (there.length) {
      panes[other].selected = there[there.length - 1];
      panes[other].show(panes[other].selected);
    }
  }
  tell(side, index);
  history.replaceState(null, "", index === null ? " " : `#${side}=${index}`);
  drawAll();
}

function go(side, index) {
  if (!panes[side].isShown) show("both");
  panes[side].show(index);
  select(side, index);
}

// Of a node in the other graph: itself, or what was there before or is now.
function counterparts(node) { return node.peer === null ? node.replaced : [node.peer]; }
