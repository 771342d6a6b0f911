"""Repeated sends whose first arrival's client still waits: both are answered, with the same outcome."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from cluster.runtime.contained import contain

if TYPE_CHECKING:
    from cluster.replication.early_answers import EarlyAnswers
    from cluster.replication.message_batch import Built, Send
    from cluster.replication.outcome import ReplyTo


class Twins:
    """By identity. They are never proposed; their bytes are counted like those of any send."""

    def __init__(self, early: EarlyAnswers, give_back: Callable[[int], None]) -> None:
        """`give_back`: called with the number of bytes no longer in flight."""
        self._early = early
        self._give_back = give_back
        self.waiting: dict[tuple[bytes, int], list[Send]] = {}
        """By identity. Usually empty: check before a call."""

    def add(self, send: Send) -> None:
        """It waits for the outcome of the send with its identity."""
        self.waiting.setdefault((send.producer_id, send.sequence), []).append(send)

    def take(self, sends: Iterable[Send]) -> list[tuple[int, Send]]:
        """(position in `sends`, twin) of all that wait for one of them, which is decided."""
        if not self.waiting:
            return []
        return [
            (at, twin)
            for at, send in enumerate(sends)
            if send.producer_id
            for twin in self.waiting.pop((send.producer_id, send.sequence), ())
        ]

    def stored(self, sends: list[Send], built: Built) -> None:
        """The sends are committed and applied: so are their twins."""
        for at, twin in self.take(sends):
            twin.connection.inflight_bytes -= twin.size
            self._give_back(twin.size)
            first, place = sends[at], built.positions[at]
            position = place if isinstance(place, int) else place[0]
            self._early.answer_stored(twin, first.slot.topic_id, first.queue_id, built.offsets[at], position)

    def tell(
        self, sends: list[Send], tell: Callable[[Send, str], None], remark: str, muted: Collection[int] = ()
    ) -> None:
        """Answers the sends, except those at the `muted` positions, and all their twins with `remark`. A failure to
        answer one does not affect the others."""
        for at, send in enumerate(sends):
            if at not in muted:
                contain("answering a send", tell, send, remark)
        for _, twin in self.take(sends):
            self._give_back(twin.size)
            contain("answering a send", tell, twin, remark)

    def of(self, paths: Collection[ReplyTo]) -> list[Send]:
        """Those that came through one of `paths`."""
        return [twin for twins in self.waiting.values() for twin in twins if twin.connection in paths]
