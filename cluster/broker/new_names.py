"""Checks against the quotas of the cluster whether a user or an address may make one more topic or group. Leader only.

The checks come before the creation is proposed, in each way in which a client can create a topic or group: by a request
for it, by a send, by a heartbeat of a consumer, or by a message that a consumer sends back. Topics that the cluster
creates for itself, such as the retry topic of an existing group, are not checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from cluster.flow.quota_limits import NEW_GROUPS, NEW_TOPICS

if TYPE_CHECKING:
    from cluster.broker.rights import Party
    from cluster.flow.minute_rates import MinuteRates


def check_new_topic(rates: MinuteRates, name: str, party: Party) -> None:
    """Takes one topic from the quota of the party that creates it. Raises Refused (LIMITED) if the quota is used up."""
    _take(rates, NEW_TOPICS, f"topic {name}", party)


def check_new_group(rates: MinuteRates, name: str, party: Party) -> None:
    """Takes one consumer group from the quota of the party that creates it. Raises Refused (LIMITED) if the quota is
    used up."""
    _take(rates, NEW_GROUPS, f"group {name}", party)


def _take(rates: MinuteRates, limit: str, what: str, party: Party) -> None:
    if party.is_trusted:  # the operator, or a node of the cluster, has no quota
        return
    over = rates.take(limit, party.user, party.address)
    if over is not None:
        remark = f"{what} was not made: {over.remark}; try again in {-(-over.again_ms // 1000)} s"
        raise Refused(Reason.LIMITED, remark, counted=True, again_ms=over.again_ms)
