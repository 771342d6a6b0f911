"""`raftmq recovery`: the account of a start in lines that a person can act on."""

from __future__ import annotations

import msgspec
import pytest

from cluster.admin.handlers.node_reports import RecoveryView
from cluster.state.recovery_views import CheckpointTimes, DamageView, PreviousRun, RecoveryStatus
from raftmq.cli import run as raftmq
from raftmq.commands.data.recovery import lines_of

STATUS = RecoveryStatus(
    clean=False,
    bytes_scanned=16 << 20,
    bytes_zeroed=15_000_000,
    torn_bytes_cut=89,
    entries_replayed=40,
    stages_ms={"log": 12.3, "state": 4.5},
    reasons=["a reason"],
    replaying=True,
    replay_index=140,
    replay_target=200,
    state_found="lost_rows",
    state_source="checkpoint",
    state_checkpoint="00000000000000000100-2-0a0b0c0d",
    state_set_aside="trash/000001-state",
    previous=PreviousRun(ended="machine_restarted", pid=7, boot_id="00", started_ms=1, synced_index=120),
    checkpoints=CheckpointTimes(
        log_flushed_ms=0, queues_flushed_ms=0, index_flushed_ms=0, synced_index=130, checkpoint_index=-1
    ),
    damage=[DamageView(first_position=5, end_position=9, first_index=3, last_index=4, why="rot")],
    alarms=["look at this"],
)


def lines(status: RecoveryStatus) -> str:
    view = RecoveryView(node=2, applied_index=140, uptime_ms=61_000, recovery=status)
    return "\n".join(lines_of(msgspec.to_builtins(view)))


def test_everything_that_was_found_is_said() -> None:
    text = lines(STATUS)
    for part in (
        "node 2: up 61 s; before that: pid 7, the machine was restarted, synced up to entry 120",
        "log 12 ms, state 4 ms",
        "scanned  16.0 MiB (14.3 MiB of it zero-filled room) of log; cut 89 torn bytes",
        "lost rows; source: checkpoint 00000000000000000100-2-0a0b0c0d, the old state is in trash/000001-state",
        "40 entries applied again, 60 to go; served up to entry 140",
        "entry 130 (log not yet, queues not yet, index not yet); no checkpoint yet",
        "damage   entries 3..4, positions 5..9: rot",
        "alarm    look at this",
        "because  a reason",
    ):
        assert part in text


def test_a_start_without_a_story_is_short() -> None:
    quiet = msgspec.structs.replace(
        STATUS,
        replaying=False,
        previous=None,
        damage=[],
        alarms=[],
        reasons=[],
        state_source="own",
        state_checkpoint="",
        state_set_aside="",
        bytes_zeroed=0,
    )
    text = lines(quiet)
    assert "no earlier run" in text
    assert "scanned  16.0 MiB of log" in text
    assert "source: own\n" in text
    assert "40 entries applied again\n" in text
    assert "because" not in text


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert raftmq(["recovery", "--admin", "127.0.0.1:1"]) == 4
    assert "no node answers" in capsys.readouterr().err
    assert raftmq(["recovery", "--node", "2", "--admin", "127.0.0.1:1", "--json"]) == 4
