"""Judges by the quotas of the cluster how much its owner may do now.

Each limit is a token bucket that fills at its rate and holds one second's worth, written as the virtual time at which
it is full again (the generic cell rate algorithm of ITU-T I.371): a limit costs one number, and no timer. A request
may take more than the bucket has: so a message that is larger than a second's worth passes, and is waited for
afterwards. A new leader begins with full buckets.

The leader of each group of brokers judges for itself: the rates are those of one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cluster.flow.quota_limits import LIMITS, SEND_BYTES, SEND_MESSAGES, Per
from cluster.flow.quota_rules import Refusals, Rule, rules_of

if TYPE_CHECKING:
    from cluster.flow.quota_rules import QuotaRules
    from statemachine.access.quotas import Quota

BURST_MS: Final = 1_000
"""The time in which an empty bucket of a rate a second is full: one second's worth."""
ROUNDING_MS: Final = 0.01
PERIOD_MS: Final = {Per.SECOND: 1_000, Per.MINUTE: 60_000}
SENDS: Final = (SEND_MESSAGES, SEND_BYTES)
"""The limits of a send: messages, bytes."""
OWNERS_MAX: Final = 20_000
"""The most owners that are remembered; those with full buckets are forgotten first."""
BUCKETS_MAX: Final = 4 * OWNERS_MAX


class Bucket(Refusals):
    """Holds what one owner may take of one limit. Times are monotonic milliseconds."""

    __slots__ = ("_each_ms", "_full_ms", "_holds_ms", "_in_bytes")

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        limit = LIMITS[rule.limit]
        self._in_bytes = limit.noun == "byte"
        period_ms = PERIOD_MS[limit.per]
        self._each_ms = period_ms / rule.value
        self._holds_ms = period_ms if limit.per is Per.MINUTE else BURST_MS
        self._full_ms = float("-inf")

    def opens_ms(self) -> float:
        """Returns the time from which on the owner may take something."""
        return self._full_ms - self._holds_ms

    def wait_ms(self, now_ms: int) -> int:
        """Returns the milliseconds until it has one whole; 0 if it has."""
        # What is left after n times the n-th part is not always nothing.
        return max(0, math.ceil(max(self._full_ms, now_ms) + self._each_ms - self._holds_ms - now_ms - ROUNDING_MS))

    def take(self, now_ms: int, count: int, size: int) -> None:
        """Takes so many, of `size` bytes together."""
        self._full_ms = max(self._full_ms, now_ms) + (size if self._in_bytes else count) * self._each_ms

    def is_full(self, now_ms: int) -> bool:
        """Returns True if it has all that it can hold."""
        return self._full_ms <= now_ms


class QuotaBuckets:
    """The buckets of one leader. Event loop only."""

    def __init__(self, rules: QuotaRules, limits: tuple[str, ...] = SENDS) -> None:
        """`limits`: the rates that are judged here."""
        self.rules, self._limits = rules, limits
        self._seen: Mapping[str, Quota] = {}
        self._buckets: dict[tuple[str, str, str], Bucket] = {}
        """(subject, owner, limit) -> bucket."""
        self._most = BUCKETS_MAX
        self._found: dict[tuple[int | str, str], tuple[Bucket, ...]] = {}
        """(user or address, topic) -> the buckets of whoever sends there, of each limit the owner's and the topic's at
        most."""
        rules.judges.append(self.all)

    @property
    def active(self) -> bool:
        """True if there is any quota with one of these limits."""
        return any(self.rules.has(limit) for limit in self._limits)

    def _look(self) -> None:
        """Looks if quotas have changed. Nothing is read anew but what somebody asks for: there may be 10,000, and one
        of them may change a hundred times a second."""
        if self.rules.rows is not self._seen:
            self._seen = self.rules.rows
            self._found.clear()

    def forget(self) -> None:
        """Forgets what was taken: this node leads anew."""
        self._buckets.clear()
        self._found.clear()

    def of(self, user: int, address: str, topic: str, now_ms: int) -> tuple[Bucket, ...]:
        """Returns the buckets from which a send takes. `user`: the id of the one who signed it, 0 if nobody did."""
        self._look()
        key = user or address, topic
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= OWNERS_MAX or len(self._buckets) >= self._most:
                self._forget_idle(now_ms)
            found = self._found[key] = tuple(
                self._bucket(rule)
                for limit in self._limits
                if self.rules.has(limit)
                for rule in rules_of(self.rules, limit, user, address, topic)
            )
        return found

    def _bucket(self, rule: Rule) -> Bucket:
        key = rule[:3]
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rule.value != rule.value:
            bucket = self._buckets[key] = Bucket(rule)
        return bucket

    def _forget_idle(self, now_ms: int) -> None:
        self._buckets = {
            key: each for key, each in self._buckets.items() if self.rules.holds(each.rule) and not each.is_full(now_ms)
        }
        self._most = max(BUCKETS_MAX, 2 * len(self._buckets))
        self._found.clear()

    def all(self) -> Iterable[Bucket]:
        """Returns the buckets that somebody has taken from, of the quotas that there are."""
        return (each for each in self._buckets.values() if self.rules.holds(each.rule))
