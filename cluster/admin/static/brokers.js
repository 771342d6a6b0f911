// The groups of brokers: which one the pages are about, what each says of itself, and questions to all of them. The node
// that served this page asks the others: a browser may not.

import { chosenGroup, get, getHere, ofGroup, Refusal, Unreachable } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, panel, table } from "./ui.js";

const EVERY_MS = 5000;
/** As the node that served this page knows them: none in a cluster of one group. `told`: group -> {view, health} or {error}. */
const known = { atMs: 0, own: 1, groups: [], told: new Map() };

/** The groups that there are, asked for from time to time; `again` is called when another group has answered. */
export async function lookAtGroups(signal, again) {
  if (Date.now() - known.atMs < EVERY_MS) return;
  const { group, groups } = await getHere("v1/broker-groups", signal);
  Object.assign(known, { atMs: Date.now(), own: group, groups });
  for (const each of groups) lookAt(each.group, signal).then(again, () => {}); // whoever waits for a group shows no page
}

async function lookAt(group, signal) {
  try {
    const [view, health] = await Promise.all(["v1/broker-groups", "v1/health"].map((path) => get(ofGroup(path, group), signal)));
    known.told.set(group, { view, health });
  } catch (error) {
    if (!(error instanceof Refusal || error instanceof Unreachable)) throw error;
    known.told.set(group, { error });
  }
}

/** The numbers of the groups; none in a cluster of one. */
export function numbers() {
  return known.groups.map((each) => each.group);
}

/** Where a command reaches the group that the pages are about. */
export function host() {
  const group = known.groups.find((each) => each.group === chosenGroup());
  return group && group.group !== known.own ? addressOf(group) || location.host : location.host;
}

/**
 * What all groups answer to one question, `ask(aim)`, where `aim` leads a path to the group: {answers: [{group, ...}],
 * silent: [group]}. Raises the refusal of the first one if none answers.
 */
export async function ofAll(groups, ask) {
  if (!groups.length) return { answers: [{ ...(await ask((path) => path)), group: null }], silent: [] };
  const found = await Promise.all(groups.map((group) => ask((path) => ofGroup(path, group)).then(
    (answer) => ({ ...answer, group }),
    (error) => { if (error instanceof Refusal) return { group, error }; throw error; })));
  const answers = found.filter((each) => !each.error);
  if (!answers.length) throw found[0].error;
  return { answers, silent: found.filter((each) => each.error).map((each) => each.group) };
}

/** Says which groups are missing in a sum; nothing if none is. */
export function without(silent) {
  return silent.length ? h("span", { class: "warn" }, `without group ${silent.join(", ")} of brokers: no answer`) : null;
}

/** [group, health] of the other groups that have answered, and [group, {error}] of those that do not. */
export function otherHealths(shown) {
  const others = known.groups.filter((each) => each.group !== shown && known.told.has(each.group));
  return others.map(({ group }) => [group, known.told.get(group).health || known.told.get(group)]);
}

/** Chooses the group that the pages are about: another address, so that it can be sent to a colleague. */
export function groupChooser(shown) {
  if (known.groups.length < 2 && chosenGroup() === null) return null;
  const groups = known.groups.length ? known.groups : [{ group: chosenGroup(), name: "" }];
  return h("label", { class: "chooser" }, "Group",
    h("select", { key: `group ${shown} of ${groups.length}`, value: String(shown), "data-field": "group", onchange: (event) => location.assign(placeOf(Number(event.target.value))) },
      groups.map(({ group, name }) => h("option", { key: String(group), value: String(group) }, `${group} ${name}`))));
}

function placeOf(group) {
  return `${location.pathname}${group === known.own ? "" : `?broker_group=${group}`}${location.hash}`;
}

/** All groups side by side; nothing in a cluster of one. */
export function groupsPanel(shown) {
  if (!known.groups.length) return null;
  const first = known.told.get(1)?.view?.version;
  const told = (row) => known.told.get(row.group) || {};
  return panel("Groups of brokers", { id: "broker-groups", note: f.plural(known.groups.length, "group") }, table([
    { name: "group", label: "group", class: "tight", cell: (row) => (row.group === shown ? [h("b", null, nameOf(row)), " (shown)"] : h("a", { href: placeOf(row.group) }, nameOf(row))) },
    { name: "leader", label: "leader", class: "tight", cell: (row) => { const leader = leaderOf(row); return leader ? `node ${f.nodeName(row.group, leader)}` : badge("bad", "none"); } },
    { name: "writes", label: "writes", cell: (row) => writes(told(row)) },
    { name: "members", label: "voters", cell: membersOf },
    { name: "truth", label: "what all groups share", cell: (row) => truth(row, told(row), first) },
    { name: "findings", label: "findings", cell: (row) => findings(told(row)) },
    { name: "dashboard", label: "own dashboard", class: "tight", cell: (row) => { const at = addressOf(row); return at ? h("a", { href: `${location.protocol}//${at}/`, rel: "noreferrer" }, at) : "–"; } },
  ], known.groups, { key: (row) => row.group, none: "" }));
}

function nameOf({ group, name }) {
  return `${group} ${name}`;
}

/** As the group says it; while it does not, as others have heard of it. */
function leaderOf(row) {
  const { view } = known.told.get(row.group) || {};
  return view ? view.leader : row.leader;
}

function addressOf(row) {
  const leader = row.members.find((each) => each.id === leaderOf(row) && each.admin) || row.members.find((each) => each.admin);
  return leader?.admin;
}

/** Only the leader knows whether it takes writes. Of a follower that answers, one that hears its leader and is healthy says so. */
function writes({ view, health, error }) {
  if (error) return badge("bad", "no answer");
  if (!view) return "…";
  const follows = view.leader !== null && view.leader !== view.node;
  return view.writes_open || (follows && health.healthy) ? badge("good", "open") : badge("bad", "closed");
}

function membersOf(row) {
  if (!row.members.length) return "–";
  const away = row.members.filter((each) => each.away).map((each) => f.nodeName(row.group, each.id));
  const here = `${row.members.length - away.length} of ${row.members.length}`;
  return away.length ? [`${here} `, badge("warn", `without ${away.join(", ")}`)] : here;
}

/** How far the copy of what all groups share is. The first group has it, the others copy it. */
function truth(row, { view, health }, first) {
  if (!view) return "–";
  if (row.group === 1) return `version ${f.count(view.version)}`;
  if (health.findings.some((each) => each.code === "truth_unconfirmed")) return badge("warn", `not confirmed, at version ${f.count(view.version)}`);
  if (first === undefined || view.version >= first) return h("span", { title: `version ${f.count(view.version)}` }, "up to date");
  return `${f.plural(first - view.version, "version")} behind`;
}

function findings({ health }) {
  if (!health) return "–";
  const count = (severity) => health.findings.filter((each) => each.severity === severity).length;
  const critical = count("critical") || (health.healthy ? 0 : 1), warning = count("warning");
  if (!critical && !warning) return badge("good", "none");
  return [critical ? badge("bad", `${critical} critical`) : null, critical && warning ? " " : null, warning ? badge("warn", `${warning} warning`) : null];
}
