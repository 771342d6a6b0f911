"""The poll checker: judges, poll by poll, the messages that consumers got while the cluster was running."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from jepsen_like.checkers.history_steps import Operations, TopicQueue, place, queue_of, values_of
from jepsen_like.checkers.log_detail import MessageOnReplica, judge_origin, judge_place
from jepsen_like.checkers.messages import Messages, columns
from jepsen_like.checkers.verdict import CheckerResult, Findings
from jepsen_like.checkers.workload import Workload
from jepsen_like.history import Operation

NAME = "polls"

_NO_NODE = -1


class _Seen(NamedTuple):
    message_id: str
    op: int


class _Position(NamedTuple):
    """The position of a consumer in a queue."""

    next_offset: int
    op: int


class _Holders:
    """The message at each offset of one queue: the one acknowledged there, else the one read there, else the first one
    polled there."""

    def __init__(self, messages: Messages, queue: TopicQueue) -> None:
        self._acked = {send.offset: send for send in messages.acked.get(queue, ())}
        dumps = messages.dumps.get(queue)
        self._dump = dumps[0] if dumps else None
        rows = self._dump.offsets if self._dump else []
        self._position = dict(zip(reversed(rows), range(len(rows) - 1, -1, -1), strict=True))
        """Offset -> row in the dump; for an offset that was read twice, the first row."""
        self._polled: dict[int, _Seen] = {}

    def get(self, offset: int) -> _Seen | None:
        """Returns the message at this offset; None if none was ever seen there."""
        if (send := self._acked.get(offset)) is not None:
            return _Seen(send.message_id, send.completed)
        if self._dump is not None and (position := self._position.get(offset)) is not None:
            return _Seen(self._dump.ids[position], self._dump.op_at(position))
        return self._polled.get(offset)

    def note(self, offset: int, message_id: str, op: int) -> _Seen:
        """Returns the message that was first seen at this offset, which is the given one if none was seen there
        before."""
        found = self.get(offset)
        if found is None:
            found = self._polled[offset] = _Seen(message_id, op)
        return found

    def first(self, start: int, end: int) -> _Seen | None:
        """Returns the first message at an offset from `start` to before `end`; None if there is none."""
        between: Iterable[int] = range(start, end)
        if end - start > len(self._acked) + len(self._position) + len(self._polled):
            known = {*self._acked, *self._position, *self._polled}
            between = sorted(offset for offset in known if start <= offset < end)
        return next((found for offset in between if (found := self.get(offset)) is not None), None)


class _Group:
    """The messages that the members of one group got, and the offsets that they committed; a consumer without a group
    is a group of its own."""

    def __init__(self) -> None:
        self.seen: dict[TopicQueue, set[int]] = defaultdict(set)
        self.next_offset: dict[TopicQueue, int] = {}
        self.committed: dict[TopicQueue, _Position] = {}
        self.reset: set[TopicQueue] = set()
        """Queues whose reading may continue at any offset once, because an operator has moved the group there."""
        self.drained: dict[TopicQueue, int] = {}
        """Queue -> index of the step that invoked the last poll which said that no message follows. A queue in which a
        later poll found messages is not in it.
        """


class _Polls:
    """Walks through polls, rebalances and commits in the order of their completions."""

    def __init__(self, messages: Messages, findings: Findings) -> None:
        self.messages = messages
        self.findings = findings
        self.holders: dict[TopicQueue, _Holders] = {}
        self.groups: dict[str, _Group] = defaultdict(_Group)
        self.positions: dict[tuple[str, TopicQueue], _Position] = {}
        self.moved: set[tuple[str, TopicQueue]] = set()
        """(consumer, queue) pairs whose assignment changed since the consumer's last poll of the queue."""
        self.polls = self.rows = 0

    def rebalance(self, operation: Operation) -> None:
        """Records that a rebalance assigned these queues to the consumer. The consumer may continue there at another
        offset, but not below the committed one.
        """
        consumer = str(operation.invoked.value["consumer"])
        queues = {(topic, int(queue_id)) for topic, queue_id in operation.invoked.value["queues"]}
        self.moved |= {(consumer, queue) for queue in queues}
        for who, queue in list(self.positions):
            if who == consumer and queue not in queues:
                del self.positions[who, queue]
                self.moved.add((consumer, queue))

    def commit(self, operation: Operation) -> None:
        """Records an acknowledged commit, which is the lowest offset at which a consumer may continue after a
        rebalance. Also records a reset, after which reading may continue anywhere.
        """
        value = operation.invoked.value
        queue, offset = queue_of(value), int(value["offset"])
        group = self.groups[str(value["group"])]
        if operation.invoked.f == "reset_offset":
            if operation.outcome != "fail":
                group.reset.add(queue)
                group.committed.pop(queue, None)
        elif operation.completed is not None and operation.outcome == "ok":
            group.committed[queue] = _Position(offset, operation.completed.index)

    def poll(self, operation: Operation) -> None:
        """Checks one answered poll."""
        invoked, completed = operation
        assert completed is not None
        value, answer = invoked.value, completed.value
        consumer, queue = str(value["consumer"]), queue_of(value)
        group = self.groups[str(value.get("group", consumer))]
        rows = answer["messages"]
        self.polls += 1
        self.rows += len(rows)
        asked = int(value["offset"])
        self._resumed(consumer, group, queue, asked, invoked.index)
        offsets, ids = columns(rows)
        if not self._is_as_stored(queue, asked, offsets, ids, completed.index):
            self._rows(queue, asked, offsets, ids, completed.index)
        expected = offsets[-1] + 1 if offsets else asked
        group.seen[queue].update(offsets)
        group.next_offset[queue] = max(expected, group.next_offset.get(queue, 0))
        self.positions[consumer, queue] = _Position(expected, completed.index)
        if answer.get("end"):
            group.drained[queue] = invoked.index
        elif rows:
            group.drained.pop(queue, None)

    def _is_as_stored(self, queue: TopicQueue, asked: int, offsets: list[int], ids: list[str], op: int) -> bool:
        """Returns True if these rows are those that a perfect queue (`Messages.perfect`) holds from offset `asked` on,
        and all of them had been sent before the step `op`. Such rows need no further check.
        """
        invoked = self.messages.perfect.get(queue)
        if invoked is None or not ids or offsets[0] != asked:
            return False
        dump = self.messages.dumps[queue][0]
        start = asked - dump.offsets[0] if dump.offsets else -1
        here = slice(start, start + len(ids))
        return start >= 0 and dump.ids[here] == ids and dump.offsets[here] == offsets and max(invoked[here]) < op

    def _rows(self, queue: TopicQueue, asked: int, offsets: list[int], ids: list[str], op: int) -> None:
        expected, kind = asked, "poll"
        for offset, message_id in zip(offsets, ids, strict=True):
            self._step(queue, expected, offset, kind, op)
            self._row(MessageOnReplica(_NO_NODE, queue, offset, op), message_id)
            expected, kind = offset + 1, "int-poll"

    def _resumed(self, consumer: str, group: _Group, queue: TopicQueue, asked: int, op: int) -> None:
        """Checks the offset at which a consumer continues. It must be the offset at which the consumer stopped or,
        after a rebalance, an offset that its group's progress allows.
        """
        position = self.positions.get((consumer, queue))
        if queue in group.reset:
            group.reset.discard(queue)
            self.moved.discard((consumer, queue))
            return
        if (consumer, queue) not in self.moved:
            if position is not None and asked != position.next_offset:
                self._jump(consumer, queue, position, asked, op)
            return
        self.moved.discard((consumer, queue))
        committed = group.committed.get(queue)
        if committed is not None and asked < committed.next_offset:
            self._jump(consumer, queue, committed, asked, op)
        reached = group.next_offset.get(queue, 0)
        if asked > max(reached, committed.next_offset if committed else 0) and self._exists(queue, reached, asked):
            self._jump(consumer, queue, _Position(reached, position.op if position else op), asked, op)

    def _jump(self, consumer: str, queue: TopicQueue, position: _Position, asked: int, op: int) -> None:
        is_back = asked < position.next_offset
        if not is_back and not self._exists(queue, position.next_offset, asked):
            return
        what = f"{consumer!r} polled {place(queue, asked)} where offset {position.next_offset} was due"
        kind = "poll-nonmonotonic" if is_back else "poll-skip"
        self.findings.add(kind, what, dict.fromkeys((position.op, op)), subject=consumer)

    def _step(self, queue: TopicQueue, expected: int, offset: int, kind: str, op: int) -> None:
        """Checks the step from one row to the next (`int-poll`), or from the requested offset to the first row
        (`poll`)."""
        if offset == expected:
            return
        if offset < expected:
            what = f"{place(queue, offset)} came where offset {expected} was due"
            self.findings.add(f"{kind}-nonmonotonic", what, (op,))
        elif skipped := self._exists(queue, expected, offset):
            what = f"{place(queue, offset)} came where offset {expected} was due; {skipped.message_id!r} was left out"
            self.findings.add(f"{kind}-skip", what, (skipped.op, op), subject=skipped.message_id)

    def _exists(self, queue: TopicQueue, start: int, end: int) -> _Seen | None:
        return self._holder(queue).first(start, end)

    def _holder(self, queue: TopicQueue) -> _Holders:
        if queue not in self.holders:
            self.holders[queue] = _Holders(self.messages, queue)
        return self.holders[queue]

    def _row(self, copy: MessageOnReplica, message_id: str) -> None:
        send = self.messages.sends.get(message_id)
        first = self._holder(copy.queue).note(copy.offset, message_id, copy.op)
        if first.message_id != message_id:
            where = place(copy.queue, copy.offset)
            what = f"{where} is {message_id!r} in this poll and {first.message_id!r} elsewhere"
            self.findings.add("inconsistent-offset", what, (first.op, copy.op), subject=message_id)
        if send is None or send.outcome == "fail" or copy.op < send.invoked or send.topic != copy.queue[0]:
            judge_origin(send, message_id, copy, self.findings)
        if send is None:
            return
        judge_place(send, copy, self.findings)
        known = send.place
        if known is None:
            send.found = (copy.queue, copy.offset)
            if self.messages.nodes:
                what = f"{message_id!r} was polled at {place(copy.queue, copy.offset)} and is on no replica"
                self.findings.add("lost-write", what, (send.invoked, copy.op), subject=message_id)
        elif send.queue is None and known != (copy.queue, copy.offset):
            what = f"{message_id!r} was polled at {place(copy.queue, copy.offset)} and stands at {place(*known)}"
            self.findings.add("duplicate", what, (send.invoked, copy.op), subject=message_id)


def check(operations: Operations, messages: Messages, workload: Workload) -> CheckerResult:
    """Checks every poll. If the workload must drain its queues, also checks that each group received every acknowledged
    message of its topics.
    """
    findings = Findings()
    if not operations.of("poll"):
        if workload.must_drain:
            findings.doubt("the workload must drain its queues, but there was no poll")
        return findings.result(NAME, {"polls": 0, "polled": 0}, workload.allowed)
    polls = _Polls(messages, findings)
    wanted = operations.of("poll", "rebalance", "commit_offset", "reset_offset")
    with values_of(sorted(wanted, key=_moment)) as watched:
        for operation in watched:
            if operation.invoked.f == "rebalance":
                polls.rebalance(operation)
            elif operation.invoked.f != "poll":
                polls.commit(operation)
            elif operation.outcome == "ok":
                polls.poll(operation)
    if workload.must_drain:
        _unseen(polls, operations.of("poll"), findings)
    return findings.result(NAME, {"polls": polls.polls, "polled": polls.rows}, workload.allowed)


def _moment(operation: Operation) -> int:
    return (operation.completed or operation.invoked).index


def _unseen(polls: _Polls, asked: list[Operation], findings: Findings) -> None:
    """Reports messages that no member of a group got, although they were acknowledged before the group polled the queue
    to its end, or are below the highest offset that the group reached. Records a doubt for each queue that a group did
    not poll to its end after the last send.
    """
    topics: dict[str, set[str]] = defaultdict(set)
    with values_of(asked) as watched:
        for operation in watched:
            value: dict[str, Any] = operation.invoked.value
            topics[str(value.get("group", value["consumer"]))].add(str(value["topic"]))
    for name, wanted_topics in topics.items():
        group = polls.groups[name]
        for queue, shelf in polls.messages.shelves.items():
            if queue[0] in wanted_topics:
                _unseen_in(name, group, queue, polls, findings, last_ack=max(shelf.completed))


def _unseen_in(
    name: str, group: _Group, queue: TopicQueue, polls: _Polls, findings: Findings, *, last_ack: int
) -> None:
    drained = group.drained.get(queue, -1)
    if drained < last_ack:
        findings.doubt(f"group {name!r} did not poll {queue[0]}/{queue[1]} to its end after the last send")
    reached = group.next_offset.get(queue, 0)
    if group.seen[queue].issuperset(polls.messages.shelves[queue].offsets):
        return
    for send in polls.messages.acked[queue]:
        if send.offset in group.seen[queue]:
            continue
        if send.completed < drained or send.offset < reached:
            what = f"{send.message_id!r} was acknowledged at {place(queue, send.offset)}, and {name!r} never saw it"
            steps = (send.completed, drained) if drained > send.completed else (send.completed,)
            findings.add("unseen", what, steps, subject=send.message_id)
