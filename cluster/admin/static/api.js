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

/** The answer to GET. Raises Refusal or Unreachable. */
export function get(path, signal) {
  return ask("GET", path, undefined, signal);
}

/** A file of this page, as text. Raises Refusal or Unreachable. */
export function getText(path, signal) {
  return ask("GET", path, undefined, signal, (answer) => (answer.ok ? answer.text() : answer.json()));
}

/** The leader's answer, confirmed by a majority; this node's own while no leader gives one. `path` has no query;
 *  `page` is one, or "". */
export async function getConfirmed(path, signal, page = "") {
  try {
    return await get(`${path}?consistency=linearizable${page.replace("?", "&")}`, signal);
  } catch (error) {
    if (!(error instanceof Refusal) || error.status !== 503) throw error;
    return get(path + page, signal);
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

async function ask(method, path, body, signal, read = (answer) => answer.json()) {
  const signals = [AbortSignal.timeout(PATIENCE_MS), ...(signal ? [signal] : [])];
  const options = { method, signal: AbortSignal.any(signals), cache: "no-store" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let answer;
  let data;
  try {
    answer = await fetch(path, options);
    data = await read(answer);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable(error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : error.message);
  }
  if (data.error) throw new Refusal(answer.status, data.error);
  return data;
}
