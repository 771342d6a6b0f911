"""Checks that no more is stored than a quota allows, by what clients saw: how many of their sends were acknowledged
while nobody changed the quota (docs/adr/0115).

A send that began under the quota and was acknowledged under it was judged by it, whoever led. So the rate times that
time may be acknowledged, plus one second's worth for its start and for each leader since: a leader starts with full
buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Final, NamedTuple

from jepsen_like.sim.callbacks import Report

if TYPE_CHECKING:
    from jepsen_like.history import Op

BATCH_MAX: Final = 8
"""More than that no client sends in one request, and a request may take more than the bucket has."""
TOLERANCE: Final = 1.02


class _InForce(NamedTuple):
    rate: int
    since_s: float
    ops: int
    """The steps of the history until then."""
    leaders: int
    """The number of leaders until then."""


class QuotaCheck:
    """The check of one topic's quota of messages sent. Times are virtual seconds."""

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
        """The sends that were judged."""

    def begin(self, rate: int) -> None:
        """The quota has that rate from now on."""
        self._in_force = _InForce(rate, self._now(), len(self._ops), len(self._leaders))

    def end(self) -> None:
        """Checks what was sent under the quota, which may be another one from now on."""
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
