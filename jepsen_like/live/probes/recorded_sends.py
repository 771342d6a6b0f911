"""The sends of a load, each of which is recorded in the history with its outcome."""

from __future__ import annotations

import asyncio
from typing import Any

from jepsen_like.demo_send import Slots
from jepsen_like.history import HistoryWriter, Op
from jepsen_like.live.nemeses.nemesis_interface import Counts
from jepsen_like.live.subjects.subject import PlacedMessage, SendFailed


class RecordedSends:
    """Begins and ends operations "send" of the history, and counts them. Event loop only; any thread may read the
    counts."""

    def __init__(self, history: HistoryWriter, first_process: int = 0) -> None:
        """`first_process`: the first of the process numbers that belong to these sends."""
        self._history = history
        self._first_process = first_process
        self._slots = Slots()
        self._acked = self._failed = self._unknown = 0

    @property
    def counts(self) -> Counts:
        """The counts so far."""
        return Counts(self._acked, self._failed, self._unknown, self._slots.busy)

    def begin(self, value: dict[str, Any]) -> Op:
        """Records that a message is sent. `value`: its topic, its id, and what else identifies it."""
        return self._history.invoke(self._first_process + self._slots.take(), "send", value)

    def end(self, invoked: Op, done: asyncio.Future[PlacedMessage]) -> PlacedMessage | SendFailed | None:
        """Records the outcome of a send and returns it: the place of the message, SendFailed if it is not stored, or
        None if the outcome is unknown.
        """
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        outcome: PlacedMessage | SendFailed | None = None
        if error is None:
            outcome = done.result()
            where = {"queue_id": outcome.queue_id, "queue_offset": outcome.queue_offset}
            self._history.ok(invoked, invoked.value | where)
            self._acked += 1
        elif isinstance(error, SendFailed):
            outcome = error
            self._history.fail(invoked, invoked.value | {"error": str(error)})
            self._failed += 1
        else:
            self._history.info(invoked, invoked.value | {"error": str(error)})
            self._unknown += 1
        self._slots.give_back(invoked.process - self._first_process, reusable=outcome is not None)
        return outcome
