"""Judges by the quotas of the cluster whether somebody may make one more topic or group, on the leader that is asked.

It is asked before the creation is proposed, by each way that a client has to make something: on purpose, and by what it
sends, consumes or sends back. What the cluster makes for itself, the topics of a group that is there among it, asks
nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from cluster.flow.quota_limits import NEW_GROUPS, NEW_TOPICS

if TYPE_CHECKING:
    from cluster.broker.rights import Party
    from cluster.flow.minute_rates import MinuteRates


def check_new_topic(rates: MinuteRates, name: str, party: Party) -> None:
    """Takes a topic from the quota of who makes it. Raises Refused (LIMITED)."""
    _take(rates, NEW_TOPICS, f"topic {name}", party)


def check_new_group(rates: MinuteRates, name: str, party: Party) -> None:
    """Takes a consumer group from the quota of who makes it. Raises Refused (LIMITED)."""
    _take(rates, NEW_GROUPS, f"group {name}", party)


def _take(rates: MinuteRates, limit: str, what: str, party: Party) -> None:
    if party.is_trusted:  # the operator, or a node
        return
    over = rates.take(limit, party.user, party.address)
    if over is not None:
        remark = f"{what} was not made: {over.remark}; try again in {-(-over.again_ms // 1000)} s"
        raise Refused(Reason.LIMITED, remark, counted=True, again_ms=over.again_ms)
