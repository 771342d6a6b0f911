"""Finds users, addresses and topics that have asked this node for more than a quota allows, or for more than is
usual."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cluster.runtime.findings import Code, Condition
from raftlog.work import charge

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.learnt_use import LearntUse
    from cluster.replication.paced_sends import PacedSends

QUOTA_REFUSES: Final = Code("quota_refuses", "info", "raftmq quota list")
LEARNT_LIMITS_EXPIRED: Final = Code("learnt_limits_expired", "info", "raftmq quota import --help")
LEARNT_LIMITS_CUT: Final = Code("learnt_limits_cut", "info", "raftmq quota learnt")
RECENT_MS: Final = 60_000
NAMED: Final = 3
HOUR_MS: Final = 3_600_000
USES_PER_UNIT: Final = 10


def quota_conditions(services: Services, paced: PacedSends) -> Iterator[Condition]:
    """Yields one condition if quotas have refused anything in the last minute. It names the owners with the most
    refusals."""
    rules, now_ms = paced.buckets.rules, services.monotonic_ms()
    if not rules.rows:
        return
    over = rules.refused_since(now_ms - RECENT_MS)
    charge(1 + len(over))
    over.sort(key=lambda each: (-each.refused, each.owner))
    if over:
        first = [
            f"{each.owner} {each.refused} times, by {each.rule.limit} of quota {each.subject} ({each.told()})"
            for each in over[:NAMED]
        ]
        named = _listed(first, len(over))
        yield Condition(QUOTA_REFUSES, "", f"quotas refuse what is over them: {named}")


def learnt_conditions(services: Services, learnt: LearntUse) -> Iterator[Condition]:
    """Yields a condition if the learnt limits have expired. Otherwise yields one if, in the last minute, an overload
    made the leader refuse sends to topics that were over their learnt limits."""
    limits = services.state.learnt.in_force
    if limits is None or not services.writes_open():
        return
    late_ms = services.log_time_ms() - limits.head.ends_ms
    if late_ms >= 0:
        topics, hours = limits.head.topics, late_ms // HOUR_MS
        told = f"learnt limits of {topics} topics have expired {hours} hours ago, and do not count"
        yield Condition(LEARNT_LIMITS_EXPIRED, "", told)
        return
    uses, now_ms = list(learnt.all()), services.monotonic_ms()
    charge(1 + len(uses) // USES_PER_UNIT)
    cut = [use for use in uses if use.cut and now_ms - use.cut_ms < RECENT_MS]
    if not cut:
        return
    cut.sort(key=lambda use: (-use.cut, use.topic))
    first = [f"{use.topic} {use.cut} messages, usually at most {use.told()} a second" for use in cut[:NAMED]]
    named = _listed(first, len(cut))
    told = f"more arrives than the log takes, and topics that get more than usual are cut: {named}"
    yield Condition(LEARNT_LIMITS_CUT, "", told)


def _listed(first: list[str], count: int) -> str:
    """Returns the first texts, joined, with a remark how many of all `count` are left out."""
    more = count - len(first)
    return "; ".join([*first, f"and {more} more"] if more else first)
