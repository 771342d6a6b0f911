"""Standing ends with the right: who registered before rights were enforced, or has lost the right since, is not asked,
not listed, and given nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.broker.groups.group_members import Members
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import Credentials
from statemachine.levels import OWNERS_LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode
from tests.support.sim_users import READ_T, ROOT, SHOP, add_user, ask_admin, begin, request, settle, with_key

OPAQUE = 70_001
HALF = "TRAN_MSG\x01true\x02PGROUP\x01p\x02"


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    with with_key(tmp_path) as made:
        made.create_topic("T")
        begin(made, mode="off", level=OWNERS_LEVEL)
        shop = [[1, "Topic:T", ["Pub", "Sub"], [], True], READ_T[1]]
        assert ask_admin(made, "set_rules", "shop", shop) is None
        yield made


def beats(sim: SimCluster, who: Credentials | None, client_id: str, node: SimNode | None = None) -> ClientPath:
    """A client that says that it is a consumer of g and a producer of p."""
    path = (node or sim.leader()).connect()
    data = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
    }
    path.ask(request(who, RequestCode.HEART_BEAT, OPAQUE, {}, json.dumps(data).encode()))
    sim.loop.run_until(lambda: path.replies.get(OPAQUE), 20, "an answer")
    assert path.replies[OPAQUE][0][0] == 0
    return path


def consumers(sim: SimCluster, node: SimNode) -> list[str]:
    """The answer to 38, as a Super gets it."""
    path = node.connect()
    path.ask(request(ROOT, RequestCode.GET_CONSUMER_LIST_BY_GROUP, OPAQUE, {"consumerGroup": "g"}))
    sim.loop.run_until(lambda: path.replies.get(OPAQUE), 20, "an answer")
    if path.replies[OPAQUE][0][0]:
        return []
    frame = path.written[-1]
    found: list[str] = json.loads(frame[8 + int.from_bytes(frame[5:8], "big") :])["consumerIdList"]
    return found


def members_of(node: SimNode) -> Members:
    return node.running.serving.broker.members


def gets_asked(sim: SimCluster, path: ClientPath) -> bool:
    """A half message of shop's is stored, and its producer group is asked about it."""
    sender = sim.leader().connect()
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0"}
    ext["i"] = HALF
    sender.ask(request(SHOP, RequestCode.SEND_MESSAGE_V2, OPAQUE, ext, b"half"))
    sim.loop.run_until(lambda: sender.replies.get(OPAQUE), 20, "an answer")
    assert sender.replies[OPAQUE][0][0] == 0
    before = len(path.written)
    sim.loop.run_for(80)
    return any(b"half" in frame for frame in path.written[before:])


def test_who_registered_while_nothing_was_judged_has_no_standing_once_rights_are_enforced(sim: SimCluster) -> None:
    stranger = beats(sim, None, "stranger")
    assert consumers(sim, sim.leader()) == ["stranger"]
    assert gets_asked(sim, stranger)
    assert ask_admin(sim, "set_mode", "enforce") is None
    settle(sim)
    assert consumers(sim, sim.leader()) == []
    assert not gets_asked(sim, stranger)
    assert not members_of(sim.leader()).of(stranger)
    beats(sim, SHOP, "honest")
    assert consumers(sim, sim.leader()) == ["honest"]


def test_a_right_that_is_taken_away_takes_the_standing_with_it(sim: SimCluster) -> None:
    assert ask_admin(sim, "set_mode", "enforce") is None
    eve = add_user(sim, "eve", ("Topic:T", ["Pub", "Sub"]), ("Group:g", ["Sub"]))
    theirs, honest = beats(sim, eve, "eve-1"), beats(sim, SHOP, "honest")
    assert consumers(sim, sim.leader()) == ["eve-1", "honest"]
    assert ask_admin(sim, "set_rules", "eve", [[1, "Group:g", ["Sub"], [], False]]) is None
    settle(sim)
    assert consumers(sim, sim.leader()) == ["honest"]
    sim.loop.run_for(1)
    (left,) = {role for role, _, _ in members_of(sim.leader()).of(theirs)}
    assert left == "producer", "anybody may be in a producer group"
    assert ask_admin(sim, "remove", "eve") is None
    settle(sim)
    sim.loop.run_for(1)
    assert not members_of(sim.leader()).of(theirs)
    assert members_of(sim.leader()).of(honest)


def test_nobody_loses_his_standing_while_rights_are_only_observed(sim: SimCluster) -> None:
    stranger = beats(sim, None, "stranger")
    assert ask_admin(sim, "set_mode", "observe") is None
    settle(sim)
    sim.loop.run_for(1)
    assert members_of(sim.leader()).of(stranger)


def test_many_memberships_are_judged_in_many_turns(sim: SimCluster) -> None:
    node = sim.leader()
    for number in range(5):
        path = node.connect()
        groups = [{"groupName": f"p{number}-{at}"} for at in range(900)]
        data = {"clientID": f"c{number}", "producerDataSet": groups, "consumerDataSet": []}
        path.ask(request(None, RequestCode.HEART_BEAT, OPAQUE, {}, json.dumps(data).encode()))
        sim.loop.run_until(lambda path=path: path.replies.get(OPAQUE), 20, "an answer")  # type: ignore[misc]
    members = members_of(node)
    assert members.count == 4_500
    assert ask_admin(sim, "set_mode", "enforce") is None
    settle(sim)
    sim.loop.run_for(10)
    assert members.count == 0
    assert not members.producers
