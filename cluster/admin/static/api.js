// Requests to the node that served this page. Addresses are relative: the page works behind a proxy's path, too.

export const PATIENCE_MS = 8000;

/** The node answered, and said no. */
export class Refusal extends Error {
  constructor(status, { code, message, hint }) {
    super(message);
    Object.assign(this, { status, code, hint });
  }
}

/** There was no answer, or none of a RaftMQ node. */
export class Unreachable extends Error {}

/** The answer to GET, all of it. Raises Refusal or Unreachable, and an Error for one page of a longer list: a caller that
 *  wants one page asks with getPage, and one that wants them all with getAll. */
export async function get(path, signal) {
  const answer = await getPage(path, signal);
  if (answer.next !== undefined && answer.next !== null) throw new Error(`GET ${path} answered one page of a longer list`);
  return answer;
}

/** One page of a list, whatever follows it. Raises Refusal or Unreachable. */
export function getPage(path, signal) {
  return ask("GET", path, undefined, signal);
}

/** The first page with the items of all pages in its list `field`. Raises Refusal or Unreachable. */
export async function getAll(path, field, signal) {
  const first = await getPage(path, signal);
  const items = [...first[field]];
  let { next } = first;
  while (next !== undefined && next !== null) {
    const page = await getPage(asking(path, "after", next), signal);
    items.push(...page[field]);
    next = page.next;
  }
  return { ...first, [field]: items, next: null };
}

function asking(path, name, value) {
  return `${path}${path.includes("?") ? "&" : "?"}${name}=${encodeURIComponent(value)}`;
}

/** A file of this page, as text. Raises Refusal or Unreachable. */
export function getText(path, signal) {
  return ask("GET", path, undefined, signal, (answer) => (answer.ok ? answer.text() : answer.json()));
}

/** The answer of the node that served this page, whichever group of brokers is chosen. */
export function getHere(path, signal) {
  return ask("GET", path, undefined, signal, undefined, (here) => here);
}

/** The group of brokers that the pages are about, from their address; null: that of the node that served them. */
export function chosenGroup() {
  const named = Number(new URLSearchParams(location.search).get("broker_group"));
  return named > 0 ? named : null;
}

/** The same question to a group of brokers, whichever is chosen: the node that is asked passes it on. */
export function ofGroup(path, group) {
  return group === null ? path : asking(path, "broker_group", group);
}

/** Logins are of the cluster, and files of the node that served this page. */
function aimed(path) {
  return /^v1\/(?!session)/.test(path) && !path.includes("broker_group=") ? ofGroup(path, chosenGroup()) : path;
}

/** The leader's answer, confirmed by a majority; this node's own while no leader gives one. `read` is get, getPage, or
 *  a function like them. */
export async function getConfirmed(path, signal, read = get) {
  try {
    return await read(asking(path, "consistency", "linearizable"), signal);
  } catch (error) {
    if (!(error instanceof Refusal) || error.status !== 503) throw error;
    return read(path, signal);
  }
}

/** What a member says of itself, or {node, error} if it does not answer. */
export async function getFrom(node, signal, ...parts) {
  try {
    return await get(at("members", node, ...parts), signal);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return { node, error };
  }
}

/** The answer to a request that changes something. Raises Refusal or Unreachable. */
export function change(method, path, body) {
  return ask(method, path, body);
}

/** A path of names that may contain anything. */
export function at(...parts) {
  return `v1/${parts.map(encodeURIComponent).join("/")}`;
}

async function ask(method, path, body, signal, read = (answer) => answer.json(), aim = aimed) {
  const signals = [AbortSignal.timeout(PATIENCE_MS), ...(signal ? [signal] : [])];
  const options = { method, signal: AbortSignal.any(signals), cache: "no-store" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let answer;
  let data;
  try {
    answer = await fetch(aim(path), options);
    data = await read(answer);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable(error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : error.message);
  }
  if (data.error) throw new Refusal(answer.status, data.error);
  return data;
}
