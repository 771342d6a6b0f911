// Moving a group's offsets: what would change is counted before it is asked.

import { at, change, ofGroup } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { askFirst, problem } from "./ui.js";

const TARGETS = [["latest", "the end: skip everything"], ["earliest", "the beginning: read everything again"], ["time", "a time"], ["offset", "an offset"]];
const state = { group: null, to: "latest", error: null };

export function resetForm(group, own) {
  if (state.group !== group.name) Object.assign(state, { group: group.name, to: "latest", error: null });
  const topics = [...new Set(group.offsets.map((each) => each.topic))];
  const field = (label, control) => h("label", { class: "field", key: label }, h("span", null, label), control);
  return [
    h("form", { class: "ask", key: `reset ${group.name}`, "aria-label": "Move offsets", onsubmit: (event) => { event.preventDefault(); plan(group, event.target, own); } },
      field("Topic", h("select", { name: "topic", value: topics.find((name) => !name.startsWith("%")) || topics[0] }, topics.map((name) => h("option", { key: name, value: name }, name)))),
      field("To", h("select", { name: "to", value: state.to, onchange: (event) => { state.to = event.target.value; own.draw(); } }, TARGETS.map(([value, text]) => h("option", { key: value, value }, text)))),
      state.to === "time" && field("Time, such as 2026-11-21 14:00", h("input", { name: "value", required: true, size: 22, autocomplete: "off" })),
      state.to === "offset" && field("Offset", h("input", { name: "value", required: true, size: 12, inputmode: "numeric", pattern: "[0-9]{1,15}", autocomplete: "off" })),
      h("button", { type: "submit" }, "Count what changes…")),
    state.error && problem(state.error),
  ];
}

/** Asks the cluster what would change, then the person. */
async function plan({ name: group, offsets }, form, own) {
  const data = new FormData(form);
  const wanted = { topic: data.get("topic"), to: data.get("to") };
  const brokers = [...new Set(offsets.filter((each) => each.topic === wanted.topic).map((each) => each.group))];
  const paths = brokers.map((each) => ofGroup(at("groups", group, "reset"), each));
  let told;
  try {
    if (wanted.to === "offset") wanted.value = Number(data.get("value"));
    if (wanted.to === "time") wanted.value = f.timeOf(data.get("value"));
    told = await Promise.all(paths.map((path) => change("POST", path, { ...wanted, dry_run: true })));
    state.error = null;
  } catch (error) {
    state.error = error;
    own.draw();
    return;
  }
  own.draw();
  const queues = told.flatMap((each) => each.queues);
  const sum = (name) => queues.reduce((total, queue) => total + queue[name], 0);
  askFirst({
    title: `Move the offsets of ${group} in ${wanted.topic}?`, yes: "Move them", danger: sum("skipped") > 0,
    text: ["Running consumers are told with their next pull. Offsets that they commit until then do not count."],
    facts: [["queues", queues.length], ["groups of brokers", brokers.length > 1 && brokers.join(", ")], ["messages again", f.count(sum("again"))], ["messages skipped", f.count(sum("skipped"))]],
    act: async () => { for (const path of paths) await change("POST", path, wanted); },
    after: own.refresh,
  });
}
