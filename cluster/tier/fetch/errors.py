"""Why bytes of the tier cannot be served, beside what stores raise (`cluster.tier.store.errors`)."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from cluster.tier.store.errors import StoreError


class DamagedError(StoreError):
    """Bytes of the tier do not match their checksum, in the store and wherever else they were looked for."""


class NotTieredError(StoreError):
    """No verified segment of the tier holds the position, or the queue's offset."""


# What of the tier could not be read, and when the store is asked for it again: readers come many times a second.
#
# Each object has a pause of its own, which doubles up to PAUSE_MAX_S, or RETRY_MAX_S if it was the store that failed.
# Until it is over, readers are told at once what was wrong the last time. The log has a line when something breaks,
# and one when it is whole again.

logger = logging.getLogger(__name__)

PAUSE_FIRST_S, PAUSE_MAX_S, RETRY_MAX_S = 1.0, 60.0, 8.0
KEYS_MAX = 4096
"""Remembered; then the oldest are forgotten."""


class _Known(NamedTuple):
    error: StoreError
    pause_s: float
    due_s: float
    """Time by the loop's clock."""


class Broken:
    """Event loop only. A key names an object, or a part of one."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def check(self, key: str) -> None:
        """Raises what was wrong the last time, until it is time to look again."""
        known = self._known.get(key) if self._known else None
        if known is not None and asyncio.get_running_loop().time() < known.due_s:
            raise type(known.error)(known.error.what, known.error.fix)

    def failed(self, key: str, error: StoreError) -> None:
        """It could not be read."""
        known = self._known.pop(key, None)
        pause_max_s = RETRY_MAX_S if error.retryable else PAUSE_MAX_S
        pause_s = PAUSE_FIRST_S if known is None else min(pause_max_s, 2 * known.pause_s)
        if known is None or type(known.error) is not type(error):
            logger.warning(
                "tier: %s cannot be read: %s. It is looked for again after pauses of up to %d s",
                key,
                error,
                pause_max_s,
                extra={"key": key},
            )
        self._known[key] = _Known(error, pause_s, asyncio.get_running_loop().time() + pause_s)
        if len(self._known) > KEYS_MAX:
            del self._known[next(iter(self._known))]

    def whole(self, key: str) -> None:
        """It was read."""
        if self._known and self._known.pop(key, None) is not None:
            logger.info("tier: %s can be read again", key, extra={"key": key})

    def forget(self) -> None:
        """The store has changed: everything is looked for at once."""
        self._known.clear()
