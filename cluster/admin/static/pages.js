// Every page by the first part of its address.

import audit from "./page-audit.js";
import clients from "./page-clients.js";
import consistency from "./page-consistency.js";
import events from "./page-events.js";
import faults from "./page-faults.js";
import groups from "./page-groups.js";
import members from "./page-members.js";
import messages from "./page-messages.js";
import overview from "./page-overview.js";
import quotas from "./page-quotas.js";
import recovery from "./page-recovery.js";
import runbook from "./page-runbook.js";
import tier from "./page-tier.js";
import topics from "./page-topics.js";

/** In the order of the navigation. `isThere`: whether the navigation has it. */
export const PAGES = [overview, events, topics, groups, clients, quotas, messages, members, recovery, consistency, tier, audit, faults, runbook];

/** The page; the overview for an address that no page has. */
export function pageOf(name) {
  return PAGES.find((page) => page.name === (name || "")) || overview;
}
