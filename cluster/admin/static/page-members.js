// The members, and what changes them: each change asks first, and the cluster has the last word.

import { at, change, get, getConfirmed } from "./api.js";
import { host } from "./brokers.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { membersTable, roleOf } from "./members.js";
import { askFirst, facts, head, inside, panel, say, table } from "./ui.js";

export default { name: "members", title: "Members", load, view };

async function load({ signal }) {
  return { members: await getConfirmed("v1/members", signal) };
}

function view({ members }, own) {
  const { status } = own.state;
  const actions = { name: "actions", label: "", class: "actions", cell: (member) => buttons(member, members, own) };
  return [
    head("Members", members),
    panel(f.plural(members.members.length, "member"), { note: underWay(members) }, membersTable(members, status, actions)),
    h("div", { class: "columns" },
      panel("Quorum", null, inside(facts(
        ["majority", `${members.quorum} of ${status.quorum?.voters.length ?? "–"} voters`],
        ["may fail", status.quorum && status.quorum.survives > 0 ? f.plural(status.quorum.survives, "more voter") : h("span", { class: "warn" }, "none")],
        ["addresses", members.members.map((member) => `node ${f.name(member.id)} ${member.host ? `${member.host}:${member.port}` : "unknown"}`).join(", ")],
        ["away", status.quorum?.away.length ? status.quorum.away.map((id) => `node ${f.name(id)}`).join(", ") : "none"],
        ["last change", members.index ? `${members.detail || members.reason} (entry ${f.count(members.index)})` : "none since the cluster was made"],
        ["removed", members.removed.length ? members.removed.map((one) => `node ${f.name(one.id)}`).join(", ") : "none"],
        ["next free id", members.next_id]))),
      panel("Links of this node", null, table([
        { name: "peer", label: "to", class: "tight", cell: (link) => `node ${f.name(link.peer)}` },
        { name: "state", label: "state", class: "words" },
        { name: "age_ms", label: "for", num: true, cell: (link) => f.span(link.age_ms) },
        { name: "round_trip_ms", label: "round trip", num: true, cell: (link) => f.latency(link.round_trip_ms) },
        { name: "reason", label: "reason", cell: (link) => link.finding || link.reason || "–" },
      ], status.links, { key: (link) => link.peer, none: "This node has no peers." }))),
    panel("Add a node", null, inside(
      h("p", null, `On the new machine. n${members.next_id}.toml has the name of this cluster and the node's own id, data_dir and ports; the command adds the other nodes. SECRET is a copy of the cluster's secret file; leave --secret out if the cluster has none:`),
      h("code", { class: "command" }, `raftmq node add --config n${members.next_id}.toml --via http://${host()} --secret SECRET`))),
  ];
}

function underWay(members) {
  return members.committed ? null : h("span", { class: "warn" }, `a change is under way: ${members.detail || members.reason} (entry ${f.count(members.index)})`);
}

function buttons(member, members, own) {
  const isDrained = member.id === own.state.status.node && own.state.status.drained;
  const button = (text, act, label) => h("button", { key: text, type: "button", class: "small", onclick: () => act(member, members, own), "aria-label": `${label} node ${f.name(member.id)}` }, text);
  return h("span", { class: "row" },
    member.role === "voter" && !member.leader && button("Make leader", transfer, "Make leader of"),
    member.role === "learner" && button("Promote", promote, "Promote"),
    isDrained || member.fit === false ? button("Undrain", undrain, "Undrain") : null,
    member.role === "voter" && !isDrained && button("Drain", drain, "Drain"),
    button("Remove", remove, "Remove"));
}

function transfer(member, members, own) {
  askFirst({
    title: `Transfer leadership to node ${f.name(member.id)}?`, yes: "Transfer",
    text: ["Writes wait while the nodes change roles, usually for less than a second. No acknowledged message is lost."],
    facts: [["leads now", members.leader ? `node ${f.name(members.leader)}` : "none"], ["entries behind", f.count(member.lag_entries)]],
    act: async () => { await change("POST", "v1/leader/transfer", { to: member.id }); },
    after: own.refresh,
  });
}

function promote(member, members, own) {
  askFirst({
    title: `Make node ${f.name(member.id)} a voter?`, yes: "Promote",
    text: ["From then on it counts for the majority. The leader refuses if it has not caught up."],
    act: async () => { await change("POST", at("members", member.id, "promote")); },
    after: own.refresh,
  });
}

async function drain(member, members, own) {
  const asked = await canStop(member);
  askFirst({
    title: `Drain node ${f.name(member.id)}?`, yes: asked.allowed === false ? "Drain all the same" : "Drain", danger: asked.allowed === false,
    text: [
      `${member.leader ? "It hands leadership over" : "Clients stay connected"}, producers are sent to other nodes, and it does not lead until its next start or until this is undone.`,
      ...asked.lines,
    ],
    facts: asked.facts,
    act: async () => { await change("POST", at("members", member.id, "drain"), { drain: true }); },
    after: own.refresh,
  });
}

/** What the cluster says to stopping it: the question that the command line asks as well. */
async function canStop(member) {
  try {
    const told = await get(at("members", member.id, "can-stop"));
    const lines = told.allowed ? ["It may be stopped then: the others have a majority and every entry."] : [
      `It should not be stopped: ${told.reasons.join("; ")}.`, told.passes ? "Waiting helps." : `What helps: ${told.do_now}`];
    return { allowed: told.allowed, lines, facts: quorums(told) };
  } catch (error) {
    return { lines: [`Whether it may be stopped could not be asked: ${error.message}.`] };
  }
}

function quorums({ before, after }) {
  return [["now", inWords(before)], ["while it is stopped", inWords(after)]];
}

function inWords(quorum) {
  const here = quorum.voters.length - quorum.away.length;
  const margin = quorum.survives > 0 ? `survives ${f.plural(quorum.survives, "failure")}` : quorum.survives === 0 ? "survives no failure" : "no majority";
  return `${here} of ${quorum.voters.length} voters, ${quorum.majority} are a majority: ${margin}`;
}

function undrain(member, members, own) {
  askFirst({
    title: `Let node ${f.name(member.id)} lead again?`, yes: "Undrain",
    text: ["It may be elected again, and producers are sent to it again."],
    act: async () => { await change("POST", at("members", member.id, "drain"), { drain: false }); },
    after: own.refresh,
  });
}

function remove(member, members, own) {
  const voters = members.members.filter((each) => each.role === "voter").map((each) => each.id);
  const rest = voters.filter((id) => id !== member.id);
  const question = (query, text) => ({
    title: `Remove node ${f.name(member.id)} from the cluster?`, yes: `Remove node ${f.name(member.id)}`, danger: true,
    text,
    facts: member.role === "learner" ? [["voters", "the same: it is a learner"]] : [["voters now", majorityOf(voters)], ["afterwards", majorityOf(rest)]],
    act: async () => {
      try {
        await change("DELETE", `${at("members", member.id)}${query}`);
        say(`node ${f.name(member.id)} is removed`);
      } catch (error) {
        if (error.code !== "unconfirmed") throw error;
        return question("?below_three=true", [`${error.message}.`, "Go on?"]);
      }
      return null;
    },
    after: own.refresh,
  });
  askFirst(question("", [
    `Its ${roleOf(member)} role ends, its id is not used again, and it no longer serves clients. Stop it on its machine afterwards.`,
  ]));
}

function majorityOf(voters) {
  if (!voters.length) return "none";
  const need = Math.floor(voters.length / 2) + 1;
  return `${voters.map((id) => `node ${f.name(id)}`).join(", ")}; ${need} are a majority, ${voters.length - need} may fail`;
}
