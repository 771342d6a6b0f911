// What the last start of each node found, and whether its disk is sound now.

import { at, get, getFrom } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, empty, facts, head, inside, panel, table } from "./ui.js";

export default { name: "recovery", title: "Recovery", every: 4000, load, view };

const ENDS = { orderly: "stopped in order", process_died: "process died", machine_restarted: "machine restarted", unknown: "unknown" };

async function load({ signal }) {
  const members = await get("v1/members", signal);
  const [nodes, repair, scrub, backup, retention] = await Promise.all([
    Promise.all(members.members.map(({ id }) => getFrom(id, signal, "status"))),
    ...["repair", "scrub", "backup", "retention"].map((what) => get(at(what), signal)),
  ]);
  return { nodes, repair, scrub, backup, retention };
}

function view({ nodes, repair, scrub, backup, retention }, own) {
  const { status } = own.state;
  const { recovery } = status;
  return [
    head("Recovery", status),
    panel("The last start of each node", null, table([
      { name: "node", label: "node", class: "tight", cell: (one) => `node ${f.name(one.node)}` },
      { name: "state", label: "state", cell: stateOf },
      { name: "uptime_ms", label: "up for", num: true, cell: (one) => f.span(one.uptime_ms) },
      { name: "took", label: "start took", num: true, cell: (one) => (one.recovery ? f.latency(sum(one.recovery.stages_ms)) : "–") },
      { name: "entries_replayed", label: "entries replayed", num: true, cell: (one) => f.count(one.recovery?.entries_replayed) },
      { name: "torn", label: "torn bytes", num: true, cell: (one) => f.count(one.recovery?.torn_bytes_cut) },
      { name: "damage", label: "damaged ranges", num: true, cell: (one) => f.count(one.recovery?.damage.length) },
      { name: "previous", label: "the run before", class: "words", cell: (one) => (one.recovery?.previous ? ENDS[one.recovery.previous.ended] : "–") },
    ], nodes, { key: (one) => one.node, none: "No members are known." })),
    h("div", { class: "columns" },
      panel(`What node ${f.name(status.node)} found`, null, recovery.reasons.length ? h("ul", { class: "plain" }, recovery.reasons.map((reason, n) => h("li", { key: String(n) }, reason))) : empty("Nothing: the stop before was orderly."), inside(facts(
        ["stages", Object.entries(recovery.stages_ms).map(([stage, ms]) => `${stage} ${f.latency(ms)}`).join(", ")],
        ["bytes scanned", f.bytes(recovery.bytes_scanned)], ["state from", recovery.state_source === "own" ? "its own rows" : recovery.state_source]))),
      panel(`The disk of node ${f.name(status.node)}`, null, inside(facts(
        ["damage", repair.damage.length ? h("span", { class: "bad" }, `${f.plural(repair.damage.length, "range")}, ${f.bytes(repair.damaged_bytes)}`) : "none known"],
        ["votes", repair.vote_withheld ? h("span", { class: "warn" }, "withheld until it has caught up") : "given"],
        ["last scrub", scrubInWords(scrub)],
        ["rows synced up to", recovery.checkpoints && f.count(recovery.checkpoints.synced_index)],
        ["newest checkpoint", recovery.checkpoints && (recovery.checkpoints.checkpoint_index < 0 ? "none" : `entry ${f.count(recovery.checkpoints.checkpoint_index)}`)],
        ["last good backup", backup.last_good_ms ? f.ago(backup.last_good_ms) : "none that this node knows of"],
        ["log begins at", `entry ${f.count(retention.trim_index)}, position ${f.count(retention.trim_position)}`],
        ["log on this disk", f.bytes(retention.end_position - retention.first_position)]))))];
}

function stateOf(one) {
  if (one.error) return badge("bad", "does not answer");
  const { recovery, install } = one;
  if (install.stage !== "none" && install.stage) return badge("warn", `${install.stage}: ${f.bytes(install.bytes_done)} of ${f.bytes(install.bytes_total)}`);
  if (recovery.replaying) return badge("warn", `replays: entry ${f.count(recovery.replay_index)} of ${f.count(recovery.replay_target)}`);
  if (recovery.damage.length) return badge("bad", "damaged");
  return recovery.clean ? badge("good", "clean start") : badge("good", "recovered");
}

function scrubInWords(scrub) {
  if (scrub.running) return `runs since ${f.clock(scrub.started_ms)}`;
  if (scrub.failure) return h("span", { class: "warn" }, `did not end: ${scrub.failure}`);
  if (!scrub.finished_ms) return "none since the start";
  const found = scrub.findings.length ? h("span", { class: "bad" }, f.plural(scrub.findings.length, "finding")) : "nothing found";
  return [`${f.ago(scrub.finished_ms)}, ${f.bytes(scrub.log_bytes + scrub.row_bytes)} read, `, found];
}

function sum(stages) {
  return Object.values(stages).reduce((a, b) => a + b, 0);
}
