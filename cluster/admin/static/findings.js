// What is wrong with the cluster, as /v1/health of this node says it.

import { otherHealths } from "./brokers.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, copyButton, empty, panel } from "./ui.js";

const ORDER = ["critical", "warning", "info", "none"];
const KINDS = { critical: "bad", warning: "warn", info: "info" };

/** The findings about a group of brokers, the worst first. What keeps its node from serving is always among them. */
export function findingsOf(health) {
  const node = `node ${f.nodeName(health.group ?? 1, health.node)}`;
  if (health.healthy || health.findings.some((finding) => explains(finding, node))) return health.findings;
  return [...health.reasons.map((says) => ({ severity: "critical", says, object: node })), ...health.findings];
}

/** Whether it says why the node does not serve: a node that is cut off from the leader is only a warning to the cluster. */
function explains(finding, node) {
  return finding.severity === "critical" || (finding.code === "no_leader" && finding.object === node);
}

/** Those of all groups of brokers: of the one that the pages are about, and of the others as far as they have answered. */
export function allFindings(health) {
  const others = otherHealths(health.group ?? 1);
  if (!others.length) return findingsOf(health);
  const told = [[health.group, health], ...others].flatMap(([group, each]) => (each.error
    ? [{ severity: "critical", object: `group ${group} of brokers`, says: `does not answer: ${each.error.message}`, do_now: "raftmq status", groups: [group] }]
    : findingsOf(each).map((finding) => ({ ...finding, groups: [group] }))));
  return once(told).sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity));
}

/** What several groups say in the same words stands there once, with all of them. */
function once(findings) {
  const known = new Map();
  for (const finding of findings) {
    const key = JSON.stringify([finding.code, finding.severity, finding.object, finding.says]);
    const before = known.get(key);
    known.set(key, before ? { ...before, groups: [...before.groups, ...finding.groups].sort((a, b) => a - b), since: before.since < finding.since ? before.since : finding.since } : finding);
  }
  return [...known.values()];
}

/** The worst severity, "none" without findings. */
export function worst(findings) {
  return ORDER[Math.min(3, ...findings.map((finding) => ORDER.indexOf(finding.severity)))];
}

export function findingsPanel(health) {
  const findings = allFindings(health);
  const healths = [[health.group ?? 1, health], ...otherHealths(health.group ?? 1)];
  const silent = healths.flatMap(([group, each]) => (each.nodes || []).filter((report) => !report.answers).map((report) => `node ${f.nodeName(group, report.node)}`));
  return panel("What is wrong", { note: findings.length ? f.plural(findings.length, "finding") : null, id: "findings" },
    findings.length === 0
      ? empty(h("span", { class: "good" }, "✓ "), "Nothing that any node knows of.")
      : h("ul", { class: "findings" }, findings.map(findingItem)),
    silent.length > 0 && h("div", { class: "empty" }, `Not heard: ${silent.join(", ")}. What only it knows is missing here.`));
}

function findingItem(finding) {
  const since = Date.parse(finding.since);
  const { because_of: cause } = finding;
  const { groups } = finding;
  const ofGroup = groups && !/^(node|link) |^group .* of brokers$/.test(finding.object) ? `${groups.length > 1 ? "groups" : "group"} ${groups.join(", ")}: ` : "";
  return h("li", { key: `${groups ? `${groups.join()} ` : ""}${finding.code} ${finding.object}`, "data-severity": finding.severity, "data-code": finding.code || null, "data-object": finding.object, class: cause && "follows" },
    h("span", null, badge(KINDS[finding.severity], finding.severity)),
    h("span", { class: "says" }, h("b", null, `${ofGroup}${finding.object}`), " ", finding.says,
      cause && h("span", { class: "muted" }, `; because of ${cause.code} (${cause.object})`)),
    h("span", { class: "since", title: since ? `since ${f.moment(since)}` : null }, since ? f.ago(since) : ""),
    finding.do_now && h("span", { class: "do" },
      h("code", { class: "command" }, finding.do_now), copyButton(finding.do_now),
      finding.code && h("a", { href: `#/runbook/${encodeURIComponent(finding.code)}` }, `${finding.code}: what to do`)));
}
