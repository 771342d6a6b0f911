"""Handles a node's own damage and that of its peers. `Repairs` is the object through which the node uses this folder.
It

- serves and makes fetches;
- repairs damaged ranges of the log, and keeps the node from campaigning while there are any;
- withholds the vote after a loss, and allows it again;
- transfers leadership if the node cannot read entries that it has to replicate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cluster.config.local_layout import node_object
from cluster.members.address_change import ASK_MS, FOUND_AT, MemberPlace, Moves
from cluster.members.addresses import probe_http
from cluster.members.service import MembersService
from cluster.peer.keyring import Keyring
from cluster.peer.links import heartbeat_net
from cluster.peer.probe import probe
from cluster.peer.transport import PLAIN_REFUSAL, PeerTransport
from cluster.peer.transport_options import PeerLevels
from cluster.repair.fetch import LOG, FetchClient, FetchError, FetchServer, Status
from cluster.repair.log_repair import LogRepairer
from cluster.repair.log_source import log_source
from cluster.runtime.alarms import Alarms
from cluster.runtime.context import NodeContext
from cluster.runtime.findings import Code
from cluster.runtime.listeners import Signal
from cluster.runtime.peer_frames import Kind, PeerLinks
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.tls.dialling import Dialling
from cluster.runtime.tls.tls_maintenance import TlsMaintenance
from raftlog.core.raw_node import RawNode
from raftlog.errors import RaftLogError
from raftlog.storage.files import vote_withheld
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.node_dir import NodeDir
from raftlog.storage.segments.damage import DamagedRange
from raftlog.types import NOBODY, NodeId, Role

logger = logging.getLogger(__name__)

HAND_OVER_MS = 2000
"""Milliseconds after which a leader with a damaged log transfers leadership."""


class Repairs:
    """The repairs of one node. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        directory: NodeDir,
        transport: PeerLinks,
    ) -> None:
        raw, loop, alarms = context.raw, context.loop, context.alarms
        self._raw = raw
        self._directory = directory
        self._fs = context.fs
        self._transport = transport
        self._wake = context.wake
        self._succession = context.succession
        self._suspect = False
        """True if the state of this node cannot be trusted. The node then does not campaign."""
        self.log = directory.log
        self.client = FetchClient(transport, loop, directory.identity.group_id)
        self.server = FetchServer(
            transport,
            loop,
            context.config.repair.bytes_per_second,
            lambda: raw.last_index,
            run=lambda lane, done: context.environment.runner("fetch", lane, loop, done, context.fail),
        )
        self.server.sources[LOG] = log_source(self.log, lambda: raw.commit_index)
        self._votes = VoteKeeper(context.fs, directory.path, raw, alarms, context.wake)
        self._ranges = LogRepairer(self.log, self.client, loop, peers=self.sources, on_change=self.judge, alarms=alarms)
        self._unfit_since_ms: int | None = None
        self._loop = loop
        self.bad_row: Signal[[str]] = Signal()
        """Emitted with a description when a row of the state contradicts an undamaged part of the log."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="repairs",
            start=self.start,
            close=self.close,
            tick=self.tick,
            peer_closed=self.peer_closed,
            frames={Kind.FETCH: self.on_frame, Kind.FETCHED: self.on_frame},
            reload=lambda config: self.server.reload(config.repair.bytes_per_second),
            metrics=(self._ranges.metrics,),
        )

    def start(self) -> None:
        """Begins to serve and to repair, before the driver starts."""
        self.server.start()
        self._votes.start(vote_withheld.load(self._fs, self._directory.path, self._directory.identity.group_id))
        self._ranges.start()

    async def close(self) -> None:
        """Stops all repairs. The files on disk stay consistent."""
        self.server.close()
        await self._ranges.close()
        await self._votes.close()
        await asyncio.get_running_loop().run_in_executor(None, self.server.close_lane)

    def peers(self) -> list[NodeId]:
        """Returns the other voters, the leader first and then those with a connection. A leader that is not a voter as
        far as this node knows is included."""
        return self._by_nearness(self._raw.status().voters)

    def sources(self) -> list[NodeId]:
        """Returns the peers to ask for bytes of the log: `peers`, and voters that are leaving. A leaving voter may have
        the only sound copy of entries that are needed to commit its own removal."""
        counted = self._raw.memberships_that_count
        return self._by_nearness(voter for membership in counted for voter in membership.voter_ids)

    def _by_nearness(self, voters: Iterable[NodeId]) -> list[NodeId]:
        raw = self._raw
        others = {*voters, raw.leader_id} - {raw.raft.id, NOBODY}
        return sorted(others, key=lambda node: (node != raw.leader_id, not self._transport.connected(node), node))

    def givers(self) -> list[NodeId]:
        """Returns the peers to ask for bytes that are not urgent: connected ones first, and among them the leader,
        which is the busiest, last."""
        leader, connected = self._raw.leader_id, self._transport.connected
        return sorted(self.sources(), key=lambda node: (not connected(node), node == leader, node))

    def reachable(self) -> list[int]:
        """Returns the other voters to which there is a connection now."""
        return sorted(peer for peer in self.peers() if self._transport.connected(peer))

    @property
    def may_vote(self) -> bool:
        """False while this node withholds its vote because its log lost entries."""
        return self._raw.may_vote

    def now(self) -> None:
        """Tries to repair at once, without waiting for the end of the present pause, because a client waits for the
        damaged entries."""
        self._ranges.now()

    def judge(self) -> None:
        """Decides again if this node is fit to lead, after something about it has changed."""
        self._raw.hold_campaigns("repair", bool(self.log.damage or self._suspect))
        self._raw.repaired()  # waiting work checks again, in case something was repaired
        self._wake()

    def report(self, position: int, size: int) -> None:
        """Called when bytes of the log did not match the checksum in a row of the state. Finds out whether the log or
        the row is damaged. Does nothing if the bytes are not in this node's log (any more), because the row may then be
        right."""

        def found(search: asyncio.Future[DamagedRange | None]) -> None:
            if search.cancelled():
                return
            if search.exception() is not None:
                logger.error("positions %d..%d of the log: %s", position, position + size, search.exception())
            elif search.result() is None and position >= self.log.first_position:
                self.bad_row(
                    f"positions {position}..{position + size} of the log are sound; the state's row that "
                    "leads there is not"
                )

        if position >= self.log.first_position:
            self._loop.run_in_executor(None, self.log.report_damage, position, size).add_done_callback(found)

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """Handles a FETCH or FETCHED frame. Raises WireError if it is malformed."""
        if kind == Kind.FETCH:
            self.server.on_frame(peer, header)
        else:
            self.client.on_frame(peer, header, payload)

    def peer_closed(self, peer: NodeId) -> None:
        """Fails the requests that this peer has not answered (`FetchClient.peer_closed`)."""
        self.client.peer_closed(peer)

    def tick(self, now_ms: int) -> None:
        """Checks withheld votes, and hands leadership over if this node cannot read entries that it must replicate.
        Called several times a second; cheap."""
        self._votes.tick()
        if self._raw.role is not Role.LEADER or not self.log.damage:
            self._unfit_since_ms = None
        elif self._unfit_since_ms is None:
            self._unfit_since_ms = now_ms
        elif now_ms - self._unfit_since_ms >= HAND_OVER_MS:
            self._unfit_since_ms = now_ms
            self._hand_over()

    def distrust_state(self) -> None:
        """Stops leading at once and for good, because proposals made from this state cannot be trusted."""
        self._suspect = True
        self.judge()
        self._raw.resign()
        self._wake()

    def _hand_over(self) -> None:
        to = self._succession.choose()
        if to == NOBODY:
            return
        logger.warning("this node is not fit to lead; %s should lead", node_object(self.client.group, to))
        try:
            self._succession.transfer(to)
        except RaftLogError as error:
            logger.warning("leadership cannot be transferred: %s", error)


ALARM = Code("vote_withheld", "warning", "raftmq repair --node {n}")


class VoteKeeper:
    """Releases a withheld vote once the log has caught up: first removes the file VOTE_WITHHELD, and then informs the
    core."""

    def __init__(self, fs: FileSystem, directory: Path, raw: RawNode, alarms: Alarms, wake: Callable[[], None]) -> None:
        """`wake` makes the driver look at the core."""
        self._fs = fs
        self._directory = directory
        self._raw = raw
        self._alarms = alarms
        self._wake = wake
        self._release: asyncio.Task[None] | None = None

    def start(self, withheld: VoteWithheld | None) -> None:
        """Raises the alarm if the vote is withheld. `withheld`: the content of the file VOTE_WITHHELD; None if there is
        none."""
        if withheld is not None:
            self._alarms.raise_alarm(
                ALARM,
                f"this node lost entries that it had acknowledged, and does not vote until it has caught up with a "
                f"leader: {withheld.reason}. If another node is down at the same time, the cluster may stop",
            )

    def tick(self) -> None:
        """Starts to release the vote once this node has caught up with a leader. Cheap; called periodically."""
        if self._raw.caught_up_with_leader and self._release is None:
            self._release = asyncio.get_running_loop().create_task(self._give_back(), name="release-vote")

    async def close(self) -> None:
        """Cancels the work in progress; the vote is then either still withheld or released."""
        if self._release is not None:
            self._release.cancel()
            await asyncio.gather(self._release, return_exceptions=True)

    async def _give_back(self) -> None:
        """Releases the vote. Raises StorageError if the file cannot be removed; the vote then stays withheld, and the
        next tick tries again."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, vote_withheld.release, self._fs, self._directory)
            self._raw.release_vote()
        finally:
            self._release = None
        self._alarms.clear(ALARM)
        logger.warning("the log has caught up to index %d: this node votes again", self._raw.commit_index)
        self._wake()


def transport_of(
    context: NodeContext,
    members: MembersService,
    keyring: Keyring,
    levels: PeerLevels,
    tls: TlsMaintenance,
) -> PeerTransport:
    """Returns the peer transport of a node, not started. The transport follows changes of `members`, and keeps the
    levels that peers announce in `levels`."""
    config, environment = context.config, context.environment
    transport = PeerTransport(
        members.handshake(),
        members.peer_addresses(),
        (config.peer.bind, config.peer.port),
        int.from_bytes(environment.entropy(8)),
        members.own_address,
        heartbeat_net(config),
        keyring,
        environment.entropy,
        levels,
        tls.peer_security(PLAIN_REFUSAL),
        tls.peer_dialling(),
    )
    tls.changed.add(transport.renew_certified)
    members.changed.add(transport.set_members)
    return transport


class _Prober:
    """Dials other nodes with this node's identity. Implements `cluster.members.address_change.Prober`."""

    def __init__(self, transport: PeerTransport, dialling: Dialling) -> None:
        """`dialling`: the TLS settings with which HTTP APIs of other nodes are dialled."""
        self._transport = transport
        self._dialling = dialling

    async def peer(self, place: MemberPlace) -> str:
        """Returns the reason why the node is not found at its peer address; "" if it is."""
        return await probe(self._transport, place.node, place.node_uuid, (place.host, place.port))

    async def http(self, place: MemberPlace) -> str:
        """Returns the reason why the node's HTTP API is not found at its address; "" if it is."""
        membership = self._transport.roster.membership
        return await probe_http(
            place.node, place.node_uuid, membership.cluster_uuid, place.admin, self._dialling, membership.group_id
        )


def moves_of(members: MembersService, transport: PeerTransport, repairs: Repairs, dialling: Dialling) -> Moves:
    """Returns the service for moves of members: it has the voters check that a member can be reached at its new
    address, and answers such a check for a leader."""

    async def ask(peer: NodeId, arguments: list[Any]) -> list[Any] | str:
        try:
            return (await repairs.client.fetch(peer, FOUND_AT, arguments, ASK_MS)).fields
        except FetchError as error:
            if error.status is Status.BAD:
                return f"it cannot look there ({error.remark}): does it run an earlier release?"
            return error.remark

    moves = Moves(members, ask, transport.connected, _Prober(transport, dialling))
    repairs.server.answerers[FOUND_AT] = moves.answer
    return moves
