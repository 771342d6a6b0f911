"""Nodes of a second group in the simulated world: the product passes, and what is broken is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.groups.group_offsets import Offsets
from cluster.placement import known_groups
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.truth import write_decisions
from jepsen_like.sim.groups.placed_writers import NAME
from jepsen_like.sim.options import GROUP_WRITES_FROM, SECOND_FROM, draw
from jepsen_like.sim.scripted import ScriptedWorld
from raftlog.types import EntryId
from statemachine.commands import CommandResult
from statemachine.delivery.prepared_writes import EndPrepared, ForgetPrepared, PreparedState

BEGIN = "nodes 3 second=1 groups=1\nlead 1\n"
WRITING = BEGIN.replace("groups=1", "groups=1 group_writes=1")
STORY = (
    BEGIN + "groups 1\nsecond 2\nkill 1\nwait 1\nstart 1\napart\nwait 2\nheal\nkill 1@2\nwait 1\nstart 1@2\nsettle\n"
)


def played(script: str) -> tuple[ScriptedWorld, list[str], str]:
    """Plays a script; returns the world, the checkers that reported, and the hash of all events."""
    stage = ScriptedWorld(script)
    result = stage.run()
    return stage, [violation.checker for violation in result.violations], result.hash


def test_both_groups_serve_clients_across_faults_and_a_run_repeats_exactly() -> None:
    stage, found, digest = played(STORY)
    assert found == []
    second = stage.second
    assert second is not None
    for recorder in second.recorders.values():
        assert recorder.counts["send ok"] > 20
        assert recorder.counts["repeat ok"] > 0
        assert recorder.counts["read ok"] == 6  # two queues on three replicas
    assert all(client.routes for client in second.clients)
    assert all(reader.queried and max(reader.offsets.values()) > 5 for reader in second.readers)
    assert len(second.changer.made) > 5
    assert second.maps.changes > 6
    again, _, same = played(STORY)
    assert same == digest
    assert again.second is not None
    assert again.second.changer.made == second.changer.made


def test_a_writer_to_both_groups_across_faults() -> None:
    stage, found, _ = played(
        WRITING
        + "second 2\nkill 1\nwait 1\nstart 1\napart\nwait 1\nheal\nkill 1@2\nwait 1\nstart 1@2\nwait 2\nsettle\n"
    )
    assert found == []
    assert stage.second is not None
    writer = stage.second.writer
    assert writer is not None
    assert writer.counts["COMMIT_GROUPS"] > 3
    assert len(writer.judge.acked) > 5


class Counted(ScriptedWorld):
    """A world whose script notes how many sends the second group has acknowledged (`count`)."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.counts: list[int] = []

    def do_count(self) -> None:
        assert self.second is not None
        self.counts.append(self.second.recorders[2].counts["send ok"])


def test_the_second_group_starts_and_serves_without_the_first() -> None:
    stage = Counted(
        BEGIN + "second 1\nkill 1 2 3\nkill 1@2 2@2 3@2\nwait 0.2\ncount\nstart 1@2 2@2 3@2\nwait 4\ncount\n"
        "start 1 2 3\nsettle\n"
    )
    assert stage.run().violations == ()
    before, after = stage.counts
    assert after > before + 5


def test_a_quarter_of_the_seeds_have_nodes_of_a_second_group() -> None:
    assert not any(draw(seed).second for seed in range(SECOND_FROM - 40, SECOND_FROM))
    drawn = [draw(seed) for seed in range(SECOND_FROM, SECOND_FROM + 100)]
    assert 10 < sum(options.second for options in drawn) < 40
    assert all(options.groups and not options.levels for options in drawn if options.second)
    assert not any(options.group_writes for options in drawn)
    later = [draw(seed) for seed in range(GROUP_WRITES_FROM, GROUP_WRITES_FROM + 100)]
    assert 5 < sum(options.group_writes for options in later) < sum(options.second for options in later)


def takes_every_map(patch: pytest.MonkeyPatch) -> None:
    def news(known: Any, heard: Any, own: int = 0) -> Any:
        return {record.group: record for record in heard if record.group != own and known.get(record.group) != record}

    patch.setattr(known_groups, "news", news)


def commits_nothing(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Any, *args: Any) -> None:
        args[5](ProposeResult(Outcome.OK, [CommandResult(True, "", None)], EntryId(1, 1), ""))

    patch.setattr(Offsets, "commit", commit)


def commits_what_is_not_decided(patch: pytest.MonkeyPatch) -> None:
    def step_after(write: Any, answer: Any, now_ms: int) -> Any:
        if write.state is PreparedState.COMMITTED:
            return ForgetPrepared(write.decider)
        return EndPrepared(write.decider, True, now_ms)

    patch.setattr(write_decisions, "step_after", step_after)


@pytest.mark.parametrize(
    ("breaks", "script", "checker"),
    [
        (takes_every_map, "second 1\npause 1\nwait 3\nresume 1\nwait 1\n", "group map"),
        (commits_nothing, "second 3\n", "placed"),
        (commits_what_is_not_decided, "second 6\nsettle\n", "writes"),
    ],
)
def test_what_is_broken_is_found(
    breaks: Callable[[pytest.MonkeyPatch], None], script: str, checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    _, found, _ = played((WRITING if checker == "writes" else BEGIN) + script)
    assert found[:1] == [checker]


def test_a_message_that_is_gone_from_the_second_group_is_found() -> None:
    """The history says of a message that it was acknowledged there, and no replica has it."""
    stage = ScriptedWorld(BEGIN + "second 1\nsettle\n")
    assert stage.second is not None
    recorder = stage.second.recorders[2]
    recorder.stored(recorder.invoke("send", {"id": "at2-gone", "topic": "placed"}), 0, 0)
    result = stage.run()
    assert [violation.checker for violation in result.violations][:1] == ["log"]
    assert "at2-gone" in result.violations[0].what


def test_a_row_of_a_write_to_both_groups_that_neither_has_is_found() -> None:
    """The writer says that a batch is committed, and no node has its rows."""
    stage = ScriptedWorld(WRITING + "second 1\nsettle\n")
    assert stage.second is not None
    assert stage.second.writer is not None
    judge, batch = stage.second.writer.judge, (NAME, 10**6)
    judge.rows[batch] = frozenset([f"{NAME}/{10**6}/0"])
    judge.wanted.add(batch)
    judge.acked.add(batch)
    (violation,) = stage.run().violations
    assert violation.checker == "writes"
    assert violation.what == f"batch {10**6} of {NAME} is committed, and {NAME}/{10**6}/0 is not there"
