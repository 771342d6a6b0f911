// Messages: a page of a queue, or those with a key. Bodies are cut short here; the whole body of one is asked for by hand.

import { at, get, getAll, ofGroup } from "./api.js";
import { numbers, ofAll } from "./brokers.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { topicLink } from "./page-topics.js";
import { choice, empty, facts, head, panel, problem } from "./ui.js";

const PREVIEW_BYTES = 4096;
const WHOLE_BYTES = 1 << 20;
const WAYS = [["newest", "Newest"], ["offset", "From offset"], ["time", "From time"], ["key", "Key or id"], ["position", "Position"]];
const state = { address: null, form: null, found: null, error: null, busy: false, hex: false };

export default { name: "messages", title: "Messages", every: 5000, load, view, enter };

/** The address holds the question, so that it can be bookmarked and sent to a colleague. */
function enter({ path: [, topic], query }) {
  const address = location.hash;
  if (state.address === address) return;
  const way = query.get("by") || "newest";
  Object.assign(state, {
    address, found: null, error: null,
    form: { topic: topic || "", queue: query.get("queue") || "0", by: way, value: query.get("value") || "", group: Number(query.get("group")) || null, countedIn: query.get("counted_in") || "" },
  });
}

async function load(own) {
  const { form } = state;
  const list = await getAll(ofGroup("v1/topics", form.group), "topics", own.signal);
  const topic = list.topics.find((each) => each.name === form.topic);
  if (topic?.groups.length && !topic.groups.includes(groupShown(own))) { // the topic has no queues in this group of brokers
    form.group = topic.groups[0];
    return load(own);
  }
  if (state.form.topic && !state.found && !state.error) await search(own.signal);
  return list;
}

/** The group of brokers whose queues are shown. */
function groupShown(own) {
  return state.form.group ?? own.state.status.group;
}

async function search(signal) {
  const { form } = state;
  try {
    state.found = await asked(form, signal);
    state.error = null;
  } catch (error) {
    if (signal?.aborted) throw error;
    state.error = error;
  }
}

/** {node, applied_index, messages, page?, more?}. */
async function asked(form, signal) {
  const { topic, queue, by, value, group, countedIn } = form;
  if (by === "position") {
    const one = await get(ofGroup(`${at("messages", value)}?body_bytes=${PREVIEW_BYTES}`, group), signal);
    return { ...one, group, messages: [{ ...one.message, group }] };
  }
  if (by === "key") return byKey(topic, value.trim(), signal);
  const counted = countedIn ? `&counted_in=${encodeURIComponent(countedIn)}` : "";
  const from = by === "offset" ? `&offset=${encodeURIComponent(value)}${counted}` : by === "time" ? `&time_ms=${f.timeOf(value)}` : "";
  const page = await get(ofGroup(`${at("topics", topic, "queues", queue, "messages")}?count=32&body_bytes=${PREVIEW_BYTES}${from}`, group), signal);
  return { ...page, group, page, messages: page.messages.map((message) => ({ ...message, group })) };
}

/** What all groups of brokers find: a key may be in the queues of any of them. */
async function byKey(topic, key, signal) {
  const { answers } = await ofAll(numbers(), (aim) => byKeyOf(topic, key, aim, signal));
  const messages = answers.flatMap(({ group, messages: own }) => own.map((message) => ({ ...message, group })));
  if (answers.length > 1) messages.sort((a, b) => b.store_ms - a.store_ms);
  return { ...answers[0], messages, more: answers.some((each) => each.more), asked: answers.length };
}

/** A key, a UNIQ_KEY or, where that finds nothing, an offsetMsgId: its last 16 digits are the position. */
async function byKeyOf(topic, key, aim, signal) {
  const found = await get(aim(`${at("topics", topic, "messages", key)}?body_bytes=${PREVIEW_BYTES}`), signal);
  if (found.messages.length || !/^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})$/.test(key)) return found;
  const position = BigInt(`0x${key.slice(-16)}`);
  if (position > 0x7fffffffffffffffn || position >= 1n << 53n) return found;
  try {
    const one = await get(aim(`${at("messages", String(position))}?body_bytes=${PREVIEW_BYTES}`), signal);
    return one.message.topic === topic ? { ...one, messages: [one.message] } : found;
  } catch (error) {
    if (error.code === "not_found") return found;
    throw error;
  }
}

function view(list, own) {
  const { found } = state;
  return [
    head("Messages", found?.node ? found : list),
    panel("Which messages", null, h("div", { class: "inside" }, questions(list, own))),
    state.error && problem(state.error),
    found && results(found, own),
    !found && !state.error && panel("Messages", null, empty("Choose a topic. The newest messages of its first queue are shown.")),
  ];
}

function questions(list, own) {
  const { form } = state;
  const topic = list.topics.find((each) => each.name === form.topic);
  const wantsValue = form.by !== "newest";
  const labels = { offset: "Offset", time: "Time, such as 2026-11-21 14:00", key: "Key, UNIQ_KEY or message id", position: "Position in the log" };
  const ask = (event) => { event.preventDefault(); go(readForm(event.target)); };
  return h("form", { class: "ask", onsubmit: ask, key: state.address, "aria-label": "Which messages" },
    field("Topic", h("select", { name: "topic", value: form.topic, onchange: (event) => go({ ...readForm(event.target.form), topic: event.target.value, queue: "0", group: null }) },
      h("option", { value: "" }, "choose…"), list.topics.map((each) => h("option", { key: each.name, value: each.name }, each.name)))),
    groupField(topic, own),
    form.by !== "key" && form.by !== "position" && field("Queue", h("select", { name: "queue", value: form.queue },
      Array.from({ length: topic?.read_queues || 1 }, (_, queue) => h("option", { key: String(queue), value: String(queue) }, String(queue))))),
    field("Find", h("select", { name: "by", value: form.by, onchange: (event) => go({ ...readForm(event.target.form), by: event.target.value, value: "" }, true) },
      WAYS.map(([value, text]) => h("option", { key: value, value }, text)))),
    wantsValue && field(labels[form.by], h("input", { name: "value", value: form.value, required: true, size: form.by === "key" ? 36 : 22, autocomplete: "off", spellcheck: "false" })),
    h("button", { type: "submit", class: "first" }, "Show"));
}

/** Each group of brokers numbers its queues and has a log of its own; keys are looked for in all of them. */
function groupField(topic, own) {
  const { form } = state;
  const groups = form.by === "position" ? numbers() : topic?.groups || [];
  if (groups.length < 2 || form.by === "key") return null;
  return field("Group of brokers", h("select", { name: "group", key: groups.join(), value: String(groupShown(own)), onchange: (event) => go({ ...readForm(event.target.form), queue: "0" }, true) },
    groups.map((group) => h("option", { key: String(group), value: String(group) }, String(group)))));
}

function field(label, control) {
  return h("label", { class: "field", key: label }, h("span", null, label), control);
}

function readForm(form) {
  const data = new FormData(form);
  return { topic: data.get("topic"), queue: data.get("queue") || "0", by: data.get("by"), value: data.get("value") || "", group: data.get("group") || state.form.group };
}

/** Puts the question into the address; an incomplete one only changes the form. */
function go({ topic, queue, by, value, group, countedIn }) {
  const query = new URLSearchParams({ ...(group && by !== "key" ? { group } : {}), ...(by !== "key" && by !== "position" ? { queue } : {}), by, ...(value ? { value } : {}), ...(countedIn ? { counted_in: countedIn } : {}) });
  const address = `#/messages/${encodeURIComponent(topic)}?${query}`;
  if (address === location.hash) {
    Object.assign(state, { address: null });
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}

function results(found, own) {
  const { page } = found;
  const end = [
    choice("Show bodies as", [[false, "text"], [true, "hex"]], state.hex, (value) => { state.hex = value; own.draw(); }),
    page && pager({ ...page, group: found.group }),
  ];
  const shown = page && state.form.by === "newest" ? [...found.messages].reverse() : found.messages; // the newest on top
  const note = page ? page.max_offset > page.min_offset ? `of offsets ${f.count(page.min_offset)} to ${f.count(page.max_offset - 1)}` : "the queue is empty" : found.more ? "the newest; there are more" : null;
  return panel(f.plural(found.messages.length, "message"), { end, note },
    page?.unreadable.length > 0 && h("div", { class: "inside" }, problem({ message: `offsets ${page.unreadable.join(", ")} cannot be read intact on this node`, hint: "it fetches them from its peers; ask another node meanwhile" })),
    found.messages.length === 0 ? empty("There is none.") : h("div", { class: "messages" }, shown.map((message) => one(message, own))));
}

function pager({ topic, group, queue_id: queue, min_offset: low, max_offset: high, messages, next_offset: next, counted_in: countedIn }) {
  const first = messages[0]?.queue_offset ?? next;
  const to = (value) => () => go({ topic, group, queue: String(queue), by: "offset", value: String(value), countedIn });
  return [
    h("button", { key: "older", type: "button", class: "small", disabled: first <= low, onclick: to(Math.max(low, first - 32)) }, "← Older"),
    h("button", { key: "newer", type: "button", class: "small", disabled: next >= high, onclick: to(next) }, "Newer →"),
  ];
}

function one(message, own) {
  const { properties } = message;
  const key = `${message.group ?? ""} ${message.topic} ${message.queue_id} ${message.queue_offset} ${message.position}`;
  const tag = properties.TAGS;
  return h("details", { class: "message", key, "data-offset": message.queue_offset },
    h("summary", null,
      h("span", { class: "num at" }, f.count(message.queue_offset)),
      h("span", { class: "when", title: f.ago(message.store_ms) }, f.moment(message.store_ms)),
      h("span", { class: "tag" }, [tag, properties.KEYS].filter(Boolean).join(" · ")),
      h("span", { class: "preview mono" }, preview(message)),
      h("span", { class: "num size" }, f.bytes(message.body_bytes))),
    h("div", { class: "inside" },
      h("pre", { class: "body", "data-field": "body", tabindex: 0, "aria-label": "Body" }, state.hex ? hexOf(message) : textOf(message)),
      message.body_cut && h("p", { class: "muted" }, `The first ${f.bytes(PREVIEW_BYTES)} of ${f.bytes(message.body_bytes)}. `,
        h("button", { type: "button", class: "small", onclick: () => whole(message, own) }, message.body_bytes > WHOLE_BYTES ? `Show ${f.bytes(WHOLE_BYTES)}` : "Show all")),
      facts(
        ["topic", h("a", { href: topicLink(message.topic) }, message.topic)], ["queue and offset", `${message.queue_id}, ${f.count(message.queue_offset)}`], ["group of brokers", numbers().length > 0 && message.group],
        ["id", h("code", null, message.id)], ["position", f.count(message.position)],
        ["born", f.moment(message.born_ms)], ["stored", `${f.moment(message.store_ms)} (${f.ago(message.store_ms)})`],
        ["deliveries failed", message.reconsume_times || null],
        ...Object.entries(properties).map(([name, value]) => [name, h("code", null, value)]))));
}

async function whole(message, own) {
  const { message: full } = await get(ofGroup(`${at("messages", String(message.position))}?body_bytes=${WHOLE_BYTES}`, message.group));
  Object.assign(message, { ...full, group: message.group, body_cut: full.body_cut && message.body_bytes > WHOLE_BYTES });
  own.draw();
}

function preview(message) {
  return message.body_base64 === undefined ? (message.body || "").slice(0, 160) || "(empty)" : `(${f.bytes(message.body_bytes)} that are not text)`;
}

function textOf(message) {
  return message.body_base64 === undefined ? message.body || "(empty)" : hexOf(message);
}

/** As hexdump shows it: offset, 16 bytes, and what of them is ASCII. */
function hexOf(message) {
  const bytes = message.body_base64 === undefined ? new TextEncoder().encode(message.body || "") : Uint8Array.from(atob(message.body_base64), (sign) => sign.charCodeAt(0));
  const lines = [];
  for (let from = 0; from < bytes.length; from += 16) {
    const row = [...bytes.subarray(from, from + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const ascii = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${from.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${ascii}`);
  }
  return lines.join("\n") || "(empty)";
}
