// The frame: which page is shown, its refresh, the line at the top, and what is shown when the node does not answer.

import { chosenGroup, get, Refusal } from "./api.js";
import { groupChooser, lookAtGroups } from "./brokers.js";
import { h, render } from "./dom.js";
import { allFindings, worst } from "./findings.js";
import * as f from "./format.js";
import { loginForm, userCard } from "./login.js";
import { PAGES, pageOf } from "./pages.js";
import { badge, panel, problem, inside } from "./ui.js";

const EVERY_MS = 2000;
const state = { status: null, health: null, session: null, paused: false, heardMs: 0, since: 0 };
const parts = Object.fromEntries(["who", "nav", "banner", "main"].map((id) => [id, document.getElementById(id)]));
let shown = null;
let timer = 0;
let under = null;

/** What a page gets: its address, what the node said of itself, and ways to draw again. */
function context(page, place) {
  const own = {
    ...place,
    state,
    signal: under.signal,
    draw: () => draw(own),
    refresh: () => cycle(own),
  };
  return Object.assign(own, { page, data: undefined, error: null });
}

function open() {
  const place = where();
  const page = pageOf(place.path[0]);
  under?.abort();
  under = new AbortController();
  clearTimeout(timer);
  document.getElementById("dialog").close(); // what it asks belongs to the page that is left
  const isFirst = shown === null;
  shown = context(page, place);
  page.enter?.(shown);
  document.title = `${page.title} · RaftMQ`;
  draw(shown);
  if (!isFirst) parts.main.focus({ preventScroll: true });
  scrollTo(0, 0);
  cycle(shown);
}

/** #/topics/a%20b?queue=1 -> {path: ["topics", "a b"], query}. */
function where() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(unescaped), query: new URLSearchParams(query || "") };
}

function unescaped(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** One round: the line at the top, then the page. The next one follows when this one has ended. */
async function cycle(own) {
  clearTimeout(timer);
  try {
    const session = await get("v1/session", own.signal);
    Object.assign(state, { session, heardMs: Date.now(), since: 0 });
    try {
      if (session.mode === "enforce" && !session.user) throw nobody(); // what is refused is not asked: each denial is noted
      await lookAtGroups(own.signal, () => draw(own));
      const [status, health] = await Promise.all([get("v1/status", own.signal), get("v1/health", own.signal)]);
      Object.assign(state, { status, health });
      f.setGroup(status.group);
      own.data = await own.page.load(own);
      own.error = null;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      own.error = error;
      if (error.status === 401) own.data = undefined; // what a user saw goes with the user
    }
  } catch (error) {
    if (own.signal.aborted) return;
    state.since ||= Date.now();
    state.why = error.message;
  }
  if (own.signal.aborted) return;
  draw(own);
  clearTimeout(timer);
  if (!state.paused && !document.hidden) timer = setTimeout(() => cycle(own), own.page.every || EVERY_MS);
}

/** The refusal that every page would get. */
function nobody() {
  return new Refusal(401, { code: "unauthenticated", message: "auth.mode is enforce: this cluster shows itself to its users", hint: "" });
}

function draw(own) {
  if (own !== shown) return;
  drawTop();
  drawNavigation(own);
  drawBanner();
  parts.main.classList.toggle("stale", Boolean(state.since) && own.data !== undefined);
  render(parts.main, h("div", { key: location.hash }, content(own)));
}

function content(own) {
  if (own.error?.status === 401) return loginForm(own.error, { done: () => cycle(own), draw: () => draw(own) });
  if (own.error) {
    return [h("div", { class: "head" }, h("h1", null, own.page.title)), panel(refusedBy(own.error), null, inside(problem(own.error)))];
  }
  if (own.data !== undefined) return own.page.view(own.data, own);
  return [h("div", { class: "head" }, h("h1", null, own.page.title)), state.since ? null : h("p", { class: "muted" }, "Loading…")];
}

/** Another group of brokers may be away while the node that served this page answers. */
function refusedBy({ status }) {
  return status === 503 && chosenGroup() ? `Group ${chosenGroup()} of brokers does not answer` : "The node refused";
}

function drawTop() {
  const { status, health } = state;
  if (!status || shown?.error?.status === 401) {
    render(parts.who, groupChooser(chosenGroup()), h("span", { class: "end" }, userCard(state.session, again)));
    return;
  }
  const role = status.member === "voter" ? status.role.replace("_", "-") : status.member;
  const level = worst(allFindings(health));
  const words = { none: ["good", "healthy"], info: ["good", "healthy"], warning: ["warn", "warning"], critical: ["bad", "critical"] };
  render(parts.who,
    h("span", null, h("b", null, status.cluster)),
    groupChooser(status.group),
    h("span", { "data-field": "node" }, `node ${f.name(status.node)}`),
    badge(role === "leader" ? "info" : "", role),
    h("a", { href: "#/", "aria-label": `Health: ${words[level][1]}` }, badge(...words[level])),
    h("span", { class: "end" },
      h("span", { class: "stamp" }, state.since ? `last answer ${f.ago(state.heardMs)}` : `updated ${f.clock(state.heardMs)}`),
      userCard(state.session, again),
      h("button", { type: "button", class: "small", "aria-pressed": String(state.paused), onclick: pause }, state.paused ? "Paused" : "Pause")));
}

/** After a logout: nothing of the user stays on the page. */
function again() {
  Object.assign(state, { status: null, health: null });
  shown.data = undefined;
  cycle(shown);
}

function pause() {
  state.paused = !state.paused;
  if (state.paused) clearTimeout(timer);
  else cycle(shown);
  drawTop();
}

function drawNavigation(own) {
  const findings = state.health ? allFindings(state.health).filter((finding) => finding.severity !== "info") : [];
  const links = PAGES.filter((page) => !page.isThere || (state.status && page.isThere(state)));
  render(parts.nav, h("ul", null, links.map((page) => h("li", { key: page.name, class: page.apart && "apart" },
    h("a", { href: `#/${page.name}`, "aria-current": page === own.page ? "page" : null }, page.title,
      page.name === "" && findings.length > 0 && h("span", { class: `number ${worst(findings) === "critical" ? "bad" : "warn"}` }, findings.length))))));
}

function drawBanner() {
  parts.banner.hidden = !state.since;
  if (!state.since) return;
  const old = state.heardMs ? ` What is shown is ${f.span(Date.now() - state.heardMs)} old.` : "";
  parts.banner.textContent = `This node does not answer since ${f.clock(state.since)} (${state.why}).${old} Trying again.`;
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash names the page
  parts.main.focus();
});
addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => { if (!document.hidden && !state.paused) cycle(shown); });
open();
