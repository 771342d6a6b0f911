// What happened, on all nodes, the newest first.

import { get, getFrom } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, choice, filterBox, head, panel, table } from "./ui.js";

const KINDS = { critical: "bad", warning: "warn", info: "" };
const state = { filter: "", kind: "" };

export default { name: "events", title: "Events", every: 3000, load, view };

async function load({ signal }) {
  const members = await get("v1/members", signal);
  return Promise.all(members.members.map(({ id }) => getFrom(id, signal, "events")));
}

function view(nodes, own) {
  const events = nodes.flatMap((one) => (one.error ? [] : one.events));
  const kinds = [...new Set(events.map((event) => event.kind))].sort();
  const wanted = state.filter.toLowerCase();
  const shown = events
    .filter((event) => (!state.kind || event.kind === state.kind) && `${event.object} ${event.says}`.toLowerCase().includes(wanted))
    .sort((a, b) => (a.at === b.at ? b.id - a.id : a.at < b.at ? 1 : -1));
  const silent = nodes.filter((one) => one.error).map((one) => `node ${f.name(one.node)}`);
  return [
    head("Events", own.state.status),
    panel(f.plural(shown.length, "event"), {
      note: silent.length ? h("span", { class: "warn" }, `without ${silent.join(", ")}: no answer`) : "the last 100 of each node",
      end: [choice("Kind", [["", "all"], ...kinds.map((kind) => [kind, kind])], state.kind, (kind) => { state.kind = kind; own.draw(); }), filterBox(state, own.draw, "Filter events by their text")],
    }, table([
      { name: "at", label: "when", class: "tight", cell: (event) => h("span", { title: f.ago(Date.parse(event.at)) }, f.moment(Date.parse(event.at))) },
      { name: "node", label: "seen by", class: "tight", cell: (event) => `node ${f.name(event.node)}` },
      { name: "kind", label: "kind", cell: (event) => badge(KINDS[event.severity], event.kind) },
      { name: "object", label: "about", class: "tight" },
      { name: "says", label: "what happened" },
    ], shown, { key: (event) => `${event.node} ${event.id} ${event.at}`, none: events.length ? "No event has this in its text." : "Nothing happened that a node remembers." })),
  ];
}
