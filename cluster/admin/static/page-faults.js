// Fault injection into this node, where its configuration allows it: for tests and drills, never by accident.

import { change, get } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { askFirst, badge, head, panel, table } from "./ui.js";

const ACTIONS = ["off", "hold", "delay:20ms", "delay:500ms", "slow:20x", "error:EIO", "error:ENOSPC"];

export default { name: "faults", title: "Faults", load, view, apart: true, isThere: ({ status }) => status.failpoints };

async function load({ signal }) {
  return get("v1/failpoints", signal);
}

function view({ node, failpoints }, own) {
  return [
    head("Faults", own.state.status),
    panel(`Failpoints of node ${f.name(node)}`, { note: "for tests and drills" }, table([
      { name: "name", label: "point", class: "mono tight" },
      { name: "does", label: "what happens there" },
      { name: "now", label: "now", cell: (point) => (point.action === "off" ? badge("", "off") : badge("bad", point.action)) },
      { name: "hits", label: "took effect", num: true },
      { name: "waiting", label: "held now", num: true },
      { name: "set", label: "", class: "actions", cell: (point) => h("select", {
        "aria-label": `Action of ${point.name}`, value: "", onchange: (event) => { set(point, event.target.value, own); event.target.value = ""; },
      }, h("option", { value: "" }, "set…"), ACTIONS.map((action) => h("option", { key: action, value: action }, action))) },
    ], failpoints, { key: (point) => point.name, none: "This node has no failpoints." })),
  ];
}

function set(point, action, own) {
  if (!action) return;
  const act = async () => { await change("PUT", "v1/failpoints", { name: point.name, action }); };
  if (action === "off") {
    act().then(own.refresh, own.refresh);
    return;
  }
  askFirst({
    title: `Set ${point.name} to ${action}?`, yes: "Inject the fault", danger: true,
    text: [`Node ${f.name(own.state.status.node)} will fail on purpose at this point until it is set to off: ${point.does}.`],
    act, after: own.refresh,
  });
}
