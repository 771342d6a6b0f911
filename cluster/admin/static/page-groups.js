// Consumer groups: who is late, by how much, and who should be reading.

import { getConfirmed, getPage } from "./api.js";
import { numbers, without } from "./brokers.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { allGroupsOf, groupOf } from "./group-sums.js";
import { topicLink } from "./page-topics.js";
import { resetForm } from "./reset.js";
import { badge, facts, filterBox, head, inside, pageButtons, panel, table } from "./ui.js";

const state = { filter: "", after: "", by: { column: "lag", down: true }, queuesBy: { column: "lag", down: true } };

export default { name: "groups", title: "Groups", every: 3000, load, view };

async function load({ path: [, name], signal }) {
  if (name !== undefined) return { one: await groupOf(name, numbers(), signal) };
  return { list: await allGroupsOf(numbers(), (aim) => getConfirmed(aim(`v1/groups${state.after}`), signal, getPage)) };
}

function view({ list, one }, own) {
  return one ? oneGroup(one, own) : allGroups(list, own);
}

function allGroups(list, own) {
  const wanted = state.filter.toLowerCase();
  const shown = list.groups.filter((group) => group.name.toLowerCase().includes(wanted));
  return [
    head("Groups", list),
    panel(f.plural(shown.length, "group"), { note: without(list.silent), end: [filterBox(state, own.draw, "Filter groups by name"), ...pageButtons(list, state, own)] }, table([
      { name: "name", label: "group", sort: (group) => group.name, cell: (group) => h("a", { href: groupLink(group.name) }, group.name) },
      { name: "lag", label: "messages behind", num: true, sort: (group) => group.lag },
      { name: "lag_ms", label: "time behind", num: true, sort: (group) => group.lag_ms, cell: (group) => (group.lag ? f.span(group.lag_ms) : "–") },
      { name: "members", label: "consumers", num: true, sort: (group) => group.members,
        cell: (group) => (group.members || !group.lag ? f.count(group.members) : h("span", { class: "warn" }, "0")) },
      { name: "topics", label: "topics", cell: (group) => topicLinks(group.topics) },
    ], shown, {
      key: (group) => group.name, by: state.by, again: own.draw,
      none: list.groups.length ? "No group has this in its name." : "There is no group yet. Consumers make theirs when they connect.",
    })),
  ];
}

function oneGroup(one, own) {
  return [
    head([h("a", { href: "#/groups", class: "crumb" }, "Groups / "), one.name], one),
    h("div", { class: "columns" },
      panel("Group", null, inside(facts(
        ["messages behind", h("span", { "data-field": "lag", "data-value": one.lag }, f.count(one.lag))],
        ["time behind", one.lag ? f.span(one.lag_ms) : "–"],
        ["consumers", f.count(one.members.length)],
        ["retries at most", f.count(one.retry_max_times)]))),
      panel("Subscriptions", null, table([
        { name: "topic", label: "topic", cell: (each) => h("a", { href: topicLink(each.topic) }, each.topic) },
        { name: "expression", label: "expression", class: "mono" },
        { name: "expression_type", label: "kind", class: "tight" },
      ], one.subscriptions, { key: (each) => each.topic, none: "It subscribes to nothing now." }))),
    panel(f.plural(one.members.length, "consumer"), { note: connectedTo(one) }, table([
      { name: "client_id", label: "client" },
      { name: "address", label: "address" },
      { name: "language", label: "language" },
      { name: "version", label: "version", num: true, cell: (each) => String(each.version) },
      { name: "silent_ms", label: "last heartbeat", num: true, cell: (each) => `${f.span(each.silent_ms)} ago` },
    ], one.members, { key: (each) => each.client_id, none: `No consumer is ${connectedTo(one)}.` })),
    panel(f.plural(one.offsets.length, "queue"), { note: without(one.silent) }, table([
      ...(numbers().length ? [{ name: "group", label: "group of brokers", class: "tight", sort: (each) => each.group, cell: (each) => `group ${each.group}` }] : []),
      { name: "queue", label: "queue", sort: (each) => `${each.topic} ${each.queue_id}`, cell: (each) => [h("a", { href: topicLink(each.topic) }, each.topic), ` / ${each.queue_id}`, each.hidden ? badge("warn", "hidden") : null] },
      { name: "lag", label: "messages behind", num: true, sort: (each) => each.lag },
      { name: "lag_ms", label: "time behind", num: true, sort: (each) => each.lag_ms, cell: (each) => (each.lag ? f.span(each.lag_ms) : "–") },
      { name: "owner", label: "owner", sort: (each) => each.owner || "", cell: (each) => each.owner || (each.lag ? badge("warn", "nobody") : "–") },
      { name: "committed_age_ms", label: "last commit", num: true, sort: (each) => each.committed_age_ms,
        cell: (each) => (each.committed_age_ms === null || each.committed_age_ms === undefined ? "–" : `${f.span(each.committed_age_ms)} ago`) },
      { name: "committed_offset", label: "committed", num: true, sort: (each) => each.committed_offset,
        cell: (each) => (each.committed_offset === null ? badge("warn", "never") : [f.count(each.committed_offset), each.beyond_end ? badge("warn", "beyond the end") : null]) },
      { name: "min_offset", label: "first", num: true },
      { name: "max_offset", label: "next", num: true },
    ], one.offsets, { key: (each) => `${each.group ? `${each.group} ` : ""}${each.topic} ${each.queue_id}`, by: state.queuesBy, again: own.draw, none: "It reads no queue." })),
    one.offsets.length > 0 && panel("Move its offsets", { note: "also of running consumers" }, inside(resetForm(one, own))),
  ];
}

/** Where its consumers were counted: each tells all groups of brokers. */
function connectedTo(one) {
  return one.asked > 1 ? "connected to any group of brokers" : `connected to node ${f.name(one.node)}`;
}

function topicLinks(topics) {
  const shown = topics.slice(0, 4);
  const links = shown.flatMap((name, at) => [at ? ", " : null, h("a", { href: topicLink(name), key: name }, name)]);
  return topics.length > shown.length ? [...links, `, and ${topics.length - shown.length} more`] : topics.length ? links : "–";
}

export function groupLink(name) {
  return `#/groups/${encodeURIComponent(name)}`;
}
