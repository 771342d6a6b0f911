// Plots over time with uPlot (MIT, uplot.LICENSE.txt). One cursor for all of them; colours follow the page's.

import { h } from "./dom.js";
import * as f from "./format.js";

const COLOURS = ["--plot-1", "--plot-2", "--plot-3", "--plot-4", "--plot-5", "--plot-6"];
const HEIGHT = 150;
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power); // steps of an axis in bytes
const IN_BYTES = [f.bytes, f.bytesPerSecond];
const dark = matchMedia("(prefers-color-scheme: dark)");

/**
 * A plot. `lines`: [{name, values}], one value or null per time; `times_s`: seconds since the Unix epoch; `range_s`: what
 * the x axis covers; `show`: a value as text, with its unit.
 */
export function plot({ title, times_s, lines, range_s, show, max }) {
  const data = [times_s, ...lines.map((line) => line.values)];
  const last = lines.map((line) => line.values.findLast((value) => value !== null && value !== undefined));
  const told = lines.map((line, at) => `${line.name} ${show(last[at])}`).join(", ");
  return h("figure", { class: "plot", key: title, "data-plot": title },
    h("figcaption", null,
      h("span", { class: "name" }, title),
      lines.map((line, at) => h("span", { class: "key", key: line.name },
        h("i", { class: `swatch s${(at % COLOURS.length) + 1}` }), `${line.name} `,
        h("b", { "data-line": line.name, hook: { owns: true, update: (el) => setIdle(el, show(last[at])) } })))),
    h("div", {
      class: "canvas", role: "img", "aria-label": `${title}, last: ${told}`,
      hook: {
        owns: true,
        create: (el) => { el.wanted = { data, lines, range_s, show, max }; begin(el); },
        update: (el) => { el.wanted = { data, lines, range_s, show, max }; refresh(el); },
        remove: end,
      },
    }));
}

/** What a line's key says while no cursor stands in the plot. */
function setIdle(el, text) {
  el.idle = text;
  if (!el.closest("figure")?.hovered) el.textContent = text;
}

function begin(el) {
  el.observer = new ResizeObserver(() => { if (el.drawn && el.clientWidth) el.drawn.setSize({ width: el.clientWidth, height: HEIGHT }); });
  el.observer.observe(el);
  el.recolour = () => remake(el);
  dark.addEventListener("change", el.recolour);
}

function refresh(el) {
  const names = el.wanted.lines.map((line) => line.name).join();
  if (!el.drawn || el.names !== names) {
    el.names = names;
    requestAnimationFrame(() => remake(el)); // it has a width only in the document
    return;
  }
  el.drawn.setData(el.wanted.data, false);
  el.drawn.setScale("x", { min: el.wanted.range_s[0], max: el.wanted.range_s[1] });
}

function remake(el) {
  if (!el.isConnected) return;
  el.drawn?.destroy();
  el.drawn = new window.uPlot(options(el), el.wanted.data, el);
}

function end(el) {
  el.observer?.disconnect();
  dark.removeEventListener("change", el.recolour);
  el.drawn?.destroy();
  el.drawn = null;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options(el) {
  const { lines, max } = el.wanted;
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width: el.clientWidth,
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "raftmq" }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { time: true, range: () => el.wanted.range_s },
      y: { range: (_, low, high) => [0, niceTop(Math.max(high ?? 0, max ?? 0))] },
    },
    axes: [
      { ...axis, size: 24, space: 70, values: (_, ticks) => ticks.map((tick) => f.clock(tick * 1000).slice(0, tick % 60 ? 8 : 5)) },
      { ...axis, size: 66, space: 28, incrs: IN_BYTES.includes(el.wanted.show) ? BINARY : undefined, values: (_, ticks) => ticks.map((tick) => el.wanted.show(tick)) },
    ],
    series: [{}, ...lines.map((line, at) => ({
      label: line.name, stroke: colour(COLOURS[at % COLOURS.length]), width: 1.5, spanGaps: false,
      points: { show: () => false, size: 4, filter: alone },
    }))],
    hooks: { setCursor: [(drawn) => tell(el, drawn)] },
  };
}

/** Samples without a neighbour: no line goes through them, so they are drawn as points. */
function alone(drawn, line) {
  const values = drawn.data[line];
  const missing = (value) => value === null || value === undefined;
  const found = values.flatMap((value, n) => (!missing(value) && missing(values[n - 1]) && missing(values[n + 1]) ? [n] : []));
  return found.length ? found : null;
}

function niceTop(high) {
  return high > 0 ? high * 1.12 : 1;
}

/** Shows the values under the cursor in the caption, the last ones when it is gone. */
function tell(el, drawn) {
  const figure = el.closest("figure");
  const at = drawn.cursor.idx;
  if (!figure) return;
  figure.hovered = at !== null && at !== undefined;
  figure.querySelectorAll("[data-line]").forEach((value, line) => {
    value.textContent = figure.hovered ? el.wanted.show(el.wanted.data[line + 1][at]) : value.idle;
  });
}
