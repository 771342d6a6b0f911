// Consumer groups over all groups of brokers: each of these has the offsets of its own queues, and consumers tell all.

import { at, getAll, getConfirmed } from "./api.js";
import { ofAll } from "./brokers.js";

const SUMS = ["lag", "hidden", "beyond_end"];

/** The consumer groups by name, with what they lag in all queues. `ask(aim)`: asks a group of brokers for its list. */
export async function allGroupsOf(brokers, ask) {
  const { answers, silent } = await ofAll(brokers, ask);
  const rows = new Map();
  for (const { groups } of answers) {
    for (const group of groups) rows.set(group.name, rows.has(group.name) ? added(rows.get(group.name), group) : group);
  }
  return { ...answers[0], groups: [...rows.values()], asked: answers.length, silent };
}

/** One consumer group; `group` of an offset is the group of brokers whose queue it is about. */
export async function groupOf(name, brokers, signal) {
  const read = (path) => getAll(path, "offsets", signal);
  const { answers, silent } = await ofAll(brokers, (aim) => getConfirmed(aim(at("groups", name)), signal, read));
  const one = answers.reduce((a, b) => ({ ...a, ...summed(a, b) }));
  return {
    ...one, silent, asked: answers.length,
    offsets: answers.flatMap(({ group, offsets }) => offsets.map((each) => ({ ...each, group }))),
    members: unique(answers.flatMap((each) => each.members), (each) => each.client_id, answers.length),
    subscriptions: unique(answers.flatMap((each) => each.subscriptions), (each) => each.topic, answers.length),
  };
}

function added(one, other) {
  return { ...one, ...summed(one, other), topics: [...new Set([...one.topics, ...other.topics])].sort(), members: Math.max(one.members, other.members) };
}

/** Messages of two groups of brokers are different ones; the time behind is that of the oldest. */
function summed(one, other) {
  return { ...Object.fromEntries(SUMS.map((field) => [field, one[field] + other[field]])), lag_ms: Math.max(one.lag_ms, other.lag_ms) };
}

/** One answer has each client once for each of its connections; of several, a client counts once. */
function unique(rows, key, answers) {
  return answers < 2 ? rows : [...new Map(rows.map((row) => [key(row), row])).values()];
}
