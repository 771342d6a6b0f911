"""An abort of a write that another group has prepared is decided by the first group, and never against its decision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.broker.refusal import Reason, Refused
from cluster.broker.transactions.staged_writes import Aborted, discard_attempts
from cluster.truth.write_decisions import ASK_EVERY_MS
from statemachine.delivery.prepared_writes import CommitGroups
from tests.support.two_groups import Two
from tests.support.write_kit import groups_of_writes, open_staged, prepared, states


@pytest.fixture
def two(new_log: Any) -> Two:
    return groups_of_writes(new_log)


def abort(two: Two, write: int = 0, *, dry_run: bool = False) -> list[Aborted | Refused]:
    services: Any = SimpleNamespace(
        turns=SimpleNamespace(begin=lambda owner, steps: list(steps)),
        state=two.second.log.state,
        propose=two.submit_in_second,
        config=SimpleNamespace(cluster=SimpleNamespace(group=2)),
        log_time_ms=two.second.log_time_ms,
    )
    told: list[Aborted | Refused] = []
    discard_attempts(services, "q", write, told.append, owner=two, dry_run=dry_run)
    return told


def test_an_abort_is_decided_by_the_first_group(two: Two) -> None:
    decider, attempt = prepared(two)
    other = open_staged(two)
    told = abort(two)
    two.second.decide()
    assert states(two) == {attempt: "prepared", other: "discarded"}
    assert not told, "it is not decided"
    two.run(ASK_EVERY_MS)
    assert states(two) == {attempt: "discarded", other: "discarded"}
    [done] = told
    assert isinstance(done, Aborted)
    assert (done.attempts, done.messages) == (2, 4)
    assert two.first.log.state.writes.get(decider) is None
    assert two.first.log.one(CommitGroups("q", 0, 9, decider, [], [2])).code == "incomplete"


def test_an_abort_after_the_commit_is_refused(two: Two) -> None:
    decider, attempt = prepared(two)
    assert two.first.log.one(CommitGroups("q", 0, 9, decider, [], [2])).ok
    told = abort(two)
    two.run(2 * ASK_EVERY_MS)
    assert states(two) == {attempt: "committed"}
    [refused] = told
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.ILLEGAL


def test_an_abort_without_the_first_group_changes_nothing(two: Two) -> None:
    _, attempt = prepared(two)
    two.back.is_open = False
    [refused] = abort(two)
    assert isinstance(refused, Refused)
    assert "nothing was done" in refused.remark
    assert states(two) == {attempt: "prepared"}


def test_a_dry_run_counts_what_is_prepared_and_another_write_stays(two: Two) -> None:
    _, attempt = prepared(two)
    [planned] = abort(two, dry_run=True)
    assert isinstance(planned, Aborted)
    assert (planned.attempts, planned.messages) == (1, 2)
    [nothing] = abort(two, write=1)
    assert isinstance(nothing, Aborted)
    assert (nothing.attempts, nothing.messages) == (0, 0)
    assert states(two) == {attempt: "prepared"}
