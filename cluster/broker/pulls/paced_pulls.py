"""Makes pulls wait that are over a quota, until their owner may pull again (docs/adr/0115).

Such a pull waits like any other long poll, as long as its client asked to wait for messages, and is then answered
without messages. It is parked with the long polls (`cluster.broker.pulls.long_poll`), so all their limits apply to it;
this module only keeps the order in which such pulls continue, one queue for each bucket. A pull that may continue gets
as much as its buckets have, and takes from them what its answer contained.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from cluster.flow.quota_buckets import Bucket, QuotaBuckets
from cluster.flow.quota_limits import PULLS
from raftlog.work import METER, charge

if TYPE_CHECKING:
    from cluster.broker.reads.pull_values import Pull
    from cluster.broker.services import Services
    from cluster.flow.quota_rules import QuotaRules
    from cluster.runtime.turns.work import WorkSteps

PACE_MS: Final = 50
"""Milliseconds between two looks at the buckets while pulls wait for them."""
STEP_UNITS: Final = 250


class PacedPulls:
    """The pulls that wait for their quota. Event loop only."""

    def __init__(self, services: Services, rules: QuotaRules, go_on: Callable[[Pull], None]) -> None:
        """`go_on` attempts a parked pull again."""
        self._services = services
        self._go_on = go_on
        self.buckets = QuotaBuckets(rules, PULLS)
        self._lines: dict[Bucket, OrderedDict[Pull, None]] = {}
        """Bucket -> the pulls that wait for it, in order. A pull that is no longer parked is removed."""
        self._goes: Pull | None = None
        """The pull that is being attempted again because its turn has come; None at other times."""
        self._paces = False

    @property
    def active(self) -> bool:
        """True if any quota limits pulls."""
        return self.buckets.active

    def holds(self, pull: Pull) -> bool:
        """Returns True if the pull must wait for its quota. It is then in the line of a bucket, and the caller must
        park it. Returns False if it may be answered; its limits are then lowered to what its buckets have."""
        now_ms = self._services.monotonic_ms()
        found = self._of(pull, now_ms)
        if not found:
            return False
        last = max(found, key=Bucket.opens_ms)
        if last.opens_ms() > now_ms:
            self._wait(pull, last)
            return True
        if (
            self._goes is not pull
            and (ahead := next((each for each in found if self._lines.get(each)), None)) is not None
        ):
            self._wait(pull, ahead)
            return True
        if pull.whole is None:
            pull.whole = pull.messages_max, pull.bytes_max
        pull.messages_max, pull.bytes_max = pull.whole
        for bucket in found:
            if bucket.in_bytes:
                pull.bytes_max = min(pull.bytes_max, bucket.room(now_ms))
            else:
                pull.messages_max = min(pull.messages_max, bucket.room(now_ms))
        return False

    def _wait(self, pull: Pull, bucket: Bucket) -> None:
        pull.paced = True
        pull.line = self._lines.setdefault(bucket, OrderedDict())
        pull.line[pull] = None
        if not self._paces:
            self._paces = True
            self._services.call_later(PACE_MS, self._look)

    def took(self, pull: Pull, messages: int, size: int) -> None:
        """Takes the messages and bytes of the pull's answer from its buckets."""
        if size:
            now_ms = self._services.monotonic_ms()
            for bucket in self._of(pull, now_ms):
                bucket.take(now_ms, messages, size)

    def remark(self, pull: Pull) -> str:
        """Returns the remark in the answer to a pull that has waited for its quota without result."""
        found = self._of(pull, self._services.monotonic_ms())
        told = " and ".join(each.why() for each in found)
        return f"{told or 'a quota was just changed'}; pull again later"

    def waiting(self) -> Iterator[tuple[Bucket, int]]:
        """Yields (bucket, number of pulls that wait for it)."""
        return ((bucket, len(line)) for bucket, line in self._lines.items() if line)

    def _of(self, pull: Pull, now_ms: int) -> tuple[Bucket, ...]:
        puller = pull.puller
        return self.buckets.of(puller.user, puller.client.peer_address[0], pull.topic, now_ms)

    # --- going on ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._services.turns.begin("paced pulls", self._pace())

    def _pace(self) -> WorkSteps:
        began = METER.units
        for bucket in list(self._lines):
            line = self._lines[bucket]
            while line and self._is_open(bucket):
                charge(1)
                self._goes = next(iter(line))
                self._go_on(self._goes)  # the pull leaves the line, as every pull does that is no longer parked
                self._goes = None
                if METER.units - began >= STEP_UNITS:
                    yield
                    began = METER.units
            if not line:
                del self._lines[bucket]
        self._paces = bool(self._lines)
        if self._paces:
            self._services.call_later(PACE_MS, self._look)

    def _is_open(self, bucket: Bucket) -> bool:
        """Returns True if the first pull that waits for the bucket may go on: the bucket is open, or its quota has
        changed."""
        return bucket.opens_ms() <= self._services.monotonic_ms() or not self.buckets.rules.holds(bucket.rule)
