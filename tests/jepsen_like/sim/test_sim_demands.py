"""Clients that know one thing that must hold each: what breaks it is found."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from cluster.broker.groups.group_offsets import Offsets
from cluster.broker.pulls.pull_service import Pulls
from cluster.broker.reads.message_lookup import KeyLookup, QueryResult
from jepsen_like.sim.options import LATER_KINDS, draw
from jepsen_like.sim.scripted import play
from statemachine.dedup import ProducerSession


def found(options: str, seconds: float = 4) -> list[tuple[str, str]]:
    script = f"nodes 3 queues=2 {options}\nlead 1\ndemand {seconds}\nsettle\n"
    return [(violation.checker, violation.what) for violation in play(script).violations]


@pytest.mark.parametrize("options", ["waits=1", "seekers=1", "repeats=1 batch_messages_max=16"])
def test_what_they_demand_holds(options: str) -> None:
    assert found(options) == []


def test_a_pull_that_is_not_told_that_nothing_came_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pulls, "reply_nothing", lambda pulls, waiting: None)
    assert found("waits=1") == [("answers", "a pull that may wait no longer has no answer (26 s)")]


def test_a_queue_that_there_is_not_and_takes_commits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offsets, "_queue", lambda offsets, topic, queue_id: offsets._services.state.topics[topic])
    ((checker, what),) = found("waits=1")
    assert checker == "answers"
    assert "is answered as done" in what


def test_a_message_that_is_acknowledged_and_not_found_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = QueryResult([], None, False)

    def steps(lookup: KeyLookup) -> Generator[None, None, QueryResult]:
        yield
        return nothing

    monkeypatch.setattr(KeyLookup, "steps", steps)
    assert "is not found" in found("seekers=1")[0][1]


def test_a_send_that_is_stored_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerSession, "find", lambda session, sequence: None)
    assert found("repeats=1")[0][0] == "log"


def test_seeds_without_them_are_those_of_before() -> None:
    drawn = [draw(seed) for seed in range(200)]
    fields = ("waits", "seekers", "repeats", "tales")
    plain = [options for options in drawn if not any(getattr(options, name) for name in fields)]
    added = [options for options in plain if any(options.later[2:])]
    assert LATER_KINDS[2:] == ("crash-after-sync", "late-apply")
    assert 80 < len(plain) - len(added) < 130
