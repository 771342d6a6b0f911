"""Degrades answers: while the majority is slow and the leader is not, sends of the default level are answered at level
`leader` (docs/adr/0107).

It is off unless `replication.degrade` names the level. A weaker default level (`modes`) is not degraded further. Only
the answers come earlier. Commit, visibility and votes wait for the disks of a majority as always. The number of
messages that may be lost is limited as for all early answers (`early_answers`). A degraded answer also needs contact
with a majority: a leader that has lost contact acknowledges nothing. ReadIndex rounds prove the contact; they begin as
soon as the leader suspects that the majority is slow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cluster.replication.acks.ack_levels import Ack, default_level
from cluster.replication.acks.slow_quorum import END_LOOKS, EVERY_MS, SlowQuorum, wait_of
from cluster.runtime.findings import Code

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.replication.acks.early_answers import EarlyAnswers
    from cluster.replication.metrics import ModeMetrics
    from cluster.runtime.context import NodeContext

logger = logging.getLogger(__name__)

DEGRADED = Code("degraded", "warning", "raftmq status")
"""The alarm while sends are answered early because the majority is slow."""
NEVER: Final = -(1 << 62)


class Degradable(Protocol):
    """The part of Proposals that degradation uses."""

    early: EarlyAnswers

    @property
    def open(self) -> bool:
        """True if this node leads and accepts writes."""

    def degrade(self, in_contact: Callable[[], bool] | None) -> None:
        """Answers new sends of the default level at level `leader` while `in_contact` is true; None ends this."""


class Degradation:
    """Decides on a leader when sends of the default level are answered early. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        proposals: Degradable,
        own_sync_ms: Callable[[], float | None],
        read_index: Callable[[Callable[[bool], None]], None],
        metrics: ModeMetrics,
    ) -> None:
        """`own_sync_ms` returns the mean time of a sync on this node. `read_index` begins a round in which a majority
        confirms that this node leads, and calls its argument with True or False."""
        self._take(context.config)
        self._raw = context.raw
        self._clock = context.clock
        self._stages = context.stages
        self._alarms = context.alarms
        self._proposals = proposals
        self._own_sync_ms = own_sync_ms
        self._read_index = read_index
        self._metrics = metrics
        self._quorum = SlowQuorum()
        self._due_ms = self._looked_ms = 0
        self._contact_ms = NEVER
        """The time in milliseconds at which the last round began that a majority has confirmed; NEVER if none has."""
        self._term = -1
        raft = context.config.raft
        self._contact_ms_max = raft.election_ticks * raft.tick_ms
        """The milliseconds for which a confirmed round counts as contact: the time after which a leader that hears no
        majority steps down."""
        self.why = ""
        """The figures, for people, because of which sends are answered early; "" if they are not."""

    def reload(self, config: Config) -> None:
        """Applies a changed configuration."""
        self._take(config)
        self.on_role()

    def _take(self, config: Config) -> None:
        self._config = config
        self._enabled = config.replication.degrade == "leader" and default_level(config.modes) is Ack.QUORUM_FSYNC

    def on_role(self) -> None:
        """Ends degradation at once if this node no longer leads in the same term, or may not degrade."""
        if not self._enabled:
            self._forget("the configuration has turned it off")
        elif not self._proposals.open or self._raw.term != self._term:
            self._forget("this node does not lead any more")

    def in_contact(self) -> bool:
        """Returns True if a majority has confirmed, within the last election timeout, that this node leads."""
        return self._clock.monotonic_ms() - self._contact_ms < self._contact_ms_max

    def tick(self, now_ms: int) -> None:
        """Checks whether the majority keeps up, and begins or ends degradation. Called periodically."""
        if not self._enabled or not self._proposals.open:
            return
        if self._raw.term != self._term:
            self._term = self._raw.term
            self._looked_ms, self._due_ms = now_ms, now_ms + EVERY_MS
        quorum = self._quorum
        if quorum.suspected:
            self._read_index(partial(self._confirmed, now_ms))
        if self.why and not self.in_contact():
            self._forget("no majority answers")
            return
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + EVERY_MS
        raw = self._raw
        wait_ms = wait_of(
            self._stages,
            self._looked_ms,
            now_ms,
            persisted_index=raw.persisted_index,
            commit_index=raw.commit_index,
        )
        self._looked_ms = now_ms
        quorum.look(now_ms, wait_ms, self._own_sync_ms(), self._config.replication.degrade_ms)
        if quorum.holds and not self.why:
            if self.in_contact():
                self._begin()
        elif self.why and not quorum.holds:
            self._end(f"the majority was not slow, or the leader was, for {END_LOOKS * EVERY_MS // 1000} s")

    def _confirmed(self, began_ms: int, ok: bool) -> None:
        if ok:
            self._contact_ms = max(self._contact_ms, began_ms)

    def _begin(self) -> None:
        quorum, replication = self._quorum, self._config.replication
        self.why = (
            f"a majority has an entry on disk {quorum.wait_ms:.0f} ms after the leader "
            f"(replication.degrade_ms = {replication.degrade_ms}), whose own syncs take {quorum.own_ms:.1f} ms"
        )
        ledger, limits = self._proposals.early.ledger, self._config.limits
        entries = 0 if ledger is None else ledger.room
        self._alarms.raise_alarm(
            DEGRADED,
            f"{self.why}: sends of the default level are acknowledged as soon as the leader has them. If it is lost, "
            f"so may be what it has acknowledged in up to {entries} log entries "
            f"({entries * (limits.batch_bytes_max + limits.message_bytes_max)} bytes); raftmq status has the present "
            "number of messages. This ends by itself; replication.degrade = off ends it at once",
        )
        self._proposals.degrade(self.in_contact)
        self._metrics.degraded.set(1)

    def _end(self, reason: str) -> None:
        logger.warning("sends of the default level wait for a majority again: %s", reason)
        self.why = ""
        self._proposals.degrade(None)
        self._alarms.clear(DEGRADED)
        self._metrics.degraded.set(0)

    def _forget(self, reason: str) -> None:
        if self.why:
            self._end(reason)
        self._quorum.forget()
        self._contact_ms = NEVER
