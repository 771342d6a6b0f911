"""Checks that no more is stored than a quota allows, by what clients saw: how many of their sends were acknowledged
while nobody changed the quota (docs/adr/0115).

A send that began and was acknowledged while a quota was in force was subject to that quota, whichever node led. So at
most `rate * seconds` sends may be acknowledged, plus `rate` for the start of the quota and for each new leader since
then, because a leader starts with full buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Final, NamedTuple

from jepsen_like.sim.callbacks import Report

if TYPE_CHECKING:
    from jepsen_like.history import Op

BATCH_MAX: Final = 8
"""Largest number of messages that a client sends in one request. A request may take more than its bucket holds, so the
check allows as many more.
"""
TOLERANCE: Final = 1.02


class _InForce(NamedTuple):
    rate: int
    since_s: float
    ops: int
    """The number of steps in the history when the quota began."""
    leaders: int
    """The number of leaders that there had been when the quota began."""


class QuotaCheck:
    """Compares the acknowledged sends to one topic with the topic's quota of messages. Times are virtual seconds."""

    def __init__(
        self,
        topic: str,
        ops: Sequence[Op],
        leaders: Sized,
        now: Callable[[], float],
        report: Report,
    ) -> None:
        """`ops`: the history, which grows. `leaders`: has one element for each leader that there was."""
        self._topic, self._ops, self._leaders = topic, ops, leaders
        self._now, self._report = now, report
        self._in_force: _InForce | None = None
        self.judged = 0
        """Number of sends that were judged."""

    def begin(self, rate: int) -> None:
        """Records that the quota has this rate, in messages per second, from now on."""
        self._in_force = _InForce(rate, self._now(), len(self._ops), len(self._leaders))

    def end(self) -> None:
        """Checks the sends since `begin`, if a quota is being checked. The caller then changes the quota."""
        quota, self._in_force = self._in_force, None
        if quota is None:
            return
        begun: set[int] = set()
        stored = 0
        for op in self._ops[quota.ops :]:
            if op.type == "invoke" and op.f == "send" and op.value["topic"] == self._topic:
                begun.add(op.process)
            elif op.type == "ok" and op.process in begun:
                stored += 1
        took_s, leaders = self._now() - quota.since_s, len(self._leaders) - quota.leaders
        allowed = quota.rate * (took_s * TOLERANCE + 1 + leaders) + BATCH_MAX
        self.judged += stored
        if stored > allowed:
            self._report(
                "quotas",
                f"{stored} messages to {self._topic} were sent and acknowledged in {took_s:.1f} s, with {leaders} new "
                f"leaders, under a quota of {quota.rate} a second: {allowed:.0f} are allowed",
            )
