// What a finding means and what to do: the runbooks, which are text with `commands` and [links](page).

import { getText } from "./api.js";
import { h } from "./dom.js";
import { empty, head, inside, panel } from "./ui.js";

const EVERY_MS = 60000;

export default { name: "runbook", title: "Runbook", every: EVERY_MS, isThere: () => false, load, view };

async function load({ signal }) {
  const [, ...sections] = (await getText("static/runbooks.md", signal)).split(/^## /m);
  return new Map(sections.map((section) => {
    const end = section.indexOf("\n");
    return [section.slice(0, end).trim(), section.slice(end).trim()];
  }));
}

function view(runbooks, own) {
  const code = own.path[1];
  const text = runbooks.get(code);
  return [
    head("Runbook", null, code && h("a", { href: "#/runbook" }, "All runbooks")),
    code && panel(code, { "data-runbook": code }, text
      ? inside(text.split(/\n\s*\n/).map((each) => h("p", null, words(each))))
      : empty(`There is no runbook ${code}.`)),
    !text && panel("Runbooks", null, h("ul", { class: "plain" }, [...runbooks.keys()].map((each) =>
      h("li", { key: each }, h("a", { href: `#/runbook/${each}` }, each))))),
  ];
}

/** `code` as code; of a link to another page its title. */
function words(text) {
  return text.replace(/\[([^\]]+)\]\([^)]+\)/g, `the page "$1" of the docs`).split(/(`[^`]+`)/)
    .map((part) => (part.startsWith("`") ? h("code", { class: "command" }, part.slice(1, -1)) : part));
}
