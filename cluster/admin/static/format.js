// Numbers, sizes and times as people read them. Digits are grouped; units follow a narrow space.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
let ofNodes = 1; // the group of brokers whose nodes the pages are about
const STEPS = ["", "k", "M", "G", "T", "P"];

/** The pages are about nodes of this group of brokers from now on. */
export function setGroup(group) {
  ofNodes = group;
}

/** The name of a node: its id in the first group of brokers, else "2/1", as in commands. */
export function name(id) {
  return nodeName(ofNodes, id);
}

export function nodeName(group, id) {
  return group === 1 ? String(id) : `${group}/${id}`;
}

/** A count in full: 1,234,567. */
export function count(value) {
  return value === null || value === undefined ? "–" : WHOLE.format(value);
}

/** Three digits and a decimal prefix: 1.23 M. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  return scaled(value, 1000, STEPS, "");
}

/** Bytes in powers of 1024: 1.50 MiB. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], "B");
}

export function bytesPerSecond(value) {
  return value === null || value === undefined ? "–" : `${bytes(value)}/s`;
}

export function perSecond(value) {
  return value === null || value === undefined ? "–" : `${short(value)}/s`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${digits(value)} %`;
}

/** A latency, given in ms. */
export function latency(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  return ms < 1000 ? `${digits(ms)} ms` : `${digits(ms / 1000)} s`;
}

/** A span of time, given in ms, in its two largest units: 2 h 5 min. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (ms > 0 && ms < 1000) return `${Math.round(ms)} ms`;
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return two(minutes, "min", seconds % 60, "s");
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? two(hours, "h", minutes % 60, "min") : two(Math.floor(hours / 24), "d", hours % 24, "h");
}

/** How long ago, given in ms since the Unix epoch, by this browser's clock. */
export function ago(ms) {
  if (!ms) return "never";
  const since = Date.now() - ms;
  if (since < -2000) return `in ${span(-since)}`;
  return since < 2000 ? "just now" : `${span(since)} ago`;
}

/** 2026-11-21 14:03:22.123, local time. */
export function moment(ms) {
  if (!ms) return "–";
  const t = new Date(ms);
  const date = `${t.getFullYear()}-${pad(t.getMonth() + 1)}-${pad(t.getDate())}`;
  return `${date} ${clock(ms)}.${String(t.getMilliseconds()).padStart(3, "0")}`;
}

/** 14:03:22, local time. */
export function clock(ms) {
  const t = new Date(ms);
  return `${pad(t.getHours())}:${pad(t.getMinutes())}:${pad(t.getSeconds())}`;
}

/** Milliseconds since the Unix epoch of "2026-11-21 14:00" by this browser's clock. Raises an error with a hint. */
export function timeOf(text) {
  const ms = /^\d{10,}$/.test(text.trim()) ? Number(text) : new Date(text.trim().replace(" ", "T")).getTime();
  if (!Number.isFinite(ms) || ms < 0) throw Object.assign(new Error(`${text || "nothing"} is not a time`), { hint: "write it as 2026-11-21 14:00, or in milliseconds since 1970" });
  return ms;
}

/** "1 queue", "2 queues". */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

function two(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

function pad(n) {
  return String(n).padStart(2, "0");
}

function scaled(value, base, units, whole) {
  let step = 0;
  let rest = value;
  while (Math.abs(rest) >= base * 0.9995 && step < units.length - 1) {
    rest /= base;
    step += 1;
  }
  const text = step === 0 && Number.isInteger(value) && whole ? WHOLE.format(value) : digits(rest);
  return units[step] ? `${text} ${units[step]}` : text;
}

/** At most three digits that mean something. */
function digits(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1000) return String(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}
