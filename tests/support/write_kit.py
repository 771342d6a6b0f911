"""Writes that the second of two groups of brokers has prepared, for tests of cluster/truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statemachine.delivery.prepared_writes import CommitGroups, PrepareWrite
from statemachine.delivery.staged_writes import STAGED_DUE, OpenAttempt
from statemachine.topics.topics import CreateTopic
from tests.support.truth_kit import SECOND
from tests.support.two_groups import Two


def groups_of_writes(new_log: Callable[[], Any]) -> Two:
    """Two groups with a topic that has queues in both."""
    made = Two(new_log)
    made.first.log.one(SECOND)
    made.first.log.one(CreateTopic({"name": "t", "place": [[1, 2, 2], [2, 2, 2]]}, False))
    made.run(1000)
    return made


def open_staged(two: Two, name: str = "q", write: int = 0) -> int:
    """An open attempt of the second group with two messages."""
    second = two.second.log
    attempt: int = second.one(OpenAttempt(name, write, 5)).value
    second.state.apply([second.log.messages(second.log.scheduled(1, 0, 2, STAGED_DUE + attempt))])
    return attempt


def prepared(two: Two, name: str = "q", write: int = 0) -> tuple[int, int]:
    """(decider, attempt of the second group) of a write that the second group has prepared."""
    decider = two.first.log.one(OpenAttempt(name, write, 5)).value
    attempt = open_staged(two, name, write)
    second = two.second.log
    assert second.one(PrepareWrite(name, write, second.log.now_ms, decider, [(attempt, 2)])).ok
    return decider, attempt


def commit(two: Two, decider: int, name: str = "q", write: int = 0) -> None:
    """Commits a write that has no messages in the first group."""
    assert two.first.log.one(CommitGroups(name, write, 7, decider, [], [2])).ok


def states(two: Two) -> dict[int, str]:
    """The states of the second group's attempts."""
    return {one.number: one.state.name.lower() for one in two.second.log.state.writes.attempts()}


def nothing_waits(two: Two) -> bool:
    """True if neither group has a row about a write of both."""
    return not two.first.log.state.prepared_writes.decisions and not two.second.log.state.prepared_writes.prepared
