"""Runs a node: starts and closes its parts, and implements what the driver calls.

The node is fail-stop. After an error of the storage, or in a state that should be impossible, the process ends with
exit code 1, and the reason is in its log. The other nodes notice the closed connections at once and go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from cluster.admin.node_interface import AdminPort, ConfigurationPort, ObservedPort
from cluster.config.config import Config
from cluster.config.loading import own_object
from cluster.members.service import watch_event
from cluster.node.admin_wiring import admin_of, port_of
from cluster.node.assembly import Assembly
from cluster.node.metrics import Exporter
from cluster.node.node_view import counted
from cluster.node.orderly_stop import OrderlyStop
from cluster.node.status_metrics import StatusMetrics
from cluster.peer.transport_options import FrameHandlers
from cluster.replication.apply_lane import Applied
from cluster.replication.metrics import ApplyMetrics
from cluster.runtime.environment import Environment
from cluster.runtime.host.error_containment import contain_each
from cluster.runtime.periodic_tasks import Chores, Every
from cluster.runtime.service_lifecycle import Closing, Part, Parts, Starting, Step
from cluster.runtime.turns.turn_watch import LongTurn, TurnMetrics, TurnWatch
from cluster.state.recovery_views import RecoveryMetrics
from raftlog.core.raw_node import RawNode
from raftlog.types import NodeId
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.removal_slices import Expire

if TYPE_CHECKING:
    from cluster.admin.server import AdminServer

logger = logging.getLogger(__name__)

EXPIRE_EVERY_MS = 600_000


class Node(Assembly):
    """A node, whose services are started and closed in order. It implements `raft_driver.Proposer`."""

    def __init__(
        self,
        config: Config,
        environment: Environment | None = None,
        parts: Callable[[Iterable[Part]], Parts] = Parts,
    ) -> None:
        """Opens the data directory, which blocks. Must be called on the event loop that will run the node. Raises the
        errors of `Assembly`."""
        loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = loop.create_future()
        self.restarting = ""
        """The reason why the process must open this node again after it was closed; "" if it must not."""
        self._closing = False
        self._admin: AdminServer | None = None
        super().__init__(config, environment or Environment(), self)
        self._applies, self._turns = ApplyMetrics(), TurnMetrics()
        self._turn_watch = TurnWatch(loop, self._on_long_turn) if self.environment.watches_turns else None
        self._parts = parts(self._all_parts(loop))
        self.exporter = Exporter(self._parts.metrics, config.cluster.group)
        self._chores = Chores(loop, self._clock, self._on_late_chores, *self._parts.ticks)
        self.again.add(self.restart)
        self.serving.proposals.opened.add(self._on_open)
        self.peers.levels.due.add(self._finalize)
        self.reloading.changed.add(self._parts.reload)

    # --- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts all parts: the node joins its group, and opens its ports. Raises OSError or ConfigError if a port
        cannot be bound."""
        await self._parts.start()

    def _all_parts(self, loop: asyncio.AbstractEventLoop) -> tuple[Part, ...]:
        """Returns the parts in the order in which they get ticks and applied entries. Proposals come first, so that
        waiting requests are answered before another part acts on an entry."""
        recovery, serving = self.storage.recovery, self.serving
        return (
            Part(
                name="storage",
                close=lambda: loop.run_in_executor(None, self.storage.close, self.failure is None),
                closes=Closing.STORAGE,
                metrics=(RecoveryMetrics(lambda: recovery.status(self.storage.checkpointer.run)),),
            ),
            self._event_watch.part(),
            serving.services.part(),
            *serving.parts,
            Part(name="unsafe event", tick=lambda _: watch_event(self.state, self.alarms)),
            *self.integrity.parts,
            *self.peers.parts,
            *self.meters.parts,
            *self.keeping.parts,
            self._cluster_config.part(),
            *self._running_parts(),
        )

    def _running_parts(self) -> tuple[Part, ...]:
        """Returns the parts that run the node, its driver and its clock, and the parts that observe it."""
        watch, events, status = self._turn_watch, self._event_watch, self._status_metrics()
        expiry = Every(EXPIRE_EVERY_MS, self._expire_sessions, self._clock.monotonic_ms() + EXPIRE_EVERY_MS)
        return (
            Part(
                name="transport",
                start=self._open_transport,
                starts=Starting.PEERS,
                close=self.peers.transport.close,
                closes=Closing.PEERS,
            ),
            # Closed even if an earlier port could not be opened, because peers may have queued a turn for it by then.
            Part(name="driver", close=self.driver.stop, closes=Closing.DRIVER),
            Part(name="first turn", start=self.driver.start, starts=Starting.DRIVER),
            Part(name="node metrics", role=status.on_role, metrics=(status, self._applies, self._turns)),
            self._lanes.part(),
            *(() if not self.environment.serves_admin else (_work("admin", self._open_admin, self._close_admin),)),
            *(() if watch is None else (_work("turn watch", watch.start, watch.stop),)),
            _work("chores", lambda: self._chores.start(), lambda: self._chores.stop()),
            Part(
                name="events",
                start=events.started,
                starts=Starting.WORK,
                close=lambda: events.close(self.failure),
                closes=Closing.STORAGE,
                tick=events.tick,
            ),
            Part(name="sessions", tick=expiry.tick),
            Part(
                name="failpoints",
                close=self.failpoints.clear,
                closes=Closing.WAITS,
                tick=lambda _: self.failpoints.stall("loop.turn"),
                findings=lambda: self.failpoints.conditions(own_object(self.config)),
            ),
        )

    async def _open_transport(self) -> None:
        await self.peers.transport.start(
            FrameHandlers(
                message=self.thrift.receive if self.thrift else self.inbox.receive,
                closed=self._on_peer_closed,
                frame=self._on_frame,
                refused=self.peers.membership.refused,
                frames_lost=self._on_frames_lost,
            )
        )

    def _status_metrics(self) -> StatusMetrics:
        def takes_sends() -> bool:
            return not (self.serving.proposals.refusing or self.peers.changes.drained or self.stopping)

        return StatusMetrics(self.view.status, self.state, takes_sends)

    async def _open_admin(self) -> None:
        recovery = self.storage.recovery.status(self.storage.checkpointer.run)
        self.integrity.scrubber.plan(self._clock.monotonic_ms(), clean=recovery.clean)
        self._admin = await admin_of(self.admin_port())
        await self._admin.start()

    def admin_port(self) -> AdminPort:
        """Returns the port through which the HTTP API uses this node's services, state and figures."""
        return port_of(
            self.context,
            self.storage,
            self.peers,
            self.integrity,
            self.serving,
            self.keeping,
            configuration=ConfigurationPort(
                tls=self.peers.tls,
                failpoints=self.failpoints,
                overruled=self.layers.overruled,
                held=lambda: self.layers.held,
                reload=self.reload,
            ),
            observed=ObservedPort(
                alarms=self.alarms,
                findings=self._parts.findings,
                events=self.events,
                exporter=self.exporter,
                counted=lambda: counted(self.meters, self.serving.broker.deliveries),
            ),
            config=lambda: self.config,
            status=self.view.status,
        )

    async def _close_admin(self) -> None:
        if self._admin is not None:
            await self._admin.close()

    async def close(self) -> None:
        """Stops the node in order: transfers leadership, redirects clients, lets the lanes finish, and closes the
        files. If nothing failed, the directory is marked as closed cleanly."""
        if self._closing:
            return
        self._closing = True
        self.stopping = self.failure is None
        await self._orderly_stop().retire()
        await self._parts.close(self._on_bad_close)

    def _orderly_stop(self) -> OrderlyStop:
        serving = self.serving
        return OrderlyStop(
            self.context,
            self.peers.transport,
            self.state,
            serving.remoting,
            serving.proposals,
            serving.broker.pulls.long_polls,
            failed=lambda: self.failure is not None,
            hurried=lambda: self.hurried,
        )

    def _on_bad_close(self, error: BaseException) -> None:
        """Records that a part could not be closed. Its work may be half done, so the directory is not marked as closed
        cleanly."""
        self.failure = self.failure or error

    def stop(self) -> None:
        """Makes the process close the node. A second call makes it close without waiting."""
        self.hurried = self.finished.done()
        if not self.finished.done():
            self.finished.set_result(None)

    def restart(self, why: str) -> None:
        """Makes the process close the node and open it again."""
        if not self.finished.done():
            self.restarting = why
            self.stop()

    def opened(self) -> None:
        """Makes the watch of long turns ignore the turn in which the process opened the node: it served nobody yet."""
        if self._turn_watch is not None:
            self._turn_watch.pass_over()

    def _on_late_chores(self, late_ms: float) -> None:
        """Counts a stall of the event loop as a long turn. If turns are watched, `_on_long_turn` counts it instead,
        because it knows more about the turn."""
        if self._turn_watch is None:
            self.peers.links.slow_turns.note(late_ms)

    def _on_long_turn(self, turn: LongTurn) -> None:
        self.peers.links.slow_turns.note(turn.wall_ms, worked=turn.worked, what=turn.what)
        self._turns.note(turn)
        self._event_watch.long_turn(turn)

    # --- what the driver calls (Proposer) ----------------------------------------------------------------------------

    def on_failure(self, error: BaseException) -> None:
        """Records the error because of which this node must stop, and stops the node."""
        self.failure = error
        self.stop()

    def on_applied_run(self, applied: Applied) -> None:
        """Counts a run of applied entries, and informs the parts about it. Pulls that wait for messages are informed
        last, when all state that they may read is up to date."""
        self._applies.applied(len(applied.entries), applied.seconds)
        self.storage.recovery.applied(self.state.applied.index)
        admission = self.serving.remoting.admission
        if self.state.access.version != admission.version:  # a branch, not a part's call: most runs change no users
            admission.changed()
            self.serving.broker.members.rules_changed()
        for told in self._parts.applied:
            told(applied)
        grown = applied.run.grown
        if grown:
            contain_each("waking those who wait for messages", self.serving.services.watchers, grown)
        if self.storage.directory.log.needs_next():
            self._lanes.prepare()

    def _on_open(self) -> None:
        """Informs the parts that this node accepts writes from now on."""
        for told in self._parts.opened:
            told()

    def on_role(self, raw: RawNode) -> None:
        """Logs a change of the role or the leader, and informs the parts."""
        role = raw.role.name.lower()
        logger.info("term %d: %s, leader %s: %s", raw.term, role, raw.leader_id or "unknown", raw.why)
        for told in self._parts.role:
            told(raw)

    def on_members(self, raw: RawNode) -> None:
        """Informs the membership service that the membership in force has changed."""
        self.peers.membership.on_members()

    def _on_peer_closed(self, peer: NodeId) -> None:
        self.inbox.peer_closed(peer)
        self._on_frames_lost(peer)

    def _on_frames_lost(self, peer: NodeId) -> None:
        for told in self._parts.peer_closed:
            told(peer)

    def _on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        self._parts.frames[kind](peer, kind, header, payload)

    def _finalize(self, level: int) -> None:
        if self.serving.proposals.open:
            after_ms = self.config.upgrade.finalize_after_ms
            logger.warning("all members have known level %d for upgrade.finalize_after_ms = %d", level, after_ms)
            self.serving.services.propose([Finalize(level)], lambda _: None)

    def _expire_sessions(self) -> bool:
        if self.serving.proposals.open:
            before = self.raw.log_time_ms() - self.config.dedup.session_hours * 3_600_000
            self.serving.services.propose([Expire(before)], lambda _: None)
        return True


def _work(name: str, start: Step, close: Step) -> Part:
    """Returns a part that is started and closed in the stage WORK."""
    return Part(name=name, start=start, starts=Starting.WORK, close=close, closes=Closing.WORK)
