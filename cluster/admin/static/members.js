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

/** The lag of a member in bytes and time; a lag of nothing is 0 B alone. */
export function lagOf(member) {
  if (member.lag_bytes === null || member.lag_bytes === undefined) return "–";
  return member.lag_ms ? `${f.bytes(member.lag_bytes)}, ${f.span(member.lag_ms)}` : f.bytes(member.lag_bytes);
}

/** The course of its lag: [kind, text]; null if it has none. */
export function courseOf(member) {
  const snapshot_s = member.snapshot_in_s ?? null, gone_s = member.caught_up_in_s ?? null, rate = member.lag_bytes_per_s ?? 0;
  if (snapshot_s !== null) return ["warn", snapshot_s ? `snapshot in ${f.span(1000 * snapshot_s)}` : "snapshot at any time"];
  if (gone_s !== null) return ["info", gone_s ? `gone in ${f.span(1000 * gone_s)}` : "gone at once"];
  return rate > 0 ? ["warn", `grows by ${f.bytesPerSecond(rate)}`] : null;
}

/** `more`: columns in place of the round trip. */
export function membersTable(view, status, ...more) {
  const links = new Map(status.links.map((link) => [link.peer, link]));
  return table([
    { name: "id", label: "node", class: "tight", cell: (member) => `node ${f.name(member.id)}${member.id === status.node ? " (this)" : ""}` },
    { name: "role", label: "role", cell: (member) => (member.leader ? badge("info", "leader") : roleOf(member)) },
    { name: "state", label: "state", cell: (member) => badge(...stateOf(member, view, status)) },
    { name: "lag_bytes", label: "lag", cell: (member) => (courseOf(member) ? [`${lagOf(member)} `, badge(...courseOf(member))] : lagOf(member)) },
    { name: "sync_ms", label: "sync", num: true, cell: (member) => (member.sync_ms === null || member.sync_ms === undefined ? "–" : f.latency(member.sync_ms)) },
    { name: "match_index", label: "on disk up to", num: true, cell: (member) => (member.match_index < 0 ? "–" : f.count(member.match_index)) },
    ...(more.length ? [] : [{ name: "round_trip", label: "round trip", num: true, cell: (member) => (links.get(member.id)?.control ? f.latency(links.get(member.id).round_trip_ms) : "–") }]),
    { name: "admin", label: "HTTP", class: "tight", cell: (member) => member.admin || "–" },
    ...more,
  ], view.members, { key: (member) => member.id, none: "No members are known." });
}
