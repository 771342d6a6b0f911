"""Replaces the parts of pysyncobj 0.3.17 that lose acknowledged operations (docs/adr/0112).

Subclasses override the methods of these parts: the journal and votes, how a follower handles entries, how a leader
handles answers, snapshots and compaction, apply. Elections, sending and forwarding are pysyncobj's. Methods named
`_SyncObj__*` override private ones, whose source `pysyncobj_check` compares before this module is used.

Only registry processes import this module, because pysyncobj replaces functions of `socket`. Everything but `propose`
runs on the thread that calls `tick`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.monotonic import monotonic
from pysyncobj.node import TCPNode

from cluster.registry import peer_wire
from cluster.registry.hardened_transport import RegistryTransport, take_over
from cluster.registry.journal import ENTRIES_MAX, Entry
from cluster.registry.records import OPERATION_BYTES_MAX, RECORDS_BYTES_MAX, Records, RegistryAnswer
from cluster.registry.store import Store
from cluster.runtime.logs import Seldom
from cluster.runtime.peer_frames import WireError
from raftlog.errors import OutOfSpaceError
from raftlog.types import NOBODY

logger = logging.getLogger(__name__)

COMPACT_AT = ENTRIES_MAX // 2
COMPACT_AGAIN_S = 5.0
"""Seconds until the next attempt at a compaction for which there was no space."""
PART_BYTES = 64 << 10
_LEADER, _FOLLOWER = 2, 0
_REGULAR = b"\x00"

RegistryDone = Callable[[RegistryAnswer | None, int], None]
"""Called with the answer (None if there is none) and a FAIL_REASON, on the thread of `tick` or of `propose`."""

REFUSED = frozenset({FAIL_REASON.QUEUE_FULL, FAIL_REASON.MISSING_LEADER, FAIL_REASON.REQUEST_DENIED})
"""Reasons which mean that no log has the operation. With any other FAIL_REASON an operation may still be applied."""


class RegistryPeers(NamedTuple):
    """The processes of a registry: number -> the "host:port" at which pysyncobj listens."""

    addresses: Mapping[int, str]
    own: int
    bind: str
    """The "host:port" at which this process listens. It is always given, because pysyncobj's default is to listen on
    all addresses."""

    def number(self, address: str | None) -> int:
        """Returns the number of the process with that address; NOBODY if there is none."""
        return next((number for number, known in self.addresses.items() if known == address), NOBODY)


class _Log:
    """The journal and the vote of a `Store`, with the interface of pysyncobj's journal."""

    def __init__(self, store: Store, peers: RegistryPeers, every_second: Callable[[], None]) -> None:
        self._store = store
        self._peers = peers
        self.onOneSecondTimer = every_second

    def add(self, command: bytes, index: int, term: int) -> None:
        self._store.append([Entry(command, index, term)])

    def __len__(self) -> int:
        return len(self._store.journal.entries)

    def __getitem__(self, item: Any) -> Any:
        return self._store.journal.entries[item]

    def setRaftCommitIndex(self, index: int) -> None:
        self._store.note_commit(index)

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._store.save_vote(term, self._peers.number(voted_for))

    def _destroy(self) -> None:
        """Does nothing: the owner of the store closes it."""


class _Parts:
    """Sends snapshots to followers in parts, with the interface of pysyncobj's serializer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sending: dict[TCPNode, tuple[bytes, int]] = {}

    def getTransmissionData(self, node: TCPNode) -> tuple[bytes, bool, bool] | None:
        """Returns (the next part of the snapshot for a follower, True if it is the first, True if it is the last). The
        last part is empty. None if there is no snapshot."""
        data, at = self._sending.get(node, (self._store.snapshot, 0))
        if data is None:
            return None
        part = data[at : at + PART_BYTES]
        self._sending[node] = data, at + len(part)
        if not part:
            del self._sending[node]
        return part, at == 0, not part

    def cancelTransmisstion(self, node: TCPNode) -> None:
        """Forgets how far a follower has received a snapshot, because it has disconnected. pysyncobj misspells the
        name."""
        self._sending.pop(node, None)


class HardenedRaft(SyncObj):  # type: ignore[misc]  # no types
    """One replica of the registry's records. It listens as soon as it is constructed."""

    _SyncObj__raftLeader: Any
    _SyncObj__leaderCommitIndex: int
    _SyncObj__transferInProgress: bool
    _SyncObj__raftElectionDeadline: float

    def __init__(
        self,
        peers: RegistryPeers,
        password: str,
        store: Store,
        records: Records,
        *,
        transport: Any = None,
        conf: Mapping[str, object] | None = None,
    ) -> None:
        """Raises SyncObjException if the address cannot be bound. Tests replace defaults with `transport` and
        `conf`."""
        take_over()
        self.store = store
        self._records = records
        self._peers = peers
        self._incoming: bytearray | None = None
        self._compact_at = 0.0
        self._told = Seldom(logger)
        own = TCPNode(peers.addresses[peers.own])
        others = [TCPNode(address) for number, address in peers.addresses.items() if number != peers.own]
        settings = {
            "password": password,
            "bindAddress": peers.bind,
            "autoTick": False,
            "commandsWaitLeader": False,
            "commandsQueueSize": 64,
            "appendEntriesUseBatch": False,
            "appendEntriesPeriod": 0.1,
            "raftMinTimeout": 0.6,
            "raftMaxTimeout": 1.2,
            "leaderFallbackTimeout": 3.0,
            "connectionTimeout": 2.0,
            "connectionRetryTime": 0.3,
            "maxBindRetries": 1,
            "useFork": False,
            **(conf or {}),
        }
        super().__init__(own, others, SyncObjConf(**settings), transport=transport, transportClass=RegistryTransport)
        self._SyncObj__raftLog = _Log(store, peers, self._every_second)
        self._SyncObj__raftCurrentTerm = store.term
        self._SyncObj__votedForNodeId = peers.addresses.get(store.vote)
        self._SyncObj__raftCommitIndex = store.committed
        self._SyncObj__raftLastApplied = store.applied
        self._SyncObj__serializer = _Parts(store)
        self._SyncObj__needLoadDumpFile = False

    # --- called by the process ---------------------------------------------------------------------------------------

    def tick(self, wait_s: float) -> None:
        """Does the work that is due, and waits up to `wait_s` for messages. Raises StorageError; the replica cannot be
        used after that."""
        self.doTick(wait_s)

    def propose(self, operation: bytes, done: RegistryDone) -> None:
        """Proposes an operation. `done` gets its outcome, but may never be called. Any thread may call it."""
        self._applyCommand(operation, done, _REGULAR[0])

    def leader_number(self) -> int:
        """Returns the number of the last known leader; NOBODY if there is none."""
        leader = self._getLeader()
        return NOBODY if leader is None else self._peers.number(leader.address)

    # --- proposals ---------------------------------------------------------------------------------------------------

    def _applyCommand(self, command: bytes, callback: Any, commandType: int | None = None) -> None:
        is_leading = self._SyncObj__raftState == _LEADER
        if len(command) > OPERATION_BYTES_MAX + 1 or (is_leading and self.store.journal.is_full):
            self._SyncObj__callErrCallback(FAIL_REASON.REQUEST_DENIED, callback)
        else:
            super()._applyCommand(command, callback, commandType)

    def _SyncObj__doApplyCommand(self, command: bytes) -> RegistryAnswer | None:
        return self._records.apply(command[1:]) if command[:1] == _REGULAR else None

    # --- messages ----------------------------------------------------------------------------------------------------

    def _SyncObj__onMessageReceived(self, node: TCPNode, value: object) -> None:
        try:
            message: Any = peer_wire.message(value)
        except WireError as error:
            self._told.warn("a message of another registry process is ignored", f"{node}: {error}")
            return
        try:
            if message["type"] == "append_entries":
                self._on_append(node, message)
            elif message["type"] == "next_node_idx":
                self._on_answer(node, message)
            else:
                super()._SyncObj__onMessageReceived(node, message)
        except OutOfSpaceError as error:  # no confirmation was sent, so the sender tries again
            self._told.warn("the registry's disk is full", str(error))

    def _on_append(self, node: TCPNode, message: Any) -> None:
        if message["term"] < self._SyncObj__raftCurrentTerm:
            self._answer(node, 1)
            return
        if message["term"] > self._SyncObj__raftCurrentTerm:
            self._SyncObj__transferInProgress = False
            self._SyncObj__setCurrentTerm(message["term"], None)
        if not self._SyncObj__transferInProgress:
            self._SyncObj__raftElectionDeadline = monotonic() + self._SyncObj__generateRaftTimeout()
        if self._SyncObj__raftLeader != node:
            self._SyncObj__onLeaderChanged()
        self._SyncObj__raftLeader = node
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__leaderCommitIndex = message["commit_index"]
        if "serialized" in message:
            self._take_part(node, message["serialized"])
            return
        verified = self._take_entries(node, message)
        if verified is not None:
            self._answer(node, verified + 1, success=True)
            # Only entries that were compared with the leader's log may count as committed: later ones may conflict with
            # it.
            commit = max(self._SyncObj__raftCommitIndex, min(message["commit_index"], verified))
            self._set_commit(commit)

    def _take_entries(self, node: TCPNode, message: Any) -> int | None:
        """Appends the new entries of an append message, and removes only entries that conflict with them. Returns the
        index up to which this log equals the leader's. Returns None if the entry before the message's entries differs;
        the leader has then been told."""
        journal, index = self.store.journal, message["prevLogIdx"]
        before = journal.at(index)
        committed = self._SyncObj__raftCommitIndex
        if before is None:
            has_compacted = index < journal.entries[0].index
            self._answer(node, (committed if has_compacted else journal.last.index) + 1, reset=True)
            return None
        if before.term != message["prevLogTerm"]:
            # Committed entries are equal to the leader's, so the leader is asked for everything after them. If disks
            # were lost, even these may differ. Then the leader goes back by one entry each time, as far as its
            # snapshot.
            self._answer(node, committed + 1 if index > committed else max(index, 1), reset=True)
            return None
        entries = [Entry(*each) for each in message["entries"]]
        for place, entry in enumerate(entries):
            known = journal.at(entry.index)
            if known is not None and known.term == entry.term:
                continue
            if known is not None:
                self._cut(entry.index)
            self.store.append(entries[place:])
            break
        return int(index) + len(entries)

    def _cut(self, index: int) -> None:
        if index <= self._SyncObj__raftLastApplied:
            # This happens only if a majority has lost its disks. Records only grow, so applying the leader's entries on
            # top is right.
            logger.critical("entries from %d on were applied here, and the leader has others", index)
            self._SyncObj__raftLastApplied = index - 1
        self.store.cut_from(index)
        self._set_commit(min(self._SyncObj__raftCommitIndex, index - 1))

    def _set_commit(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index
        self._SyncObj__raftLog.setRaftCommitIndex(index)

    def _take_part(self, node: TCPNode, part: Any) -> None:
        if part is None:
            return
        data, is_first, is_last = part
        if is_first:
            self._incoming = bytearray()
        if self._incoming is None or len(self._incoming) + len(data) > RECORDS_BYTES_MAX:
            self._incoming = None
            return
        self._incoming += data
        if is_last:
            whole, self._incoming = bytes(self._incoming), None
            try:
                snapshot = self.store.install(whole)
            except WireError as error:
                self._told.warn("a snapshot of the registry's leader is ignored", str(error))
                return
            if snapshot is not None:
                self._SyncObj__raftLastApplied = snapshot.last.index
                self._set_commit(max(self._SyncObj__raftCommitIndex, snapshot.last.index))
                self._answer(node, snapshot.last.index + 1, success=True)

    def _answer(self, node: TCPNode, next_index: int, *, reset: bool = False, success: bool = False) -> None:
        """Sends the leader the index of the entry that this process wants next. The message has the term, because
        without it the leader could take an answer to one of its earlier terms for an answer to the present one."""
        self._SyncObj__transport.send(
            node,
            {
                "type": "next_node_idx",
                "next_node_idx": next_index,
                "reset": reset,
                "success": success,
                "term": self._SyncObj__raftCurrentTerm,
            },
        )

    def _on_answer(self, node: TCPNode, message: Any) -> None:
        wanted, term = message["next_node_idx"], message["term"]
        if term > self._SyncObj__raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
            self._SyncObj__setState(_FOLLOWER)
            self._SyncObj__raftLeader = None
            return
        is_for_this = self._SyncObj__raftState == _LEADER and term == self._SyncObj__raftCurrentTerm
        if not is_for_this or not 1 <= wanted <= self.store.journal.last.index + 1:
            return
        self._SyncObj__lastResponseTime[node] = monotonic()
        match, following = self._SyncObj__raftMatchIndex, self._SyncObj__raftNextIndex
        if message["success"]:
            match[node] = max(match[node], wanted - 1)
            following[node] = max(following[node], wanted)
        elif message["reset"]:
            following[node] = wanted

    # --- by the clock ------------------------------------------------------------------------------------------------

    def _every_second(self) -> None:
        journal = self.store.journal
        if journal.is_full:
            journal.tend()
            if journal.is_full and self._isLeader():  # another process may have space on its disk
                self.transferLeadership()

    def _SyncObj__tryLogCompaction(self) -> None:
        applied, now = self._SyncObj__raftLastApplied, monotonic()
        first = self.store.journal.entries[0].index
        if applied - first < COMPACT_AT or now < self._compact_at:
            return
        try:
            self.store.compact(applied)
        except OutOfSpaceError as error:
            self._compact_at = now + COMPACT_AGAIN_S
            self._told.warn("the registry's disk is full", str(error))
