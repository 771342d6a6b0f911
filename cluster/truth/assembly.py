"""The end of the truth that a node has: it gives it in the first group, and copies it in all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.runtime.peer_frames import Kind
from cluster.truth.truth_copies import TruthCopies
from cluster.truth.truth_source import TruthSource
from raftlog.types import FIRST_GROUP

if TYPE_CHECKING:
    from cluster.peer.group_links import GroupLinks
    from cluster.replication.proposals import Proposals
    from cluster.runtime.context import NodeContext
    from cluster.truth.truth_source import Reads
    from statemachine.broker_state import BrokerState


def truth_of(
    context: NodeContext, state: BrokerState, services: Reads, proposals: Proposals, links: GroupLinks
) -> TruthSource | TruthCopies:
    """Makes the end of a node."""
    if context.config.cluster.group == FIRST_GROUP:
        source = TruthSource(state, services, proposals.submit_commands, context.environment.sweep_rows)
        links.takes(Kind.TRUTH, source.on_question)
        return source
    copies = TruthCopies(
        state,
        proposals.submit_commands,
        leads=services.writes_open,
        source=lambda: links.leader_link(FIRST_GROUP),
        monotonic_ms=services.monotonic_ms,
    )
    links.takes(Kind.TRUTH_REPLY, copies.on_answer)
    return copies
