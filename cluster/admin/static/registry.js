// The processes of the registry, as the node that is asked is connected to them and hears of them.

import * as f from "./format.js";
import { badge, panel, table } from "./ui.js";

/** `told`: the answer to GET /v1/registry. Nothing in a cluster without a registry. */
export function registryPanel(told) {
  if (!told.processes.length) return null;
  const note = told.has_majority ? f.plural(told.processes.length, "process", "processes") : badge("bad", "no majority is reached");
  return panel("Registry", { id: "registry", note }, table([
    { name: "id", label: "process", class: "tight", cell: (row) => `registry/${row.id}` },
    { name: "state", label: "state", cell: (row) => badge(...stateOf(row)) },
    { name: "address", label: "nodes register at", class: "tight" },
    { name: "living", label: "nodes connected", num: true, cell: (row) => (row.reached ? f.count(row.living ?? 0) : "–") },
    { name: "leader", label: "leads", cell: (row) => (row.leader === row.id ? badge("info", "leader") : "") },
    { name: "operations", label: "operations", num: true, cell: (row) => (row.reached ? f.count(row.operations ?? 0) : "–") },
    { name: "accepted", label: "last one accepted", num: true, cell: (row) => (row.accepted_ms === null ? "–" : `${f.span(row.accepted_ms)} ago`) },
    { name: "child_restarts", label: "restarts", num: true, cell: (row) => (row.reached ? f.count(row.child_restarts ?? 0) : "–") },
  ], told.processes, { key: (row) => row.id, none: "" }));
}

/** How a process is, in words: [kind, text]. */
function stateOf(row) {
  if (!row.reached) return ["bad", "not reached"];
  if (row.ready === null) return ["info", "connected"];
  if (!row.accepts) return ["bad", "accepts no operation"];
  if (row.missing.length) return ["warn", `without group ${row.missing.join(", ")}`];
  return row.ready ? ["good", "ready"] : ["warn", "waits for groups"];
}
