// What is wrong, who leads, how fast, how late: the page for whoever was woken up.

import { get, getConfirmed, Refusal } from "./api.js";
import { groupsPanel, numbers } from "./brokers.js";
import { h } from "./dom.js";
import { findingsPanel } from "./findings.js";
import * as f from "./format.js";
import { historyOf, withGaps } from "./history.js";
import { membersTable } from "./members.js";
import { plot } from "./plots.js";
import { registryPanel } from "./registry.js";
import { badge, choice, empty, head, panel, tile } from "./ui.js";

const RANGES = [[300, "5 min"], [900, "15 min"], [3600, "1 hour"]];
/** Why requests were refused before anything was proposed: the line of the plot, the series. */
const REASONS = [["overload", "refused_overload_per_s"], ["bytes in flight", "refused_busy_per_s"], ["other", "refused_other_per_s"]];
/** Until somebody chooses: the leader, and the shortest time that shows all there is. */
const state = { range_s: null, node: null };

export default {
  name: "", title: "Overview", every: 2500, load, view,
};

async function load({ state: { status }, signal }) {
  const node = state.node ?? status.leader ?? status.node;
  const [members, history, registry] = await Promise.all([
    getConfirmed("v1/members", signal), historyOf(node, signal).catch(refused), get("v1/registry", signal)]);
  return { members, node, history, registry };
}

/** A node that is down has no history to show; the page has the rest. */
function refused(error) {
  if (error instanceof Refusal) return { error };
  throw error;
}

function view({ members, node, history, registry }, own) {
  const { status, health } = own.state;
  return [
    head("Overview", status),
    findingsPanel(health),
    groupsPanel(status.group),
    registryPanel(registry),
    tiles(status, members, history),
    plots(members, node, history, own),
    panel(nodesTitle(status), { note: h("a", { href: "#/members" }, "change members") }, membersTable(members, status)),
  ];
}

function tiles(status, members, history) {
  const last = (name) => history.series?.get(name)?.at(-1);
  const disk = status.disk;
  return h("div", { class: "tiles" },
    tile("Leader", members.leader ? `node ${f.name(members.leader)}` : "none", `term ${f.count(members.term)}`, members.leader ? "" : "bad"),
    status.quorum && votersTile(status.quorum),
    writesTile(last),
    tile("Reads", f.perSecond(last("messages_out_per_s")), f.bytesPerSecond(last("bytes_out_per_s"))),
    tile("Commit, p99", f.latency(last("commit_p99_ms")), `median ${f.latency(last("commit_p50_ms"))}`),
    disk && tile("Disk used", f.percent(disk.used_percent), disk.full_in_s === null || disk.full_in_s === undefined ? `${f.bytes(disk.free_bytes)} free` : `full in ${f.span(disk.full_in_s * 1000)}`, disk.refusing ? "bad" : ""),
    tile("Clients", f.count(status.load.connections), `${f.plural(status.load.long_polls, "long poll")} here`),
    tile("Up for", f.span(status.uptime_ms), `RaftMQ ${status.versions.raftmq}`));
}

/** Acknowledged messages, and what is refused beside them. */
function writesTile(last) {
  const refused = REASONS.reduce((sum, [, name]) => sum + (last(name) ?? 0), 0);
  const note = [f.bytesPerSecond(last("bytes_in_per_s")), last("overloaded") && "overloaded", refused && `${f.perSecond(refused)} refused`];
  return tile("Writes", f.perSecond(last("messages_in_per_s")), note.filter(Boolean).join(", "), last("overloaded") ? "bad" : refused ? "warn" : "");
}

/** Of which group of brokers, if the cluster has several. */
function nodesTitle({ group }) {
  return numbers().length ? `Nodes of group ${group}` : "Nodes";
}

/** As this node sees them: the same judgement as the finding `no_quorum_margin`. */
function votersTile({ voters, away, survives }) {
  const margin = survives > 0 ? `survives ${f.plural(survives, "more failure")}` : survives === 0 ? "the next loss stops writes" : "no majority";
  return tile("Voters", `${voters.length - away.length} of ${voters.length}`, margin, survives > 0 ? "" : survives === 0 ? "warn" : "bad");
}

function plots(members, node, history, own) {
  const again = (name, value) => { state[name] = value; own.refresh(); };
  const covered_s = history.error ? 0 : ((history.times_ms.at(-1) ?? 0) - (history.times_ms[0] ?? 0)) / 1000;
  const range_s = state.range_s ?? (RANGES.find(([seconds]) => seconds >= covered_s) || RANGES.at(-1))[0];
  const nodes = members.members.map((member) => [member.id, `node ${f.name(member.id)}`]);
  const chosen = state.node ?? null;
  const end = [
    choice("Node", [[null, "leader"], ...nodes], chosen, (value) => again("node", value)),
    choice("Time", RANGES, range_s, (value) => { state.range_s = value; own.draw(); }),
  ];
  if (history.error) return panel(`Node ${f.name(node)}`, { end }, empty(`Node ${f.name(node)} does not answer: ${history.error.message}.`));
  if (history.times_ms.length < 2) return panel(`Node ${f.name(node)}`, { end }, empty("The node takes a sample every 5 s. Two of them make a plot."));
  const until = history.times_ms.at(-1) / 1000;
  const from = until - range_s;
  const { times_ms, series } = withGaps(history);
  const first = Math.max(0, times_ms.findIndex((time) => time / 1000 >= from));
  const times_s = times_ms.slice(first).map((time) => time / 1000);
  const line = (name, of) => ({ name, values: (series.get(of) || times_ms.map(() => null)).slice(first) });
  const drawn = (title, show, lines, max) => plot({ title, times_s, lines, show, max, range_s: [from, until] });
  const lags = [...history.series.keys()].filter((name) => name.startsWith("peer_lag_entries"));
  return panel(`Node ${f.name(node)}, the last ${RANGES.find(([value]) => value === range_s)[1].replace("1 ", "")}`, { end, note: loadBadge(history) },
    h("div", { class: "plots" },
      drawn("Messages", f.perSecond, [line("written", "messages_in_per_s"), line("read", "messages_out_per_s")]),
      drawn("Bytes", f.bytesPerSecond, [line("written", "bytes_in_per_s"), line("read", "bytes_out_per_s")]),
      drawn("Latency", f.latency, [line("commit p99", "commit_p99_ms"), line("commit p50", "commit_p50_ms"), line("sync p99", "append_p99_ms")]),
      drawn("Entries behind", f.short, [...lags.map((name) => line(`node ${f.name(name.split(" ")[1])}`, name)), line("not applied", "apply_lag_entries")], 10),
      drawn("Demand", f.bytesPerSecond, [line("arrives", "demand_bytes_per_s"), line("acknowledged", "bytes_in_per_s"), line("the log takes", "decided_bytes_per_s")]),
      drawn("House", f.bytes, [line("undecided", "inflight_bytes"), line("limit", "admission_limit_bytes")]),
      drawn("Refused", f.perSecond, REASONS.map(([name, of]) => line(name, of)), 1),
      drawn("Clients", f.short, [line("connections", "connections")], 5),
      drawn("Delay of the event loop", f.latency, [line("longest in 10 s", "loop_lag_ms")], 5)));
}

/** Whether the node refuses sends because more arrive than its log takes; nothing for one that takes none. */
function loadBadge({ series }) {
  const last = (name) => series.get(name)?.at(-1);
  if (!last("leads")) return null;
  return h("span", { "data-overloaded": last("overloaded") ? "yes" : "no" }, last("overloaded") ? badge("bad", "overloaded") : "not overloaded");
}
