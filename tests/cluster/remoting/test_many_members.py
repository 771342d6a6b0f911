"""Groups with thousands of members: how often they are told, and what each of them costs the others."""

from __future__ import annotations

import json
from typing import Any

from cluster.broker.groups import group_members
from cluster.broker.groups.consumer_group import Member
from cluster.broker.groups.group_members import MemberBounds, Role
from cluster.broker.groups.group_notices import NOTICE_UNITS, PER_SECOND
from raftlog.work import METER
from statemachine.access.access_commands import CreateUser, Origin, SetAuthKey, SetAuthMode
from tests.cluster.remoting.conftest import SHARE

MANY = 2_000


def beat(client: str, *groups: str, producers: tuple[str, ...] = ()) -> bytes:
    subscriptions = [{"topic": "T", "subString": "*", "subVersion": 1}]
    data = {
        "clientID": client,
        "consumerDataSet": [{"groupName": group, "subscriptionDataSet": subscriptions} for group in groups],
        "producerDataSet": [{"groupName": group} for group in producers],
    }
    return json.dumps(data).encode()


def join(node: Any, connect: Any, count: int, over_ms: int = 0, group: str = "g") -> list[Any]:
    """Lets so many consumers join, each over a connection of its own."""
    connections = []
    for n in range(count):
        connections.append(connect())
        node.ask(34, beat(f"c{n:05}", group), connection=connections[-1])
        node.advance(over_ms * (n + 1) // count - over_ms * n // count)
    return connections


def told(connections: list[Any]) -> int:
    return sum(len(each.notified()) for each in connections)


def units_of(call: Any) -> int:
    before = METER.units
    call()
    return METER.units - before


def test_two_thousand_that_join_in_nine_seconds_are_told_a_bounded_number_of_times(node: Any, connect: Any) -> None:
    members = join(node, connect, MANY, over_ms=9_000)
    assert 9_000 <= told(members) <= PER_SECOND + 9 * PER_SECOND + MANY
    node.advance(10_000)
    assert {len(each.notified()) for each in members} == {1}, "of the last change, once"
    node.advance(60_000)
    assert told(members) == 0


def test_one_that_joins_a_large_group_is_told_at_once_and_so_is_everybody_else(node: Any, connect: Any) -> None:
    members = join(node, connect, MANY)
    node.advance(30_000)
    told(members)
    members.append(connect())
    node.ask(34, beat("new", "g"), connection=members[-1])
    node.advance(0)
    assert {len(each.notified()) for each in members} == {1}
    members.pop(0).close()
    node.advance(1_001)
    assert {len(each.notified()) for each in members} == {1}


def test_whoever_joins_while_members_are_told_is_told_afterwards(node: Any, connect: Any) -> None:
    members = join(node, connect, MANY)
    node.advance(30_000)
    told(members)
    members[0].close()
    first = connect()
    node.members.add_consumer("g", Member("a", first, "JAVA", 401), None, "CLUSTERING")
    assert 0 < told(members) < MANY - 1, "telling was cut"
    assert first.notified() == []
    node.advance(10_000)
    assert (len(first.notified()) > 0, told(members[1:]) >= MANY - 1) == (True, True)


def test_a_turn_tells_no_more_than_its_share(node: Any, connect: Any) -> None:
    members = join(node, connect, MANY)
    node.advance(30_000)
    told(members)
    node.members.remove(members[0], "c00000", "g", None)
    most = SHARE // NOTICE_UNITS + 1
    turns = [told(members)]
    while sum(turns) < MANY - 1:
        node.next_turn()
        turns.append(told(members))
    assert max(turns) <= most
    assert len(turns) > 5


def test_the_list_of_members_is_encoded_once_for_all_who_ask(node: Any, connect: Any) -> None:
    members = join(node, connect, MANY)
    bodies: list[bytes] = []

    def ask() -> None:
        request = node.ask(38, consumerGroup="g", connection=members[0])
        node.advance(0)
        bodies.append(request.answer.body)

    first, again = units_of(ask), units_of(ask)
    assert json.loads(bodies[0]) == {"consumerIdList": [f"c{n:05}" for n in range(MANY)]}
    assert bodies[0] is bodies[1]
    assert again < first / 20
    members[7].close()
    ask()
    assert json.loads(bodies[-1])["consumerIdList"] == [f"c{n:05}" for n in range(MANY) if n != 7]


def test_the_end_of_a_connection_costs_what_it_was_in_not_what_others_are_in(node: Any, connect: Any) -> None:
    members = join(node, connect, MANY)
    node.advance(30_000)
    other = connect()
    node.ask(34, beat("p", producers=("p",)), connection=other)
    node.members.consumers["g"].message_model = "BROADCASTING"  # nobody is told

    def close() -> None:
        members[1000].close()
        node.advance(0)

    assert units_of(close) < 50
    assert len(node.members.consumer_ids("g")) == MANY - 1


def test_thousands_of_connections_that_close_at_once_are_forgotten_in_many_turns(node: Any, connect: Any) -> None:
    members = join(node, connect, 5_000)
    for each in members:
        each.close()
    left = len(node.members.consumer_ids("g"))
    assert 0 < left < 5_000
    node.advance(0)
    assert node.members.consumers == {}


def test_a_heartbeat_of_a_thousand_groups_is_noted_in_many_turns(node: Any, connect: Any) -> None:
    one, two = connect(), connect()
    groups = [f"g{n:04}" for n in range(1_000)]
    request = node.ask(34, beat("c", *groups), connection=one)
    assert 0 < len(node.members.consumers) < 1_000
    assert request.replies == []
    node.advance(0)
    assert (request.answer.code, len(node.members.consumers), len(node.state.groups)) == (0, 1_000, 1_000)
    node.ask(34, beat("d", *groups), connection=two)
    two.close()
    node.advance(0)
    assert {len(found.members) for found in node.members.consumers.values()} == {1}, "nothing is left of who went"
    assert node.members.of(two) == []
    one.close()
    node.advance(0)
    assert (node.members.consumers, node.members.count) == ({}, 0)


def test_groups_of_a_client_that_goes_between_two_steps_are_made_for_the_next(node: Any, connect: Any) -> None:
    """Whatever it was about to propose is not under way."""
    answered, turns = False, 0
    while not answered:
        one, two = connect(), connect()
        groups = [f"g{turns:02}-{n:03}" for n in range(450)]
        request = node.ask(34, beat("c", *groups), connection=one)
        for _ in range(turns):
            node.next_turn()
        one.close()
        answered, turns = bool(request.replies), turns + 1
        node.ask(34, beat("d", *groups), connection=two)
        node.advance(0)
        assert node.state.groups.keys() >= set(groups)
        two.close()
        node.advance(0)
    assert turns > 3, "it went at several places"


def test_a_goodbye_is_not_overtaken_by_the_heartbeat_before_it(node: Any, connect: Any) -> None:
    connection = connect()
    groups = [f"g{n:04}" for n in range(1_000)]
    node.ask(34, beat("c", *groups), connection=connection)
    node.ask(35, connection=connection, clientID="c", consumerGroup=groups[-1])
    node.advance(0)
    assert len(node.members.consumers) == 999
    assert groups[-1] not in node.members.consumers


def test_any_member_is_found_without_a_look_at_all(node: Any, connect: Any) -> None:
    connections = [connect() for _ in range(MANY)]
    for n, connection in enumerate(connections):
        node.ask(34, beat(f"p{n:05}", producers=("p",)), connection=connection)
        node.advance(0)
    found: set[str] = set()

    def find() -> None:
        found.update(node.members.find(Role.PRODUCER, "p", None).client_id for _ in range(MANY))

    assert units_of(find) < 20 * MANY
    assert len(found) == MANY, "each in turn"


def test_the_ids_of_a_group_have_a_limit(node_with: Any, connect: Any) -> None:
    node = node_with(bounds={"members": MemberBounds(ids_bytes=30)})
    members = join(node, connect, 5)
    refused = node.ask(34, beat("sixth", "g"), connection=connect()).answer
    assert (refused.code, "30 are allowed" in (refused.remark or "")) == (2, True)
    assert node.ask(34, beat("c00001", "g"), connection=members[1]).answer.code == 0
    members[0].close()
    node.advance(0)
    assert node.ask(34, beat("sixth", "g"), connection=connect()).answer.code == 0


def test_silent_members_are_looked_for_in_many_turns(node: Any, connect: Any) -> None:
    join(node, connect, 5_000)
    node.now_ms += group_members.EXPIRY_MS + 1
    node.members._scan()
    left = len(node.members.consumer_ids("g"))
    assert 0 < left < 5_000
    node.advance(0)
    assert node.members.consumers == {}


def test_standing_of_many_members_ends_in_steps(node: Any, connect: Any) -> None:
    """100,000 memberships took 1.3 s in 605 turns of at most 6 ms, with a share of 5 ms."""
    groups = [f"g{number:03}" for number in range(40)]
    for number in range(100):
        connection = connect()
        for begin in range(0, len(groups), 20):
            node.ask(34, beat(f"c{number:05}", *groups[begin : begin + 20]), connection=connection)
    node.advance(1_000)

    def count() -> int:
        return sum(len(found.members) for name in node.members.consumers if (found := node.members.consumers.get(name)))

    assert count() == 4_000
    asked = Origin(node.now_ms, "", "")
    node.command(SetAuthKey(asked, "key"))
    node.command(CreateUser(asked, node.state.access.next_id, "root", True, True, b"secret", "key"))
    node.command(SetAuthMode(asked, "enforce"))
    node.members.rules_changed()
    begun_ms = node.now_ms
    turns = []
    while count():
        turns.append(units_of(node.next_turn))
    assert node.now_ms - begun_ms < group_members.EXPIRY_MS, "they do not go for being silent"
    assert max(turns) <= 2 * SHARE
    assert len(turns) > 5
