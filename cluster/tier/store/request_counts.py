"""What a store was asked, how it ended, and how many bytes went each way."""

from __future__ import annotations

from collections import Counter


class RequestCounts:
    """Counts since the process started. Event loop only."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """(operation, outcome): outcome is ok or the name of an error class in `errors.py`, or Timeout."""
        self.retries = 0
        self.sent_bytes = 0
        """Of writes that succeeded."""
        self.received_bytes = 0

    def record(self, operation: str, outcome: str) -> None:
        """One request ended."""
        self.requests[operation, outcome] += 1

    def retried(self) -> None:
        """A request is sent once more."""
        self.retries += 1

    def sent(self, size: int) -> None:
        """So many bytes were written."""
        self.sent_bytes += size

    def received(self, size: int) -> None:
        """So many bytes were read."""
        self.received_bytes += size
