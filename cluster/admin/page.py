"""The page at /: one node's state, refreshed. Self-contained; the browser fetches nothing else from anywhere."""

from __future__ import annotations

from typing import Final

SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HTML: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>RaftMQ</title>
<style>
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0 0 1.5rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; padding: .2rem 1.5rem .2rem 0; border-bottom: 1px solid #8884; }
td { font-variant-numeric: tabular-nums; }
th { font-weight: 500; opacity: .75; }
#note { min-height: 1.5em; }
.bad { color: #c33; }
</style>
</head>
<body>
<h1>RaftMQ <span id="who"></span></h1>
<p id="note" role="status"></p>
<div id="tables"></div>
<p><a href="/v1/status">status</a> · <a href="/v1/topics">topics</a> · <a href="/v1/groups">groups</a> ·
<a href="/metrics">metrics</a> · <a href="/openapi.json">API</a></p>
<script>
"use strict";
const el = (name, text) => {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  return e;
};
const table = (title, rows) => {
  const t = el("table"); t.append(el("caption", title));
  for (const row of rows) {
    const r = t.insertRow();
    row.forEach((cell, i) => { const c = el(i ? "td" : "th", cell); if (!i) c.scope = "row"; r.append(c); });
  }
  return t;
};
const get = async (path) => (await fetch(path, {signal: AbortSignal.timeout(3000)})).json();
async function refresh() {
  const note = document.getElementById("note");
  try {
    const [s, h, m] = await Promise.all([get("/v1/status"), get("/v1/health"), get("/v1/members")]);
    document.getElementById("who").textContent = `${s.cluster}, node ${s.node}`;
    note.textContent = [...h.reasons, ...h.warnings].join(" · ") || "healthy";
    note.className = h.healthy ? "" : "bad";
    const tables = [table("This node", [
      ["role", s.member === "voter" ? s.role : s.member],
      ["leader", s.leader === null ? "none" : `node ${s.leader}`], ["term", s.term],
      ["takes writes", s.writes_open ? "yes" : "no"], ["last index", s.last_index], ["commit index", s.commit_index],
      ["applied index", s.applied_index], ["connections", s.load.connections],
      ["up for", `${Math.round(s.uptime_ms / 1000)} s`], ["version", s.versions.raftmq],
    ])];
    if (s.peers.length) tables.push(table("Other members", [
      ["node", "on its disk up to", "entries behind", "connected"],
      ...s.peers.map((p) => [p.node, p.match_index, p.lag_entries, p.connected ? "yes" : "no"]),
    ]));
    tables.push(table(m.committed ? "Members" : `Members; under way: ${m.detail}`, [
      ["node", "role", "peers", "HTTP"],
      ...m.members.map((n) => [
        n.id, n.leader ? "leader" : n.role, n.host ? `${n.host}:${n.port}` : "-", n.admin || "-",
      ]),
    ]));
    if (s.links.length) tables.push(table("Links", [
      ["to", "state", "for", "round trip", "reason"],
      ...s.links.map((l) => [l.peer, l.state, `${(l.age_ms / 1000).toFixed(1)} s`,
        l.round_trip_ms === null ? "-" : `${l.round_trip_ms} ms`, l.finding || l.reason]),
    ]));
    document.getElementById("tables").replaceChildren(...tables);
  } catch (error) {
    note.textContent = `The node does not answer: ${error.message}`; note.className = "bad";
  }
  setTimeout(refresh, 2000);
}
refresh();
</script>
</body>
</html>
"""
