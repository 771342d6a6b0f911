"""The metrics of request handlers; `cluster.node.metrics` keeps them."""

from __future__ import annotations

from typing import Protocol


class RequestFigures(Protocol):
    """Once per request that is refused, or per pull or query that is answered."""

    def refused(self, reason: str) -> None:
        """A request was refused before anything was proposed; `reason` is one of a few short words."""

    def code_refused(self, code: str, language: str) -> None:
        """A request of a code that nobody handles was refused; both are out of short lists."""

    def pulled(self, outcome: str) -> None:
        """A pull was answered: "found", "empty" (long poll ran out), "moved" or "refused"."""

    def messages_out(self, topic: str, messages: int, size_bytes: int) -> None:
        """A pull was answered with messages."""

    def queried(self, kind: str, outcome: str) -> None:
        """A query of single messages by "key" or "id" was answered: "found", "none" or "refused"."""
