"""Client of staged writes for Spark's sink: it opens attempts, stages messages for them, and commits a write, which
makes its messages visible (docs/adr/0068), in several groups of brokers at once (docs/adr/0109).

Every request may safely be carried out twice, so each is repeated until it is answered or its time is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.arguments import check_seconds
from raftmq.client.errors import RaftMQError
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import BatchItem, build_batch
from raftmq_wire.queue_numbers import FIRST_GROUP, group_of, queue_in_group

if TYPE_CHECKING:
    from raftmq.client.cluster_view import ClusterView
    from raftmq.client.connection import Reply
    from raftmq.client.loop_thread import LoopThread


class Committed(NamedTuple):
    """The result of a commit."""

    write: int
    """The number of the newest committed write of this name."""
    earlier: bool
    """True if the write had been committed before this commit, which then changed nothing."""


class StagedWrites:
    """Opens, stages, commits and aborts writes. Blocking; may be called from any thread. Raises RaftMQError; Unknown if
    no answer came in time."""

    def __init__(self, view: ClusterView, thread: LoopThread, timeout_s: float) -> None:
        check_seconds("timeout_s", timeout_s)
        self._view = view
        self._thread = thread
        self._timeout_s = timeout_s

    def open(self, name: str, write: int, *, group: int = FIRST_GROUP) -> int | None:
        """Opens an attempt at a write in a group of brokers and returns its number there; None if this write, or a
        later write of the same name, is already committed."""
        ext = {"name": name, "write": str(write)}
        reply = self._ask(RequestCode.OPEN_ATTEMPT, ext, b"", f"write {write} of {name}", group)
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
        *,
        group: int = FIRST_GROUP,
    ) -> None:
        """Stages messages, each (body, properties), for one queue; consumers do not see them before the commit.
        `sequence` counts the calls of the attempt from 1. `group`: the group of brokers of the attempt, in which the
        queue must be; without a queue its leader chooses one. Raises Refused if the attempt was discarded."""
        ext = {"attempt": str(attempt), "sequence": str(sequence), "topic": topic, "bornTimestamp": str(born_ms)}
        if queue_id is not None:
            ext["queueId"] = str(queue_in_group(queue_id) if group == group_of(queue_id) else queue_id)
        what = f"{len(items)} messages to {topic} for attempt {attempt}"
        body = build_batch([BatchItem(0, *item) for item in items])
        self._ask(RequestCode.STAGE_MESSAGES, ext, body, what, group)

    def commit(self, name: str, write: int, winners: Sequence[tuple[int, int]]) -> Committed:
        """Commits the write with the messages of the winning attempts, given as (attempt, number of messages). Raises
        Refused, with nothing changed, if one of them does not exist or is incomplete."""
        ext = {"name": name, "write": str(write)}
        reply = self._ask(RequestCode.COMMIT_WRITE, ext, _packed(winners), f"commit of write {write} of {name}")
        return Committed(int(reply.ext["committed"]), reply.ext["earlier"] == "true")

    def commit_in_groups(self, name: str, write: int, winners: Mapping[int, Sequence[tuple[int, int]]]) -> Committed:
        """Commits the write with the messages of the winning attempts of each group of brokers: either in all groups or
        in none. The first group decides; the others follow by themselves within about a second. Raises Refused as
        `commit` does."""
        of_first = winners.get(FIRST_GROUP, ())
        further = sorted(group for group, of in winners.items() if of and group != FIRST_GROUP)
        if not further:
            return self.commit(name, write, of_first)
        decider = self.open(name, write)
        if decider is None:
            self._discard(name, write, further)
            return Committed(write, earlier=True)
        ext = {"name": name, "write": str(write), "decider": str(decider)}
        for group in further:
            what = f"write {write} of {name} in group {group}"
            self._ask(RequestCode.PREPARE_WRITE, ext, _packed(winners[group]), what, group)
        ext["groups"] = ",".join(map(str, further))
        what = f"commit of write {write} of {name}"
        reply = self._ask(RequestCode.COMMIT_GROUPS, ext, _packed(of_first), what)
        return Committed(int(reply.ext["committed"]), reply.ext["earlier"] == "true")

    def _discard(self, name: str, write: int, groups: Iterable[int]) -> None:
        """Discards losing attempts. In a group that does not answer, they stay until they expire."""
        for group in groups:
            with suppress(RaftMQError):
                self.abort(name, write, group=group)

    def abort(self, name: str, write: int, *, group: int = FIRST_GROUP) -> int:
        """Discards the open attempts at the write in a group of brokers; returns how many there were."""
        ext = {"name": name, "write": str(write)}
        return int(self._ask(RequestCode.ABORT_WRITE, ext, b"", f"write {write} of {name}", group).ext["attempts"])

    def _ask(self, code: RequestCode, ext: dict[str, str], body: bytes, what: str, group: int = FIRST_GROUP) -> Reply:
        return self._thread.run(self._call(code, ext, body, what, group))

    async def _call(self, code: RequestCode, ext: dict[str, str], body: bytes, what: str, group: int) -> Reply:
        view = await self._view.groups.when_heard(group)
        return await view.call(code, ext, body, what=what, timeout_s=self._timeout_s, writes=True)


def _packed(winners: Sequence[tuple[int, int]]) -> bytes:
    return json.dumps([list(winner) for winner in winners]).encode()
