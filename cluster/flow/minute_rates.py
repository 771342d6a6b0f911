"""Enforces the quotas that are rates per minute. A request above the rate is refused at once, because no client would
wait up to a minute.

A bucket holds a minute's worth. So a client that starts may open or create as many things at once as the rate allows in
a minute.
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
    """The reason why a request is refused now: its owner has used up a rate per minute. The refusal is already
    counted."""

    remark: str
    again_ms: int
    """Milliseconds until the same request would be allowed."""


class MinuteRates:
    """Enforces some limits per minute on one node. Event loop only."""

    def __init__(self, rules: QuotaRules, limits: tuple[str, ...], gate: Gate, monotonic_ms: Callable[[], int]) -> None:
        self._rules, self._gate, self._monotonic_ms = rules, gate, monotonic_ms
        self._buckets = {limit: QuotaBuckets(rules, (limit,)) for limit in limits}

    def forget(self) -> None:
        """Fills all buckets. Called when this node has become leader."""
        for buckets in self._buckets.values():
            buckets.forget()

    def take(self, limit: str, user: int, address: str) -> TooSoon | None:
        """Takes one unit of the limit and returns None; returns the reason for a refusal if the limit is used up. None
        too if no quota has this limit. `user`: the id of the user who signed the request, 0 if nobody did."""
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
