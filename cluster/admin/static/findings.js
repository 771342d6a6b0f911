// What is wrong with the cluster, as /v1/health of this node says it.

import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, copyButton, empty, panel } from "./ui.js";

const ORDER = ["critical", "warning", "info", "none"];
const KINDS = { critical: "bad", warning: "warn", info: "info" };

/** The findings about the whole cluster, the worst first. What keeps this node from serving is always among them. */
export function findingsOf(health) {
  if (health.healthy || health.findings.some((finding) => explains(finding, health.node))) return health.findings;
  const own = health.reasons.map((says) => ({ severity: "critical", says, object: `node ${health.node}` }));
  return [...own, ...health.findings];
}

/** Whether it says why the node does not serve: a node that is cut off from the leader is only a warning to the cluster. */
function explains(finding, node) {
  return finding.severity === "critical" || (finding.code === "no_leader" && finding.object === `node ${node}`);
}

/** The worst severity, "none" without findings. */
export function worst(findings) {
  return ORDER[Math.min(3, ...findings.map((finding) => ORDER.indexOf(finding.severity)))];
}

export function findingsPanel(health) {
  const findings = findingsOf(health);
  const silent = health.nodes.filter((report) => !report.answers).map((report) => `node ${report.node}`);
  return panel("What is wrong", { note: findings.length ? f.plural(findings.length, "finding") : null, id: "findings" },
    findings.length === 0
      ? empty(h("span", { class: "good" }, "✓ "), "Nothing that any node knows of.")
      : h("ul", { class: "findings" }, findings.map(findingItem)),
    silent.length > 0 && h("div", { class: "empty" }, `Not heard: ${silent.join(", ")}. What only it knows is missing here.`));
}

function findingItem(finding) {
  const since = Date.parse(finding.since);
  const { because_of: cause } = finding;
  return h("li", { key: `${finding.code} ${finding.object}`, "data-severity": finding.severity, "data-code": finding.code || null, "data-object": finding.object, class: cause && "follows" },
    h("span", null, badge(KINDS[finding.severity], finding.severity)),
    h("span", { class: "says" }, h("b", null, finding.object), " ", finding.says,
      cause && h("span", { class: "muted" }, `; because of ${cause.code} (${cause.object})`)),
    h("span", { class: "since", title: since ? `since ${f.moment(since)}` : null }, since ? f.ago(since) : ""),
    finding.do_now && h("span", { class: "do" },
      h("code", { class: "command" }, finding.do_now), copyButton(finding.do_now),
      h("a", { href: `#/runbook/${encodeURIComponent(finding.code)}` }, `${finding.code}: what to do`)));
}
