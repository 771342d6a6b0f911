// The last hour of a node: fetched once, then only what is new.

import { at, get } from "./api.js";

const HOUR_MS = 3_600_000;
const known = new Map(); // node -> {times_ms, series: Map(name -> values)}

/** {times_ms, series} of a node; series by their name, those about a peer by "name peer". */
export async function historyOf(node, signal) {
  const before = known.get(node);
  const since = before?.times_ms.at(-1) || 0;
  const answer = await get(`${at("members", node, "history")}?since_ms=${since}`, signal);
  const merged = merge(before, answer);
  known.set(node, merged);
  return merged;
}

/** The same with a time without values wherever samples are missing: a line must not lead over what nobody saw. */
export function withGaps({ times_ms: known_ms, series, interval_ms }) {
  const after = known_ms.flatMap((time, n) => (n + 1 < known_ms.length && known_ms[n + 1] - time > 3 * interval_ms ? [n] : []));
  if (!after.length) return { times_ms: known_ms, series };
  const open = (values, missing) => values.flatMap((value, n) => (after.includes(n) ? [value, missing(n)] : [value]));
  return {
    times_ms: open(known_ms, (n) => known_ms[n] + interval_ms),
    series: new Map([...series].map(([name, values]) => [name, open(values, () => null)])),
  };
}

function merge(before, answer) {
  const old = before?.times_ms || [];
  const times = [...old, ...answer.times_ms];
  const series = new Map();
  const names = new Set([...(before?.series.keys() || []), ...answer.series.map(nameOf)]);
  const news = new Map(answer.series.map((each) => [nameOf(each), each.values]));
  const first = times.findIndex((time) => time > (times.at(-1) || 0) - HOUR_MS);
  for (const name of names) {
    const values = [...(before?.series.get(name) || blanks(old.length)), ...(news.get(name) || blanks(answer.times_ms.length))];
    if (values.some((value) => value !== null)) series.set(name, values.slice(first));
  }
  return { times_ms: times.slice(Math.max(0, first)), series, interval_ms: answer.interval_ms };
}

function nameOf({ name, peer }) {
  return peer === undefined || peer === null ? name : `${name} ${peer}`;
}

function blanks(length) {
  return new Array(length).fill(null);
}
