"""The level of the cluster rises by one entry, which needs every voter and learner; older versions are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from cluster.members.cluster_level import MIXED_MS, WAITS_HOLD_MS, unfinished_upgrade
from cluster.placement.group_map import Epoch, GroupMember, GroupRecord, encode
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.state import manifest as manifests
from cluster.state.checkpoints import Checkpoints
from jepsen_like.sim.machines.machine import DATA
from raftlog.errors import CorruptLogError
from raftlog.format_versions import BASELINE
from raftlog.storage.files.fs import read_file, write_file
from raftmq_wire.errors import LocalError
from statemachine.access.access_commands import Origin, SetAuthKey
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.cluster_wide.settings import SetConfig
from statemachine.commands import Command
from statemachine.levels import ACCESS_LEVEL, CHANGES_LEVEL, LEVEL
from statemachine.rows.kv import KVError
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import SimCluster, SimNode, codes, send_frame

SEED = 1
NEEDS_11: Command = SetAuthKey(Origin(0, "", ""), "key")
A_WEEK_S = 7 * 86_400


def propose(sim: SimCluster, *run: Command) -> ProposeResult:
    results: list[ProposeResult] = []
    leader = sim.leader()
    leader.run(leader.running.serving.services.propose, list(run), results.append)
    sim.loop.run_until(lambda: results, 20, "an answer")
    return results[0]


def made_topic(sim: SimCluster, name: str) -> list[Any]:
    """A topic that somebody has just made, as each node has it."""
    results: list[ProposeResult] = []
    run: list[Command] = [CreateTopic({"name": name}, False)]
    leader = sim.leader()
    leader.run(lambda: leader.running.serving.services.propose(run, results.append, author="ann"))
    sim.loop.run_until(lambda: results, 20, "an answer")
    sim.settle()
    return [node.state.topics[name] for node in sim.running]


def levels(sim: SimCluster) -> list[int]:
    sim.settle()
    return [node.state.level for node in sim.running]


def restart(sim: SimCluster, node: SimNode, level: int, *, power: bool = False) -> None:
    """Starts another version of the node, which knows levels up to `level`."""
    node.kill(power=power)
    node.level = level
    node.start()
    sim.loop.run_until(lambda: node.is_started and sim.find_leader(), 30, "it is back")
    heard = sim.leader().running.peers.levels.members
    announced = (node.node_id, level)
    sim.loop.run_until(lambda: announced in [(each.id, each.level) for each in heard()], 30, "it has announced a level")


def why_not(sim: SimCluster) -> str:
    with pytest.raises(LocalError) as caught:
        sim.leader().running.peers.levels.require()
    return str(caught.value.why)


def test_a_new_cluster_begins_at_the_newest_level_that_all_know(sim_of: Callable[..., Any]) -> None:
    sim = sim_of(config=1)
    assert levels(sim) == [LEVEL] * 3


def test_a_command_above_the_level_is_refused_and_says_what_to_type(sim_of: Callable[..., Any]) -> None:
    sim = sim_of()
    refused = propose(sim, NEEDS_11)
    assert refused.outcome is Outcome.FAIL
    assert refused.remark == "set_auth_key needs level 11, and the cluster has level 10: raftmq upgrade finalize"
    assert levels(sim) == [BASELINE] * 3
    assert propose(sim, Finalize(ACCESS_LEVEL)).outcome is Outcome.OK
    assert levels(sim) == [ACCESS_LEVEL] * 3
    assert propose(sim, NEEDS_11).outcome is Outcome.OK


def test_finalize_names_the_member_that_is_down_or_too_old(sim_of: Callable[..., Any]) -> None:
    sim = sim_of()
    old = sim.followers()[0]
    restart(sim, old, BASELINE)
    assert f"node {old.node_id} (voter) knows levels up to 10" in why_not(sim)
    old.kill(power=False)
    sim.loop.run_for(1.0)
    assert f"node {old.node_id} (voter) is down" in why_not(sim), "what it announced before does not count"
    restart(sim, old, LEVEL)
    assert sim.leader().running.peers.levels.require() == LEVEL


def test_a_node_that_does_not_know_the_level_is_refused_and_says_so(sim_of: Callable[..., Any]) -> None:
    sim = sim_of()
    old = sim.followers()[0]
    old.kill(power=False)
    old.level = BASELINE
    assert propose(sim, Finalize(ACCESS_LEVEL)).outcome is Outcome.OK
    old.start()
    sim.loop.run_until(lambda: old.is_started and old.running.alarms.raised("level_too_low"), 30, "an alarm")
    (alarm,) = [each for each in old.running.alarms.all() if each.key == "level_too_low"]
    assert "the cluster has level 11" in alarm.text
    sim.loop.run_for(5.0)
    assert old.state.level == BASELINE, "it got nothing of the log behind the entry"
    restart(sim, old, LEVEL)
    assert levels(sim) == [ACCESS_LEVEL] * 3


def test_a_directory_above_the_level_is_not_opened(sim_of: Callable[..., Any]) -> None:
    sim = sim_of()
    old = sim.followers()[0]
    assert propose(sim, Finalize(ACCESS_LEVEL)).outcome is Outcome.OK
    sim.settle()
    old.kill(power=False)
    old.level = BASELINE
    sim.loop.tolerant = True
    old.start()
    sim.loop.run_until(lambda: sim.loop.errors, 10, "it refuses")
    (_, error) = sim.loop.errors[0]
    assert isinstance(error, KVError)
    assert str(error).splitlines()[0] == "the state database has level 11: a newer RaftMQ was finalized there"
    old.kill(power=False)
    sim.loop.errors.clear()


def test_a_connection_that_is_open_ends_with_the_entry(sim_of: Callable[..., Any]) -> None:
    sim = sim_of()
    old = sim.followers()[0]
    restart(sim, old, BASELINE)
    leader = sim.leader()
    before = {inlet for inlet in leader.transport.inlets if inlet.peer == old.node_id}
    leader.run(leader.transport.keep_to, ACCESS_LEVEL)
    sim.loop.run_for(0.01)
    assert before
    assert not before & leader.transport.inlets.keys()


def test_the_author_of_a_change_is_in_the_log_from_its_level_on(sim_of: Callable[..., Any]) -> None:
    sim = sim_of()
    assert {topic.changed_by for topic in made_topic(sim, "short")} == {""}
    assert propose(sim, Finalize(CHANGES_LEVEL)).outcome is Outcome.OK
    assert {topic.changed_by for topic in made_topic(sim, "long")} == {"ann"}
    assert all(topic.created_ms for topic in made_topic(sim, "long"))


def test_what_an_earlier_life_announced_late_counts_until_its_connection_closes(sim_of: Callable[..., Any]) -> None:
    """Seed 5400001: a slow link brought the HELLO of a killed process behind that of the next one, and its level stayed
    for good."""
    sim = sim_of(config=1)
    transport = sim.leader().running.peers.transport
    peer = sim.followers()[0].node_id
    stands = next(inlet for inlet in transport.inlets if inlet.peer == peer)
    late = Mock(peer=peer, introduction=[*stands.introduction[:11], LEVEL - 1, *stands.introduction[12:]])
    transport.inlets[late] = None
    transport._note_level(peer, LEVEL - 1)
    assert transport._levels[peer] == LEVEL - 1
    transport._note_level(peer, LEVEL)
    assert transport._levels[peer] == LEVEL - 1, "the lowest counts: nobody knows which version runs"
    del transport.inlets[late]
    transport._note_level(peer)
    assert transport._levels[peer] == LEVEL


def test_what_a_run_without_power_announced_ends_with_the_next_run(sim_of: Callable[..., Any]) -> None:
    """Seed 832001105: nobody closed the connections of a node that lost power. After its next run, an older version,
    had ended, the level on them let a leader finalize."""
    sim = sim_of()
    old = sim.followers()[0]
    transport = sim.leader().running.peers.transport
    restart(sim, old, BASELINE, power=True)
    assert len({inlet.incarnation for inlet in transport.inlets if inlet.peer == old.node_id}) == 1
    old.kill(power=False)
    sim.loop.run_for(1.0)
    assert f"node {old.node_id} (voter) is down" in why_not(sim)


def test_the_leader_finalizes_by_itself_once_all_have_announced_the_level_for_that_long(
    sim_of: Callable[..., Any],
) -> None:
    sim = sim_of()
    values = {"upgrade.finalize_after_ms": 10_000}
    assert propose(sim, SetConfig(0, 0, "ann", "a test", values)).outcome is Outcome.OK
    sim.loop.run_for(8.0)
    follower = sim.followers()[0]
    restart(sim, follower, LEVEL - 1)
    sim.loop.run_for(15.0)
    assert levels(sim) == [BASELINE] * 3, "one does not know the level"
    restart(sim, follower, LEVEL)
    sim.loop.run_for(8.0)
    assert levels(sim) == [BASELINE] * 3, "the time begins again"
    sim.loop.run_for(5.0)
    assert levels(sim) == [LEVEL] * 3


def test_the_first_group_is_raised_by_itself_after_all_others(sim_of: Callable[..., Any]) -> None:
    """A group that is away is named, and a finding says so after a minute."""
    sim = sim_of()

    def hear(level: int) -> None:
        member = GroupMember(1, "h", 1, "", {})
        payload = encode([GroupRecord(2, "two", Epoch(level, 1), 1, [member], [], level)])
        for node in sim.running:
            node.run(node.running.serving.other_groups._on_groups, Mock(), [], payload)

    hear(LEVEL - 1)
    values = {"upgrade.finalize_after_ms": 10_000}
    assert propose(sim, SetConfig(0, 0, "ann", "a test", values)).outcome is Outcome.OK
    sim.loop.run_for(15.0)
    assert levels(sim) == [BASELINE] * 3
    levels_of = sim.leader().running.peers.levels
    view = levels_of.view(sim.leader().running.serving.services.monotonic_ms())
    [condition] = unfinished_upgrade(view)
    assert f"until all other groups are raised: group 2 has level {LEVEL - 1}, as it told last" in condition.says
    assert condition.hold_ms == WAITS_HOLD_MS
    assert levels_of.require() == LEVEL, "whoever types finalize is not held up"
    hear(LEVEL)
    sim.loop.run_for(2.0)
    assert levels(sim) == [LEVEL] * 3
    assert unfinished(sim.leader()) == []


def test_no_leader_finalizes_by_itself_unless_it_is_told_to(sim_of: Callable[..., Any]) -> None:
    sim = sim_of()
    sim.loop.run_for(60.0)
    assert levels(sim) == [BASELINE] * 3


def unfinished(node: SimNode) -> list[str]:
    """The sentences of the finding about an upgrade that was begun, as this node has it."""
    view = node.running.peers.levels.view(node.running.serving.services.monotonic_ms())
    return [each.says for each in unfinished_upgrade(view)]


def works(sim: SimCluster) -> None:
    """Every node takes a send, which all store, and a topic that is made now has the rows of the cluster's level."""
    for node in sim.running:
        path = node.connect()
        path.ask(send_frame(1, "T", b"a message"))
        sim.loop.run_until(partial(path.replies.get, 1), 20, "an answer")
        assert codes(path, 1) == [0]
    by = {topic.changed_by for topic in made_topic(sim, f"made-at-{int(sim.loop.now)}")}
    assert by == ({"ann"} if sim.leader().state.level >= CHANGES_LEVEL else {""})
    sim.check_equal()


def test_an_upgrade_that_stops_half_way_for_a_week_is_found_and_both_ways_stay_open(
    sim_of: Callable[..., Any],
) -> None:
    """One node of three runs the newer version, whose level brings other rows of topics. The clocks of all go on by a
    day, and by the rest of the week."""
    sim = sim_of()
    assert propose(sim, Finalize(CHANGES_LEVEL - 1)).outcome is Outcome.OK
    (newer, *older) = sim.running
    restart(sim, newer, CHANGES_LEVEL)
    for node in older:
        restart(sim, node, CHANGES_LEVEL - 1)
    works(sim)
    assert [unfinished(node) for node in sim.running] == [[]] * 3
    for seconds in (MIXED_MS / 1000, A_WEEK_S - MIXED_MS / 1000):
        sim.loop.now += seconds
        sim.loop.run_for(10.0)
        works(sim)
    for node in sim.running:
        (says,) = unfinished(node)
        assert all(f"node {each.node_id} (voter) knows levels up to {CHANGES_LEVEL - 1}" in says for each in older)
    assert why_not(sim)

    restart(sim, newer, CHANGES_LEVEL - 1)  # back
    sim.loop.run_for(2.0)
    works(sim)
    assert [unfinished(node) for node in sim.running] == [[]] * 3
    for node in sim.running:  # and forward to the end
        restart(sim, node, CHANGES_LEVEL)
        works(sim)
    assert {node.state.level for node in sim.running} == {CHANGES_LEVEL - 1}
    assert propose(sim, Finalize(sim.leader().running.peers.levels.require())).outcome is Outcome.OK
    assert levels(sim) == [CHANGES_LEVEL] * 3
    works(sim)


def test_a_checkpoint_alone_above_the_level_is_refused_in_words_and_nothing_changes(
    sim_of: Callable[..., Any],
) -> None:
    """As after a copy from a node of a newer version: the rows and the log beside it are of this one."""
    sim = sim_of()
    node = sim.followers()[0]
    group_id = node.running.storage.directory.identity.group_id
    checkpoints = Checkpoints(node.fs, DATA, group_id)
    sim.loop.run_until(checkpoints.all, 60, "a checkpoint")
    node.kill(power=False)
    (found, *_) = checkpoints.all()
    file = found.path / manifests.FILE
    before = read_file(node.fs, file)
    above = manifests.encode(found.manifest._replace(level=LEVEL + 1), group_id)
    write_file(node.fs, file, above)
    sim.loop.tolerant = True
    node.start()
    sim.loop.run_until(lambda: sim.loop.errors, 10, "it refuses")
    (_, error) = sim.loop.errors[0]
    assert isinstance(error, CorruptLogError)
    assert str(error).splitlines()[0] == f"{file} has level {LEVEL + 1}: a newer RaftMQ was finalized there"
    assert read_file(node.fs, file) == above
    node.kill(power=False)
    sim.loop.errors.clear()
    sim.loop.tolerant = False
    write_file(node.fs, file, before)
    restart(sim, node, LEVEL)
    works(sim)
