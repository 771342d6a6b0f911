"""Monitors the links to peers: reports the state of each and its age, and closes connections that carry no data.

Raft's heartbeats show that a leader and its followers hear each other, but only on one of the two connections in each
direction. This module tests every connection: each node sends a PING on both connections that it dialled. The peer
answers each PING with a PONG on the connection that the peer itself dialled for the same channel. A half-open
connection (closed without a FIN) is detected within [ha] housekeeping_interval_ms by the dialling side and within
client_heartbeat_timeout_ms by the accepting side. It is closed and dialled again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec

from cluster.peer.connections import BULK, CONTROL, Inlet, Link
from cluster.peer.link_state import Evidence, LinkFigures, LinkMetrics, LinkState, judge
from cluster.peer.reachability import AWAY_MS, LEAVING, Reach, Unreached, patience_ms
from cluster.peer.slow_leader_transfer import SlowTurns
from cluster.peer.sync_times import SyncTimes
from cluster.peer.transport import PeerTransport
from cluster.peer.transport_options import HeartbeatNet
from cluster.runtime.clock import Clock
from cluster.runtime.context import NodeContext
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.service_lifecycle import Part
from raftlog.core.raw_node import RawNode
from raftlog.core.status import PeerStatus
from raftlog.types import NodeId, Role

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.config.node_sections import HaSection


IDLE_FACTOR = 4
"""Factor by which the catch-up limit is raised when the log has not grown for IDLE_MS."""


class CatchUp:
    """Limits the bytes per second that the leader sends to peers that catch up: grants bytes to the core as time
    passes. Event loop only."""

    def __init__(self, raw: RawNode, bytes_per_second: int, wake: Callable[[], None]) -> None:
        """`bytes_per_second` is 0 for no limit. `wake` makes the driver look at the core."""
        self._raw = raw
        self._wake = wake
        self._bytes_per_second = bytes_per_second
        self._granted_ms: int | None = None
        self._lull = Lull(lambda: raw.last_index)

    def reload(self, bytes_per_second: int) -> None:
        """Changes the limit, in bytes per second; 0 for no limit."""
        self._bytes_per_second = bytes_per_second

    def tick(self, now_ms: int) -> None:
        """Grants the bytes that have accumulated since the last call."""
        raw, rate = self._raw, self._rate(now_ms)
        waits = raw.catch_up_waits
        if not rate:
            raw.catch_up_budget = None
            self._granted_ms = None
        else:
            since_ms = now_ms if self._granted_ms is None else self._granted_ms
            left = raw.catch_up_budget if raw.catch_up_budget is not None else 0
            raw.catch_up_budget = min(left + rate * (now_ms - since_ms) // 1000, int(rate * BURST_S))
            self._granted_ms = now_ms
        if waits:
            self._wake()

    def _rate(self, now_ms: int) -> int:
        idle = self._lull.lasts(now_ms) >= IDLE_MS
        return self._bytes_per_second * IDLE_FACTOR if idle else self._bytes_per_second


# IDLE_MS, BURST_S and Lull serve the limits for peers that compete with clients for bandwidth: peers that catch up, and
# peers that fetch.
#
# Clients that write must not wait for these peers. While no client writes, the limits are higher.

IDLE_MS = 1000
"""Milliseconds. If the log has not grown for this long, no client is writing."""
BURST_S = 0.25
"""Capacity of a limit's token bucket, in seconds of its rate. It is small so that a peer cannot send a flood after a
pause."""


class Lull:
    """Measures for how long a log has not grown. It looks at the log only when `lasts` is called."""

    def __init__(self, last_index: Callable[[], int], known_index: int = -1) -> None:
        """`known_index` is the end of the log before the first check; another end counts as growth."""
        self._last_index = last_index
        self._known_index = known_index
        self._since = -math.inf

    def lasts(self, now: float) -> float:
        """Returns the time since a call first saw the present end of the log, in the unit of `now`; infinity if the log
        still ends at `known_index`."""
        index = self._last_index()
        if index != self._known_index:
            self._known_index, self._since = index, now
        return now - self._since


logger = logging.getLogger(__name__)

KINDS = frozenset({Kind.PING, Kind.PONG})
LOOK_EVERY_MS = 200
INTERVAL_MAX_MS = 86_400_000
"""Maximum of [ha] send_heartbeat_interval_ms in milliseconds; a higher value from a peer is ignored."""
AWAKE_MS = 1000
"""The most milliseconds between two checks that count as elapsed time. If more have passed, this node stood still for
the rest, and data that peers sent meanwhile still waits to be read."""
READY_FINDING_MS = 10_000
"""Milliseconds. A link that stays READY for this long gets a finding for the operator, because the peer does not
answer."""
_PATIENCE = 3
"""PINGs in a row whose absence makes a link count as paused."""


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """One link, as the node that reports it sees it."""

    peer: int
    state: str
    """READY, HANDSHAKE, TRANSFER, SUSPEND or SHUTDOWN."""
    since_ms: int
    """Milliseconds since the Unix epoch when the link entered that state, without times in which the node stood
    still."""
    age_ms: int
    reason: str
    """The reason why the state is not TRANSFER; "" if it is."""
    control: bool
    """True if the connection for heartbeats, votes and acknowledgements is open."""
    bulk: bool
    """True if the connection for entries and forwarded requests is open."""
    silent_ms: int | None
    """Milliseconds since data last arrived from the peer; None if it never did."""
    round_trip_ms: float | None
    """Round-trip time of the last PING that was answered; None if none was."""
    match_index: int | None
    """The highest index known to be on the peer's disk; None unless the reporting node leads."""
    lag_entries: int | None
    finding: str = ""
    """A remark for the operator if the link needs attention, else ""."""


def heartbeat_net(config: Config) -> HeartbeatNet:
    """Returns the addresses of the separate network for heartbeats: [peer] heartbeat_* and those of [[peers]]."""
    found = {
        NodeId(peer.id): (peer.heartbeat_host or peer.host, peer.heartbeat_port or peer.port)
        for peer in config.peers
        if peer.id != config.node.id and (peer.heartbeat_host or peer.heartbeat_port)
    }
    return HeartbeatNet(config.peer.heartbeat, found)


def links_of(
    context: NodeContext,
    transport: PeerTransport,
    transfer: Callable[[NodeId], None],
    syncs: SyncTimes,
) -> Links:
    """Makes the links of a node. `transfer` hands leadership to another node. `syncs`: the disk sync times that PING
    reports to peers."""
    config = context.config
    raw, patience, group = context.raw, patience_ms(config.raft), config.cluster.group
    slow = SlowTurns(raw, context.clock, context.alarms, transfer, config.ha.send_heartbeat_interval_ms, group)
    metrics = LinkMetrics()
    slow.slower = syncs.is_slower
    slow.on_slow, slow.on_handed = metrics.slow_turn.inc, metrics.slow_turns_handed_over.inc
    links = Links(transport, raw, context.clock, config.ha, metrics, context.wake, slow, syncs, patience)
    links.leaving = lambda: not LEAVING.isdisjoint(raw.raft.holds)
    return links


class _Record:
    """The observations of this node about one peer."""

    def __init__(self, now_ms: int) -> None:
        self.state = LinkState.SHUTDOWN
        self.reason = ""
        self.since_ms = now_ms
        self.ready_since_ms: int | None = None
        """Time since which the link has been READY, even if this node closed and dialled it again meanwhile. None if
        data arrived, or if the peer closed it."""
        self.lost_ms: int | None = now_ms
        """Time in milliseconds since which a connection is missing in one direction or both; None if none is
        missing."""
        self.expired = False
        """True if this node has closed the connections for silence, and no data has arrived from the peer since
        then."""
        self.made: dict[str, tuple[Link, int]] = {}
        """Channel -> (the link that this node dialled, the time in milliseconds when it was first seen)."""
        self.pongs: dict[str, int] = {}
        """Channel -> time in milliseconds when the last PING on it was answered."""
        self.reads = 0
        self.heard_ms: int | None = None
        self.round_trip_ms: float | None = None
        self.match_index = -1
        self.moved_ms = now_ms
        self.progress: PeerStatus | None = None
        self.leaves = False
        """True if the peer itself announces that it is leaving."""


class Links:
    """Monitors the links of one node, and sends and answers PINGs. Event loop only."""

    def __init__(
        self,
        transport: PeerTransport,
        raw: RawNode,
        clock: Clock,
        ha: HaSection,
        metrics: LinkMetrics,
        wake: Callable[[], None],
        slow_turns: SlowTurns,
        syncs: SyncTimes,
        away_ms: int = AWAY_MS,
    ) -> None:
        """`wake` makes the driver look at the core. `away_ms`: silence in milliseconds after which a peer counts as out
        of reach."""
        self.leaving: Callable[[], bool] = lambda: False
        """Returns True while this node announces that it is leaving, so that clients should use other nodes."""
        self._leaves = False
        self.slow_turns = slow_turns
        self.syncs = syncs
        self._slow = 0
        """The number of slow turns plus the number of hand-overs for them, as last sent to the peers. A change makes
        this node send its report at once."""
        self._reach = Reach(away_ms, self._object_of)
        self._led = False
        self._transport = transport
        self._raw = raw
        self._clock = clock
        self._metrics = metrics
        self._records: dict[NodeId, _Record] = {}
        self._inlets: dict[Inlet, tuple[int, int]] = {}
        """Inlet -> (its number of reads, time in milliseconds when that number was seen to change)."""
        self._asked: dict[int, float] = {}
        """Number of an unanswered PING -> time in milliseconds when it was sent."""
        self._number = 0
        self._look_due_ms = 0
        self._ping_due_ms = 0
        self._looked_ms: int | None = None
        self._slept_ms = 0
        """Milliseconds for which this node itself stood still so far. It received nothing during that time, so peers do
        not count as silent then."""
        self._catch_up = CatchUp(raw, ha.catch_up_bytes_per_second, wake)
        self._ha = ha

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="links",
            tick=self.tick,
            frames=dict.fromkeys(KINDS, lambda peer, kind, header, _: self.on_frame(peer, kind, header)),
            reload=lambda config: self.reload(config.ha),
            metrics=(self._metrics,),
        )

    def reload(self, ha: HaSection) -> None:
        """Uses changed settings of the section [ha] from now on."""
        self._ha = ha
        self.slow_turns.reload(ha.send_heartbeat_interval_ms)
        self.syncs.reload(ha.send_heartbeat_interval_ms)
        self._catch_up.reload(ha.catch_up_bytes_per_second)
        self._ping_due_ms = 0

    # --- by the clock ------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Grants bytes for catching up. Every LOOK_EVERY_MS, also looks at all connections, closes silent ones, sends
        PINGs that are due and updates the state of each link."""
        self._catch_up.tick(now_ms)
        if now_ms < self._look_due_ms:
            return
        self._look_due_ms = now_ms + LOOK_EVERY_MS
        if self._looked_ms is not None:
            self._slept_ms += max(0, now_ms - self._looked_ms - AWAKE_MS)
        self._looked_ms = now_ms
        awake_ms = now_ms - self._slept_ms
        self._look_at_connections(awake_ms)
        self._expire(awake_ms)
        if now_ms >= self._ping_due_ms:
            self._ping_due_ms = now_ms + self._ha.send_heartbeat_interval_ms
            self._ask_all(awake_ms)
        if self._judge_all(awake_ms):
            self._ask_all(awake_ms)

    def unreached(self) -> Unreached:
        """Returns the nodes that the leader reported as unreachable to this node (`Reach.settle`)."""
        return self._reach.settle(self._transport.roster.membership.node_id, self._raw.leader_id)

    def stand_ins(self, nodes: Collection[NodeId]) -> dict[NodeId, NodeId]:
        """Returns, for each of `nodes`, the node to which its broker name leads in routes."""
        return self._reach.stand_ins(self._transport.roster.membership.node_id, self._raw.leader_id, nodes)

    def _look_at_connections(self, now_ms: int) -> None:
        peers = self._transport.roster.peers()
        self._records = {peer: self._records.get(peer) or _Record(now_ms) for peer in peers}
        reads: dict[NodeId, int] = {}
        seen: dict[Inlet, tuple[int, int]] = {}
        for inlet in self._transport.inlets:
            before = self._inlets.get(inlet)
            seen[inlet] = before if before is not None and before[0] == inlet.reads else (inlet.reads, now_ms)
            if inlet.peer is not None:
                reads[inlet.peer] = max(reads.get(inlet.peer, 0), seen[inlet][1])
        self._inlets = seen
        for peer, record in self._records.items():
            heard_ms = reads.get(peer)
            if heard_ms is not None and heard_ms > (-1 if record.heard_ms is None else record.heard_ms):
                record.heard_ms, record.expired = heard_ms, False
            self._look_at_links(peer, record, now_ms)

    def _look_at_links(self, peer: NodeId, record: _Record, now_ms: int) -> None:
        made: dict[str, tuple[Link, int]] = {}
        for channel in (CONTROL, BULK):
            link = self._transport.links.get((peer, channel))
            if link is None:
                continue
            known = record.made.get(channel)
            if known is not None and known[0] is link:
                made[channel] = known
            else:
                made[channel] = (link, now_ms)
                self._ask(peer, channel, now_ms)
        record.made = made

    def _expire(self, now_ms: int) -> None:
        """Closes connections on which no data has arrived for too long."""
        for peer, record in self._records.items():
            for channel, (link, made_ms) in record.made.items():
                unanswered_ms = now_ms - max(made_ms, record.pongs.get(channel, 0))
                if unanswered_ms >= self._ha.housekeeping_interval_ms:
                    about = self._object_of(peer)
                    logger.warning("%s, %s: nothing came back for %d ms, closed", about, channel, unanswered_ms)
                    self._metrics.expired.labels(str(peer), "dialled").inc()
                    record.expired = True
                    link.abort()
        for inlet, (_, heard_ms) in self._inlets.items():
            patience_ms = max(self._ha.client_heartbeat_timeout_ms, _PATIENCE * inlet.ping_interval_ms)
            if inlet.peer is not None and now_ms - heard_ms >= patience_ms and inlet.transport is not None:
                about = self._object_of(inlet.peer)
                logger.warning("%s was silent for %d ms on a connection, closed", about, now_ms - heard_ms)
                self._metrics.expired.labels(str(inlet.peer), "accepted").inc()
                inlet.transport.abort()

    def _ask_all(self, now_ms: int) -> None:
        oldest = now_ms - self._ha.housekeeping_interval_ms
        self._asked = {number: at_ms for number, at_ms in self._asked.items() if at_ms > oldest}
        for peer, record in self._records.items():
            for channel in record.made:
                self._ask(peer, channel, now_ms)

    def _ask(self, peer: NodeId, channel: str, now_ms: int) -> None:
        self._number += 1
        self._asked[self._number] = 1000 * self._clock.monotonic_s()
        interval_ms = self._ha.send_heartbeat_interval_ms
        header = [channel, self._number, interval_ms, self._reach.word(self._led), self._leaves, self.slow_turns.word()]
        self._transport.send_on(peer, channel, Kind.PING, [*header, self.syncs.word()])

    # --- frames ------------------------------------------------------------------------------------------------------

    def on_frame(self, peer: NodeId, kind: int, header: list[Any]) -> None:
        """Handles a PING or a PONG. Raises WireError if it is malformed."""
        if len(header) < 2 or header[0] not in (CONTROL, BULK) or type(header[1]) is not int:
            raise WireError("malformed heartbeat of a link")
        channel, number = header[0], header[1]
        if kind == Kind.PING:
            self._on_ping(peer, channel, number, header)
            return
        asked_ms = self._asked.pop(number, None)
        record = self._records.get(peer)
        if asked_ms is not None and record is not None:
            record.pongs[channel] = self._clock.monotonic_ms() - self._slept_ms
            record.round_trip_ms = round(1000 * self._clock.monotonic_s() - asked_ms, 3)

    def _on_ping(self, peer: NodeId, channel: str, number: int, header: list[Any]) -> None:
        said = header[2] if len(header) > 2 else 0
        interval_ms = said if type(said) is int and 0 <= said <= INTERVAL_MAX_MS else 0
        if channel == CONTROL:  # reports on both channels could overtake each other
            self._reach.heard(peer, header[3] if len(header) > 3 else [])
            if peer in self._records:
                self._records[peer].leaves = header[4] is True if len(header) > 4 else False
                self.slow_turns.heard(peer, header[5] if len(header) > 5 else None)
                self.syncs.heard(peer, header[6] if len(header) > 6 else None)
        for inlet in self._transport.inlets:
            if inlet.peer == peer and inlet.channel == channel:
                inlet.expect_pings(interval_ms)
        self._transport.send_on(peer, channel, Kind.PONG, [channel, number])

    # --- states ------------------------------------------------------------------------------------------------------

    def _judge_all(self, now_ms: int) -> bool:
        """Updates the state of each link. Returns True if this node's reports in PING have changed: the peers that it
        reaches if it leads, whether it is leaving, or its slow turns."""
        leads = self._raw.role is Role.LEADER
        out_ms: dict[NodeId, int] = {}
        progress = {peer.node_id: peer for peer in self._raw.status().peers} if leads else {}
        for peer, record in self._records.items():
            record.progress = progress.get(peer)
            self._note_acks(record, now_ms)
            evidence = self._evidence(peer, record, now_ms)
            out_ms[peer] = self._out_ms(record, evidence, now_ms)
            state, reason = judge(evidence)
            if state is not record.state:
                self._enter(peer, record, state, now_ms)
            record.reason = reason
        led, self._led = self._led, leads
        left, self._leaves = self._leaves, self.leaving()
        leaving = [peer for peer, record in self._records.items() if record.leaves]
        if self._leaves:
            leaving.append(self._transport.roster.membership.node_id)
        lost = [peer for peer, record in self._records.items() if record.lost_ms is not None]
        changed = self._reach.judge(out_ms, now_ms, leaving, lost)
        slow, self._slow = self._slow, self.slow_turns.total + self.slow_turns.handed
        self.unreached()  # called so that `Reach` keeps the leader's report: it stays valid while there is no leader
        return led != leads or (leads and changed) or left != self._leaves or slow != self._slow

    @staticmethod
    def _out_ms(record: _Record, evidence: Evidence, now_ms: int) -> int:
        """Returns the milliseconds for which the peer has been out of reach: not connected both ways, or silent."""
        if not evidence.missing and evidence.heard:
            record.lost_ms = None
            return evidence.silent_ms
        if record.lost_ms is None:
            record.lost_ms = now_ms
        return now_ms - record.lost_ms

    @staticmethod
    def _note_acks(record: _Record, now_ms: int) -> None:
        progress = record.progress
        if progress is None or progress.match_index != record.match_index or not progress.lag:
            record.match_index = progress.match_index if progress is not None else -1
            record.moved_ms = now_ms

    def _evidence(self, peer: NodeId, record: _Record, now_ms: int) -> Evidence:
        connected_ms = min((made_ms for _, made_ms in record.made.values()), default=now_ms)
        heard_ms = record.heard_ms
        return Evidence(
            missing=tuple(channel for channel in (CONTROL, BULK) if channel not in record.made),
            error=self._transport.dial_errors.get(peer, ""),
            heard=heard_ms is not None and heard_ms >= connected_ms,
            silent_ms=now_ms - heard_ms if heard_ms is not None else 0,
            patience_ms=_PATIENCE * self._ha.send_heartbeat_interval_ms,
            leads=self._raw.leader_id == peer,
            progress=record.progress,
            stalled_ms=now_ms - record.moved_ms,
            held=record.progress is not None and record.progress.held,
        )

    def _enter(self, peer: NodeId, record: _Record, state: LinkState, now_ms: int) -> None:
        """Sets the state of a link. If this node closed a READY link for silence and the link is READY again, the time
        in READY continues. After any other state it begins anew."""
        record.state, record.since_ms = state, now_ms
        if state is LinkState.READY:
            if record.ready_since_ms is None:
                record.ready_since_ms = now_ms
            record.since_ms = record.ready_since_ms
        elif state is not LinkState.SHUTDOWN or not record.expired:
            record.ready_since_ms = None
        self._metrics.changed.labels(str(peer), state.value).inc()
        logger.debug("link to %s: %s", self._object_of(peer), state.value)

    def _object_of(self, peer: NodeId) -> str:
        return self._transport.roster.object_of(peer)

    def is_silent(self, peer: NodeId) -> bool:
        """Returns True if no data has arrived from a connected peer for so long that its link counts as paused. False
        while the connection is too new to tell, or if there is none."""
        record = self._records.get(peer)
        if record is None or not record.made:
            return False
        last_ms = max(record.heard_ms or 0, *(made_ms for _, made_ms in record.made.values()))
        now_ms = self._clock.monotonic_ms() - self._slept_ms
        return now_ms - last_ms >= _PATIENCE * self._ha.send_heartbeat_interval_ms

    # --- for people --------------------------------------------------------------------------------------------------

    def view(self) -> list[LinkView]:
        """Returns every link, ordered by node id, and updates the gauges of the metrics."""
        now_ms, wall_ms = self._clock.monotonic_ms() - self._slept_ms, self._clock.wall_ms()
        self._metrics.show(
            LinkFigures(peer, record.state, now_ms - record.since_ms, record.round_trip_ms)
            for peer, record in self._records.items()
        )
        return [self._view(peer, record, now_ms, wall_ms) for peer, record in sorted(self._records.items())]

    def _view(self, peer: NodeId, record: _Record, now_ms: int, wall_ms: int) -> LinkView:
        age_ms, progress = now_ms - record.since_ms, record.progress
        return LinkView(
            peer=peer,
            state=record.state.value,
            since_ms=wall_ms - age_ms,
            age_ms=age_ms,
            reason=record.reason,
            control=CONTROL in record.made,
            bulk=BULK in record.made,
            silent_ms=None if record.heard_ms is None else max(0, now_ms - record.heard_ms),
            round_trip_ms=record.round_trip_ms,
            match_index=progress.match_index if progress is not None else None,
            lag_entries=progress.lag if progress is not None else None,
            finding=self._finding(peer, record, age_ms),
        )

    def _finding(self, peer: NodeId, record: _Record, age_ms: int) -> str:
        if record.state is not LinkState.READY or age_ms < READY_FINDING_MS:
            return ""
        about = self._object_of(peer)
        return (
            f"the link to {about} has been READY for {age_ms // 1000} s: this node reaches it and hears nothing of "
            f"it; look at {about}'s log, and at what stands between it and this node's peer port"
        )
