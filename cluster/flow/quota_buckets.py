"""Decides by the quotas of the cluster how much an owner (a user, an address or a topic) may send or pull now.

Each limit is a token bucket that fills at its rate, stored as the time at which it is full again (the generic cell rate
algorithm of ITU-T I.371). So a bucket is one number and needs no timer. It holds one second's worth, or one minute's
worth if the limit is per minute. A request may take more than the bucket has. So a message that is larger than a
second's worth passes, and the owner's next request waits longer. A new leader begins with full buckets.

Several nodes may apply one quota, each of them a share of its rate (`cluster.flow.quota_shares`). For sends these are
the leaders of the groups of brokers, for pulls all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cluster.flow.quota_limits import LIMITS, SENDS, Per
from cluster.flow.quota_rules import Refusals, Rule, rules_of

if TYPE_CHECKING:
    from cluster.flow.quota_rules import QuotaRules
    from statemachine.access.quotas import Quota

BURST_MS: Final = 1_000
"""Milliseconds in which an empty bucket of a rate per second becomes full: it holds one second's worth."""
ROUNDING_MS: Final = 1e-6
"""Milliseconds by which a time may be wrong because floating-point sums are rounded. Smaller differences are
ignored."""
PERIOD_MS: Final = {Per.SECOND: 1_000, Per.MINUTE: 60_000}
WAITING_ASKS: Final = 0.25
"""The part of the rate that a node adds to its demand for a quota while requests wait for it."""
LOOKS_UNTIL_TOLD: Final = 4
"""The number of measurements, one a second, after which a node has surely heard the demand of all other nodes. A demand
passes through up to two leaders on its way."""
DEMAND_MIN: Final = 1e-4
"""The part of the rate below which a demand counts as 0."""
BYTES_SHARE_MIN: Final = 0.01
"""The smallest share of a rate in bytes that a node may have. For a rate in messages the smallest share is one message
a second."""
OWNERS_MAX: Final = 20_000
"""The most senders, each with a topic, whose buckets are remembered. Beyond that, full buckets are forgotten."""
BUCKETS_MAX: Final = 4 * OWNERS_MAX


class Bucket(Refusals):
    """The bucket of one owner for one limit. Times are milliseconds of the monotonic clock."""

    __slots__ = (
        "_each_ms",
        "_full_ms",
        "_holds_ms",
        "_least",
        "_looks",
        "_request",
        "_requests",
        "_used",
        "_whole_ms",
        "demand",
        "in_bytes",
        "key",
        "share",
    )

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        limit = LIMITS[rule.limit]
        self.key = rule[:3]
        self.in_bytes = limit.noun == "byte"
        period_ms = PERIOD_MS[limit.per]
        self._whole_ms = self._each_ms = period_ms / rule.value
        """Milliseconds in which one more unit (a message, a byte) is allowed: by the whole rate, and by the share of
        this node."""
        self._least = BYTES_SHARE_MIN if self.in_bytes else min(1.0, self._whole_ms / period_ms)
        self._holds_ms = period_ms if limit.per is Per.MINUTE else BURST_MS
        self._full_ms = float("-inf")
        self.share = 1.0
        """The part of the rate, above 0 and at most 1.0, that this node may let through."""
        self.demand = 0.0
        """The demand at this node in the last seconds, as a part of the rate; above 1.0 if more than the rate was asked
        for."""
        self._looks = 0
        self._used = self._requests = 0
        """The units that were taken since the last measurement, and the number of requests that took them."""
        self._request = 1.0
        """The units that one request took on average, by the last measurement with any request."""

    def opens_ms(self) -> float:
        """Returns the time, in milliseconds, from which the owner may take one complete message; for a limit in bytes,
        any byte."""
        return self._full_ms - self._holds_ms + (0.0 if self.in_bytes else self._each_ms - ROUNDING_MS)

    def wait_ms(self, now_ms: int) -> int:
        """Returns the milliseconds until one unit (a message, a byte) may be taken; 0 if it may be taken now."""
        # Rounding errors may leave a tiny wait after the bucket should be full enough, so ROUNDING_MS is subtracted.
        return max(0, math.ceil(max(self._full_ms, now_ms) + self._each_ms - self._holds_ms - now_ms - ROUNDING_MS))

    def fits(self, now_ms: int, requests: int, count: int, size: int) -> bool:
        """Returns True if the bucket has all of `count` messages, or of `size` bytes for a limit in bytes. `requests`
        has no effect."""
        taken = size if self.in_bytes else count
        return max(self._full_ms, now_ms) + taken * self._each_ms - self._holds_ms <= now_ms + ROUNDING_MS

    def take(self, now_ms: int, count: int, size: int, requests: int = 1) -> None:
        """Takes `count` messages, or `size` bytes for a limit in bytes, for `requests` requests. The bucket may go
        below empty."""
        taken = size if self.in_bytes else count
        self._used += taken
        self._requests += requests
        self._full_ms = max(self._full_ms, now_ms) + taken * self._each_ms

    def room(self, now_ms: int) -> int:
        """Returns how many units (messages, bytes) the bucket has now; at least 1, also if it is empty."""
        return max(1, int((self._holds_ms - max(0.0, self._full_ms - now_ms) + ROUNDING_MS) / self._each_ms))

    def is_full(self, now_ms: int) -> bool:
        """Returns True if the bucket is full."""
        return self._full_ms <= now_ms

    @property
    def asked_per_s(self) -> float | None:
        """The amount per second that was asked for at this node in the last seconds; None if the limit is not per
        second."""
        return self.demand * self.rule.value if self._holds_ms == BURST_MS else None

    def measure(self, elapsed_ms: int, waiting: int) -> float:
        """Updates the demand and returns it, as a part of the rate. It counts what was taken since the last call,
        `elapsed_ms` ago, and `waiting` requests that wait for this bucket. If the former demand is not 0, the result is
        the mean of it and of the demand that was counted now."""
        if not (self._used or waiting or self.demand):
            return 0.0
        if self._requests:
            self._request = self._used / self._requests
        asked = self._used * self._whole_ms / elapsed_ms
        if waiting:
            asked += WAITING_ASKS + waiting * self._request * self._whole_ms / BURST_MS
        self._used = self._requests = 0
        self.demand = (self.demand + asked) / 2 if self.demand else asked
        if self.demand < DEMAND_MIN:
            self.demand = 0.0
        return self.demand

    def divide(self, elsewhere: float) -> None:
        """Computes this node's share of the rate. `elsewhere`: the demand on other nodes, as a part of the rate. A new
        bucket keeps its first share until the other nodes had the time to report their demands."""
        self._looks += 1
        if not elsewhere and (self.share == 1.0 or self._looks < LOOKS_UNTIL_TOLD):
            return
        own = self.demand / (self.demand + elsewhere) if self.demand else 0.0
        self.begin(max(own, 1.0 - elsewhere))

    def begin(self, share: float) -> None:
        """Sets this node's share of the rate, at least the smallest share, so that one message always passes in a
        limited time."""
        self.share = min(1.0, max(share, self._least))
        self._each_ms = self._whole_ms / self.share

    def follow(self, before: Bucket, now_ms: int) -> None:
        """Takes over the state of `before`, the bucket of the same limit with another value, which this bucket
        replaces. The new bucket does not begin full: otherwise a limit that is changed all the time would limit
        nothing. It is full no later than `before` would have been. If the limit was raised, a wait that is longer than
        an empty bucket takes to fill is shortened in proportion to the rates, but not below that time."""
        self.begin(before.share)
        self.demand = before.demand * self._whole_ms / before._whole_ms
        self._looks, self._used, self._requests = before._looks, before._used, before._requests
        self._request, self.refused, self.refused_ms = before._request, before.refused, before.refused_ms
        left_ms = before._full_ms - now_ms
        if left_ms > 0:
            at_this_rate = left_ms * self._each_ms / before._each_ms
            self._full_ms = now_ms + min(left_ms, max(float(self._holds_ms), at_this_rate))


class QuotaBuckets:
    """The buckets of one node. Event loop only."""

    def __init__(self, rules: QuotaRules, limits: tuple[str, ...] = SENDS, buckets_max: int = BUCKETS_MAX) -> None:
        """`limits`: the names of the limits that these buckets enforce. `buckets_max`: the number of buckets from which
        on idle ones are forgotten."""
        self.rules, self._limits = rules, limits
        self._seen: Mapping[str, Quota] = {}
        self._buckets: dict[tuple[str, str, str], Bucket] = {}
        """(subject, owner, limit) -> bucket."""
        self._most = self._buckets_max = buckets_max
        self._elsewhere: Mapping[tuple[str, str, str], float] = {}
        self._judges: Callable[[], int] = lambda: 1
        self._found: dict[tuple[int | str, str], tuple[Bucket, ...]] = {}
        """(user id or address, topic) -> the buckets from which its sends take: for each limit at most one of the
        sender and one of the topic."""
        rules.judges.append(self.all)

    def share_with(self, judges: Callable[[], int]) -> None:
        """Divides the rates among several nodes. `judges` returns the number of nodes that enforce these limits. A new
        bucket begins with an equal share of the rate until the demands are known, so that all nodes together let
        through at most the rate."""
        self._judges = judges

    def hear(self, elsewhere: Mapping[tuple[str, str, str], float]) -> None:
        """Records the demands on other nodes: key of a bucket -> part of the rate. New buckets compute their first
        share from them."""
        self._elsewhere = elsewhere

    @property
    def active(self) -> bool:
        """True if any quota of the cluster has one of these limits."""
        return self.rules.has_any(self._limits)

    def _look(self) -> None:
        """Drops the cached buckets of senders if quotas have changed. They are looked up again one by one, when a
        client needs them: there may be 10,000 quotas, and one of them may change a hundred times a second."""
        if self.rules.rows is not self._seen:
            self._seen = self.rules.rows
            self._found.clear()

    def forget(self) -> None:
        """Fills all buckets. Called when this node has become leader."""
        self._buckets.clear()
        self._found.clear()

    def of(self, user: int, address: str, topic: str, now_ms: int) -> tuple[Bucket, ...]:
        """Returns the buckets from which a request of this sender and topic takes. `user`: the id of the user who
        signed the request, 0 if nobody did."""
        self._look()
        key = user or address, topic
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= OWNERS_MAX or len(self._buckets) >= self._most:
                self._forget_idle(now_ms)
            found = self._found[key] = tuple(
                self._bucket(rule, now_ms)
                for limit in self._limits
                if self.rules.has(limit)
                for rule in rules_of(self.rules, limit, user, address, topic)
            )
        return found

    def _bucket(self, rule: Rule, now_ms: int) -> Bucket:
        key = rule[:3]
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rule.value != rule.value:
            before, bucket = bucket, Bucket(rule)
            self._buckets[key] = bucket
            if before is None:
                elsewhere = self._elsewhere.get(key)
                bucket.begin(1 / self._judges() if elsewhere is None else 1.0 - elsewhere)
            else:
                bucket.follow(before, now_ms)
        return bucket

    def _forget_idle(self, now_ms: int) -> None:
        self._buckets = {
            key: each for key, each in self._buckets.items() if self.rules.holds(each.rule) and not each.is_full(now_ms)
        }
        self._most = max(self._buckets_max, 2 * len(self._buckets))
        self._found.clear()

    def all(self) -> Iterable[Bucket]:
        """Returns all buckets that exist, also those of deleted quotas."""
        return self._buckets.values()
