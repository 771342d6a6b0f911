"""Errors of the log and of consensus; each says whose fault it is and whether the node may go on."""

from __future__ import annotations


class RaftLogError(Exception):
    """Base of every error raised by `raftlog`."""


class NotLeaderError(RaftLogError):
    """The node does not lead: nothing was proposed, so the outcome is *fail*, never *unknown*."""


class ProposalDroppedError(RaftLogError):
    """The leader takes no proposal now (transfer under way, window full): nothing was proposed."""


class FrameError(RaftLogError):
    """Bytes are not a valid frame, or the frame does not follow the one before it."""


class StorageError(RaftLogError):
    """The disk failed a call. Final: the node stops taking part (a failed fdatasync is never retried)."""


class CorruptLogError(StorageError):
    """Bytes below the durable point fail their checksum: never cut, to be repaired from peers."""


class IdentityError(StorageError):
    """The data directory belongs to another cluster, node or format; the message says what to type."""


class InvariantViolationError(RaftLogError):
    """A state that must not exist. The node stops; the message carries both sides of the contradiction."""
