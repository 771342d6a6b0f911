// What the object store holds of the log, what waits, and what fails.

import { get } from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { badge, empty, facts, head, inside, panel, table, tile } from "./ui.js";

const KINDS = { uploading: "info", uploaded: "info", verified: "good", deleting: "warn" };

export default { name: "tier", title: "Tier", every: 4000, load, view };

async function load({ signal }) {
  return get("v1/tier", signal);
}

function view(tier) {
  if (!tier.url) {
    return [head("Tier", tier), panel("Tier", null, empty("Off: the log is only on the disks of the nodes. ", h("code", { class: "command" }, "tier.url"), " in every node's configuration turns it on."))];
  }
  const waits = tier.pending_bytes > 0;
  const leads = tier.leader === tier.node;
  return [
    head("Tier", tier),
    h("div", { class: "tiles" },
      tile("In the tier", f.bytes(tier.stored_bytes), `${f.count(tier.segments.verified || 0)} verified segments`),
      tile("Not verified yet", f.bytes(tier.pending_bytes), waits ? `the oldest waits for ${f.span(tier.pending_age_ms)}` : "all sealed segments are there", tier.failing ? "warn" : ""),
      tile("Loss window", leads ? f.span(tier.window_ms) : "–", leads ? "age of the oldest message that is not in the tier" : tier.leader ? `node ${f.name(tier.leader)}, the leader, knows it` : "only a leader knows it"),
      tile("Manifest", tier.manifest_version === null ? "–" : f.count(tier.manifest_version), tier.manifest_version === null ? "none seen since this node leads" : "newest version"),
      tile("Uploads", tier.failing ? "failing" : "working", tier.failing ? `for ${f.span(tier.failing_ms)}, ${f.plural(tier.failures, "attempt")}` : `${f.plural(tier.failures, "attempt")} failed so far`, tier.failing ? "bad" : "")),
    tier.failing && h("div", { class: "problem", role: "alert" }, tier.failing),
    panel("Where it stands", null, inside(facts(
      ["store", h("code", null, tier.url)], ["leader, who uploads", tier.leader ? `node ${f.name(tier.leader)}` : "none"],
      ["log begins at", f.count(tier.log_begins)], ["tier begins at", f.count(tier.tier_begins)],
      ["verified up to", f.count(tier.verified_to)], ["sealed up to", f.count(tier.sealed_end)]))),
    panel("Newest segments", null, table([
      { name: "base", label: "from position", num: true },
      { name: "end", label: "to", num: true },
      { name: "state", label: "state", cell: (segment) => badge(KINDS[segment.state] || "", segment.state) },
      { name: "first_index", label: "first entry", num: true },
      { name: "last_index", label: "last entry", num: true },
      { name: "last_ms", label: "newest message", num: true, cell: (segment) => f.ago(segment.last_ms) },
      { name: "stored_bytes", label: "stored", num: true, cell: (segment) => f.bytes(segment.stored_bytes) },
    ], [...tier.last].reverse(), { key: (segment) => segment.base, none: "No segment is in the tier yet. A segment goes there when it is full or sealed." })),
  ];
}
