// The parts that pages are made of.

import { h, render } from "./dom.js";
import * as f from "./format.js";

/** The head of a page. `from`: the answer that the page shows, which names its node and its applied index. */
export function head(title, from, extra) {
  return h("div", { class: "head" }, h("h1", null, title), extra, from && stamp(from));
}

/** From which node and up to which entry of the log what is shown was read. */
export function stamp({ node, group, asked, applied_index: applied, consistency }) {
  const name = group ? f.nodeName(group, node) : f.name(node);
  const who = consistency === "linearizable" ? `the leader, node ${name}` : `node ${name}`;
  const more = asked > 1 ? `; sums of ${asked} groups of brokers` : "";
  return h("span", { class: "stamp", "data-applied": applied, "data-node": node }, `from ${who}, applied index ${f.count(applied)}${more}`);
}

export function panel(title, props, ...children) {
  const { end, note, ...rest } = props || {};
  return h("section", { ...rest, class: "panel" },
    h("header", null, h("h2", null, title), note && h("span", { class: "muted" }, note), end && h("div", { class: "end" }, end)),
    ...children);
}

export function inside(...children) {
  return h("div", { class: "inside" }, ...children);
}

export function empty(...children) {
  return h("div", { class: "empty" }, ...children);
}

export function badge(kind, text) {
  return h("span", { class: `badge ${kind}` }, text);
}

export function tile(label, figure, note, kind) {
  return h("div", { class: "tile", "data-tile": label },
    h("div", { class: "label" }, label),
    h("div", { class: `figure ${kind || ""}` }, figure),
    h("div", { class: "note" }, note || ""));
}

/** Pairs of a name and a value; pairs without a value are left out. */
export function facts(...pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== false);
  return h("dl", { class: "facts" }, shown.map(([name, value]) => [
    h("dt", null, name), h("dd", null, value),
  ]));
}

/**
 * A table. Columns: {name, label, num, cell(row), sort(row)}; the first one heads its row. `by`: the state of the sorting,
 * {column, down}, kept by the page. What a cell shows of a plain value is in `data-value` as it came.
 */
export function table(columns, rows, { key, by, again, none }) {
  if (!rows.length) return empty(none);
  const sorted = by?.column ? sortedRows(columns, rows, by) : rows;
  return h("table", null,
    h("thead", null, h("tr", null, columns.map((column) => headCell(column, by, again)))),
    h("tbody", null, sorted.map((row) => h("tr", { key: String(key(row)), "data-row": key(row) },
      columns.map((column, at) => h(at ? "td" : "th", {
        key: column.name, scope: at ? null : "row", "data-field": column.name, "data-label": column.label || null,
        "data-value": typeof row[column.name] === "object" ? null : row[column.name],
        class: [column.num && "num", column.class].filter(Boolean).join(" ") || null,
      }, column.cell ? joined(column.cell(row)) : shown(row[column.name])))))));
}

/** What a cell has, as one element: on a telephone the name of the column stands on the left and the rest on the right. */
function joined(content) {
  return Array.isArray(content) ? h("span", null, content) : content;
}

function shown(value) {
  if (typeof value === "number") return f.count(value);
  return value === null || value === undefined ? "–" : String(value);
}

function headCell(column, by, again) {
  const props = { key: column.name, scope: "col", class: column.num ? "num" : column.class === "mono" ? null : column.class || null };
  if (!by || !column.sort) return h("th", props, column.label);
  const isBy = by.column === column.name;
  if (isBy) props["aria-sort"] = by.down ? "descending" : "ascending";
  const sort = () => {
    by.down = isBy ? !by.down : Boolean(column.num);
    by.column = column.name;
    again();
  };
  return h("th", props, h("button", { type: "button", onclick: sort }, column.label));
}

function sortedRows(columns, rows, by) {
  const value = columns.find((column) => column.name === by.column).sort;
  const sign = by.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === y) return 0;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  });
}

export function filterBox(state, again, label) {
  return h("input", {
    key: "filter", type: "search", placeholder: "filter", "aria-label": label, value: state.filter,
    oninput: (event) => { state.filter = event.target.value; again(); },
  });
}

/** For a list that comes in pages: back to its beginning, and on to the next page. `state.after` is the page's query. */
export function pageButtons(list, state, own) {
  const to = (after) => () => { state.after = after; own.refresh(); };
  if (!state.after && !list.next) return [];
  return [
    h("button", { key: "first", type: "button", class: "small", disabled: !state.after, onclick: to("") }, "← First"),
    h("button", { key: "next", type: "button", class: "small", disabled: !list.next, onclick: to(`?after=${encodeURIComponent(list.next)}`) }, "Next →"),
  ];
}

/** Buttons of which one is pressed. Choices: [value, text]. */
export function choice(label, choices, chosen, choose) {
  return h("div", { class: "group", role: "group", "aria-label": label }, choices.map(([value, text]) =>
    h("button", { key: String(value), type: "button", class: "small", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text)));
}

export function copyButton(text) {
  const copy = () => navigator.clipboard.writeText(text).then(() => say("copied"), () => say("the browser refused to copy"));
  return navigator.clipboard ? h("button", { type: "button", class: "small", onclick: copy, "aria-label": `Copy: ${text}` }, "Copy") : null;
}

/** Told to screen readers, too. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

export function problem(error) {
  return h("div", { class: "problem", role: "alert" },
    h("div", null, error.message), error.hint && h("div", { class: "hint" }, error.hint));
}

/**
 * Asks before something changes; `act` runs when the answer is yes, and its refusal is shown where the question was.
 * It may return another question, {title, text, act, ...}, that the cluster wants to have answered first.
 */
export function askFirst(question) {
  const dialog = document.getElementById("dialog");
  const opener = document.activeElement;
  let state = { busy: false, error: null };
  const close = () => dialog.close();
  const go = async () => {
    state = { busy: true, error: null };
    draw();
    try {
      const next = await question.act();
      if (next) {
        question = next;
        state = { busy: false, error: null };
        draw();
        dialog.querySelector("button.cancel").focus();
        return;
      }
      close();
      say("done");
    } catch (error) {
      state = { busy: false, error };
      draw();
    }
  };
  const draw = () => render(dialog, h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); go(); } },
    h("div", { class: "inside" },
      h("h2", { id: "dialog-title" }, question.title),
      question.text.map((line, at) => h("p", { key: `p${at}` }, line)),
      question.facts && facts(...question.facts),
      state.error && problem(state.error)),
    h("div", { class: "buttons" },
      h("button", { type: "button", class: "cancel", onclick: close }, "Cancel"),
      h("button", { type: "submit", class: question.danger ? "danger" : "first", disabled: state.busy }, state.busy ? "Working…" : question.yes))));
  draw();
  dialog.onclose = () => {
    (opener?.isConnected ? opener : document.getElementById("main")).focus();
    question.after?.();
  };
  dialog.showModal();
  dialog.querySelector("button.cancel").focus();
}
