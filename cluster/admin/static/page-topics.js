// Topics, and one topic with its queues.

import { at, get, getAll, getPage, Refusal } from "./api.js";
import { numbers, ofAll, without } from "./brokers.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { allGroupsOf } from "./group-sums.js";
import { badge, empty, facts, filterBox, head, inside, pageButtons, panel, table } from "./ui.js";

const state = { filter: "", after: "", by: { column: "name", down: false }, system: false };
const HOT = 3; // topics, queues and keys of a group
const SYSTEM = /^(%RETRY%|%DLQ%|RMQ_SYS_|SCHEDULE_TOPIC|TBW102|BenchmarkTest|OFFSET_MOVED_EVENT|SELF_TEST_TOPIC|rmq_sys_)/;

export default { name: "topics", title: "Topics", load, view };

async function load({ path: [, name], signal }) {
  if (name === undefined) {
    const [list, hot] = await Promise.all([listOf(signal), hotOf(signal)]);
    return { list, hot };
  }
  const groups = numbers();
  const [first, readers] = await Promise.all([oneOf(name, groups, signal), allGroupsOf(groups, (aim) => getAll(aim("v1/groups"), "groups", signal))]);
  return { one: first, readers: readers.groups.filter((group) => group.topics.includes(name)) };
}

/** A page of the topics, with what all groups of brokers hold of each. */
async function listOf(signal) {
  const { answers, silent } = await ofAll(numbers(), (aim) => getPage(aim(`v1/topics${state.after}`), signal));
  const rows = new Map();
  for (const { topics } of answers) {
    for (const topic of topics) rows.set(topic.name, rows.has(topic.name) ? added(rows.get(topic.name), topic) : topic);
  }
  return { ...answers[0], topics: [...rows.values()], asked: answers.length, silent };
}

/** What gets most of the messages of each group of brokers; nothing while no leader says it, or for who may not ask. */
async function hotOf(signal) {
  try {
    const { answers } = await ofAll(numbers(), (aim) => get(aim("v1/hot"), signal));
    return answers.flatMap(({ group, topics, queues, keys }) => [...topics.slice(0, HOT), ...queues.slice(0, HOT), ...keys.slice(0, HOT)].map((each) => ({ ...each, group })));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return [];
  }
}

/** The queues of all groups of brokers that hold the topic; each group numbers its own. */
async function oneOf(name, groups, signal) {
  const { answers, silent } = await ofAll(groups, (aim) => getAll(aim(at("topics", name)), "queues", signal));
  const queues = answers.flatMap(({ group, queues: own }) => own.map((queue) => ({ ...queue, group })));
  return { ...answers[0], topic: answers.map((each) => each.topic).reduce(added), queues, asked: answers.length, silent };
}

/** What a topic has in two groups of brokers. */
function added(one, other) {
  const sum = (field) => (one[field] ?? 0) + (other[field] ?? 0);
  const fields = ["messages", "hidden", "evicted", "bytes", "read_queues", "write_queues"];
  return { ...one, ...Object.fromEntries(fields.map((field) => [field, sum(field)])), bytes_exact: one.bytes_exact && other.bytes_exact };
}

function view({ list, hot, one, readers }, own) {
  return one ? oneTopic(one, readers) : allTopics(list, hot, own);
}

function allTopics(list, hot, own) {
  const wanted = state.filter.toLowerCase();
  const shown = list.topics.filter((topic) => topic.name.toLowerCase().includes(wanted) && (state.system || wanted || !SYSTEM.test(topic.name)));
  const hidden = list.topics.length - shown.length;
  const end = [
    h("label", { class: "muted" }, h("input", { type: "checkbox", checked: state.system, onchange: (event) => { state.system = event.target.checked; own.draw(); } }), "retries, dead letters"),
    filterBox(state, own.draw, "Filter topics by name"),
    ...pageButtons(list, state, own),
  ];
  return [
    head("Topics", list),
    panel(f.plural(shown.length, "topic"), { end, note: list.silent.length ? without(list.silent) : hidden ? `${hidden} not shown` : null }, table([
      { name: "name", label: "topic", sort: (topic) => topic.name, cell: (topic) => h("a", { href: topicLink(topic.name) }, topic.name) },
      { name: "messages", label: "messages", num: true, sort: (topic) => topic.messages },
      { name: "bytes", label: "on disk", num: true, sort: (topic) => topic.bytes ?? -1, cell: onDisk },
      { name: "read_queues", label: "read queues", num: true, sort: (topic) => topic.read_queues },
      { name: "write_queues", label: "write queues", num: true, sort: (topic) => topic.write_queues },
      ...(numbers().length ? [{ name: "groups", label: "groups of brokers", cell: (topic) => topic.groups.join(", ") }] : []),
      { name: "perm", label: "access", cell: access },
      { name: "attributes", label: "attributes", cell: attributes },
    ], shown, {
      key: (topic) => topic.name, by: state.by, again: own.draw,
      none: list.topics.length ? "No topic has this in its name." : ["There is no topic yet. ", h("code", { class: "command" }, "raftmq topic create orders"), " makes one."],
    })),
    hot.length > 0 && panel("Most of the messages", { note: "of the last 5 s, estimated" }, table([
      { name: "topic", label: "topic", cell: (row) => h("a", { href: topicLink(row.topic) }, row.topic) },
      ...(numbers().length ? [{ name: "group", label: "group", class: "tight", cell: (row) => `group ${row.group}` }] : []),
      { name: "of", label: "of it", cell: (row) => (row.key !== undefined ? ["key ", h("code", null, row.key)] : row.queue_id !== undefined ? `queue ${row.queue_id}` : "all") },
      { name: "share", label: "share", num: true, cell: (row) => f.percent(Math.round(100 * row.share)) },
      { name: "messages_per_s", label: "messages", num: true, cell: (row) => f.perSecond(row.messages_per_s) },
    ], hot, { key: (row) => `${row.group} ${row.topic} ${row.queue_id ?? ""} ${row.key ?? ""}` })),
  ];
}

function oneTopic(one, readers) {
  const { topic } = one;
  return [
    head([h("a", { href: "#/topics", class: "crumb" }, "Topics / "), topic.name], one),
    h("div", { class: "columns" },
      panel("Topic", null, inside(facts(
        ["messages", h("span", { "data-field": "messages", "data-value": topic.messages }, f.count(topic.messages))],
        ...(topic.hidden ? [["hidden", `${f.plural(topic.hidden, "message")} in queues that consumers do not read`]] : []),
        ["on disk", h("span", { "data-field": "bytes", "data-value": topic.bytes }, onDisk(topic))],
        ["queues", `${topic.read_queues} to read, ${topic.write_queues} to write`],
        ["groups of brokers", topic.groups.length > 0 && topic.groups.join(", ")],
        ["access", access(topic)], ["ordered", topic.order ? "yes" : "no"],
        ["attributes", attributes(topic)], ["id", topic.groups.length ? null : topic.id]))),
      panel("Groups that read it", null, readers.length ? inside(facts(...readers.map((group) => [
        h("a", { href: `#/groups/${encodeURIComponent(group.name)}` }, group.name), group.lag ? `${f.plural(group.lag, "message")} behind in all its topics` : "not behind",
      ]))) : empty("None."))),
    panel(f.plural(one.queues.length, "queue"), { note: without(one.silent) }, table([
      ...(numbers().length ? [{ name: "group", label: "group", class: "tight", cell: (queue) => `group ${queue.group}` }] : []),
      { name: "queue_id", label: "queue", cell: (queue) => [`queue ${queue.queue_id}`, queue.hidden ? badge("warn", "hidden") : null] },
      { name: "messages", label: "messages", num: true, cell: (queue) => f.count(queue.max_offset - queue.min_offset) },
      { name: "min_offset", label: "first offset", num: true },
      { name: "max_offset", label: "next offset", num: true },
      { name: "browse", label: "", class: "actions", cell: (queue) => h("a", { href: `${messagesLink(topic.name)}?queue=${queue.queue_id}${queue.group ? `&group=${queue.group}` : ""}&by=newest`, "aria-label": `Messages of queue ${queue.queue_id}${queue.group ? ` of group ${queue.group}` : ""}` }, "messages") },
    ], one.queues, { key: (queue) => (queue.group ? `${queue.group} ${queue.queue_id}` : queue.queue_id), none: "The topic has no queues." })),
  ];
}

export function messagesLink(name) {
  return `#/messages/${encodeURIComponent(name)}`;
}

export function topicLink(name) {
  return `#/topics/${encodeURIComponent(name)}`;
}

/** Stored bytes of its messages in the log of the node that was asked. */
function onDisk(topic) {
  const size = (topic.bytes_exact ? "" : "about ") + f.bytes(topic.bytes);
  return topic.evicted ? `${size} + ${f.count(topic.evicted)} in the tier` : size;
}

function access({ perm }) {
  const words = [perm & 4 && "read", perm & 2 && "write"].filter(Boolean);
  return words.length ? words.join(", ") : badge("warn", "none");
}

function attributes(topic) {
  const pairs = Object.entries(topic.attributes).map(([name, value]) => `${name} = ${value}`);
  return [...pairs, ...(topic.order ? ["ordered"] : [])].join(", ") || "–";
}
