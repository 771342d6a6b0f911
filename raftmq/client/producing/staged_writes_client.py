"""Client of staged writes for Spark's sink: it opens attempts, stages messages for them, and commits a write, which
makes its messages visible (docs/adr/0068).

Every request may safely be carried out twice, so each is repeated until it is answered or its time is over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.arguments import check_seconds
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import BatchItem, build_batch

if TYPE_CHECKING:
    from raftmq.client.cluster_view import ClusterView
    from raftmq.client.connection import Reply
    from raftmq.client.loop_thread import LoopThread


class Committed(NamedTuple):
    """The result of a committed write."""

    write: int
    """The number of the newest committed write of this name."""
    earlier: bool
    """True if the write was committed before, so that this commit changed nothing."""


class StagedWrites:
    """Opens, stages, commits and aborts writes. Blocking; may be called from any thread. Raises RaftMQError; Unknown if
    no answer came in time."""

    def __init__(self, view: ClusterView, thread: LoopThread, timeout_s: float) -> None:
        check_seconds("timeout_s", timeout_s)
        self._view = view
        self._thread = thread
        self._timeout_s = timeout_s

    def open(self, name: str, write: int) -> int | None:
        """Opens an attempt at a write and returns its number; None if that write, or a later one of the name, is
        committed."""
        reply = self._ask(
            RequestCode.OPEN_ATTEMPT, {"name": name, "write": str(write)}, b"", f"write {write} of {name}"
        )
        attempt = reply.ext.get("attempt")
        return None if attempt is None else int(attempt)

    def stage(
        self,
        attempt: int,
        sequence: int,
        topic: str,
        queue_id: int | None,
        items: Sequence[tuple[bytes, bytes]],
        born_ms: int,
    ) -> None:
        """Stages messages, each (body, properties), for one queue; nobody sees them before the commit. `sequence`
        counts the calls of the attempt from 1. Without a queue the leader chooses one. Raises Refused if the attempt
        was discarded."""
        ext = {"attempt": str(attempt), "sequence": str(sequence), "topic": topic, "bornTimestamp": str(born_ms)}
        if queue_id is not None:
            ext["queueId"] = str(queue_id)
        what = f"{len(items)} messages to {topic} for attempt {attempt}"
        self._ask(RequestCode.STAGE_MESSAGES, ext, build_batch([BatchItem(0, *item) for item in items]), what)

    def commit(self, name: str, write: int, winners: Sequence[tuple[int, int]]) -> Committed:
        """Commits the write with the messages of the winning attempts, given as (attempt, number of messages). Raises
        Refused, with nothing changed, if one of them does not exist or is incomplete."""
        body = json.dumps([list(winner) for winner in winners]).encode()
        ext = {"name": name, "write": str(write)}
        reply = self._ask(RequestCode.COMMIT_WRITE, ext, body, f"commit of write {write} of {name}")
        return Committed(int(reply.ext["committed"]), reply.ext["earlier"] == "true")

    def abort(self, name: str, write: int) -> int:
        """Discards the open attempts at the write; returns how many there were."""
        ext = {"name": name, "write": str(write)}
        return int(self._ask(RequestCode.ABORT_WRITE, ext, b"", f"write {write} of {name}").ext["attempts"])

    def _ask(self, code: RequestCode, ext: dict[str, str], body: bytes, what: str) -> Reply:
        call = self._view.call(code, ext, body, what=what, timeout_s=self._timeout_s, writes=True)
        return self._thread.run(call)
