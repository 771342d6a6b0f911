"""41 and 42: what clients are granted and told, and how little of it becomes an entry."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cluster.remoting.connection.frame import Frame
from cluster.remoting.forward.requesting_clients import STANDING, name_standing
from cluster.replication.outcome import Outcome
from cluster.runtime.environment import LOCK_TTL_MS
from raftmq_wire.codec import BINARY, HEADER_AT, JSON, decode_header, encode_frame, ext_of
from raftmq_wire.codes import ResponseCode
from statemachine.consuming.queue_locks import QUEUES_MAX, LockQueues
from tests.support.rows import each_row

FRESH_MS = 50_000


def body(client: str, *queues: int, group: str = "g", topic: str = "T", broker: str = "b-0") -> bytes:
    rows = [{"topic": topic, "brokerName": broker, "queueId": queue} for queue in queues]
    return json.dumps(
        {"consumerGroup": group, "clientId": client, "mqSet": rows, "onlyThisBroker": False, "new field": 1}
    ).encode()


def member(node: Any, client: str, group: str = "g") -> Any:
    """A connection whose heartbeats name the client."""
    made, before = node.client(), len(node.proposed)
    node.join(client, made, group)
    del node.proposed[before:]
    return made


def lock(node: Any, client: str, *queues: int, connection: Any = None, **more: Any) -> Any:
    """Returns the queues granted to a member over its own connection, or to a client over that one."""
    connection = connection or member(node, client, more.get("group", "g"))
    answer = node.ask(41, body(client, *queues, **more), connection=connection).answer
    assert answer.code == 0, answer.remark
    return [row["queueId"] for row in json.loads(answer.body)["lockOKMQSet"]]


@pytest.fixture
def ordered(node: Any) -> Any:
    node.create_topic("T", queues=4)
    return node


def test_one_client_holds_a_queue_and_the_others_are_told_so(ordered: Any) -> None:
    assert lock(ordered, "a", 0, 1) == [0, 1]
    assert lock(ordered, "b", 0, 1, 2) == [2]
    assert lock(ordered, "a", 0, 1, 2) == [0, 1]
    ordered.advance(LOCK_TTL_MS)
    assert lock(ordered, "b", 0, 1, 2) == [0, 1, 2]
    assert lock(ordered, "a", 0, 1, 2) == []


def test_queues_are_named_as_the_client_named_them(ordered: Any) -> None:
    answer = ordered.ask(41, body("a", 3, broker="broker-b"), connection=member(ordered, "a")).answer
    assert json.loads(answer.body) == {"lockOKMQSet": [{"topic": "T", "queueId": 3, "brokerName": "broker-b"}]}


def test_what_is_held_for_long_and_what_others_hold_costs_no_entry(ordered: Any) -> None:
    lock(ordered, "a", 0)
    assert [type(command) for command in ordered.proposed] == [LockQueues]
    ordered.proposed.clear()
    ordered.advance(LOCK_TTL_MS - FRESH_MS - 1)
    assert lock(ordered, "a", 0) == [0]
    assert lock(ordered, "b", 0) == []
    assert ordered.proposed == []
    ordered.advance(1)
    assert lock(ordered, "a", 0) == [0]
    assert [type(command) for command in ordered.proposed] == [LockQueues]
    ordered.advance(LOCK_TTL_MS - 1)
    assert lock(ordered, "b", 0) == [], "it was refreshed"


def test_unknown_topics_and_queues_are_not_granted(ordered: Any) -> None:
    assert lock(ordered, "a", 0, topic="Nowhere") == []
    assert lock(ordered, "a", 4, 0) == [0]
    assert lock(ordered, "b") == []
    assert ordered.state.locks_of_group("g").keys() == {(ordered.state.topics["T"].id, 0)}


def test_a_client_gives_up_what_it_holds_and_nothing_else(ordered: Any) -> None:
    lock(ordered, "a", 0, 1)
    ordered.proposed.clear()
    assert ordered.ask(42, body("b", 0), connection=member(ordered, "b")).answer.code == 0
    assert ordered.proposed == []
    assert ordered.ask(42, body("a", 0, 3), connection=member(ordered, "a")).answer.code == 0
    assert lock(ordered, "b", 0, 1) == [0]


def test_an_orderly_leave_hands_the_queues_over(ordered: Any) -> None:
    lock(ordered, "a", 0, 1)
    lock(ordered, "a", 2, group="h")
    ordered.ask(35, clientID="a", consumerGroup="g")
    assert lock(ordered, "b", 0, 1) == [0, 1]
    assert lock(ordered, "b", 2, group="h") == [], "it left one group only"


def test_who_holds_more_queues_than_one_command_names_hands_all_of_them_over(node: Any) -> None:
    node.create_topic("T", queues=QUEUES_MAX + 9)
    joined = member(node, "a")
    lock(node, "a", *range(QUEUES_MAX), connection=joined)
    lock(node, "a", *range(QUEUES_MAX, QUEUES_MAX + 9), connection=joined)
    assert len(node.state.locks_of_group("g")) == QUEUES_MAX + 9
    node.ask(35, clientID="a", consumerGroup="g", connection=joined)
    node.advance(1)
    assert len(node.state.locks_of_group("g")) == 0


def test_a_leader_that_nobody_confirms_grants_nothing(ordered: Any) -> None:
    lock(ordered, "a", 0)
    ordered.confirms = False
    assert ordered.ask(41, body("a", 0)).answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("outcome", "code", "says"),
    [(Outcome.FAIL, ResponseCode.SERVICE_NOT_AVAILABLE, ""), (Outcome.UNKNOWN, ResponseCode.SYSTEM_ERROR, "[UNKNOWN]")],
)
def test_what_is_not_decided_is_not_granted(ordered: Any, outcome: Outcome, code: int, says: str) -> None:
    joined = member(ordered, "a")
    ordered.propose_outcome = outcome
    answer = ordered.ask(41, body("a", 0), connection=joined).answer
    assert answer.code == code
    assert answer.remark.startswith(says)


# --- who may have one -------------------------------------------------------------------------------------------------

OLD_S = 35.0


def expires_ms(node: Any, queue: int, group: str = "g") -> int:
    found: int = node.state.locks_of_group(group)[node.state.topics["T"].id, queue].expires_ms
    return found


@pytest.mark.parametrize("age_s", [0.0, OLD_S])
def test_a_lock_is_for_members_on_the_connection_that_asks(ordered: Any, age_s: float) -> None:
    other = member(ordered, "a")
    member(ordered, "b", group="h")
    stranger = ordered.client(age_s)
    assert lock(ordered, "nobody", 0, connection=stranger) == []
    assert lock(ordered, "a", 0, connection=stranger) == [], "its heartbeats come over another connection"
    assert lock(ordered, "b", 0, connection=stranger) == [], "it is in another group"
    assert ordered.state.locks_of_group("g") == {}
    assert lock(ordered, "a", 0, connection=other) == [0]


def test_a_lock_makes_no_group(ordered: Any) -> None:
    joined = member(ordered, "a")
    ordered.ask(41, body("a", 0, group="elsewhere"), connection=ordered.client())
    ordered.ask(207, connection=ordered.client(), groupName="g", cleanOffset="false")
    ordered.proposed.clear()
    assert lock(ordered, "a", 0, connection=joined) == []
    assert list(ordered.state.groups) == []
    assert ordered.proposed == [], "it costs no entry"


def test_a_client_that_connects_anew_renews_what_it_holds(ordered: Any) -> None:
    lock(ordered, "a", 0, 1)
    ordered.advance(LOCK_TTL_MS - 1)
    anew = ordered.client(OLD_S - 0.1)
    assert lock(ordered, "a", 0, 1, 2, connection=anew) == [0, 1], "and nothing that it did not hold"
    assert expires_ms(ordered, 0) == ordered.now_ms + 1 + 35_000
    assert lock(ordered, "b", 0, 1) == []


def test_a_stranger_with_a_members_name_is_granted_nothing_that_the_member_does_not_hold(ordered: Any) -> None:
    """Neither what another member holds, nor what is free, nor what the member held."""
    lock(ordered, "b", 3)
    ordered.advance(LOCK_TTL_MS)
    lock(ordered, "a", 0)
    lock(ordered, "b", 1)
    assert lock(ordered, "b", 0, 1, 2, 3, connection=ordered.client()) == [1]
    assert ordered.state.locks_of_group("g")[ordered.state.topics["T"].id, 0].client_id == "a"


def test_an_old_connection_without_heartbeats_renews_nothing(ordered: Any) -> None:
    lock(ordered, "a", 0)
    assert lock(ordered, "a", 0, connection=ordered.client(OLD_S)) == []


def test_a_lock_that_has_expired_is_not_renewed_without_a_heartbeat(ordered: Any) -> None:
    lock(ordered, "a", 0)
    ordered.advance(LOCK_TTL_MS)
    assert lock(ordered, "a", 0, connection=ordered.client()) == []


def test_new_connections_one_after_the_other_prolong_a_lock_by_35_s_in_all(ordered: Any) -> None:
    lock(ordered, "a", 0)
    end_ms = ordered.now_ms + LOCK_TTL_MS + 35_000
    granted_ms = ordered.now_ms
    while ordered.now_ms < end_ms:
        if lock(ordered, "a", 0, connection=ordered.client()):
            granted_ms = ordered.now_ms
        assert lock(ordered, "b", 0) == []
        ordered.advance(1_000)
    assert granted_ms == end_ms - LOCK_TTL_MS // 2, "who is granted one may read for half of its time"
    assert lock(ordered, "b", 0) == [0]


def test_a_heartbeat_begins_the_35_s_anew(ordered: Any) -> None:
    for _ in range(5):
        lock(ordered, "a", 0)
        ordered.advance(LOCK_TTL_MS - 1)
        assert lock(ordered, "a", 0, connection=ordered.client()) == [0]
        ordered.advance(34_000)


def test_the_node_with_the_connection_says_who_asks(ordered: Any) -> None:
    lock(ordered, "a", 0)
    for standing, granted in (("member", [0, 1]), ("new", [0]), ("stranger", []), ("anything", []), (None, [0, 1])):
        stand_in = ordered.client(math.inf)
        stand_in.forwarded = True
        answer = ordered.ask(41, body("a", 0, 1), connection=stand_in, **{STANDING: standing}).answer
        assert [row["queueId"] for row in json.loads(answer.body)["lockOKMQSet"]] == granted
        ordered.ask(42, body("a", 1), connection=member(ordered, "a"))


def test_a_client_cannot_say_it_itself(ordered: Any) -> None:
    member(ordered, "b")
    answer = ordered.ask(41, body("a", 0), connection=ordered.client(), **{STANDING: "member"}).answer
    assert json.loads(answer.body) == {"lockOKMQSet": []}


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize(
    ("client", "age_s", "says"),
    [("a", 99.0, "member"), ("b", 34.9, "new"), ("b", 35.0, "stranger"), (None, 0.0, "stranger")],
)
def test_a_request_is_forwarded_with_what_is_known_of_its_client(
    ordered: Any, serialize_type: int, client: str | None, age_s: float, says: str
) -> None:
    path = member(ordered, "a")
    path.age_s = age_s
    data = encode_frame(41, 7, 0, ext={STANDING: "member", "x": "1"}, serialize_type=serialize_type)[HEADER_AT:]
    asked = b"{" if client is None else body(client, 0)
    frame = Frame(path, serialize_type, decode_header(serialize_type, data), data, asked, len(data))
    goes = name_standing(frame, ordered.members)
    assert ext_of(decode_header(serialize_type, goes.header_bytes)) == {STANDING: says, "x": "1"}
    assert (goes.body, goes.path) == (asked, path)


# --- who may end one --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [42, 35])
@pytest.mark.parametrize(
    ("host", "age_s", "is_there", "ends"),
    [
        ("10.6.6.6", 0.0, True, False),
        ("10.6.6.6", OLD_S, True, False),
        ("10.6.6.6", 0.0, False, True),
        ("10.9.9.9", 0.0, True, True),
    ],
    ids=["a stranger", "an old one", "a client that the leader has not heard of yet", "a client's second connection"],
)
def test_nobody_ends_the_locks_of_a_client_that_is_there(
    ordered: Any, code: int, host: str, age_s: float, is_there: bool, ends: bool
) -> None:
    joined = member(ordered, "a")
    assert lock(ordered, "a", 0, connection=joined) == [0]
    if not is_there:
        joined.close()
    other = ordered.client(age_s)
    other.peer_address = (host, 1)
    more = {"clientID": "a", "consumerGroup": "g"} if code == 35 else {}
    assert ordered.ask(code, body("a", 0), connection=other, **more).answer.code == 0
    assert (ordered.state.locks_of_group("g") == {}) == ends
    assert ordered.members.consumer_ids("g") == (["a"] if is_there else [])


BAD = {
    "no body": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "no client": b'{"consumerGroup":"g","clientId":"","mqSet":[]}',
    "no group": b'{"clientId":"a","mqSet":[]}',
    "bad group": b'{"consumerGroup":"g g","clientId":"a","mqSet":[]}',
    "no name": b'{"consumerGroup":"","clientId":"a","mqSet":[]}',
    "negative queue": body("a", -1),
    "queue of 2^40": body("a", 1 << 40),
    "long client": body("a" * 513, 1),
    "long topic": body("a", 1, topic="T" * 257),
    "many queues": body("a", *range(QUEUES_MAX + 1)),
    "deep": b'{"consumerGroup":"g","clientId":"a","mqSet":' + b"[" * 20_000,
}


@each_row("code", [41, 42])
@each_row("data", BAD.values(), ids=BAD)
def test_bad_bodies_are_refused(ordered: Any, code: int, data: bytes) -> None:
    assert ordered.ask(code, data).answer.code == ResponseCode.INVALID_PARAMETER
    assert ordered.proposed == []
