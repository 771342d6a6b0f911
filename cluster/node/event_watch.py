"""Records a node's events by observation. A periodic task compares the node's present state with the one before. Some
events are reported by a direct call.

Services therefore contain no code about events. Every state that lasts longer than the task's interval is recorded.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cluster.config.local_layout import link_object, node_object
from cluster.runtime.events import EventLog
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.turns.turn_watch import LongTurn
from raftlog.types import FIRST_GROUP, NodeId, Role

if TYPE_CHECKING:
    from cluster.config.reload import ReloadView
    from cluster.members.service import MembersService
    from cluster.peer.transport import PeerTransport
    from cluster.repair.install_service import InstallService
    from cluster.state.node_storage import NodeStorage
    from raftlog.core.raw_node import RawNode

logger = logging.getLogger(__name__)

STALL_MS = 1_000
"""Milliseconds. A stall of the event loop of at least this length is an event, because no client was served
meanwhile."""
LONG_TURN_MS = 100.0
"""Milliseconds. A turn of the event loop of at least this length is an event. At most one is recorded in
LONG_TURN_EVERY_MS."""
LONG_TURN_EVERY_MS = 1_000
FLUSH_EVERY_MS = 1_000


REASONS = {
    "the connection of the leader": "leader_closed",
    "was silent for": "leader_silent",
    "transferred leadership": "transferred",
    "since it started": "start",
    "no majority answered": "no_majority",
}
"""Part of the text with which a node explains its campaign (raftlog.core.role_change_reasons) -> label of the reason in
the metric."""


def reason_of(why: str) -> str:
    """Returns the label for the reason of an election; "other" for an unknown one."""
    return next((label for part, label in REASONS.items() if part in why), "other")


class ElectionMetrics(ServiceMetrics):
    """The counter of elections that this node has won, by reason."""

    def __init__(self) -> None:
        super().__init__()
        self.won = self.counter("raftmq_elections", "Elections that this node has won, by what caused them", ["reason"])


class EventWatch:
    """Records the events of one node. Event loop only."""

    def __init__(
        self,
        events: EventLog,
        node_id: NodeId,
        storage: NodeStorage,
        transport: PeerTransport,
        membership: MembersService,
        installs: InstallService,
        *,
        group: int = FIRST_GROUP,
    ) -> None:
        """Keeps the arguments. `group` is the number of the node's group of brokers."""
        self._events = events
        self._node_id = node_id
        self._group = group
        self._storage = storage
        self._transport = transport
        self._membership = membership
        self._installs = installs
        self._metrics = ElectionMetrics()
        self._looked_ms: int | None = None
        self._flush_due_ms = 0
        self._flushing: asyncio.Future[None] | None = None
        self._long_turn_ms: int | None = None
        self._led: tuple[int, int] = (0, 0)
        self._connected: dict[NodeId, bool] = {}
        self._members = membership.in_force.index
        self._damaged = 0
        self._install = "none"

    def part(self) -> Part:
        """Returns the part that is notified of elections. The part that keeps the events starts later and closes
        last."""
        return Part(name="elections", role=self.on_role, metrics=(self._metrics,))

    def started(self) -> None:
        """Records that the node serves clients, and how the run before ended."""
        previous = self._storage.recovery.status(self._storage.checkpointer.run).previous
        ended = previous.ended if previous is not None else "unknown"
        says = {
            "orderly": "the node started; the run before ended in order",
            "process_died": "the node started; the process of the run before had died",
            "machine_restarted": "the node started; the machine was restarted under the run before",
        }.get(ended, "the node started for the first time, or it is not known how the run before ended")
        unclean = ended in ("process_died", "machine_restarted")
        self._events.note("start", self._me, says, "warning" if unclean else "info")

    def on_role(self, raw: RawNode) -> None:
        """Records a change of role or leader, with the term and the reason of the election."""
        if raw.role is Role.LEADER:
            self._events.note("election", "cluster", f"{self._me} leads term {raw.term}: {raw.why}")
            self._led = (raw.term, raw.raft.id)
            self._metrics.won.labels(reason_of(raw.why)).inc()
        elif raw.role in (Role.CANDIDATE, Role.PRE_CANDIDATE):
            self._events.note("election", self._me, f"{self._me} is {raw.role.name.lower()}: {raw.why}")
        elif raw.leader_id and self._led != (raw.term, raw.leader_id):
            self._events.note(
                "leader", "cluster", f"{node_object(self._group, raw.leader_id)} leads term {raw.term}: {raw.why}"
            )
            self._led = (raw.term, raw.leader_id)

    def reloaded(self, view: ReloadView) -> None:
        """Records the keys that changed when the configuration was read again."""
        for change in view.applied:
            says = f"{change.key} is {change.after} now, it was {change.before}"
            self._events.note("configuration", self._me, says)

    def long_turn(self, turn: LongTurn) -> None:
        """Records a turn of the event loop of at least LONG_TURN_MS, unless another one was recorded within
        LONG_TURN_EVERY_MS."""
        now_ms = self._looked_ms or 0
        lately = self._long_turn_ms is not None and now_ms - self._long_turn_ms < LONG_TURN_EVERY_MS
        if turn.wall_ms >= LONG_TURN_MS and not lately:
            self._long_turn_ms = now_ms
            why = "" if turn.worked else ": it waited, or was not scheduled"
            self._events.note("stall", self._me, f"{turn}{why}", "warning" if turn.worked else "info")

    def tick(self, now_ms: int) -> None:
        """Compares the present state with the one before, and records the differences. Called several times a second;
        it is cheap if there are none."""
        if self._looked_ms is not None and now_ms - self._looked_ms >= STALL_MS:
            says = f"the event loop stood still for {now_ms - self._looked_ms} ms"
            self._events.note("stall", self._me, says, "warning")
        self._looked_ms = now_ms
        self._look_at_peers()
        self._look_at_members()
        self._look_at_repairs()
        if now_ms >= self._flush_due_ms and (self._flushing is None or self._flushing.done()):
            self._flush_due_ms = now_ms + FLUSH_EVERY_MS
            unwritten = self._events.take_unwritten()
            if unwritten:
                loop = asyncio.get_running_loop()
                self._flushing = loop.run_in_executor(None, self._events.flush, unwritten)

    async def close(self, failure: BaseException | None) -> None:
        """Records the end of the node, with its failure if there is one, and writes the last events to disk."""
        says = "the node stops" if failure is None else f"the node stops: {failure}"
        self._events.note("stop", self._me, says, "info" if failure is None else "critical")
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._events.flush, self._events.take_unwritten())

    @property
    def _me(self) -> str:
        return node_object(self._group, self._node_id)

    def _look_at_peers(self) -> None:
        own, transport = self._node_id, self._transport
        seen = {peer: transport.connected(peer) for peer in transport.roster.peers()}
        for peer, connected in seen.items():
            if connected != self._connected.get(peer, False):
                how = "connected" if connected else "lost the connection"
                about = link_object(self._group, own, peer)
                self._events.note("link", about, f"{self._me} {how} to {node_object(self._group, peer)}")
        self._connected = seen

    def _look_at_members(self) -> None:
        members = self._membership.in_force
        if members.index != self._members:
            self._members = members.index
            self._events.note("members", "cluster", f"entry {members.index}: {members.detail or members.reason}")

    def _look_at_repairs(self) -> None:
        damaged = len(self._storage.directory.log.damage.ranges)
        if damaged > self._damaged:
            self._events.note("repair", self._me, f"{damaged} ranges of the log are damaged", "warning")
        elif damaged < self._damaged:
            left = f"{damaged} damaged ranges are left" if damaged else "the log is whole again"
            self._events.note("repair", self._me, f"a damaged range was mended: {left}")
        self._damaged = damaged
        stage = self._installs.view().stage
        if stage != self._install:
            self._install = stage
            says = "the install has ended" if stage == "none" else f"the node fetches what it lacks: {stage}"
            self._events.note("repair", self._me, says)
