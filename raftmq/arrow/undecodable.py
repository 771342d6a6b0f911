"""The treatment of messages whose bodies cannot be decompressed. Such bodies are other people's data, so the reader
decides whether they may stop the read."""

from __future__ import annotations

import logging
import threading

from raftmq.arrow.ranges import Unreadable

logger = logging.getLogger(__name__)

FAIL = "fail"
"""The read fails, and the error names topic, queue and offset."""
RAW = "raw"
"""The row has the body as it is stored."""
SKIP = "skip"
"""The row is left out."""
CHOICES = (FAIL, RAW, SKIP)


class Undecoded(Unreadable):
    """A body could not be decompressed, and the reader chose FAIL. Reading again does not help."""


class Undecodable:
    """Applies one of CHOICES, and counts the messages that cannot be decompressed. Any thread may use it."""

    def __init__(self, choice: str = FAIL) -> None:
        """Raises ValueError for a word that is none of CHOICES."""
        if choice not in CHOICES:
            raise ValueError(f"on_undecodable={choice!r} is not one of {', '.join(CHOICES)}")
        self.choice = choice
        self.count = 0
        self._first = ""
        self._lock = threading.Lock()

    def met(self, place: str, why: str) -> bool:
        """Records the undecodable message at `place`; returns True if its row stays, with the body as stored. Raises
        Undecoded if the read is to fail."""
        if self.choice == FAIL:
            raise Undecoded(
                f"the body of {place} cannot be decoded",
                f"the message {why}",
                f"to go on, say {RAW} (the body as stored) or {SKIP}: onUndecodable, on_undecodable, --on-undecodable",
            )
        with self._lock:
            self._first = self._first or f"{place} {why}"
            self.count += 1
        return self.choice == RAW

    def tell(self, what: str) -> None:
        """Logs, once a read of `what` is complete, how many messages could not be decompressed and which was the
        first."""
        if self.count:
            done = "left out" if self.choice == SKIP else "with the body as stored"
            logger.warning(
                "%s: messages that cannot be decoded are %s: %d, first %s", what, done, self.count, self._first
            )
