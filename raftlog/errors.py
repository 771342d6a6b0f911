"""Errors of the log and of consensus; each says whose fault it is and whether the node may go on."""

from __future__ import annotations

import errno


class RaftLogError(Exception):
    """Base of every error raised by `raftlog`."""


class NotLeaderError(RaftLogError):
    """The node does not lead: nothing was proposed, so the outcome is *fail*, never *unknown*."""


class ProposalDroppedError(RaftLogError):
    """The leader takes no proposal now (transfer under way, window full): nothing was proposed."""


class MembershipError(RaftLogError, ValueError):
    """A change of the members that is refused; nothing was proposed, and the text says what would work."""


class FrameError(RaftLogError):
    """Bytes are not a valid frame, or the frame does not follow the one before it."""


class StorageError(RaftLogError):
    """The disk failed a call. Final: the node stops taking part (a failed fdatasync is never retried)."""


class DiskFullError(StorageError):
    """No space for the write. What was acknowledged is intact; the node stops until there is room."""


class OutOfSpaceError(DiskFullError):
    """No space for a write of which nothing counts yet: unlike its parent not final, the same call may be made again.

    Never raised for a sync: after a failed one nobody knows what is on disk.
    """


class OutOfRangeError(RaftLogError, LookupError):
    """The index or position is not in this log: trimmed, not written yet, or cut by a conflict meanwhile."""


class CorruptLogError(StorageError):
    """Bytes below the durable point fail their checksum: never cut, to be repaired from peers."""


class LogGoneError(CorruptLogError):
    """No segment file is left: the node has lost its log, whatever else its directory still holds."""


class DamagedLogError(StorageError):
    """Bytes below the durable point cannot be read intact: never served, and to be fetched from a peer.

    Unlike its siblings not final: the node goes on, and asks again when the range is repaired.
    """

    def __init__(self, text: str, *, position: int, first_index: int, last_index: int) -> None:
        """`position`: where the read met damage; the indexes (inclusive) are those of the damaged range."""
        super().__init__(text)
        self.position = position
        self.first_index = first_index
        self.last_index = last_index


class IdentityError(StorageError):
    """The data directory belongs to another cluster, node or format; the message says what to type."""


class InvariantViolationError(RaftLogError):
    """A state that must not exist. The node stops; the message carries both sides of the contradiction."""


class ImplausibleMessageError(InvariantViolationError):
    """A peer sent what cannot be true; nothing was done about it. Final for its connection, not for the node."""

    peer = 0
    """Who sent it."""


def out_of_space(error: OSError) -> bool:
    """Whether the call failed for lack of space or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
