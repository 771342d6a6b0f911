"""Extends the log of a stopped node up to an entry that a peer has applied, so that the node can use the peer's
checkpoint of that entry.

It writes only committed entries: the peer has applied entry M, its log holds all earlier ones, and committed entries
have one history. A leader's append would write the same entries later. Therefore:

- Complete frames are copied, from the newest entry that both logs share up to M, whose header CRC the checkpoint's
  manifest contains. Both CRCs of each frame are checked, and its link to the frame before.
- Other entries at their indexes were never committed and are truncated, as in any append (Raft paper, 5.3). An entry
  that this node knows as committed is never truncated: the two histories then differ, and an operator must intervene.
- A term is on disk before its entries. A term above the saved one is saved with no vote, because none was cast in it.
  The vote of the saved term stays; so does the file VOTE_WITHHELD, which forbids this node to vote until a leader's
  commit index shows how far its log must reach.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from cluster.config.local_layout import node_object
from cluster.repair.fetch import LOG, PAYLOAD_MAX, Fetched, FetchError, Status
from cluster.repair.peer_requests import Fetches
from raftlog.errors import DamagedLogError, FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader, check_follows, decode_entries, tail_after
from raftlog.storage.node_dir import NodeDir
from raftlog.types import EMPTY_TAIL, NOBODY, Entry, HardState, LogTail, NodeId
from statemachine.broker_state import AppliedMark

logger = logging.getLogger(__name__)

FETCH_MS = 10_000
BUSY_PAUSE_S = 0.1


class RolledForward(NamedTuple):
    """The range of entries that were fetched; `first` > `last` if none was missing."""

    first: int
    last: int
    ended: int
    """Index of the last entry of this log before the extension. If it is not below `first`, uncommitted entries were
    replaced."""


class LogForward:
    """Extends the log in a node's directory. Nothing else may use the directory meanwhile."""

    def __init__(self, directory: NodeDir, client: Fetches, peer: NodeId, committed_index: int) -> None:
        """`committed_index`: the index that this node knows to be committed, independently of the peer."""
        self._group_id = directory.identity.group_id
        self._giver = node_object(self._group_id, peer)
        self._log = directory.log
        self._hard_state = directory.hard_state_store
        self._client = client
        self._peer = peer
        self._committed = committed_index

    async def run(self, mark: AppliedMark) -> RolledForward:
        """Extends the log until it durably contains the entry that `mark` names. Raises FetchError, StorageError, and
        FrameError if the peer's frames and this log do not share one history. Entries that were written before an
        error are committed, and stay.
        """
        before = self._log.tail.index
        goes_on = mark.index > before and await self._goes_on()
        shared = tail = self._log.tail if goes_on else await self._shared(min(before, mark.index))
        while tail.index < mark.index:
            entries = await self._frames(tail.end_position, mark.index)
            for entry in entries:
                check_follows(tail, entry)
                tail = tail_after(tail, entry)
            if tail.index == mark.index and tail.header_crc != mark.header_crc:
                raise FrameError(f"{self._giver} has applied another entry {mark.index} than its log holds")
            self._write(entries)
        if shared.index < mark.index:
            logger.warning(
                "entries %d..%d of the log come from %s; it ended at %d before",
                shared.index + 1,
                mark.index,
                self._giver,
                before,
            )
        return RolledForward(shared.index + 1, mark.index, before)

    # --- the point where the two logs part ----------------------------------------------------------------------------

    async def _goes_on(self) -> bool:
        """Returns True if the peer's log continues where this one ends. That is the usual case, and one frame shows
        it."""
        tail = self._log.tail
        try:
            header = FrameHeader((await self._piece(tail.end_position, 0, HEADER_SIZE)).payload, self._group_id)
        except FetchError as error:
            if error.status is not Status.MISSING:
                raise
            return False
        return (header.index, header.parent) == (tail.index + 1, tail.header_crc)

    async def _shared(self, last: int) -> LogTail:
        """Returns the log tail after the newest entry, at most `last`, that both logs are known to have. Equal headers
        at one position mean equal logs up to there. Entries that are damaged on either side count as not shared, and
        are written again or skipped.
        """
        if (found := await self._common(last)) is not None:
            return found
        low, high = self._log.first_index, last
        best = await self._common(low)
        if best is None:
            raise FrameError(f"{self._giver} does not have entry {low}, with which this log begins")
        while high - low > 1:
            middle = (low + high) // 2
            found = await self._common(middle)
            if found is None:
                high = middle
            else:
                low, best = middle, found
        return best

    async def _common(self, index: int) -> LogTail | None:
        try:
            (own,) = self._log.read_entries(index, index + 1, 1)
            theirs = (await self._piece(own.position, 0, HEADER_SIZE)).payload
        except DamagedLogError:
            return None
        except FetchError as error:
            if error.status is not Status.MISSING:
                raise
            return None
        return tail_after(EMPTY_TAIL, own) if theirs == own.header else None

    # --- the work ----------------------------------------------------------------------------------------------------

    async def _frames(self, position: int, last: int) -> list[Entry]:
        """Fetches and returns at least one entry from `position` on, and none above `last`. All of them are
        committed."""
        data = b""
        while len(data) < HEADER_SIZE or FrameHeader(data[:HEADER_SIZE]).frame_length > len(data):
            fields, piece = await self._piece(position, len(data), PAYLOAD_MAX)
            data += piece
        commit_index = fields[0] if fields and type(fields[0]) is int else -1
        last = min(last, commit_index)
        entries = [entry for entry in decode_entries(data, self._group_id) if entry.index <= last]
        if not entries:
            raise FrameError(f"{self._giver} knows only entries up to {commit_index} to be committed")
        return entries

    async def _piece(self, position: int, skip: int, size: int) -> Fetched:
        while True:
            try:
                return await self._client.fetch(self._peer, LOG, [position, skip, size], FETCH_MS)
            except FetchError as error:
                if error.status is not Status.BUSY:
                    raise
            await asyncio.sleep(BUSY_PAUSE_S)

    def _write(self, entries: list[Entry]) -> None:
        self._keep_committed(entries)
        saved, last = self._hard_state.load(), entries[-1]
        if last.term > saved.term:
            self._hard_state.save(HardState(last.term, NOBODY, saved.commit_index))
        self._log.append(entries)
        saved = self._hard_state.load()
        self._hard_state.save(saved._replace(commit_index=max(saved.commit_index, last.index)))

    def _keep_committed(self, entries: list[Entry]) -> None:
        """Raises FrameError if an entry that is committed on this node would be replaced. Entries that this node cannot
        read are not compared."""
        for entry in entries:
            if entry.index > min(self._committed, self._log.tail.index):
                break
            try:
                (own,) = self._log.read_entries(entry.index, entry.index + 1, 1)
            except DamagedLogError:
                continue
            if own.header_crc != entry.header_crc:
                raise FrameError(
                    f"entry {entry.index} is committed on this node and another one on {self._giver}: these are "
                    "two histories"
                )
