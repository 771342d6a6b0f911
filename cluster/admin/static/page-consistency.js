// Whether the nodes have the same rows: the sums that each remembers of one marker entry, side by side.

import { change, get, getFrom } from "./api.js";
import { host } from "./brokers.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { askFirst, badge, empty, head, panel, table } from "./ui.js";

export default { name: "consistency", title: "Consistency", every: 5000, load, view };

async function load({ signal }) {
  const members = await get("v1/members", signal);
  const newest = await Promise.all(members.members.map(({ id }) => viewOf(id, null, signal)));
  const marks = newest.filter((one) => !one.error && one.index >= 0).map((one) => one.index);
  const marker = marks.length ? Math.min(...marks) : -1; // every node that answers has applied this one
  const nodes = await Promise.all(newest.map((one) => (one.error || one.index === marker || marker < 0 ? one : viewOf(one.node, marker, signal))));
  return { nodes, marker };
}

async function viewOf(node, index, signal) {
  return { sums: {}, ...(await getFrom(node, signal, "consistency", ...(index === null ? [] : [index]))) };
}

function view({ nodes, marker }, own) {
  const { status } = own.state;
  const answering = nodes.filter((one) => !one.error);
  const families = [...new Set(answering.flatMap((one) => Object.keys(one.sums)))].sort();
  const rows = families.map((family) => ({ family, sums: nodes.map((one) => one.sums[family]) }));
  const compare = h("button", { type: "button", onclick: () => mark(own) }, "Compare now…");
  return [
    head("Consistency", status),
    panel("Rows", { end: compare, note: marker < 0 ? null : h("span", { "data-marker": marker }, `sums at marker entry ${f.count(marker)}`) },
      marker < 0 ? empty("The nodes remember no marker yet. The leader marks an entry from time to time; Compare now marks one at once.") : table([
        { name: "family", label: "family" },
        { name: "verdict", label: "verdict", cell: (row) => verdict(row.sums.filter((sum) => sum !== undefined)) },
        ...nodes.map((one, n) => ({ name: `node${one.node}`, label: `node ${f.name(one.node)}`, class: "mono", cell: (row) => row.sums[n] ?? (one.error ? "no answer" : "not there yet") })),
      ], rows, { key: (row) => row.family, none: "No node remembers the sums of this marker." })),
    panel("Logs", null, table([
      { name: "node", label: "node", class: "tight", cell: (one) => `node ${f.name(one.node)}` },
      { name: "state", label: "state", cell: (one) => (one.error ? badge("bad", "does not answer") : one.fenced ? badge("bad", "fenced: its rows are wrong") : badge("good", "ok")) },
      { name: "first_index", label: "first entry", num: true, cell: (one) => f.count(one.log?.first_index) },
      { name: "last_index", label: "last entry", num: true, cell: (one) => f.count(one.log?.last_index) },
      { name: "commit_index", label: "committed", num: true, cell: (one) => f.count(one.log?.commit_index) },
      { name: "applied_index", label: "applied", num: true },
      { name: "damage", label: "damaged ranges", num: true, cell: (one) => f.count(one.log?.damage.length) },
    ], nodes, { key: (one) => one.node, none: "No members are known." })),
    panel("The bytes of the logs", null, h("div", { class: "inside" }, h("p", null, "This compares the log files byte by byte, while the nodes run:"), h("code", { class: "command" }, `raftmq inspect-consistency --admin ${host()}`))),
  ];
}

function verdict(sums) {
  if (sums.length < 2) return badge("", "nothing to compare");
  return new Set(sums).size === 1 ? badge("good", "equal") : badge("bad", "differs");
}

function mark(own) {
  askFirst({
    title: "Compare the rows of all nodes now?", yes: "Compare",
    text: ["The leader adds one entry to the log, at which every node remembers the sums of its rows. Clients notice nothing."],
    act: async () => { await change("POST", "v1/consistency"); },
    after: own.refresh,
  });
}
