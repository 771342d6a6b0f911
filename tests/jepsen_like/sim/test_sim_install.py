"""Whole nodes, some of which need what the others have trimmed: snapshots, backfill, new members, what stops them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from jepsen_like.sim.scripted import ScriptedWorld
from raftlog.types import NodeId

SLOW_TEST = pytest.mark.slow
SMALL = "nodes 3 segment_size=16384 checkpoint_every_ms=300 retained_bytes=65536"
SLOW = f"{SMALL} fetch_bytes_per_second=40000"
SLOWER = f"{SMALL} fetch_bytes_per_second=10000"
MUCH = "send 40 body=2000\nwait 1\nsend 40 body=2000\nwait 1\nsend 3\nwait 1\nsend 3\nwait 1\nsend 3\nwait 1\ntrimmed\n"
FAR = f"lead 1\nsend 5\nkill 3\n{MUCH}"
"""Node 3 goes away, and comes back when the others have trimmed what it needs."""


class Watched(ScriptedWorld):
    """Remembers what each node said of its installs when it closed."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.offers: list[int] = []

    def do_trimmed(self) -> None:
        """The leader's is: each node lets its files go for itself, when its own checkpoints allow."""
        leader = self.nemesis.leader()
        firsts = {node.node_id: node.storage.directory.log.first_index for node in self.states.running()}
        if leader is None or not firsts[leader.node_id]:
            self.monitor.report("liveness", f"the script does not get the logs trimmed: {firsts}")

    def do_lead_is_refused(self, name: str) -> None:
        """A node that lacks log does not campaign, and nobody hands over to it."""
        machine = self._machine(name)
        assert machine.node is not None
        if machine.node.raw.may_campaign or not machine.node.integrity.installs.missing_bytes:
            self.monitor.report("liveness", f"node {name} may campaign, or has all of its log already")
        leader = self.nemesis.leader()
        assert leader is not None
        assert leader.node is not None
        assert leader.process is not None
        with pytest.raises(ValueError, match="fit"):
            leader.process.run(leader.node.raw.transfer_leadership, machine.node_id)

    def do_lacks_log(self, name: str) -> None:
        node = self._machine(name).node
        if node is None or not node.integrity.installs.missing_bytes:
            self.monitor.report("liveness", f"node {name} has all of its log")


def played(script: str) -> tuple[Any, Watched]:
    stage = Watched(script)
    return stage.run(), stage


def check(script: str, **sometimes: int) -> Any:
    verdict, _ = played(script)
    assert not verdict.violations, verdict.violations
    for name, count in sometimes.items():
        assert verdict.sometimes[name.replace("_", " ")] == count, verdict.sometimes
    return verdict


def test_a_node_that_was_away_for_longer_than_retention_comes_back_by_snapshot() -> None:
    verdict = check(f"{SMALL}\n{FAR}start 3\nwait 3\nsend 5\nlead 3\nsend 5\nsettle\n", snapshot_installed=1)
    assert verdict.sometimes["restart in the process"] == 1
    assert verdict.sometimes["backfill finished"] == 1
    assert verdict.sometimes["log trimmed"] == 1


@SLOW_TEST
def test_an_install_under_load() -> None:
    script = f"{SLOW}\n{FAR}start 3\nload 4\nwait 2\nsettle\n"
    assert check(script).sometimes["snapshot installed"] >= 1


@pytest.mark.parametrize("end", ["kill 3", pytest.param("power 3", marks=SLOW_TEST)])
@pytest.mark.parametrize(
    "stage", ["state", pytest.param("log", marks=SLOW_TEST), pytest.param("backfill", marks=pytest.mark.ci)]
)
def test_the_taker_ends_in_every_stage_and_goes_on_when_it_is_back(stage: str, end: str) -> None:
    script = f"{SLOWER}\n{FAR}start 3\ncopying 3 {stage}\n{end}\nsend 5\nstart 3\nwait 3\nsend 3\nsettle\n"
    assert check(script).sometimes["snapshot installed"] >= 1


@pytest.mark.parametrize(
    "stage", [pytest.param("state", marks=SLOW_TEST), "log", pytest.param("backfill", marks=SLOW_TEST)]
)
def test_the_giver_ends_in_every_stage_and_another_gives(stage: str) -> None:
    """Node 1 leads, and is asked first."""
    script = f"{SLOWER}\n{FAR}start 3\ncopying 3 {stage}\nkill 1\nwait 3\nsend 5\nstart 1\nwait 2\nsettle\n"
    assert check(script).sometimes["snapshot installed"] >= 1


def test_several_restarts_on_both_sides() -> None:
    turns = "copying 3 state\nkill 3\nstart 3\ncopying 3 state\nkill 1\nstart 1\npower 3\nstart 3\n"
    script = f"{SLOW}\n{FAR}start 3\n{turns}copying 3 backfill\npower 3\nstart 3\nwait 4\nsend 3\nsettle\n"
    assert check(script).sometimes["snapshot installed"] >= 1


def test_a_node_that_lacks_older_log_does_not_lead() -> None:
    script = f"{SLOW}\n{FAR}start 3\ncopying 3 backfill\nwait 0.1\nlead-is-refused 3\nwait 4\nlead 3\nsend 3\nsettle\n"
    check(script, snapshot_installed=1, backfill_finished=1)


def test_messages_that_a_node_does_not_have_yet_come_from_the_leader() -> None:
    asks = "copying 3 backfill\nwait 0.1\nlacks-log 3\noldest 3\nlacks-log 3\n"
    check(f"{SLOWER}\n{FAR}start 3\n{asks}wait 14\nsend 3\nsettle\n", backfill_finished=1)


def test_a_node_that_lost_its_state_below_what_is_trimmed_takes_a_snapshot_before_it_joins() -> None:
    check(f"{SMALL}\n{FAR}spoil 3\nstart 3\nwait 4\nsend 5\nlead 3\nsend 2\nsettle\n", snapshot_installed=1)


def test_no_install_follows_an_install() -> None:
    """dledger #319, #331: once it is in place, the leader's log goes on from it."""
    verdict, stage = played(f"{SMALL}\n{FAR}start 3\nwait 3\nsend 5\nwait 3\nsettle\n")
    assert not verdict.violations, verdict.violations
    assert verdict.sometimes["restart in the process"] == 1
    assert len(stage.machines[NodeId(3)].nodes) == 3


def test_a_fourth_node_takes_the_place_of_one_that_is_lost_with_its_disk() -> None:
    script = f"{SMALL}\nlead 1\n{MUCH}lose 2\njoin 4\nleave 2\n"
    verdict = check(f"{script}send 5\nlead 4\nreader\nsend 5\nwait 2\nsettle\n", snapshot_installed=1)
    assert (verdict.sometimes["learner promoted"], verdict.sometimes["member removed"]) == (1, 1)


@pytest.mark.parametrize("end", [pytest.param("kill", marks=SLOW_TEST), "power"])
def test_a_group_with_trimmed_logs_comes_back_as_a_whole(end: str) -> None:
    check(f"{SMALL}\nlead 1\n{MUCH}{end} 1 2 3\nstart 1 2 3\nwait 4\nlead 2\nsend 3\nsettle\n")


@SLOW_TEST
def test_a_new_node_joins_while_the_leader_is_killed() -> None:
    before = f"{SLOW}\nlead 1\n{MUCH}"
    script = "join 4 later\ncopying 4 state\nkill 1\nwait 2\nsend 5\nstart 1\nwait 4\nleave 1\nsend 5\nsettle\n"
    check(before + script)


def test_a_consumer_finds_a_leader_that_joined_after_it() -> None:
    """Its session ends and a new one begins now and then: a member must be listed where the leader is now."""
    check("nodes 3\nlead 1\nsend 3\nreader\nwait 1\njoin 4\nlead 4\nsend 150\nwait 2\nsettle\n")


@SLOW_TEST
def test_members_are_replaced_one_after_the_other() -> None:
    rolling = "join 4\nleave 1\nsend 3\njoin 5\nleave 2\nsend 3\njoin 6\nsend 3\n"
    verdict = check(f"nodes 3\nlead 1\nsend 5\n{rolling}lead 6\nsend 3\nsettle\n")
    assert verdict.sometimes["learner promoted"] == 3


@SLOW_TEST
def test_a_run_with_installs_and_members_is_the_same_whatever_the_hash_seed() -> None:
    script = f"{SLOW}\n{FAR}".replace("trimmed\n", "") + "start 3\njoin 4 later\nload 1\nwait 3\nleave 2\nsettle\n"
    verdict = ScriptedWorld(script).run()
    assert not verdict.violations, verdict.violations
    assert verdict.sometimes["snapshot installed"] == 2
    code = f"from jepsen_like.sim.scripted import play; print(play({script!r}).hash)"
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == verdict.hash
