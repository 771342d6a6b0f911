"""Value types shared by the core, the storage and everything above.

Words: a *position* is a logical byte offset in the commit log, the same on every replica; an *index* is the
Raft index; a *term* is the Raft term. Values are NamedTuples (cheap to build, immutable).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, NewType
from uuid import UUID

NodeId = NewType("NodeId", int)
"""The id of a member of the group, a small positive integer. 0 means "nobody"."""

NOBODY = NodeId(0)
FIRST_GROUP, GROUPS_MAX = 1, 64
"""The number of a cluster's first group of brokers, and the highest number that a group may have."""


class Voter(NamedTuple):
    """A member of the group: its id, and the uuid that was made once with its data directory."""

    id: NodeId
    uuid: UUID


class EntryType(IntEnum):
    """The kind of a frame's payload. Values are on disk and on the wire: never renumber."""

    GENESIS = 0
    NOOP = 1
    DIGEST = 2
    MESSAGES = 3
    COMMAND = 4
    MEMBERSHIP = 5
    TRIM = 6
    CHANGE = 7
    """Commands with their author. Used from level 12 of the cluster on (`statemachine.commands`)."""


FLAG_ROLL = 0x0001
"""The flag of a frame that is the first of a new segment file, on every replica."""


class EntryId(NamedTuple):
    """The id of an entry, (term, index). Equal ids at two replicas mean equal entries (Raft paper, 5.3)."""

    term: int
    index: int  # type: ignore[assignment]


class Entry(NamedTuple):
    """One frame of the log. `header` and `payload` are the very bytes on disk and on the wire.

    Built only by `raftlog.frame.make_entry` (leader) and `raftlog.frame.FrameHeader.entry` (everyone else).
    """

    term: int
    index: int  # type: ignore[assignment]
    type: int
    flags: int
    position: int
    """Logical byte offset in the log of the frame's first header byte."""
    timestamp_ms: int
    """Log time, milliseconds since the Unix epoch; never decreases along the log."""
    parent: int
    """The `header_crc` of the frame before; 0 for GENESIS."""
    header_crc: int
    header: bytes
    payload: bytes
    end_position: int
    """Position of the next frame (positions are dense)."""

    @property
    def size(self) -> int:
        """The length of the frame in bytes, header included."""
        return 64 + len(self.payload)

    @property
    def id(self) -> EntryId:
        """The entry's (term, index)."""
        return EntryId(self.term, self.index)


class LogTail(NamedTuple):
    """The end of the log: everything needed to stamp or to check the next frame."""

    term: int
    index: int  # type: ignore[assignment]
    end_position: int
    header_crc: int
    segment_base: int
    """Position of the first frame of the segment file in which the tail lies."""
    timestamp_ms: int

    @property
    def id(self) -> EntryId:
        """The (term, index) of the last frame."""
        return EntryId(self.term, self.index)


EMPTY_TAIL = LogTail(0, -1, 0, 0, 0, 0)
"""The tail of a log without even GENESIS."""


class HardState(NamedTuple):
    """The state that must be on disk before any message that depends on it is sent (Raft paper, figure 2).

    `commit_index` is a hint for a faster start, never a reason to sync.
    """

    term: int
    vote: NodeId
    commit_index: int


class Role(IntEnum):
    """The role of a member in a term. Learner and voter are kinds of members, not roles."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class SoftState(NamedTuple):
    """The leader and this member's role: volatile facts, for status and for routing."""

    leader_id: NodeId
    role: Role


class ReadState(NamedTuple):
    """A confirmed ReadIndex round: state applied up to `index` answers the read `context` linearizably."""

    context: int
    index: int  # type: ignore[assignment]
