"""Exchanges reports of writes for the level `quorum`: nodes report which entries they have passed to their operating
systems, before the sync.

Nodes report only on request, because a frame per batch has its cost. A leader with such sends asks its peers every
ASK_MS (frame WANT_WRITTEN). A follower that was asked reports its writes for LEASE_MS (frame WRITTEN: term and index of
the last entry of a batch). Both frames may be lost. The send is then answered when it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cluster.runtime.peer_frames import Kind, PeerLinks, WireError
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EntryId, NodeId, Role

if TYPE_CHECKING:
    from cluster.replication.acks.early_answers import EarlyAnswers
    from raftlog.core.raw_node import RawNode

ASK_MS = 500
LEASE_MS = 2000


class WrittenRelay:
    """Asks peers for reports of writes as the leader, and sends such reports as a follower. Event loop only, except for
    `_on_lane`."""

    def __init__(
        self,
        node_id: NodeId,
        raw: RawNode,
        early: EarlyAnswers,
        log: SegmentedLog,
        transport: PeerLinks,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        """`wake` schedules a turn of the driver, in which early answers are sent."""
        self._node_id = node_id
        self._raw = raw
        self._early = early
        self._log = log
        self._transport = transport
        self._loop = loop
        self._wake = wake
        self._now_ms = 0
        self._listening = False
        """True if the log tells this relay what it writes."""
        self._own_until = self._tell_until = self._ask_until = self._ask_ms = -1
        self._leader: NodeId = NodeId(0)
        early.wants_own.add(self._want_own)
        early.wants_quorum.add(self._want_quorum)

    def tick(self, now_ms: int) -> None:
        """Asks the peers again while sends wait for their reports, and stops listening to the log when no node asks any
        more."""
        self._now_ms = now_ms
        if now_ms < self._ask_until and self._raw.role is Role.LEADER and now_ms >= self._ask_ms:
            self._ask()
        if self._listening and now_ms >= max(self._own_until, self._tell_until):
            self._listening = False
            self._log.tell_written(None)

    def on_frame(self, peer: NodeId, kind: int, header: list[Any]) -> None:
        """Handles a frame WANT_WRITTEN or WRITTEN from a peer. Raises WireError if it is malformed."""
        try:
            if kind == Kind.WANT_WRITTEN:
                self._leader, self._tell_until = peer, self._now_ms + LEASE_MS
                if not self._listening:
                    self._listen()
            else:
                term, index = header
                if type(term) is not int or type(index) is not int or min(term, index) < 0:
                    raise ValueError(f"{header!r:.60} is no entry")
                self._early.written(peer, EntryId(term, index))
                self._wake()
        except (TypeError, ValueError) as error:
            raise WireError(f"malformed frame of kind {kind}: {error}") from error

    def _want_own(self) -> None:
        self._own_until = self._now_ms + LEASE_MS
        if not self._listening:
            self._listen()

    def _listen(self) -> None:
        self._listening = True
        self._log.tell_written(self._on_lane)

    def _want_quorum(self) -> None:
        self._ask_until = self._now_ms + LEASE_MS
        if self._now_ms >= self._ask_ms:
            self._ask()

    def _ask(self) -> None:
        self._ask_ms = self._now_ms + ASK_MS
        for voter in self._raw.membership.voter_ids:
            if voter != self._node_id:
                self._transport.send_frame(voter, Kind.WANT_WRITTEN, [], b"")

    def _on_lane(self, entry_id: EntryId) -> None:
        """Passes a write to the event loop. Called on the append lane's thread, between a write and its sync."""
        try:
            self._loop.call_soon_threadsafe(self._written, entry_id)
        except RuntimeError:
            return  # the loop is closed, so nobody needs the report

    def _written(self, entry_id: EntryId) -> None:
        self._early.written(self._node_id, entry_id)
        if self._raw.role is Role.LEADER:
            self._wake()
        elif self._now_ms < self._tell_until:
            self._transport.send_frame(self._leader, Kind.WRITTEN, list(entry_id), b"")
