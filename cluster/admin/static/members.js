// The members as a table: on the overview, and on the page that changes them.

import * as f from "./format.js";
import { badge, table } from "./ui.js";

/** How a member is, in words: [kind, text]. The same words as in `raftmq node list`. */
export function stateOf(member, view, status) {
  if (member.id === status.node && status.failure) return ["bad", "has stopped taking part"];
  if (member.maintenance) return ["warn", "maintenance"];
  if (member.id === view.node) return view.drained ? ["warn", "drained"] : ["good", "ok"];
  if (member.live === null || member.live === undefined) return member.connected ? ["good", "connected"] : ["bad", "not connected"];
  if (!member.live) return ["bad", "silent"];
  if (member.state === "SNAPSHOT") return ["warn", "fetches a snapshot"];
  if (!member.fit) return ["warn", "not fit to lead"];
  if (member.role === "learner" && !member.caught_up) return ["warn", "catches up"];
  return ["good", "ok"];
}

export function roleOf(member) {
  if (member.leader) return "leader";
  return member.manual ? `${member.role} (stays)` : member.role;
}

/** `more`: columns in place of the round trip. */
export function membersTable(view, status, ...more) {
  const links = new Map(status.links.map((link) => [link.peer, link]));
  return table([
    { name: "id", label: "node", class: "tight", cell: (member) => `node ${member.id}${member.id === status.node ? " (this)" : ""}` },
    { name: "role", label: "role", cell: (member) => (member.leader ? badge("info", "leader") : roleOf(member)) },
    { name: "state", label: "state", cell: (member) => badge(...stateOf(member, view, status)) },
    { name: "lag_entries", label: "entries behind", num: true },
    { name: "match_index", label: "on disk up to", num: true, cell: (member) => (member.match_index < 0 ? "–" : f.count(member.match_index)) },
    ...(more.length ? [] : [{ name: "round_trip", label: "round trip", num: true, cell: (member) => (links.get(member.id)?.control ? f.latency(links.get(member.id).round_trip_ms) : "–") }]),
    { name: "admin", label: "HTTP", class: "tight", cell: (member) => member.admin || "–" },
    ...more,
  ], view.members, { key: (member) => member.id, none: "No members are known." });
}
