"""Errors of the log and of consensus; each says whose fault it is and whether the node may continue."""

from __future__ import annotations

import errno


class RaftLogError(Exception):
    """Base of every error raised by `raftlog`."""


class NotLeaderError(RaftLogError):
    """The node does not lead: nothing was proposed, so the outcome is *fail*, never *unknown*."""


class ProposalDroppedError(RaftLogError):
    """The leader accepts no proposals while it transfers leadership: nothing was proposed."""


class MembershipError(RaftLogError, ValueError):
    """A membership change was refused; nothing was proposed, and the text says what would work."""


class FrameError(RaftLogError):
    """Some bytes are not a valid frame, or the frame does not follow the one before it."""


class StorageError(RaftLogError):
    """A disk call failed. This is final: the node stops taking part, because a failed fdatasync must not be retried."""


class DiskFullError(StorageError):
    """The disk has no space for the write. Acknowledged entries are intact; the node stops until there is space."""


class OutOfSpaceError(DiskFullError):
    """The disk has no space for a write of which no part counts yet. Unlike its parent class this is not final: the
    same call may be repeated.

    Never raised for a sync: after a failed sync it is unknown what is on disk.
    """


class OutOfRangeError(RaftLogError, LookupError):
    """The index or position is not in this log: trimmed, not written yet, or truncated by a conflict since the caller
    learned of it."""


class CorruptLogError(StorageError):
    """A file of the log, or one beside it, is damaged, missing, of another log, or of a format that this version does
    not read. The message says what is wrong."""


class LogGoneError(CorruptLogError):
    """No segment file is left: the node has lost its log, whatever else its directory still holds."""


class DamagedLogError(StorageError):
    """Bytes below the durable point cannot be read intact. They are never served, and wait to be fetched from a peer.

    Unlike the other errors here this is not final: the node continues, and reads again when the range is repaired.
    """

    def __init__(self, text: str, *, position: int, first_index: int, last_index: int) -> None:
        """`position`: the place at which the read met damage; the indexes (inclusive) are those of the damaged
        range."""
        super().__init__(text)
        self.position = position
        self.first_index = first_index
        self.last_index = last_index


class ApplyStoppedError(RaftLogError):
    """Raised to whoever would answer from the state of a node that could not apply a committed entry, and stops."""


class IdentityError(StorageError):
    """The data directory belongs to another cluster, node or format; the message names the command that helps."""


class InvariantViolationError(RaftLogError):
    """The node met an impossible state. It stops; the message names both sides of the contradiction."""


class ImplausibleMessageError(InvariantViolationError):
    """A peer sent a message that cannot be true, and the node ignored it. The node closes the connection to the peer
    and continues."""

    peer = 0
    """The node id of the sender; 0 until it is known."""


def out_of_space(error: OSError) -> bool:
    """Returns True if the call failed for lack of space or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
