"""Makes a node's services for the truth. A node of the first group sends the truth to other groups. A node of any other
group copies it, and ends the prepared parts of writes to several groups as the first group decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.config.local_layout import REGISTRY_GROUP
from cluster.runtime.peer_frames import Kind
from cluster.truth.places_told import PlacesTold
from cluster.truth.retirement import Retirement
from cluster.truth.revocation_offers import RevocationOffers
from cluster.truth.truth_acts import ActsAsked, ActsTaken
from cluster.truth.truth_copies import TruthCopies
from cluster.truth.truth_source import TruthSource
from cluster.truth.write_decisions import WriteDecisions
from raftlog.types import FIRST_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.peer.group_links import GroupLink, GroupLinks
    from cluster.replication.proposals import Proposals
    from cluster.runtime.context import NodeContext
    from cluster.runtime.service_lifecycle import Part
    from cluster.truth.write_decisions import LeaderReads
    from statemachine.broker_state import BrokerState


class TruthEnd(NamedTuple):
    """The services of one node for the truth: the sending side in the first group, the copying side in all others."""

    parts: tuple[Part, ...]
    why_stale: Callable[[], str]
    """Returns why the node may not judge requests by the users and rules that it has copied; "" if it may."""


def truth_of(
    context: NodeContext, state: BrokerState, services: LeaderReads, proposals: Proposals, links: GroupLinks
) -> TruthEnd:
    """Makes the services of a node, and connects them to the links between groups and to the queue of commands."""
    config = context.config
    if config.cluster.group == FIRST_GROUP:
        submit, deadline_ms = proposals.submit_commands, config.send.deadline_ms
        source = TruthSource(state, services, submit, context.environment.sweep_rows, deadline_ms)
        links.takes(Kind.TRUTH, source.on_question)
        proposals.commands.tell_through(source.when_copied)
        links.takes(Kind.ACT, ActsTaken(state, services, submit).on_act)
        told = PlacesTold(state, services.writes_open, lambda: links.to(REGISTRY_GROUP))
        return TruthEnd((source.part(), told.part()), lambda: "")

    def first() -> GroupLink | None:
        return links.leader_link(FIRST_GROUP)

    copies = TruthCopies(
        state,
        proposals.submit_commands,
        leads=services.writes_open,
        source=first,
        monotonic_ms=services.monotonic_ms,
        alarms=context.alarms,
        copy_ms_max=config.auth.copy_ms_max,
    )
    acts = ActsAsked(
        state,
        config.cluster.group,
        submit=proposals.submit_commands,
        source=first,
        hurry=copies.hurry,
        monotonic_ms=services.monotonic_ms,
        deadline_ms=config.send.deadline_ms,
    )
    proposals.commands.decide_elsewhere(acts.ask)
    links.takes(Kind.TRUTH_REPLY, copies.on_answer)
    links.takes(Kind.ACT_REPLY, acts.on_reply)
    submit, group, alarms = proposals.submit_commands, config.cluster.group, context.alarms
    decisions = WriteDecisions(state, services, submit, group, alarms)
    offers = RevocationOffers(state, services, acts.offer, submit, group, alarms)
    retirement = Retirement(state, services.writes_open, acts.ask)
    parts = (copies.part(), acts.part(), decisions.part(), offers.part(), retirement.part())
    return TruthEnd(parts, copies.why_stale)
