// Quotas and learnt limits: who is limited, what they send, and what was refused.

import { get, getAll, Refusal } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, empty, facts, head, inside, panel, table } from "./ui.js";

export default { name: "quotas", title: "Quotas", every: 5000, load, view };

async function load({ signal }) {
  const [list, use, learnt] = await Promise.all([
    getAll("v1/quotas", "quotas", signal), ofLeader("v1/quotas/refused", signal), ofLeader("v1/quotas/learnt", signal)]);
  return { list, use, learnt };
}

/** What a leader counts; null while none says it. */
async function ofLeader(path, signal) {
  try {
    return await get(path, signal);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return null;
  }
}

function view({ list, use, learnt }) {
  return [
    head("Quotas", list),
    panel(f.plural(list.quotas.length, "quota"), { note: use?.waiting ? `${f.plural(use.waiting, "send")} wait for one` : null }, table([
      { name: "subject", label: "who", cell: (quota) => [quota.subject, quota.exists ? null : badge("warn", "nobody has this name")] },
      { name: "limits", label: "limits", cell: (quota) => Object.entries(quota.limits).map(([limit, value]) => `${limit} ${limitOf(limit, value)}`).join(", ") },
      { name: "changed_by", label: "changed by" },
      { name: "changed_ms", label: "changed", num: true, cell: (quota) => f.ago(quota.changed_ms) },
    ], list.quotas, { key: (quota) => quota.subject, none: ["There is no quota. ", h("code", { class: "command" }, "raftmq quota set topic=NAME --send-messages N"), " sets one."] })),
    list.quotas.length > 0 && panel("What they ask for", { note: "since this leader leads" }, sendersOf(list, use)),
    panel("Learnt limits", { note: learnt?.in_force ? modeOf(learnt.in_force) : null }, learntOf(learnt)),
  ];
}

function sendersOf(list, use) {
  if (use === null) return empty("No leader says it now.");
  const rows = new Map([...use.owners, ...use.busiest].map((each) => [keyOf(each), each]));
  return table([
    { name: "owner", label: "who" },
    { name: "subject", label: "quota" },
    { name: "limit", label: "limit" },
    { name: "asked_per_s", label: "demand", num: true, cell: (row) => (row.asked_per_s === null ? f.count(null) : limitOf(row.limit, row.asked_per_s)) },
    { name: "value", label: "allowed", num: true, cell: (row) => limitOf(row.limit, row.value) },
    { name: "refused", label: "refused", num: true, cell: (row) => (row.refused ? badge("warn", f.count(row.refused)) : f.count(0)) },
  ], [...rows.values()], { key: keyOf, none: "Nobody with a quota has asked for anything." });
}

function keyOf({ subject, owner, limit }) {
  return `${subject} ${owner} ${limit}`;
}

const PERIODS = { new_topics: " a minute", new_groups: " a minute", connections: " a minute", requests: " at once" };

function limitOf(limit, value) {
  if (limit === "backlog_bytes") return f.bytes(value);
  if (limit.endsWith("_bytes")) return f.bytesPerSecond(value);
  return limit in PERIODS ? `${f.count(value)}${PERIODS[limit]}` : f.perSecond(value);
}

function usual({ limit_messages: messages, limit_bytes: bytes }) {
  return [messages && f.perSecond(messages), bytes && f.bytesPerSecond(bytes)].filter(Boolean).join(", ") || f.count(null);
}

function modeOf({ mode, expired }) {
  if (expired) return badge("warn", "expired");
  return mode === "on" ? badge("info", "on: who is over is cut first in an overload") : "shadow: only counted";
}

function learntOf(learnt) {
  if (learnt === null) return empty("No leader says it now.");
  const limits = learnt.in_force;
  if (limits === null) return empty("There are none. ", h("code", { class: "command" }, "raftmq quota import FILE"), " takes what the job traffic has learnt.");
  return [
    inside(facts(
      ["topics", f.count(limits.topics)], ["learnt from", `${f.moment(limits.first_ms)} to ${f.moment(limits.last_ms)}`],
      [limits.expired ? "expired" : "count until", f.moment(limits.ends_ms)], ["imported by", limits.changed_by],
      ["over a limit", `${f.count(learnt.over)} of ${f.plural(learnt.seen, "message")}`])),
    table([
      { name: "topic", label: "topic", cell: (row) => [row.topic, row.demoted ? badge("warn", "cut first") : null] },
      { name: "messages_per_s", label: "demand", num: true, cell: (row) => f.perSecond(row.messages_per_s) },
      { name: "limit_messages", label: "limit of this hour", num: true, cell: usual },
      { name: "over", label: "over", num: true, cell: (row) => f.count(row.over) },
      { name: "cut", label: "refused", num: true, cell: (row) => (row.cut ? badge("warn", f.count(row.cut)) : f.count(0)) },
    ], learnt.topics, { key: (row) => row.topic, none: "No topic with a limit has got anything since this leader leads." }),
  ];
}
