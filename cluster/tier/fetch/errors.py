"""Reasons for which bytes of the tier cannot be served, beside the errors of stores (`cluster.tier.store.errors`)."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from cluster.tier.store.errors import StoreError


class DamagedError(StoreError):
    """Bytes of the tier do not match their checksum, neither in the store nor in any other source that was asked."""


class NotTieredError(StoreError):
    """No verified segment of the tier holds the position, or the offset of the queue."""


# Remembers which objects of the tier could not be read, so that readers, who come many times a second, do not ask the
# store each time.
#
# Each object has its own pause, which doubles up to PAUSE_MAX_S, or up to RETRY_MAX_S if the store itself failed. Until
# the pause is over, readers get the last error at once. The log has one line when an object becomes unreadable, and one
# when it can be read again.

logger = logging.getLogger(__name__)

PAUSE_FIRST_S, PAUSE_MAX_S, RETRY_MAX_S = 1.0, 60.0, 8.0
KEYS_MAX = 4096
"""The most keys that are remembered; beyond it the oldest are forgotten."""


class _Known(NamedTuple):
    error: StoreError
    pause_s: float
    due_s: float
    """The end of the pause, by the clock of the event loop."""


class Broken:
    """The objects, or parts of objects, that could not be read, by key. Event loop only."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def check(self, key: str) -> None:
        """Raises the last error for this key, if its pause is not over."""
        known = self._known.get(key) if self._known else None
        if known is not None and asyncio.get_running_loop().time() < known.due_s:
            raise type(known.error)(known.error.what, known.error.fix)

    def failed(self, key: str, error: StoreError) -> None:
        """Records that the key could not be read, and begins a pause."""
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
        """Records that the object was read, which ends its pause."""
        if self._known and self._known.pop(key, None) is not None:
            logger.info("tier: %s can be read again", key, extra={"key": key})

    def forget(self) -> None:
        """Forgets all pauses, because the store has changed."""
        self._known.clear()
