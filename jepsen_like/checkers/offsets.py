"""The offset checker: checks the committed offsets of consumer groups by fast necessary conditions over whole
histories.

The linearizability checker judges the same registers completely, but may run out of steps; these passes never do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from itertools import accumulate
from typing import NamedTuple

from jepsen_like.checkers.history_steps import Operations, TopicQueue, place, queue_of, values_of
from jepsen_like.checkers.verdict import CheckerResult, Findings
from jepsen_like.checkers.workload import Workload
from jepsen_like.history import Operation

NAME = "offsets"

Register = tuple[str, TopicQueue]
"""A register: (group, queue)."""

OPEN = 1 << 62
"""The completion index of an operation that may still happen: higher than the index of any step."""


class _OffsetWrite(NamedTuple):
    invoked: int
    completed: int
    """Index of the completion; OPEN unless the outcome is ok."""
    offset: int
    is_reset: bool


class _Fetch(NamedTuple):
    invoked: int
    completed: int
    offset: int | None


def check(operations: Operations, workload: Workload) -> CheckerResult:
    """Checks commits, resets and fetches of every group and queue, and checks that no group commits beyond the messages
    that it had read.
    """
    findings = Findings()
    writes: dict[Register, list[_OffsetWrite]] = defaultdict(list)
    fetches: dict[Register, list[_Fetch]] = defaultdict(list)
    with values_of(operations.of("commit_offset", "reset_offset", "fetch_offset")) as watched:
        for operation in watched:
            _collect(operation, writes, fetches)
    for register, answers in fetches.items():
        _fetched(register, writes[register], answers, findings)
    _beyond_read(operations, findings)
    stats = {"commits": sum(map(len, writes.values())), "fetches": sum(map(len, fetches.values()))}
    return findings.result(NAME, stats, workload.allowed)


def register_of(operation: Operation) -> Register:
    """Returns the group and queue that an offset operation is about."""
    value = operation.invoked.value
    return str(value["group"]), queue_of(value)


def _collect(
    operation: Operation, writes: dict[Register, list[_OffsetWrite]], fetches: dict[Register, list[_Fetch]]
) -> None:
    invoked, completed = operation
    register = register_of(operation)
    if invoked.f != "fetch_offset":
        if operation.outcome != "fail":
            done = completed.index if completed is not None and completed.type == "ok" else OPEN
            offset = int(invoked.value["offset"])
            writes[register].append(_OffsetWrite(invoked.index, done, offset, invoked.f == "reset_offset"))
    elif completed is not None and completed.type == "ok":
        offset = completed.value["offset"]
        fetches[register].append(_Fetch(invoked.index, completed.index, None if offset is None else int(offset)))


def _fetched(register: Register, writes: list[_OffsetWrite], fetches: list[_Fetch], findings: Findings) -> None:
    """Checks fetches: an answer needs a write of that offset that no other write had replaced before the fetch began.

    A write is certainly replaced if another was invoked after it completed, and completed before the fetch was invoked.
    The best candidate is therefore the write of that offset that completed last. A fetch that found no offset is
    explained only by the state before the first write.
    """
    done = sorted((write for write in writes if write.completed != OPEN), key=lambda write: write.completed)
    completions = [write.completed for write in done]
    latest: list[_OffsetWrite] = list(accumulate(done, _later))
    by_offset: dict[int, list[_OffsetWrite]] = defaultdict(list)
    for write in writes:
        by_offset[write.offset].append(write)
    for fetch in fetches:
        same = () if fetch.offset is None else by_offset.get(fetch.offset, ())
        candidates = [write for write in same if write.invoked < fetch.completed]
        if fetch.offset is not None and not candidates:
            what = f"{_name(register)} was answered as {fetch.offset}, which was never committed"
            findings.add("offset-phantom", what, (fetch.completed,), subject=_name(register))
            continue
        best = max((write.completed for write in candidates), default=-1)
        before = bisect_left(completions, fetch.invoked)
        if before and latest[before - 1].invoked > best:
            _replaced(register, latest[before - 1], fetch, candidates, findings)


def _later(a: _OffsetWrite, b: _OffsetWrite) -> _OffsetWrite:
    return a if a.invoked > b.invoked else b


def _replaced(
    register: Register, newer: _OffsetWrite, fetch: _Fetch, candidates: list[_OffsetWrite], findings: Findings
) -> None:
    is_back = not newer.is_reset and (fetch.offset is None or fetch.offset < newer.offset)
    how = "reset" if newer.is_reset else "committed"
    what = f"{_name(register)} was {how} to {newer.offset}, and afterwards answered as {fetch.offset}"
    older = max(candidates, key=lambda write: write.completed, default=None)
    steps = [newer.completed, fetch.invoked, fetch.completed]
    if older is not None:
        steps.insert(0, older.completed)
    findings.add("offset-regress" if is_back else "offset-stale", what, steps, subject=_name(register))


def _beyond_read(operations: Operations, findings: Findings) -> None:
    """Reports a commit beyond the messages that the group was given: the messages in between would never be consumed.

    A group that was never seen polling the queue is not judged, because its reading was not recorded.
    """
    with values_of(operations.of("poll")) as polls:
        polled = {_reader(poll) for poll in polls}
    reached: dict[Register, int] = {}
    pending: list[tuple[int, Register, int]] = []
    with values_of(operations.of("poll", "fetch_offset", "reset_offset", "commit_offset")) as watched:
        for operation in watched:
            invoked, completed = operation
            while pending and pending[0][0] < invoked.index:
                _, register, offset = pending.pop(0)
                reached[register] = max(offset, reached.get(register, 0))
            if invoked.f == "commit_offset":
                register, offset = register_of(operation), int(invoked.value["offset"])
                if register in polled and offset > reached.get(register, 0):
                    read = reached.get(register, 0)
                    what = f"{_name(register)} was committed to {offset}, and only {read} had been read"
                    findings.add("commit-beyond-read", what, (invoked.index,), subject=_name(register))
            elif completed is not None and (entitled := _read_up_to(operation)) is not None:
                insort(pending, (completed.index, *entitled))


def _read_up_to(operation: Operation) -> tuple[Register, int] | None:
    """Returns (register, offset) if this operation allows the group to commit offsets of that queue up to `offset`: a
    poll allows the offset after its highest message, a fetch or reset the offset that it names. A reset counts whatever
    its outcome. Returns None for a poll or fetch that was not answered with ok, and for a fetch that found no offset.
    """
    value = operation.invoked.value
    if operation.invoked.f == "reset_offset":
        return register_of(operation), int(value["offset"])
    if operation.outcome != "ok" or operation.completed is None:
        return None
    answer = operation.completed.value
    if operation.invoked.f == "fetch_offset":
        return None if answer["offset"] is None else (register_of(operation), int(answer["offset"]))
    read_to = max((offset + 1 for offset, _ in answer["messages"]), default=0)
    return _reader(operation), read_to


def _reader(poll: Operation) -> Register:
    value = poll.invoked.value
    return str(value.get("group", value["consumer"])), queue_of(value)


def _name(register: Register) -> str:
    group, queue = register
    return f"the offset of {group!r} in {place(queue, 0)[:-2]}"
