"""Judges by the quotas of the cluster how much its owner may send now.

Each limit is a token bucket that fills at its rate and holds one second's worth, written as the virtual time at which
it is full again (the generic cell rate algorithm of ITU-T I.371): a limit costs two numbers, and no timer. A request
may take more than the bucket has: so a message that is larger than a second's worth passes, and is waited for
afterwards. A new leader begins with full buckets.

The leader of each group of brokers judges for itself: the rates are those of one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from statemachine.access.quotas import EVERYBODY, Subject, parse_subject

if TYPE_CHECKING:
    from statemachine.access.quotas import Quota, Quotas
    from statemachine.access.users import Access

BURST_MS: Final = 1_000
"""The time in which an empty bucket is full: one second's worth."""
RATE_MS: Final = 10_000
"""The least time over which it is measured what somebody sends."""
SEND_MESSAGES: Final = "send_messages"
SEND_BYTES: Final = "send_bytes"
LIMITS: Final[Mapping[str, str]] = {
    SEND_MESSAGES: "messages sent in a second",
    SEND_BYTES: "bytes of requests that send, in a second",
}
"""The limits that a leader knows, and what they limit."""
LIMIT_MAX: Final = 10**15
OWNERS_MAX: Final = 20_000
"""The most owners that are remembered; those with full buckets are forgotten first."""


class Bucket:
    """Holds what one owner may take of one quota. Times are monotonic milliseconds."""

    __slots__ = (
        "_bytes_ms",
        "_full_bytes_ms",
        "_full_messages_ms",
        "_messages_ms",
        "_window_ms",
        "_window_sent",
        "owner",
        "quota",
        "rate",
        "refused",
        "refused_ms",
        "sent",
        "subject",
    )

    def __init__(self, subject: str, owner: str, quota: Quota) -> None:
        """`subject`: that of the quota. `owner`: whose bucket it is, in the words of a subject."""
        self.subject, self.owner, self.quota = subject, owner, quota
        messages, size = quota.limits.get(SEND_MESSAGES, 0), quota.limits.get(SEND_BYTES, 0)
        self._messages_ms = 1000 / messages if messages else 0.0
        self._bytes_ms = 1000 / size if size else 0.0
        self._full_messages_ms = self._full_bytes_ms = float("-inf")
        self.refused = 0
        """The sends that were refused for it."""
        self.refused_ms = 0
        """The time of the last one."""
        self.sent = 0
        """The messages that were sent."""
        self.rate = 0.0
        """The messages a second that were sent, or refused, in the last whole span of RATE_MS or longer."""
        self._window_ms = self._window_sent = 0

    def refuse(self, now_ms: int) -> None:
        """Counts a refused send."""
        self.refused += 1
        self.refused_ms = now_ms
        if now_ms - self._window_ms >= RATE_MS:
            self._end_window(now_ms)

    def _end_window(self, now_ms: int) -> None:
        came = self.sent + self.refused
        if self._window_ms:
            self.rate = 1000 * (came - self._window_sent) / (now_ms - self._window_ms)
        self._window_ms, self._window_sent = now_ms, came

    def opens_ms(self) -> float:
        """Returns the time from which on the owner may take something."""
        return max(self._full_messages_ms, self._full_bytes_ms) - BURST_MS

    def take(self, now_ms: int, messages: int, size: int) -> None:
        """Takes messages of `size` bytes together."""
        self.sent += messages
        if now_ms - self._window_ms >= RATE_MS:
            self._end_window(now_ms)
        if self._messages_ms:
            self._full_messages_ms = max(self._full_messages_ms, now_ms) + messages * self._messages_ms
        if self._bytes_ms:
            self._full_bytes_ms = max(self._full_bytes_ms, now_ms) + size * self._bytes_ms

    def is_full(self, now_ms: int) -> bool:
        """Returns True if it has all that it can hold."""
        return max(self._full_messages_ms, self._full_bytes_ms) <= now_ms

    def told(self) -> str:
        """Returns the limits, for people."""
        return " and ".join(f"{value} {LIMITS[name]}" for name, value in self.quota.limits.items() if name in LIMITS)


class QuotaBuckets:
    """The buckets of one leader. Event loop only."""

    def __init__(self, quotas: Quotas, access: Access) -> None:
        self._quotas, self._access = quotas, access
        self._seen: Mapping[str, Quota] = {}
        self._rules: dict[Subject, tuple[str, Quota]] = {}
        self._buckets: dict[tuple[str, str], Bucket] = {}
        """(subject of the quota, owner) -> bucket."""
        self._found: dict[tuple[int | str, str], tuple[Bucket, ...]] = {}
        """(user or address, topic) -> the buckets of whoever sends there, a quota of the owner's and one of the
        topic's at most."""

    @property
    def active(self) -> bool:
        """True if there is any quota that a leader knows."""
        if self._quotas.by_subject is not self._seen:
            self._read()
        return bool(self._rules)

    def _read(self) -> None:
        self._seen = self._quotas.by_subject
        self._rules = {
            parse_subject(subject): (subject, quota)
            for subject, quota in self._seen.items()
            if not LIMITS.keys().isdisjoint(quota.limits)
        }
        known = dict(self._rules.values())
        self._buckets = {key: each for key, each in self._buckets.items() if known.get(each.subject) == each.quota}
        self._found.clear()

    def forget(self) -> None:
        """Forgets what was taken: this node leads anew."""
        self._buckets.clear()
        self._found.clear()

    def of(self, user: int, address: str, topic: str, now_ms: int) -> tuple[Bucket, ...]:
        """Returns the buckets from which a send takes. `user`: the id of the one who signed it, 0 if nobody did."""
        key = user or address, topic
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= OWNERS_MAX:
                self._forget_idle(now_ms)
            found = self._found[key] = tuple(self._of(user, address, topic))
        return found

    def _forget_idle(self, now_ms: int) -> None:
        self._buckets = {key: each for key, each in self._buckets.items() if not each.is_full(now_ms)}
        self._found.clear()

    def _of(self, user: int, address: str, topic: str) -> Iterable[Bucket]:
        if user:
            known = self._access.by_id.get(user)
            name = "" if known is None else known.name
            # From the narrowest to the widest; what Kafka has for (user, client id).
            yield from self._first(
                (Subject(user=name, topic=topic), f"user={name},topic={topic}"),
                (Subject(user=name), f"user={name}"),
                (Subject(user=EVERYBODY, topic=topic), f"user={name},topic={topic}"),
                (Subject(user=EVERYBODY), f"user={name}"),
            )
        else:
            owner = f"address={address}"
            yield from self._first((Subject(address=address), owner), (Subject(address=EVERYBODY), owner))
        owner = f"topic={topic}"
        named = (Subject(topic=topic), owner)
        if topic[:1] == "%":  # made by the cluster: only a quota that names it counts
            yield from self._first(named)
        else:
            yield from self._first(named, (Subject(topic=EVERYBODY), owner))

    def _first(self, *subjects: tuple[Subject, str]) -> Iterable[Bucket]:
        """Yields the bucket of the first of these subjects that has a quota."""
        for subject, owner in subjects:
            rule = self._rules.get(subject)
            if rule is not None:
                key = rule[0], owner
                bucket = self._buckets.get(key)
                if bucket is None:
                    bucket = self._buckets[key] = Bucket(rule[0], owner, rule[1])
                yield bucket
                return

    def all(self) -> Iterable[Bucket]:
        """Returns the buckets that somebody has taken from."""
        return self._buckets.values()
