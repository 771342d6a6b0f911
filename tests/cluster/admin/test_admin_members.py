"""/v1/members over HTTP: what each answers, what is refused with which command, and who carries a request out."""

from __future__ import annotations

import asyncio
import base64
from typing import Any
from uuid import UUID

import msgspec
import pytest

from cluster.members.changes import ChangeOutcome
from cluster.members.checks import quorum_of
from raftlog.errors import MembershipError, NotLeaderError, ProposalDroppedError
from tests.support.codes import KEYS
from tests.support.contexts import run_of
from tests.support.rows import each_row

CLUSTER = str(UUID(int=1))
NEW = {
    "cluster_id": CLUSTER,
    "uuid": str(UUID(int=44)),
    "host": "10.0.0.4",
    "port": 10914,
    "admin": "10.0.0.4:9644",
    "listeners": {"broker": "10.0.0.4:10911"},
}


async def error_of(answer: Any) -> tuple[int, str, str, str]:
    error = (await answer.json())["error"]
    return answer.status, error["code"], error["message"], error["hint"]


async def test_members_and_how_far_each_is(client: Any, node: Any) -> None:
    view = await (await client.get("/v1/members")).json()
    assert [(m["id"], m["role"], m["leader"], m["lag_entries"], m["fit"]) for m in view["members"]] == [
        (1, "voter", True, None, None),
        (2, "voter", False, 12, True),
        (3, "voter", False, 0, True),
    ]
    assert view["members"][1]["admin"] == "127.0.0.1:9602", "of its [[peers]] table"
    assert (view["quorum"], view["next_id"], view["committed"], view["index"]) == (2, 4, True, 0)
    node.raw.lag.pop(2)
    assert [m["live"] for m in (await (await client.get("/v1/members")).json())["members"]] == [None, False, True]


async def test_what_a_new_node_is_made_from(client: Any) -> None:
    view = await (await client.get("/v1/members/join")).json()
    assert base64.b64decode(view["genesis"]) == b"genesis"
    assert (view["cluster_id"], view["group"], view["next_id"], view["taken_ids"]) == (CLUSTER, 1, 4, [1, 2, 3])
    assert view["peers"][2] == {
        "id": 3,
        "host": "127.0.0.1",
        "port": 10903,
        "admin": "127.0.0.1:9603",
        "listeners": {},
        "heartbeat_host": "",
        "heartbeat_port": 0,
    }


async def test_add_promote_remove(client: Any, node: Any) -> None:
    added = await (await client.post("/v1/members", json=NEW)).json()
    assert (added["id"], added["role"], added["voters"]) == (4, "learner", [1, 2, 3])
    view = await (await client.get("/v1/members")).json()
    assert view["members"][3]["listeners"] == NEW["listeners"], "of the log"
    again = await (await client.post("/v1/members", json=NEW | {"id": 4})).json()
    assert again["index"] == added["index"], "nothing was changed"
    assert (await error_of(await client.post("/v1/members/4/promote")))[3].startswith("start it (raftmq serve")
    node.raw.lag[4] = 0
    assert (await error_of(await client.post("/v1/members/4/promote")))[2].startswith("node 4 has not caught up")
    node.changes.tick(0)
    assert node.membership.in_force.voter_ids == (1, 2, 3, 4), "the leader promotes who has caught up"
    await asyncio.sleep(0)
    removed = await (await client.delete("/v1/members/3")).json()
    assert (removed["role"], removed["voters"]) == ("removed", [1, 2, 4])
    view = await (await client.get("/v1/members")).json()
    assert ([m["id"] for m in view["removed"]], view["next_id"]) == ([3], 5)


async def test_a_learner_may_stay_one(client: Any, node: Any) -> None:
    await client.post("/v1/members", json=NEW | {"auto_promote": False})
    node.raw.lag[4] = 0
    node.changes.tick(0)
    view = await (await client.get("/v1/members")).json()
    assert (view["members"][3]["role"], view["members"][3]["manual"], view["members"][3]["caught_up"]) == (
        "learner",
        True,
        True,
    )
    promoted = await (await client.post("/v1/members/4/promote")).json()
    assert promoted["role"] == "voter"


async def test_a_member_that_moved(client: Any, node: Any) -> None:
    added = await (await client.post("/v1/members", json=NEW)).json()
    assert added["found_by"] is None, "a new node does not run yet"
    moved = await (await client.post("/v1/members", json=NEW | {"id": 4, "host": "10.0.0.5"})).json()
    assert node.membership.peer_addresses()[4] == (("10.0.0.5", 10914),)
    assert node.membership.in_force.reason == "address"
    assert node.moves.checked == [(4, str(UUID(int=44)), "10.0.0.5", 10914, "")], "its HTTP API stays"
    assert (moved["found_by"], moved["not_found_by"], moved["warning"]) == ([1, 2, 3], [], "")
    moved = await (await client.post("/v1/members", json=NEW | {"id": 4, "host": "10.0.0.5", "listeners": {}})).json()
    assert len(node.moves.checked) == 1, "nodes dial it where they did"
    assert moved["found_by"] is None


REFUSED = "10.0.0.9:10903: Connection refused"
ELSEWHERE = {"cluster_id": CLUSTER, "id": 3, "uuid": str(UUID(int=3)), "host": "10.0.0.9", "port": 10903}


async def test_a_member_that_a_majority_does_not_find_moves_nowhere(client: Any, node: Any) -> None:
    node.moves.not_by = {1: REFUSED, 2: REFUSED, 3: REFUSED}
    status, code, message, hint = await error_of(await client.post("/v1/members", json=ELSEWHERE))
    assert (status, code) == (409, "refused")
    what, *lines = message.splitlines()
    assert what == "2 voters must find node 3 at 10.0.0.9:10903, and none did: nothing was changed."
    assert lines == [f"node 1: {REFUSED};", f"node 2: {REFUSED};", f"node 3: {REFUSED}"]
    assert "start node 3 at that address" in hint
    assert "--force" in hint
    assert node.membership.in_force.index == 0
    node.moves.not_by = {1: REFUSED, 2: REFUSED}
    assert "only 3 did" in (await error_of(await client.post("/v1/members", json=ELSEWHERE)))[2]


async def test_who_moves_by_force_is_told_that_nothing_was_proven(client: Any, node: Any) -> None:
    node.moves.not_by = {1: REFUSED, 2: REFUSED, 3: REFUSED}
    moved = await (await client.post("/v1/members", json=ELSEWHERE | {"force": True})).json()
    assert node.membership.peer_addresses()[3][0] == ("10.0.0.9", 10903)
    assert moved["warning"].startswith("nothing was proven: 2 voters must find node 3 at its new address, and none did")
    assert (moved["found_by"], moved["not_found_by"][0]) == ([], f"node 1: {REFUSED}")
    (event,) = [each for each in node.events.kept() if each.kind == "change"]
    assert "which nothing proved" in event.says
    node.moves.not_by = {1: REFUSED}
    moved = await (await client.post("/v1/members", json=ELSEWHERE | {"host": "10.0.0.8", "force": True})).json()
    assert moved["warning"] == "", "it was found all the same"


async def test_one_address_is_checked_at_a_time(client: Any, node: Any) -> None:
    node.moves.busy = True
    assert (await error_of(await client.post("/v1/members", json=ELSEWHERE)))[:2] == (503, "busy")


async def test_what_is_refused_anyway_makes_nobody_dial(client: Any, node: Any) -> None:
    for wrong in ({"uuid": str(UUID(int=7))}, {"port": 10902, "host": "127.0.0.1"}):
        assert (await error_of(await client.post("/v1/members", json=ELSEWHERE | wrong)))[:2] == (409, "refused")
    assert not node.moves.checked


async def test_a_leader_that_moves_hands_over_first_and_the_next_one_moves_it(make_node: Any, serve: Any) -> None:
    old, new = make_node(1), make_node(3)
    new.leader = 3
    addresses = old.membership.addresses
    addresses[3] = addresses[3]._replace(admin=f"127.0.0.1:{(await serve(new)).port}")
    handed: list[int] = []
    old.transfer = lambda to: (handed.append(to), setattr(old, "leader", to))
    client = await serve(old)
    own = {"cluster_id": CLUSTER, "id": 1, "uuid": str(UUID(int=1)), "host": "10.0.0.9", "port": 10901}
    old.moves.not_by = {1: REFUSED, 2: REFUSED, 3: REFUSED}
    assert (await error_of(await client.post("/v1/members", json=own)))[:2] == (409, "refused")
    assert handed == [], "to nowhere nobody moves, and the leader leads on"
    old.moves.not_by = {}
    moved = await (await client.post("/v1/members", json=own)).json()
    assert (handed, moved["found_by"]) == ([3], [1, 2, 3])
    assert old.membership.in_force.index == 0, "it is the next leader that proposed it"
    assert new.membership.peer_addresses()[1][0] == ("10.0.0.9", 10901)


async def test_a_node_that_was_elected_just_now_is_waited_for(client: Any, node: Any) -> None:
    """It is where a leader that handed over passes a request on to, a few milliseconds after the election."""
    node.closed_looks = 5
    assert (await client.post("/v1/members", json=ELSEWHERE)).status == 200
    node.closed_looks, node.waits = 1 << 30, node.waits._replace(opens_s=0.05)
    assert (await error_of(await client.post("/v1/members", json=ELSEWHERE)))[:2] == (503, "not_leader")


async def test_a_leader_whose_http_api_moves_leads_on(client: Any, node: Any) -> None:
    node.transfer = lambda to: pytest.fail("it is reached by its peers as before")
    own = {"cluster_id": CLUSTER, "id": 1, "uuid": str(UUID(int=1)), "host": "127.0.0.1", "port": 10901}
    moved = await (await client.post("/v1/members", json=own | {"admin": "10.0.0.9:9601"})).json()
    assert moved["found_by"] == [1, 2, 3]


async def test_a_leader_that_nobody_can_follow_does_not_move(client: Any, node: Any) -> None:
    node.raw.lag = {2: 5000}
    own = {"cluster_id": CLUSTER, "id": 1, "uuid": str(UUID(int=1)), "host": "10.0.0.9", "port": 10901, "force": True}
    status, code, message, _ = await error_of(await client.post("/v1/members", json=own))
    assert (status, code) == (409, "refused")
    assert "no other node than 1 can lead now" in message


@each_row(
    ("change", "status", "code", "message", "hint"),
    [
        ({"cluster_id": str(UUID(int=7))}, 409, "refused", "this is cluster", "an empty data directory: raftmq node"),
        ({"id": 3}, 409, "refused", "node 3 is a member already", "raftmq node replace 3"),
        ({"uuid": str(UUID(int=2))}, 409, "refused", "that data directory is node 2's", "raftmq node add"),
        ({"host": "127.0.0.1", "port": 10902}, 409, "refused", "node 2 listens at", "another [peer] port"),
        ({"uuid": "nonsense"}, 400, "bad_field", "nonsense is not a uuid", "in the node's data directory"),
        ({"admin": "nonsense"}, 400, "bad_field", '"nonsense" is not host:port', "10.0.0.4:9644"),
        ({"listeners": {"broker": ""}}, 400, "bad_field", '"" is not host:port', "10.0.0.4:9644"),
        ({"port": 0}, 400, "bad_field", "field port is not valid", "nothing was changed"),
    ],
)
async def test_bad_additions(
    client: Any, node: Any, change: dict[str, Any], status: int, code: str, message: str, hint: str
) -> None:
    told = await error_of(await client.post("/v1/members", json=NEW | change))
    assert told[:2] == (status, code)
    assert message in told[2]
    assert hint in told[3]
    assert node.membership.in_force.index == 0


async def test_one_change_at_a_time(client: Any, node: Any) -> None:
    node.raw.commits = None
    node.config = msgspec.structs.replace(node.config, send=msgspec.structs.replace(node.config.send, deadline_ms=5))
    status, code, message, _ = await error_of(await client.post("/v1/members", json=NEW))
    assert (status, code) == (504, "unknown_outcome")
    assert "not committed yet" in message
    told = await error_of(await client.delete("/v1/members/3"))
    assert told[:2] == (409, "refused")
    assert "one at a time" in told[2]
    assert "raftmq node list" in told[3]


def other(entry: Any) -> Any:
    """Returns the entry that the leader of the next term wrote in its place."""
    return entry._replace(term=entry.term + 1)


async def test_a_loss_that_nobody_has_taken_note_of_comes_first(client: Any, node: Any) -> None:
    node.alarms.raise_alarm(KEYS["unsafe_recovered"], "one survivor")
    told = await error_of(await client.post("/v1/members", json=NEW))
    assert told[:2] == (409, "refused")
    assert "raftmq alarm ack unsafe_recovered" in told[3]
    node.alarms.clear("unsafe_recovered")
    assert (await client.post("/v1/members", json=NEW)).status == 200


async def test_a_change_that_another_leader_replaces_did_not_happen(client: Any, node: Any) -> None:
    node.raw.commits = lambda entry: node.call_later(0, lambda: node.changes.on_applied(run_of(other(entry))))
    assert (await error_of(await client.delete("/v1/members/3?below_three=true")))[:2] == (503, "failed")


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (NotLeaderError("x"), 503, "not_leader"),
        (ProposalDroppedError("a transfer is under way"), 503, "failed"),
        (MembershipError("not before an entry of this term is committed"), 409, "refused"),
    ],
)
async def test_what_the_core_refuses(client: Any, node: Any, refusal: Any, status: int, code: str) -> None:
    node.raw.refuses = refusal
    assert (await error_of(await client.delete("/v1/members/3?below_three=true")))[:2] == (status, code)


async def test_ids_that_are_none(client: Any) -> None:
    for path in ("/v1/members/x/promote", "/v1/members/0/promote", "/v1/members/70000/promote"):
        assert (await error_of(await client.post(path)))[:2] == (400, "bad_field")
    told = await error_of(await client.post("/v1/members/9/drain", json={}))
    assert (told[0], told[3]) == (404, "use one of 1, 2, 3; raftmq node list shows them")


@pytest.mark.parametrize("change", [{"lag": {2: 500, 3: 0}}, {"unfit": {2}}, {"lag": {3: 0}}])
async def test_leadership_goes_to_nobody_who_could_not_lead_at_once(
    client: Any, node: Any, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(node.raw, name, value)
    told = await error_of(await client.post("/v1/leader/transfer", json={"to": 2}))
    assert told[:2] == (409, "refused")
    assert told[3] == "raftmq node transfer 3"
    assert node.leader == 1


async def test_a_drained_leader_hands_over_and_says_that_it_is_drained(client: Any, node: Any) -> None:
    node.transfer = lambda to: setattr(node, "leader", to)

    def tick() -> None:
        node.changes.tick(0)
        node.call_later(5, tick)

    tick()
    answer = await (await client.post("/v1/members/1/drain", json={})).json()
    assert answer == {"node": 1, "drained": True, "leader": 3}, "the nearest one"
    assert node.raw.held == {"drain": True}
    answer = await (await client.post("/v1/members/1/drain", json={"drain": False})).json()
    assert answer["drained"] is False
    assert node.raw.held == {"drain": False}


async def test_leadership_goes_to_the_preferred_node_when_it_is_near(make_node: Any) -> None:
    node = make_node(1, raft__preferred_leaders="3;1")
    asked: list[int] = []
    node.transfer = asked.append
    for now_ms in range(0, 31_000, 1000):
        node.changes.tick(now_ms)
    assert asked == [3]
    node.leader = 3
    node.changes.tick(200_000)
    assert asked == [3], "a follower wishes nothing"


async def test_a_leader_hands_over_to_the_slower_disk_only_if_that_is_asked_for(make_node: Any) -> None:
    node = make_node(1, raft__preferred_leaders="3;1")
    node.raw.lag = {2: 0, 3: 0}
    assert node.changes.successor() == 2
    node.succession.slower = lambda each, _others: each == 2
    assert node.changes.successor() == 3
    node.succession.slower = lambda each, others: each == 3 and tuple(others) == (1,)
    node.transfer = lambda to: pytest.fail(f"node {to} is preferred, but its disk is slower than the leader's")
    for now_ms in range(0, 91_000, 1000):
        node.changes.tick(now_ms)
    node.changes.check_transfer(3)


async def test_a_leader_that_is_removed_hands_over_first_and_the_next_one_removes_it(
    make_node: Any, serve: Any
) -> None:
    old, new = make_node(1), make_node(3)
    new.leader = 3
    server = await serve(new)
    address = f"127.0.0.1:{server.port}"
    addresses = old.membership.addresses
    addresses[3] = addresses[3]._replace(admin=address)
    old.transfer = lambda to: setattr(old, "leader", to)
    removed = await (await (await serve(old)).delete("/v1/members/1?below_three=true")).json()
    assert (old.leader, removed["role"], removed["voters"]) == (3, "removed", [2, 3])
    assert old.membership.in_force.index == 0, "it is the next leader that proposed it"


async def test_a_leader_that_nobody_can_follow_leads_until_it_is_out(client: Any, node: Any) -> None:
    node.raw.lag = {2: 5000, 3: 5000}
    node.transfer = lambda to: pytest.fail("they would take long to take over")
    assert (await (await client.delete("/v1/members/1?below_three=true")).json())["voters"] == [2, 3]


async def test_a_leader_without_a_successor_is_not_drained(client: Any, node: Any) -> None:
    node.raw.lag.clear()
    told = await error_of(await client.post("/v1/members/1/drain", json={}))
    assert told[:2] == (409, "refused")
    assert "raftmq restart 2" in told[3]
    assert not node.changes.drained


def test_who_asked_is_told_once_what_stands_at_that_index(node: Any) -> None:
    proposed: list[Any] = []
    node.raw.commits = proposed.append
    heard: list[ChangeOutcome] = []
    node.changes.remove(3, heard.append)
    assert heard == [], "it is not committed yet"
    node.commit_members(proposed[0])
    node.changes.on_applied(run_of(*proposed))
    assert heard == [ChangeOutcome.DONE]


async def test_fewer_than_three_voters_are_left_only_if_that_is_meant(client: Any, node: Any) -> None:
    """Twice removed, without a question, and one voter was left that called itself healthy."""
    told = await error_of(await client.delete("/v1/members/3"))
    assert told[:2] == (409, "unconfirmed")
    assert told[2] == (
        "without node 3 no failure would be survived: now: voters 1, 2, 3; 2 of 3 are a majority; one failure is "
        "survived. Afterwards: voters 1, 2; 2 of 2 are a majority; no failure is survived. Nothing was changed"
    )
    assert "raftmq node remove 3 --yes" in told[3]
    assert "?below_three=true" in told[3]
    assert node.membership.in_force.index == 0
    assert (await error_of(await client.delete("/v1/members/3?below_three=yes")))[:2] == (400, "bad_query")
    assert (await error_of(await client.delete("/v1/members/1?below_three=false")))[1] == "unconfirmed"
    assert node.leads, "nor does a leader hand over for nothing"
    for gone in (3, 2):
        answer = await client.delete(f"/v1/members/{gone}?below_three=true")
        assert answer.status == 200
    assert (await answer.json())["voters"] == [1]


async def test_health_says_that_no_failure_is_survived(client: Any, node: Any) -> None:
    status, quorum = node.status, quorum_of([1, 2], lambda voter: True)
    node.status = lambda: msgspec.structs.replace(status(), quorum=quorum)
    body = await (await client.get("/v1/health")).json()
    assert body["healthy"]
    assert quorum.finding in body["warnings"]
    assert quorum.finding.startswith("no failure is survived: both voters, 1, 2, are needed")


@each_row("wrong", ["0", "65536", "9" * 5000, "x", "-1", "\u0663"])
async def test_what_is_no_id_of_a_node_is_refused(client: Any, wrong: str) -> None:
    answer = await client.get(f"/v1/members/{wrong}/status")
    assert (await error_of(answer))[:2] == (400, "bad_field")


@pytest.mark.parametrize(
    ("lag", "stopped", "allowed", "passes"),
    [
        ({2: 0, 3: 0}, 3, True, False),
        ({2: 0, 3: 0}, 1, True, False),
        ({2: 0}, 3, True, False),  # it is away already
        ({2: 0}, 2, False, False),  # the second one away
        ({2: 0}, 1, False, False),
        ({2: 9000, 3: 0}, 3, False, True),  # node 2 would have to catch up first
        ({2: 9000, 3: 0}, 2, True, False),
    ],
)
async def test_may_this_node_be_stopped(
    client: Any, node: Any, lag: dict[int, int], stopped: int, allowed: bool, passes: bool
) -> None:
    node.raw.lag = lag
    body = await (await client.get(f"/v1/members/{stopped}/can-stop")).json()
    assert (body["allowed"], body["passes"], body["leads"]) == (allowed, passes, stopped == 1)
    assert bool(body["reasons"]) is bool(body["do_now"]) is not allowed
    assert (stopped in body["after"]["away"], body["after"]["majority"]) == (True, 2)
    assert body["pending_upload_bytes"] == 0, "no tier is configured"


async def test_uploads_that_wait_are_counted_before_a_stop(client: Any, node: Any) -> None:
    node.tier.pending_bytes = 4096
    body = await (await client.get("/v1/members/3/can-stop")).json()
    assert (body["allowed"], body["pending_upload_bytes"]) == (True, 4096)


async def test_a_follower_asks_the_leader_whether_a_node_may_be_stopped(make_node: Any, serve: Any) -> None:
    follower = await serve(make_node(2))
    assert (await error_of(await follower.get("/v1/members/3/can-stop")))[1] == "leader_unreachable"
    assert (await error_of(await (await serve(make_node(1))).get("/v1/members/9/can-stop")))[:2] == (404, "not_found")


async def test_a_dry_run_of_a_removal_names_who_would_be_left(client: Any, node: Any) -> None:
    answer = await client.delete("/v1/members/3?dry_run=true&below_three=true")
    view = await answer.json()
    assert (answer.status, view["voters"], view["dry_run"]) == (200, [1, 2], True)
    assert sorted(node.membership.in_force.voter_ids) == [1, 2, 3]
    assert (await client.delete("/v1/members/3?dry_run=true")).status == 409, "unconfirmed, as without it"
