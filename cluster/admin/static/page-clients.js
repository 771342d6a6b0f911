// Who is connected to which node, how much each sends and takes, and who does not keep up.

import { at, change, get, getFrom } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { groupLink } from "./page-groups.js";
import { askFirst, badge, choice, filterBox, head, panel, problem, table } from "./ui.js";

const state = { filter: "", node: null, by: { column: "received_bytes_per_s", down: true } };

export default { name: "clients", title: "Clients", every: 3000, load, view };

async function load({ state: { status }, signal }) {
  const members = await get("v1/members", signal);
  return { members, clients: await getFrom(state.node ?? status.node, signal, "clients") };
}

function view({ members, clients }, own) {
  const chosen = state.node ?? own.state.status.node;
  const end = [
    choice("Node", members.members.map(({ id }) => [id, `node ${f.name(id)}`]), chosen, (node) => { state.node = node; own.refresh(); }),
    filterBox(state, own.draw, "Filter clients by address, id or group"),
  ];
  if (clients.error) return [head("Clients", own.state.status), panel(`Node ${f.name(chosen)}`, { end }, h("div", { class: "inside" }, problem(clients.error)))];
  const wanted = state.filter.toLowerCase();
  const shown = clients.clients.filter((client) => namesOf(client).some((name) => name.toLowerCase().includes(wanted)));
  const note = clients.total > clients.clients.length ? `the busiest of ${f.count(clients.total)}` : null;
  return [
    head("Clients", own.state.status),
    panel(`${f.plural(shown.length, "connection")} to node ${f.name(clients.node)}`, { end, note }, table([
      { name: "address", label: "address", class: "tight", sort: (client) => client.address },
      { name: "groups", label: "groups", cell: groups },
      { name: "language", label: "language", sort: (client) => client.language, cell: (client) => client.language || "–" },
      { name: "since", label: "connected", num: true, sort: (client) => client.since, cell: (client) => h("span", { title: client.since }, f.ago(Date.parse(client.since))) },
      { name: "received_bytes_per_s", label: "sends", num: true, sort: (client) => client.received_bytes_per_s, cell: (client) => f.bytesPerSecond(client.received_bytes_per_s) },
      { name: "sent_bytes_per_s", label: "takes", num: true, sort: (client) => client.sent_bytes_per_s, cell: (client) => f.bytesPerSecond(client.sent_bytes_per_s) },
      { name: "unsent_bytes", label: "unsent", num: true, sort: (client) => client.unsent_bytes, cell: (client) => h("span", { title: `${f.bytes(client.inflight_bytes)} of its requests are in flight` }, f.bytes(client.unsent_bytes)) },
      { name: "actions", label: "", class: "actions", cell: (client) => h("button", { type: "button", class: "small", "aria-label": `Disconnect ${client.address}`, onclick: () => disconnect(clients.node, client, own) }, "Disconnect") },
    ], shown, { key: (client) => client.address, by: state.by, again: own.draw, none: clients.total ? "No client has this in its address, id or group." : "No client is connected to this node." })),
  ];
}

function namesOf(client) {
  return [client.address, client.language, ...client.groups.flatMap((group) => [group.name, group.client_id])];
}

function groups(client) {
  if (!client.groups.length) return "–";
  return client.groups.map((group, n) => [n ? h("br", { key: `b${n}` }) : null,
    group.role === "consumer" ? h("a", { key: group.name, href: groupLink(group.name), title: group.client_id }, group.name) : h("span", { key: group.name, title: group.client_id }, group.name),
    " ", badge("", group.role)]);
}

function disconnect(node, client, own) {
  askFirst({
    title: `Disconnect ${client.address}?`, yes: "Disconnect", danger: true,
    text: ["The connection is closed now. A healthy client connects again at once and sends again what was not acknowledged."],
    facts: [["groups", client.groups.map((group) => group.name).join(", ") || null], ["node", node]],
    act: async () => { await change("DELETE", at("members", node, "clients", client.address)); },
    after: own.refresh,
  });
}
