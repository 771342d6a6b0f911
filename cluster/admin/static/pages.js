// Every page by the first part of its address.

import consistency from "./page-consistency.js";
import faults from "./page-faults.js";
import groups from "./page-groups.js";
import members from "./page-members.js";
import messages from "./page-messages.js";
import overview from "./page-overview.js";
import recovery from "./page-recovery.js";
import topics from "./page-topics.js";

/** In the order of the navigation. `isThere`: shown only where the node has it. */
export const PAGES = [overview, topics, groups, messages, members, recovery, consistency, faults];

/** The page; the overview for an address that no page has. */
export function pageOf(name) {
  return PAGES.find((page) => page.name === (name || "")) || overview;
}
