"""Finds out who has asked this node for more than a quota allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cluster.admin.findings.finding import Condition
from raftlog.work import charge

if TYPE_CHECKING:
    from cluster.admin.node_interface import AdminPort

RECENT_MS: Final = 60_000
NAMED: Final = 3


def quota_conditions(port: AdminPort) -> Iterator[Condition]:
    """Yields a condition if something was refused in the last minute: it names those of whom most was."""
    rules, now_ms = port.paced.buckets.rules, port.services.monotonic_ms()
    if not rules.rows:
        return
    buckets = list(rules.refusals())
    charge(len(buckets))
    over = [each for each in buckets if each.refused and now_ms - each.refused_ms < RECENT_MS]
    if not over:
        return
    over.sort(key=lambda each: (-each.refused, each.owner))
    named = "; ".join(
        f"{each.owner} {each.refused} times, by {each.rule.limit} of quota {each.subject} ({each.told()})"
        for each in over[:NAMED]
    )
    more = f"; and {len(over) - NAMED} more" if len(over) > NAMED else ""
    yield Condition("quota_refuses", "", f"quotas refuse what is over them: {named}{more}")
