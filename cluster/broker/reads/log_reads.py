"""Reads messages from the node's log for consumers. The bytes are returned as they were stored, and only if they match
their CRC."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from cluster.broker.reads.pull_bodies import POSITION_SIZE, body_of, extent_of, position_of
from cluster.broker.services import Services
from raftlog.errors import OutOfRangeError, StorageError
from statemachine.payload import ITEM
from statemachine.queue_reads import QueueItem

logger = logging.getLogger(__name__)

GAP_BYTES = 8 << 10
"""The longest gap between two messages, in bytes, that is read along with them rather than skipped. Copying such a gap
costs less than another read. Together with `pull_values.MESSAGES_MAX` this limits the bytes that one pull reads."""
WHOLE_BYTES = 256 << 10
"""The bytes up to which only the mean of the gaps is compared with GAP_BYTES. In a longer extent each gap is compared:
behind a gap of a megabyte there may be hundreds of small messages, and their small mean would hide it."""


class Log(Protocol):
    """Gives access to the bytes of the log. Implemented by the services of a node, and by a reader on another
    thread."""

    def read_log(self, position: int, size: int) -> bytes:
        """Returns `size` bytes of the log at a position (see `Services.read_log`)."""


def read_body(
    services: Log, items: bytes, extent: tuple[int, int, int] | None = None, *, told: int = logging.ERROR
) -> tuple[bytes, int]:
    """Returns the stored messages of the packed `items`, back to back, and their number: up to the first message whose
    bytes do not match its CRC even when read again. `told`: the level at which an unreadable message is logged.

    Messages close to each other are read at once. `extent`: the result of `extent_of` for the items; None if the caller
    does not have it.
    """
    first, span, _ = extent or extent_of(items)
    if span <= min(WHOLE_BYTES, GAP_BYTES * (len(items) // ITEM.size)):
        return _read_run(services, items, first, span, told)
    parts: list[bytes] = []
    count = 0
    for run in _runs(items):
        part, intact = _read_run(services, run, *extent_of(run)[:2], told)
        parts.append(part)
        count += intact
        if intact * ITEM.size < len(run):
            break
    return b"".join(parts), count


def read_intact(services: Log, items: Sequence[QueueItem], *, told: int = logging.ERROR) -> list[bytes]:
    """Reads the messages of `items` as `read_body` does, but returns them as a list."""
    body, count = read_body(services, b"".join([ITEM.pack(*item[1:]) for item in items]), told=told)
    pieces: list[bytes] = []
    at = 0
    for item in items[:count]:
        pieces.append(body[at : at + item.size])
        at += item.size
    return pieces


def is_here(services: Services, position: int) -> bool:
    """Returns False if this node's log does not reach down to the position: it was trimmed and the rows do not show
    this yet, or the node is still fetching that part from other nodes."""
    try:
        services.read_log(position, 0)
    except OutOfRangeError:
        return False
    except StorageError:
        pass
    return True


def _runs(items: bytes) -> Iterator[bytes]:
    """Yields the packed items in parts, divided where more than GAP_BYTES lie between two of them."""
    begin, end = 0, position_of(items)
    for number, (position, size) in enumerate(POSITION_SIZE.iter_unpack(items)):
        if position - end > GAP_BYTES:
            yield items[begin * ITEM.size : number * ITEM.size]
            begin = number
        end = position + size
    yield items[begin * ITEM.size :]


def _read_run(services: Log, items: bytes, first: int, span: int, told: int) -> tuple[bytes, int]:
    try:
        block = services.read_log(first, span)
    except (StorageError, OutOfRangeError):
        block = b""  # the messages are then read one by one, so that the intact ones are served
    body, count = body_of(items, block, first)
    if count * ITEM.size == len(items):
        return body, count
    parts = [body]
    for at in range(count * ITEM.size, len(items), ITEM.size):
        item = items[at : at + ITEM.size]
        part, intact = body_of(item, block, first)
        if not intact:
            part, intact = _read_one(services, item, told)
        if not intact:
            break
        parts.append(part)
    return b"".join(parts), count + len(parts) - 1


def _read_one(services: Log, item: bytes, told: int) -> tuple[bytes, int]:
    """Reads one message, and once more if it does not match its CRC. Returns (bytes, 1), or (b"", 0) if it cannot be
    read intact."""
    position, size = POSITION_SIZE.unpack(item)
    try:
        for _ in range(2):
            part, intact = body_of(item, services.read_log(position, size), position)
            if intact:
                return part, intact
    except StorageError as error:
        logger.log(told, "reading %d bytes at position %d: %s", size, position, error)
    except OutOfRangeError:
        pass  # this node's log does not have the message (see `is_here`)
    return b"", 0
