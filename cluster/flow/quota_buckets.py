"""Decides by the quotas of the cluster how much an owner (a user, an address or a topic) may do now.

Each limit is a token bucket that fills at its rate and holds one second's worth, written as the virtual time at which
it is full again (the generic cell rate algorithm of ITU-T I.371): a limit costs one number, and no timer. A request may
take more than the bucket has: so a message that is larger than a second's worth passes, and is waited for afterwards. A
new leader begins with full buckets.

Several nodes may apply one quota, each its share of it (`cluster.flow.quota_shares`): for sends the leaders of several
groups of brokers, for pulls all nodes.
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
"""The time in which an empty bucket of a rate a second is full: one second's worth."""
ROUNDING_MS: Final = 1e-6
"""More than sums of thirds are wrong by."""
PERIOD_MS: Final = {Per.SECOND: 1_000, Per.MINUTE: 60_000}
WAITING_ASKS: Final = 0.25
"""The part of the rate that a node asks for where anything waits, beside what it sent and what waits."""
LOOKS_UNTIL_TOLD: Final = 4
"""Looks, one a second, until a node has surely heard what others are asked for, over two leaders."""
DEMAND_MIN: Final = 1e-4
"""Less than that is nothing."""
BYTES_SHARE_MIN: Final = 0.01
"""The least part of a rate in bytes that a node may have. Of other rates it is one a second."""
OWNERS_MAX: Final = 20_000
"""The most owners that are remembered; those with full buckets are forgotten first."""
BUCKETS_MAX: Final = 4 * OWNERS_MAX


class Bucket(Refusals):
    """Holds what one owner may take of one limit. Times are monotonic milliseconds."""

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
        """The time in which the whole rate, and the share of this node, allow one more."""
        self._least = BYTES_SHARE_MIN if self.in_bytes else min(1.0, self._whole_ms / period_ms)
        self._holds_ms = period_ms if limit.per is Per.MINUTE else BURST_MS
        self._full_ms = float("-inf")
        self.share = 1.0
        """The part of the rate that this node may let through."""
        self.demand = 0.0
        """The part of the rate that was asked for here in the last seconds; it may be more than one."""
        self._looks = 0
        self._used = self._requests = 0
        """The amount that was taken, and by how many requests, since it was measured."""
        self._request = 1.0
        """The amount that one request took lately."""

    def opens_ms(self) -> float:
        """Returns the time, in milliseconds, from which on the owner may take one complete message, or any byte."""
        return self._full_ms - self._holds_ms + (0.0 if self.in_bytes else self._each_ms - ROUNDING_MS)

    def wait_ms(self, now_ms: int) -> int:
        """Returns the milliseconds until one unit may be taken; 0 if it may be taken now."""
        # What is left after n times the n-th part is not always nothing.
        return max(0, math.ceil(max(self._full_ms, now_ms) + self._each_ms - self._holds_ms - now_ms - ROUNDING_MS))

    def fits(self, now_ms: int, requests: int, count: int, size: int) -> bool:
        """Returns True if so much may be taken, and nothing is owed then."""
        taken = size if self.in_bytes else count
        return max(self._full_ms, now_ms) + taken * self._each_ms - self._holds_ms <= now_ms + ROUNDING_MS

    def take(self, now_ms: int, count: int, size: int, requests: int = 1) -> None:
        """Takes `count` messages of `size` bytes together, in `requests` requests."""
        taken = size if self.in_bytes else count
        self._used += taken
        self._requests += requests
        self._full_ms = max(self._full_ms, now_ms) + taken * self._each_ms

    def room(self, now_ms: int) -> int:
        """Returns how much there is; at least one if it is open."""
        return max(1, int((self._holds_ms - max(0.0, self._full_ms - now_ms) + ROUNDING_MS) / self._each_ms))

    def is_full(self, now_ms: int) -> bool:
        """Returns True if it has all that it can hold."""
        return self._full_ms <= now_ms

    @property
    def asked_per_s(self) -> float | None:
        """The amount that was asked for at this node in the last seconds; None if this is no rate a second."""
        return self.demand * self.rule.value if self._holds_ms == BURST_MS else None

    def measure(self, elapsed_ms: int, waiting: int) -> float:
        """Returns the demand as a part of the rate, from what was used in the last `elapsed_ms` and from the `waiting`
        requests."""
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
        """Computes the bucket's share of the rate from the demand elsewhere, which is a part of the rate. A new bucket
        keeps its first share until the others had the time to report their demands."""
        self._looks += 1
        if not elsewhere and (self.share == 1.0 or self._looks < LOOKS_UNTIL_TOLD):
            return
        own = self.demand / (self.demand + elsewhere) if self.demand else 0.0
        self.begin(max(own, 1.0 - elsewhere))

    def begin(self, share: float) -> None:
        """Sets the part of the rate that this bucket lets through from now on. However small the part is, one message
        passes in a limited time."""
        self.share = min(1.0, max(share, self._least))
        self._each_ms = self._whole_ms / self.share

    def follow(self, before: Bucket, now_ms: int) -> None:
        """Replaces the bucket of the same limit with another value. What was taken stays taken: if each change filled
        the bucket, a limit that changes all the time would limit nothing. An owner whose limit was raised waits for a
        shorter time, and never longer than an empty bucket takes to fill."""
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
        """`limits`: the rates that are judged here. `buckets_max`: the number of buckets at which the idle ones are
        forgotten."""
        self.rules, self._limits = rules, limits
        self._seen: Mapping[str, Quota] = {}
        self._buckets: dict[tuple[str, str, str], Bucket] = {}
        """(subject, owner, limit) -> bucket."""
        self._most = self._most_idle = buckets_max
        self._elsewhere: Mapping[tuple[str, str, str], float] = {}
        self._judges: Callable[[], int] = lambda: 1
        self._found: dict[tuple[int | str, str], tuple[Bucket, ...]] = {}
        """(user or address, topic) -> the buckets of whoever sends there, of each limit the owner's and the topic's at
        most."""
        rules.judges.append(self.all)

    def share_with(self, judges: Callable[[], int]) -> None:
        """`judges` returns how many nodes judge by these limits. A new bucket begins with an equal share, until it is
        known what they are asked for: together they let through one second's worth."""
        self._judges = judges

    def hear(self, elsewhere: Mapping[tuple[str, str, str], float]) -> None:
        """Records the demand on other nodes, as parts of the rates; new buckets begin with it."""
        self._elsewhere = elsewhere

    @property
    def active(self) -> bool:
        """True if there is any quota with one of these limits."""
        return self.rules.has_any(self._limits)

    def _look(self) -> None:
        """Drops the cached buckets if quotas have changed. A quota is read again only when somebody needs it: there may
        be 10,000, and one of them may change a hundred times a second."""
        if self.rules.rows is not self._seen:
            self._seen = self.rules.rows
            self._found.clear()

    def forget(self) -> None:
        """Forgets what was taken, because this node has become leader again."""
        self._buckets.clear()
        self._found.clear()

    def of(self, user: int, address: str, topic: str, now_ms: int) -> tuple[Bucket, ...]:
        """Returns the buckets from which a send takes. `user`: the id of the user who signed it, 0 if nobody did."""
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
        self._most = max(self._most_idle, 2 * len(self._buckets))
        self._found.clear()

    def all(self) -> Iterable[Bucket]:
        """Returns all buckets from which something was taken, also those of deleted quotas."""
        return self._buckets.values()
