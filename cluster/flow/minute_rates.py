"""Enforces the quotas that are rates per minute: what exceeds one is refused at once, because no client would wait that
long.

A bucket holds a minute's worth, so a client that begins may make all that it needs, and then as many as the rate
allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.flow.gate import Limit, Over
from cluster.flow.quota_buckets import QuotaBuckets

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.flow.gate import Gate
    from cluster.flow.quota_rules import QuotaRules


class TooSoon(NamedTuple):
    """The reason why a client must not do something now. The refusal is already counted."""

    remark: str
    again_ms: int
    """Milliseconds until he may."""


class MinuteRates:
    """The buckets of some limits a minute, at one node. Event loop only."""

    def __init__(self, rules: QuotaRules, limits: tuple[str, ...], gate: Gate, monotonic_ms: Callable[[], int]) -> None:
        self._rules, self._gate, self._monotonic_ms = rules, gate, monotonic_ms
        self._buckets = {limit: QuotaBuckets(rules, (limit,)) for limit in limits}

    def forget(self) -> None:
        """Forgets what was taken, because this node has become leader again."""
        for buckets in self._buckets.values():
            buckets.forget()

    def take(self, limit: str, user: int, address: str) -> TooSoon | None:
        """Takes one from the limit and returns None, or returns the reason why that is too soon. `user`: the id of the
        user who signed the request, 0 if nobody did."""
        buckets = self._buckets[limit]
        if not buckets.active:
            return None
        now_ms = self._monotonic_ms()
        found = buckets.of(user, address, "", now_ms)
        for bucket in found:
            wait_ms = bucket.wait_ms(now_ms)
            if wait_ms > 0:
                bucket.refuse(now_ms)
                remark = bucket.why()
                self._gate.refused(Over(Limit.QUOTA, remark, limit))
                return TooSoon(remark, wait_ms)
        for bucket in found:
            bucket.take(now_ms, 1, 0)
        return None
