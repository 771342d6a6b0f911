// Every change of users, rules, tokens and the mode: who asked for it, from where.

import { at, get, getPage } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, filterBox, head, panel, table } from "./ui.js";

const state = { filter: "" };

export default { name: "audit", title: "Audit", every: 5000, load, view, isThere: ({ session }) => session?.type === "Super" };

async function load({ signal }) {
  const [audit, auth] = await Promise.all([getPage(at("audit"), signal), get(at("auth"), signal)]);
  return { audit, auth };
}

const MODES = { off: "bad", observe: "warn", enforce: "good" };

function view({ audit, auth }, own) {
  const wanted = state.filter.toLowerCase();
  const shown = audit.changes.filter((row) => `${row.user} ${row.address} ${row.about} ${row.action}`.toLowerCase().includes(wanted));
  return [
    head("Audit", audit),
    panel("Who may do what", { note: h("span", null, "auth.mode is ", badge(MODES[auth.mode], auth.mode)) }, table([
      { name: "at", label: "last at", class: "tight", cell: (row) => moment(row.at) },
      { name: "address", label: "client", class: "tight" },
      { name: "times", label: "times", num: true },
      { name: "last", label: "last request", class: "mono" },
      { name: "why", label: "why" },
    ], auth.denials, { key: (row) => `${row.address} ${row.why}`, none: auth.mode === "off" ? "Nothing is judged." : "This node denied nothing in the last hour." })),
    panel(f.plural(shown.length, "change"), { note: audit.next ? "the newest; raftmq audit shows more" : "of users, rules, tokens and the mode", end: filterBox(state, own.draw, "Filter changes by their text") }, table([
      { name: "at", label: "when", class: "tight", cell: (row) => moment(row.at) },
      { name: "user", label: "user", cell: (row) => (row.user === "operator" ? badge("warn", "operator") : row.user || "–") },
      { name: "address", label: "client", class: "tight" },
      { name: "about", label: "about", class: "tight" },
      { name: "action", label: "change" },
    ], shown, { key: (row) => row.number, none: audit.changes.length ? "No change has this in its text." : "Nothing was changed yet." })),
  ];
}

function moment(at) {
  return h("span", { title: f.ago(Date.parse(at)) }, f.moment(Date.parse(at)));
}
