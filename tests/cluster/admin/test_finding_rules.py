"""Each rule: what raises a finding and what does not; together they raise every code that docs/runbooks.md explains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.admin.findings import rules
from cluster.admin.findings.merge import merged
from cluster.admin.findings.other_nodes import clock_conditions, setting_conditions
from cluster.admin.findings.rules import own_conditions
from cluster.admin.findings.watch import DataWatch, Memory
from cluster.admin.node_interface import MemberView
from cluster.broker.access.guesses import TOLD_FROM
from cluster.broker.groups.shared_ids import KEPT_MAX, SHOWN_MS
from cluster.broker.watches.group_watch import GroupWatch
from cluster.broker.watches.hidden_watch import HiddenWatch
from cluster.broker.watches.hot_watch import hot_conditions
from cluster.broker.watches.quota_watch import learnt_conditions, quota_conditions
from cluster.config.exposure_check import open_folder
from cluster.config.ranges import OutOfRange
from cluster.members.checks import quorum_of
from cluster.members.cluster_level import MIXED_MS
from cluster.peer.links import LinkView
from cluster.repair.consistency import uncompared
from cluster.repair.progress import InstallView
from cluster.runtime.findings import Code, Condition
from cluster.state.recovery_views import PreviousRun, RecoveryStatus
from cluster.state.state_opening import REPLACED
from statemachine.access.access_commands import ChangeUser, Origin, SetAuthMode
from statemachine.access.learnt_limits import LearntHead, LearntMode, PutLearnt, SetLearnt, import_of
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.broker_groups import GroupState
from statemachine.cluster_wide.settings import SetMaintenance
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.topics.topics import CreateTopic
from statemachine.truth import CopyTruth
from tests.cluster.admin.conftest import FakeNode
from tests.support.alarm_keys import alarm_keys
from tests.support.codes import CODES, KEYS
from tests.support.hot_windows import two_groups, window

NOW_MS = 1_700_000_000_000
ALARMS = {
    each: each.finding for each in (*map(KEYS.__getitem__, sorted(alarm_keys())), REPLACED.alarm("state_corrupt"))
}
RECOVERY = RecoveryStatus(
    clean=False, bytes_scanned=0, torn_bytes_cut=0, entries_replayed=500, stages_ms={}, reasons=[]
)
DIED = PreviousRun(ended="process_died", pid=1, boot_id="", started_ms=0, synced_index=-1)


def conditions(node: Any, **changes: Any) -> dict[str, Condition]:
    """Returns the node's own findings, with these fields of its status."""
    status = msgspec.structs.replace(node.status(), **changes)
    found = *own_conditions(node, status, NOW_MS), *node.found()
    return {each.code.finding: each for each in found}


def link(state: str, reason: str) -> LinkView:
    fields: dict[str, Any] = dict.fromkeys(("silent_ms", "round_trip_ms", "match_index", "lag_entries"))
    return LinkView(peer=2, state=state, since_ms=0, age_ms=0, reason=reason, control=True, bulk=True, **fields)


def quorum(voters: int, *away: int) -> Any:
    return quorum_of(range(1, voters + 1), lambda voter: voter not in away)


STATUSES: dict[str, dict[str, Any]] = {
    "no_leader": {"leader": None},
    "no_quorum": {"quorum": quorum(3, 2, 3)},
    "no_quorum_margin": {"quorum": quorum(3, 3)},
    "node_stopped": {"failure": "fdatasync failed"},
    "node_stopping": {"stopping": True},
    "node_drained": {"drained": True},
    "link_suspect": {"links": [link("SHUTDOWN", "no connection for bulk")]},
    "recovering": {"recovery": msgspec.structs.replace(RECOVERY, replaying=True, replay_index=500, replay_target=900)},
    "unclean_restart": {"recovery": msgspec.structs.replace(RECOVERY, previous=DIED)},
}


@pytest.mark.parametrize("code", STATUSES)
def test_a_state_of_the_node_is_a_finding(node: Any, code: str) -> None:
    assert code not in conditions(node)
    assert code in conditions(node, **STATUSES[code])


@pytest.mark.parametrize(("key", "code"), ALARMS.items())
def test_an_alarm_is_a_finding(node: Any, key: Code, code: str) -> None:
    node.alarms.raise_alarm(key, "as the alarm says")
    found = conditions(node)[code]
    assert (found.says, found.since_ms) == ("as the alarm says", NOW_MS)


def crash(node: Any) -> set[str]:
    for _ in range(node.config.health.crash_loop_starts):
        node.events.note("start", "node 1", "its process had died", "warning")
    return set(conditions(node))


def lag(node: Any) -> set[str]:
    status = node.status()
    (peer,) = status.peers
    behind = msgspec.structs.replace(peer, lag_entries=node.config.health.follower_behind_entries)
    return set(conditions(node, peers=[behind]))


def late(node: Any, **changes: Any) -> Condition | None:
    """Returns the finding about a follower that lacks an entry of 4 s, with these changes of it."""
    fields = {
        "lag_entries": 70,
        "lag_bytes": 3 << 19,
        "lag_ms": 4_000,
        "connected": True,
        "lag_bytes_per_s": 0,
    } | changes
    (peer,) = node.status().peers
    return conditions(node, peers=[msgspec.structs.replace(peer, **fields)], sync_ms=2.4).get("follower_behind")


LATE = "the disk of node 2 is 70 entries behind the log of the leader, node 1: 1.5 MiB, the oldest 4 s old"
DELETES = "The leader may delete what node 2 lacks"


@pytest.mark.parametrize(
    ("changes", "course"),
    [
        ({}, ". The lag stays the same"),
        ({"lag_bytes_per_s": 2_048}, ". The lag grows by 2.0 KiB a second"),
        (
            {"lag_bytes_per_s": 2_048, "snapshot_in_s": 7_300},
            f". The lag grows by 2.0 KiB a second. {DELETES} in about 2 h ([retention]); node 2 then needs a snapshot",
        ),
        (
            {"lag_bytes_per_s": 0, "snapshot_in_s": 0},
            f". The lag stays the same. {DELETES} now ([retention]); node 2 then needs a snapshot",
        ),
        (
            {"lag_bytes_per_s": -900, "caught_up_in_s": 44},
            ". The lag shrinks by 900 B a second and will be gone in about 44 s",
        ),
        ({"sync_ms": 812.3}, ". The lag stays the same. A sync takes 812 ms on node 2 and 2 ms on node 1"),
    ],
)
def test_a_late_follower_is_a_finding_with_a_forecast(node: Any, changes: dict[str, Any], course: str) -> None:
    found = late(node, **changes)
    assert found is not None
    assert found.says == LATE + course
    assert found.hold_ms == rules.LATE_HOLD_MS
    assert found.severity == ("info" if "caught_up_in_s" in changes else None)


def test_a_follower_that_is_late_for_another_reason_is_not(node: Any) -> None:
    """The finding of its link, or that it is down, says more."""
    assert late(node, lag_ms=rules.LATE_MS - 1) is None
    assert late(node, connected=False) is None
    assert late(node, lag_bytes_per_s=None) is None, "it fetches a snapshot"
    (peer,) = node.status().peers
    behind = msgspec.structs.replace(peer, lag_ms=9_000, connected=True, lag_bytes_per_s=0)
    silent = link("SUSPEND", "nothing has come for 9 s: silent")
    assert "follower_behind" in conditions(node, peers=[behind])
    assert "follower_behind" not in conditions(node, peers=[behind], links=[silent])


UNACKNOWLEDGED = "no acknowledgement for 4000 ms, 70 entries are behind"


@pytest.mark.parametrize(
    ("sync_ms", "found"), [(None, {"link_suspect"}), (12.0, {"link_suspect"}), (2_400.0, set[str]())]
)
def test_a_follower_whose_syncs_take_seconds_is_late_although_it_acknowledges_nothing(
    node: Any, sync_ms: float | None, found: set[str]
) -> None:
    """The finding about its lag began anew with each sync; while one was under way, the link was blamed (seed 5714)."""
    (peer,) = node.status().peers
    late = msgspec.structs.replace(peer, lag_ms=9_000, connected=True, lag_bytes_per_s=900, sync_ms=sync_ms)
    seen = set(conditions(node, peers=[late], links=[link("SUSPEND", UNACKNOWLEDGED)]))
    assert seen & {"link_suspect", "follower_behind"} == {"follower_behind"} | found


def test_a_follower_that_is_many_entries_behind_is_one_after_longer(node: Any) -> None:
    health = node.config.health
    far = late(node, lag_entries=health.follower_behind_entries, lag_ms=0, caught_up_in_s=5, lag_bytes_per_s=-1)
    assert far is not None
    assert (far.hold_ms, far.severity) == (health.follower_behind_ms, None)
    unknown = late(node, lag_entries=health.follower_behind_entries, lag_bytes_per_s=None)
    assert unknown is not None
    assert unknown.says.endswith("4 s old")


def flood(node: Any) -> set[str]:
    load = msgspec.structs.replace(node.status().load, connections=node.config.limits.connections_max)
    return set(conditions(node, load=load))


def digest(node: Any) -> set[str]:
    every_ms = node.config.consistency.digest_every_ms
    assert list(uncompared(10 * every_ms, every_ms, "node 1")) == []
    return {each.code for each in uncompared(11 * every_ms, every_ms, "node 1")}


def groups(node: Any) -> set[str]:
    node.apply([CreateTopic({"name": "a", "read_queues": 1, "write_queues": 1}, True)])
    node.add_group("idle", "a")
    node.add_group("stuck", "a")
    node.add_messages("a", 0, 10)
    node.add_group("beyond", "a")
    node.apply([CommitOffsets([("beyond", 1, 0, 11)])])
    node.consumers["stuck"] = [MemberView(client_id="c", address="", language="", version=1, silent_ms=0)]
    watch = GroupWatch(node, member_count=node.member_count, unread=node.unread, wall_ms=node.wall_ms)
    list(watch.look(0))
    node.idle["b"] = {"c"}
    found = {each.code for each in watch.look(0)}
    node.idle.clear()
    return found | {each.code for each in watch.look(node.config.health.queue_stuck_ms)}


def hidden(node: Any) -> set[str]:
    for queues in (2, 1):
        node.apply([CreateTopic({"name": "h", "read_queues": queues, "write_queues": queues}, False)])
        if queues > 1:
            node.add_messages("h", 1, 10)
    return {each.code for each in HiddenWatch(node).look()}


def hot(node: Any) -> set[str]:
    two_groups(node)
    found = set[str]()
    for topic in ("here", "both"):
        node.window = window(node, **{topic: 800})
        found |= {each.code for each in hot_conditions(node, node.window)}
    return found


def over_quota(node: Any) -> set[str]:
    node.apply([SetQuotas([("topic=*", {"send_messages": 1})], 1, "ann")])
    node.paced.look()
    (bucket,) = node.paced.buckets.of(0, "10.0.0.1", "orders", 0)
    assert list(quota_conditions(node, node.paced)) == []
    for _ in range(3):
        bucket.refuse(node.monotonic_ms())
    (condition,) = quota_conditions(node, node.paced)
    assert condition.says == (
        "quotas refuse what is over them: topic=orders 3 times, by send_messages of quota topic=* "
        "(1 message sent a second)"
    )
    return {condition.code}


def learnt(node: Any) -> set[str]:
    rows = [(topic, [5] * 24, [0] * 24) for topic in ("orders", "mail")]
    digest = "ab" * 32
    head = LearntHead(digest, 2, LearntMode.ON, 1, 1, 1, 1 << 50, 1, "ann")
    node.apply([PutLearnt(import_of(digest), rows), SetLearnt(head.row())])
    use = node.learnt
    use.look(1, 0, overloaded=True)
    assert list(learnt_conditions(node, node.learnt)) == []
    for number, topic in enumerate(("orders", "mail")):
        slot = SimpleNamespace(name=topic, topic_id=number)
        use.came([SimpleNamespace(slot=slot, batch=(), body=b"x")], node.monotonic_ms())
        use.of(topic).cut, use.of(topic).cut_ms = 3 + number, node.monotonic_ms()
    (cut,) = learnt_conditions(node, node.learnt)
    assert cut.says == (
        "more arrives than the log takes, and topics that get more than usual are cut: "
        "mail 4 messages, usually at most 5 messages a second; orders 3 messages, usually at most 5 messages a second"
    )
    node.now_ms += 60_000
    assert list(learnt_conditions(node, node.learnt)) == []
    node.apply([SetLearnt(head._replace(ends_ms=0).row())])
    (expired,) = learnt_conditions(node, node.learnt)
    assert expired.says.startswith("learnt limits of 2 topics have expired ")
    return {cut.code, expired.code}


def maintenance(node: Any) -> set[str]:
    node.apply([SetMaintenance(1, 0, "ops", "a new disk")])
    return set(conditions(node))


def unfinished(node: Any) -> set[str]:
    node.levels.tick(node.monotonic_ms() - MIXED_MS + 1)
    assert "upgrade_unfinished" not in conditions(node), "a day is not over"
    node.now_ms += 1
    found = conditions(node)
    assert "node 2 (voter) is down" in found["upgrade_unfinished"].says
    return set(found)


def settings(make_node: Any) -> set[str]:
    node = make_node(1, offsets__flush_ms=5000)
    node.held_keys = [OutOfRange("limits.message_bytes_max", 1, 1024)]
    return set(conditions(node))


def exposed(make_node: Any, folder: Path) -> dict[str, Condition]:
    """A node that listens on every address, with a data directory of an earlier release."""
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "open_folder", partial(open_folder, root=folder))
        return conditions(make_node(1, node__data_dir=str(folder), admin__bind="0.0.0.0"))


def access(node: Any) -> set[str]:
    """The codes of `users_changed`."""
    return set(users_changed(node))


def users_changed(node: Any) -> dict[str, Condition]:
    """A node of a cluster in which enforcing was ended, and the operator has let somebody in again."""
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    user = node.state.access.users["root"]
    node.apply([ChangeUser(Origin(NOW_MS, "operator", "10.0.0.7"), user.id, {"secret": [b"another secret", "key"]})])
    node.apply([SetAuthMode(Origin(NOW_MS, "root", "10.0.0.8"), "off")])
    for _ in range(TOLD_FROM):
        node.access.guesses.wrong("ro\x1bot", "10.0.0.9")
    return conditions(node)


def shared(node: Any) -> set[str]:
    node.shared_ids.refused("g", "c", 1, 2)
    node.shared_ids.undelivered("c", (0, 1))
    return set(conditions(node))


def failpoint(make_node: Any) -> set[str]:
    node = make_node(1, failpoints__enabled=True)
    node.failpoints.set("apply.batch", "slow:20x")
    return set(conditions(node))


def around() -> set[str]:
    found = [*clock_conditions({1: 0, 2: 0, 3: 5000}, 500), *setting_conditions({1: {"a.b": "1"}, 2: {"a.b": "2"}})]
    return {each.code for each in found}


def lost(folder: Path) -> set[str]:
    watch = DataWatch(folder / "lost", 1)

    async def twice() -> None:
        await watch.look()
        watch.look()

    asyncio.run(twice())
    return {each.code for each in watch.conditions()}


def down() -> set[str]:
    views = {
        1: Memory(1).note(
            [Condition(KEYS["link_suspect"], "link 1-3", ""), Condition(KEYS["node_silent"], "node 3", "")], 0, 0
        ),
        2: Memory(2).note([Condition(KEYS["link_suspect"], "link 2-3", "")], 0, 0),
    }
    return {each.code for each in merged(views, (1, 2, 3))}


@pytest.mark.parametrize(
    ("raised", "code"),
    [(crash, "crash_loop"), (lag, "follower_behind"), (flood, "client_flood"), (digest, "digest_not_compared")],
)
def test_a_bound_that_is_reached_is_a_finding(node: Any, raised: Callable[[Any], set[str]], code: str) -> None:
    assert code not in conditions(node)
    assert code in raised(node)


def test_a_value_that_is_held_and_one_that_is_dangerous_are_named(make_node: Any) -> None:
    assert {"config_held", "config_dangerous"} & set(conditions(make_node())) == set()
    node = make_node(1, offsets__flush_ms=5000)
    node.held_keys = [OutOfRange("limits.message_bytes_max", 1, 1024)]
    found = conditions(node)
    assert "limits.message_bytes_max = 1" in found["config_held"].says
    assert "the node goes by 1024" in found["config_held"].says
    assert "offsets.flush_ms is 5000: a change of the leader forgets" in found["config_dangerous"].says


def test_what_strangers_can_reach_is_named_with_the_ways_out(make_node: Any, tmp_path: Path) -> None:
    assert {"ports_open", "data_readable"} & set(conditions(make_node(1, node__data_dir=str(tmp_path)))) == set()
    found = exposed(make_node, tmp_path)
    assert (found["ports_open"].object, found["data_readable"].object) == ("node 1", "node 1")
    assert "put these ports behind a firewall" in found["ports_open"].says
    assert found["data_readable"].do_now == f"chmod 700 {tmp_path}"


def test_a_node_that_others_may_reach_is_critical_until_something_is_enforced(make_node: Any) -> None:
    node = make_node(1, admin__bind="10.0.0.5")
    found = conditions(node)["auth_off"]
    assert "admin 10.0.0.5:9644" in found.says
    assert CODES["auth_off"].severity == "critical"
    node.add_user("root", is_super=True)
    for mode in ("observe", "enforce"):
        node.set_mode(mode)
        assert "auth_off" not in conditions(node)
    for bind in ("127.0.0.1", "::1", "127.0.0.9", "localhost"):
        assert "auth_off" not in conditions(make_node(1, admin__bind=bind))


def test_the_end_of_enforcing_is_critical_as_long_as_it_lasts(node: Any) -> None:
    found = users_changed(node)
    assert "by root at 10.0.0.8" in found["auth_ended"].says
    assert "changed User:root from 10.0.0.7: another secret" in found["operator_acted"].says
    assert CODES["auth_ended"].severity == "critical"
    assert found["secret_guessed"].says == r"100 wrong secrets for user 'ro\x1bot' came from 10.0.0.9 at node 1"
    assert found["secret_guessed"].object == r"user 'ro\x1bot' at 10.0.0.9"
    for number in range(210):  # more changes than are looked at
        node.add_user(f"user-{number}")
        if number % 50 == 0:
            conditions(node)
    assert "auth_ended" in conditions(node)
    node.set_mode("observe")
    assert "auth_ended" not in conditions(node)


class OfSecond(FakeNode):
    """A node that applies the log of the second group of brokers."""

    log_of = 2


def draining() -> set[str]:
    node = OfSecond(1)
    found = set[str]()
    for version, state in enumerate((GroupState.DRAINING, GroupState.RETIRED), 1):
        row = ["raftmq-g02", 3, int(state), 5]
        node.apply([CopyTruth(version - 1, version, [(TruthKind.BROKER_GROUP, 2, row)])])
        found |= set(conditions(node))
    return found


def test_every_code_is_raised_by_something(make_node: Any, tmp_path: Path) -> None:
    raised = {
        *STATUSES,
        *ALARMS.values(),
        *around(),
        *down(),
        *lost(tmp_path),
        *failpoint(make_node),
        *settings(make_node),
        *exposed(make_node, tmp_path),
        *draining(),
        *conditions(make_node()),
    }
    scenes = (
        crash,
        lag,
        flood,
        digest,
        groups,
        hidden,
        hot,
        over_quota,
        learnt,
        maintenance,
        unfinished,
        access,
        shared,
    )
    for scene in scenes:
        raised |= scene(make_node())
    assert raised == set(CODES)


def test_client_ids_of_two_users_are_named_as_long_as_they_are_noticed(node: Any) -> None:
    for name in ("ann", "bob"):
        node.add_user(name)
    ann, bob = (node.state.access.users[name].id for name in ("ann", "bob"))
    for at, group in enumerate(["g", "h", "g"]):
        node.now_ms = NOW_MS + at * SHOWN_MS // 2
        node.shared_ids.refused(group, "c", ann, bob)
        node.shared_ids.undelivered("c", (ann, bob))
    found = conditions(node)
    assert "client c of group g, users ann and bob; 2 such ids in all" in found["client_id_shared"].says
    assert found["client_id_shared"].since_ms == NOW_MS + SHOWN_MS // 2, "the first time is long ago"
    assert "client c, users ann and bob; 3 such replies" in found["reply_undelivered"].says
    node.now_ms += SHOWN_MS
    assert not {"client_id_shared", "reply_undelivered"} & set(conditions(node))
    for at in range(KEPT_MAX + 9):
        node.shared_ids.refused("g", f"c{at}", ann, bob)
    assert f"{KEPT_MAX} such ids in all" in conditions(node)["client_id_shared"].says


def test_each_client_id_of_two_clients_of_one_user_is_named(node: Any) -> None:
    for client in ("c1", "c2", "c1"):
        node.shared_ids.twice("g", client, 0)
    found = [each for each in node.found() if each.code == "client_id_shared"]
    assert [each.object for each in found] == ["client c1 of group g", "client c2 of group g"]
    assert "both get every message" in found[0].says
    node.now_ms += SHOWN_MS
    assert "client_id_shared" not in conditions(node)


def test_one_or_two_voters_are_no_reason_for_a_warning(node: Any) -> None:
    found = conditions(node, quorum=quorum(2))["no_quorum_margin"]
    assert found.severity == "info"


def test_recovering_says_how_much_is_left_and_how_long(node: Any) -> None:
    changes = STATUSES["recovering"] | {"uptime_ms": 10_000}
    says = conditions(node, **changes)["recovering"].says
    assert "400 entries are left up to entry 900, about 8 s at this rate" in says
    fetches = InstallView(stage="log", peer=2, bytes_done=5, bytes_total=9)
    assert "5 of 9 bytes" in conditions(node, install=fetches)["recovering"].says


def test_an_unclean_start_is_shown_for_an_hour(node: Any) -> None:
    changes = STATUSES["unclean_restart"]
    assert "unclean_restart" in conditions(node, **changes, uptime_ms=3_599_000)
    assert "unclean_restart" not in conditions(node, **changes, uptime_ms=3_600_000)


def test_old_crashes_are_no_loop(node: Any) -> None:
    node.wall_ms = lambda: NOW_MS - node.config.health.crash_loop_ms - 1
    node.events = type(node.events)(1, node.wall_ms)
    assert "crash_loop" not in crash(node)
