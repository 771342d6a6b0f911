"""Messages read out of the node's log for consumers: sliced as they were stored, never without a matching CRC."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import google_crc32c

from cluster.broker.services import Services
from raftlog.errors import OutOfRangeError, StorageError
from statemachine.query import QueueItem

logger = logging.getLogger(__name__)

GAP_BYTES = 8 << 10
"""Bytes of other queues that are read along rather than skipped, per message: copying them costs less than a read of
its own. What one pull reads is bounded by this and `pull.MESSAGES_MAX`."""

_crc32c = google_crc32c.value


class Log(Protocol):
    """What bytes are read from: the services of a node, or what reads for them on another thread."""

    def read_log(self, position: int, size: int) -> bytes:
        """See `Services`."""


def read_intact(services: Log, items: Sequence[QueueItem], *, told: int = logging.ERROR) -> list[bytes]:
    """The stored messages of `items`, up to the first whose bytes do not match its CRC even when read again. What
    cannot be read is logged at the level `told`.

    One read when they lie close together, one each otherwise.
    """
    block, first = _read_block(services, items), items[0].position
    pieces: list[bytes] = []
    for item in items:
        at = item.position - first
        piece = block[at : at + item.size]
        if len(piece) != item.size or _crc32c(piece) != item.crc32c:
            alone = _read_one(services, item, told)
            if alone is None:
                break
            piece = alone
        pieces.append(piece)
    return pieces


def is_here(services: Services, item: QueueItem) -> bool:
    """False if this node's log does not reach down to the item: it was trimmed, and the rows do not know it yet, or
    the node's log is still being filled up from the others."""
    try:
        services.read_log(item.position, 0)
    except OutOfRangeError:
        return False
    except StorageError:
        pass
    return True


def _read_block(services: Log, items: Sequence[QueueItem]) -> bytes:
    """All the items in one read, with what lies between them; b"" if that would not pay or fails."""
    first = items[0].position
    span = items[-1].position + items[-1].size - first
    if len(items) < 2 or span > sum([item.size for item in items]) + GAP_BYTES * len(items):
        return b""
    try:
        return services.read_log(first, span)
    except (StorageError, OutOfRangeError):
        return b""  # one by one then: what can be read is served


def _read_one(services: Log, item: QueueItem, told: int) -> bytes | None:
    """One message, read a second time if it does not match; None if it can not be read intact."""
    try:
        for _ in range(2):
            piece = services.read_log(item.position, item.size)
            if len(piece) == item.size and _crc32c(piece) == item.crc32c:
                return piece
    except StorageError as error:
        logger.log(told, "reading %d bytes at position %d: %s", item.size, item.position, error)
    except OutOfRangeError:
        pass  # see `is_here`
    return None
