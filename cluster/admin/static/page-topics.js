// Topics, and one topic with its queues.

import { at, getAll, getPage } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, empty, facts, filterBox, head, inside, pageButtons, panel, table } from "./ui.js";

const state = { filter: "", after: "", by: { column: "name", down: false }, system: false };
const SYSTEM = /^(%RETRY%|%DLQ%|RMQ_SYS_|SCHEDULE_TOPIC|TBW102|BenchmarkTest|OFFSET_MOVED_EVENT|SELF_TEST_TOPIC|rmq_sys_)/;

export default { name: "topics", title: "Topics", load, view };

async function load({ path: [, name], signal }) {
  if (name === undefined) return { list: await getPage(`v1/topics${state.after}`, signal) };
  const [one, groups] = await Promise.all([getAll(at("topics", name), "queues", signal), getAll("v1/groups", "groups", signal)]);
  return { one, readers: groups.groups.filter((group) => group.topics.includes(name)) };
}

function view({ list, one, readers }, own) {
  return one ? oneTopic(one, readers) : allTopics(list, own);
}

function allTopics(list, own) {
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
    panel(f.plural(shown.length, "topic"), { end, note: hidden ? `${hidden} not shown` : null }, table([
      { name: "name", label: "topic", sort: (topic) => topic.name, cell: (topic) => h("a", { href: topicLink(topic.name) }, topic.name) },
      { name: "messages", label: "messages", num: true, sort: (topic) => topic.messages },
      { name: "bytes", label: "on disk", num: true, sort: (topic) => topic.bytes ?? -1, cell: onDisk },
      { name: "read_queues", label: "read queues", num: true, sort: (topic) => topic.read_queues },
      { name: "write_queues", label: "write queues", num: true, sort: (topic) => topic.write_queues },
      { name: "perm", label: "access", cell: access },
      { name: "attributes", label: "attributes", cell: attributes },
    ], shown, {
      key: (topic) => topic.name, by: state.by, again: own.draw,
      none: list.topics.length ? "No topic has this in its name." : ["There is no topic yet. ", h("code", { class: "command" }, "raftmq topic create orders"), " makes one."],
    })),
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
        ["access", access(topic)], ["ordered", topic.order ? "yes" : "no"],
        ["attributes", attributes(topic)], ["id", topic.id]))),
      panel("Groups that read it", null, readers.length ? inside(facts(...readers.map((group) => [
        h("a", { href: `#/groups/${encodeURIComponent(group.name)}` }, group.name), group.lag ? `${f.plural(group.lag, "message")} behind in all its topics` : "not behind",
      ]))) : empty("None."))),
    panel(f.plural(one.queues.length, "queue"), null, table([
      { name: "queue_id", label: "queue", cell: (queue) => [`queue ${queue.queue_id}`, queue.hidden ? badge("warn", "hidden") : null] },
      { name: "messages", label: "messages", num: true, cell: (queue) => f.count(queue.max_offset - queue.min_offset) },
      { name: "min_offset", label: "first offset", num: true },
      { name: "max_offset", label: "next offset", num: true },
      { name: "browse", label: "", class: "actions", cell: (queue) => h("a", { href: `${messagesLink(topic.name)}?queue=${queue.queue_id}&by=newest`, "aria-label": `Messages of queue ${queue.queue_id}` }, "messages") },
    ], one.queues, { key: (queue) => queue.queue_id, none: "The topic has no queues." })),
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
