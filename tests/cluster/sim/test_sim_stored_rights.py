"""Rights follow what is stored: what a request finds by position, handle or half offset is judged by the row that it
finds, and who has no right is told what he would be told if nothing were there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from raftmq_wire.codec import decode_header, ext_of
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import RecallHandle, decode_message, encode_message_id
from raftmq_wire.signature import Credentials
from statemachine.access.user_rows import Mode
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.levels import OWNERS_LEVEL
from statemachine.removal_slices import DeleteTopic
from tests.support.samples import sample
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode
from tests.support.sim_users import READ_T, ROOT, SHOP, add_user, ask_admin, begin, request, settle, with_key
from tests.support.transactions import COMMIT, ROLLBACK

EVE_RULES = (
    ("Topic:eve", ["Pub", "Sub", "Get", "Update"]),
    ("Group:eve", ["Pub", "Sub", "Get", "Update"]),
    ("Cluster:*", ["Get", "List"]),
)
"""Everything, on her own topic and group: what a user of few rights has."""
OPAQUE = 70_001
"""Of requests of these tests: a node numbers those that it sends to clients from 1 on."""


PULL = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "8", "sysFlag": "4"}
PULL |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
BY_KEY = {"topic": "T", "key": "K", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 50)}
ASK_AGAIN = (ResponseCode.PULL_NOT_FOUND, ResponseCode.SERVICE_NOT_AVAILABLE)
"""The answers of a node that may lack a rule which allows it."""


class Place(NamedTuple):
    """Where a message of the topic T is stored."""

    position: int
    offset: int
    key: str
    handle: str = ""


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    with with_key(tmp_path) as made:
        made.create_topic("T")
        made.create_topic("eve")
        begin(made, level=OWNERS_LEVEL)
        shop = [[1, "Topic:T", ["Pub", "Sub"], [], True], READ_T[1]]
        assert ask_admin(made, "set_rules", "shop", shop) is None
        yield made


@pytest.fixture
def eve(sim: SimCluster) -> Credentials:
    return add_user(sim, "eve", *EVE_RULES)


def send(
    sim: SimCluster, who: Credentials, key: str, properties: str = "", topic: str = "T", sys_flag: int = 0
) -> Place:
    ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(sys_flag), "g": "1", "h": "0", "j": "0"}
    ext["i"] = f"UNIQ_KEY\x01{key}\x02{properties}"
    code, _, fields, _ = ask(sim, sim.leader(), who, RequestCode.SEND_MESSAGE_V2, ext, b"<<T>> " + key.encode())
    assert code == 0
    found: dict[str, str] = json.loads(fields)
    sim.settle()
    return Place(int(found["msgId"][-16:], 16), int(found["queueOffset"]), key, found.get("recallHandle", ""))


def ask(
    sim: SimCluster, node: SimNode, who: Credentials | None, code: int, ext: dict[str, str], body: bytes = b""
) -> tuple[int, str, bytes, bytes]:
    """Code, remark, fields and body of the answer."""
    path = node.connect()
    path.ask(request(who, code, OPAQUE, ext, body))
    sim.loop.run_until(lambda: path.replies.get(OPAQUE), 20, f"an answer to {code}")
    frame = path.written[0]
    return *path.replies[OPAQUE][0], frame[8 + int.from_bytes(frame[5:8], "big") :]


def alike(
    sim: SimCluster, node: SimNode, who: Credentials, code: int, wanted: dict[str, str], none: dict[str, str]
) -> tuple[int, str, bytes, bytes]:
    """Asserts that the answer about what is another's is that about what does not exist; returns it."""
    answers = []
    for ext in (wanted, none):
        answered, remark, fields, body = ask(sim, node, who, code, ext)
        for number in sorted([value for value in ext.values() if value.isdigit()], key=len, reverse=True):
            remark = remark.replace(number, "N")
        answers.append((answered, remark, fields, body))
    assert answers[0] == answers[1]
    return answers[0]


def half(sim: SimCluster, who: Credentials, key: str) -> Place:
    return send(sim, who, key, "TRAN_MSG\x01true\x02PGROUP\x01p\x02")


def end_fields(place: Place, wish: int, **more: str) -> dict[str, str]:
    fields = {
        "producerGroup": "p",
        "tranStateTableOffset": str(place.offset),
        "commitLogOffset": str(place.position),
        "commitOrRollback": str(wish),
        "msgId": place.key,
        "fromTransactionCheck": "false",
    }
    return fields | more


def open_halves(sim: SimCluster) -> int:
    sim.settle()
    (count,) = {node.state.halves.pending.count for node in sim.running}
    return count


def copies(sim: SimCluster, group: str) -> int:
    """The messages that wait for, or are in, the retry topic of a group, or are its dead letters."""
    state = sim.leader().state
    topics = [state.topics.get(prefix + group) for prefix in ("%RETRY%", "%DLQ%")]
    in_queues = sum(state.max_offset(each.id, 0) for each in topics if each is not None)
    return in_queues + state.timers.counts.pending


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("named", [{}, {"originTopic": "T"}, {"originTopic": "eve"}])
def test_36_brings_nobody_a_message_of_a_topic_that_he_may_not_consume(
    sim: SimCluster, eve: Credentials, leads: bool, named: dict[str, str]
) -> None:
    place = send(sim, SHOP, "K")
    own = send(sim, eve, "E", topic="eve")
    node = sim.leader() if leads else sim.followers()[0]
    fields = {"group": "eve", "delayLevel": "1", "maxReconsumeTimes": "16", **named}
    theirs, inside = fields | {"offset": str(place.position)}, fields | {"offset": str(place.position + 1)}
    assert alike(sim, node, eve, RequestCode.CONSUMER_SEND_MSG_BACK, theirs, inside)[0] == 1
    assert copies(sim, "eve") == 0
    if named.get("originTopic") != "T":
        assert ask(sim, node, eve, RequestCode.CONSUMER_SEND_MSG_BACK, fields | {"offset": str(own.position)})[0] == 0
        assert copies(sim, "eve") == 1


def test_36_needs_no_right_by_a_name_and_the_consumer_of_a_topic_has_it(sim: SimCluster) -> None:
    """The topic that a client names is text. A consumer with Sub on the row's topic is let through whatever it says."""
    place = send(sim, SHOP, "K")
    fields = {"group": "g", "delayLevel": "1", "offset": str(place.position)}
    assert ask(sim, sim.leader(), SHOP, RequestCode.CONSUMER_SEND_MSG_BACK, fields)[0] == 0
    assert copies(sim, "g") == 1


def test_a_retry_copy_is_its_groups_whatever_its_properties_name(sim: SimCluster, eve: Credentials) -> None:
    """Its property RETRY_TOPIC names eve's topic, because a client wrote that; its row is of %RETRY%g."""
    place = send(sim, SHOP, "K", "RETRY_TOPIC\x01eve\x02")
    fields = {"group": "g", "delayLevel": "1", "offset": str(place.position)}
    assert ask(sim, sim.leader(), SHOP, RequestCode.CONSUMER_SEND_MSG_BACK, fields)[0] == 0
    sim.loop.run_for(5)
    state = sim.leader().state
    config = state.topics["%RETRY%g"]
    (item,) = [item for queue in range(config.queues) for item in state.fetch(config.id, queue, 0, 9)]
    for code, ext in (
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(item.position)}),
        (
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {"group": "eve", "delayLevel": "1", "originTopic": "eve", "offset": str(item.position)},
        ),
    ):
        assert alike(sim, sim.leader(), eve, code, ext, ext | {"offset": str(item.position + 1)})[0] == 1
    assert ask(sim, sim.leader(), SHOP, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(item.position)})[0] == 0


@pytest.mark.parametrize("leads", [True, False])
def test_33_is_judged_by_the_row(sim: SimCluster, eve: Credentials, leads: bool) -> None:
    """Get on the cluster, which a monitor has, shows no message."""
    node = sim.leader() if leads else sim.followers()[0]
    places = [send(sim, SHOP, "K"), send(sim, SHOP, "D", "TIMER_DELAY_MS\x0150000\x02"), half(sim, SHOP, "H")]
    for place in places:
        ext = {"offset": str(place.position)}
        told = alike(sim, node, eve, RequestCode.VIEW_MESSAGE_BY_ID, ext, {"offset": str(place.position + 1)})
        assert (told[0], told[3]) == (1, b"")
        code, _, _, body = ask(sim, node, SHOP, RequestCode.VIEW_MESSAGE_BY_ID, ext)
        assert (code, b"<<T>>" in body) == (0, True)
    own = send(sim, eve, "E", topic="eve")
    assert ask(sim, node, eve, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(own.position)})[0] == 0


def consumer(sim: SimCluster, who: Credentials, group: str, client_id: str) -> ClientPath:
    """A consumer of its own group, which is asked (309) and never answers."""
    path = sim.leader().connect()
    data = {
        "clientID": client_id,
        "producerDataSet": [],
        "consumerDataSet": [{"groupName": group, "subscriptionDataSet": []}],
    }
    path.ask(request(who, RequestCode.HEART_BEAT, OPAQUE, {}, json.dumps(data).encode()))
    sim.loop.run_until(lambda: path.replies.get(OPAQUE), 20, "an answer")
    assert path.replies[OPAQUE][0][0] == 0
    return path


def got(path: ClientPath) -> bytes:
    """All that was written to the connection."""
    return b"".join(path.written)


def test_309_takes_a_message_to_a_client_only_if_asker_and_client_may_have_it(
    sim: SimCluster, eve: Credentials
) -> None:
    place = send(sim, SHOP, "K")
    client = consumer(sim, eve, "eve", "c1")
    host = decode_message(sim.leader().log.read_at(*_item(sim)))[0].store_host

    def fields(position: int) -> dict[str, str]:
        return {"consumerGroup": "eve", "clientId": "c1", "msgId": encode_message_id(host, position)}

    denied = ask(sim, sim.leader(), eve, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields(place.position))
    nothing = ask(sim, sim.leader(), eve, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields(place.position + 1))
    assert (denied[0], denied[1].replace(str(place.position), "N")) == (
        nothing[0],
        nothing[1].replace(str(place.position + 1), "N"),
    )
    # The asker may read T, the user of the client may not.
    both = add_user(sim, "both", ("Topic:T", ["Get"]), ("Group:eve", ["Update"]))
    code, remark, _, _ = ask(sim, sim.leader(), both, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields(place.position))
    assert (code, "not online" in remark) == (1, True)
    assert b"<<T>>" not in got(client)


@pytest.mark.parametrize("holder", [0, 1])
@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY])
def test_what_a_client_is_asked_is_not_signed_by_who_asks(
    sim: SimCluster, eve: Credentials, code: RequestCode, holder: int
) -> None:
    """A signature covers neither the code nor the names of fields: what a Super signs for a look at the client "off"
    sets the mode, if that client may read it."""
    place = send(sim, SHOP, "K", topic="T")
    host = decode_message(sim.leader().log.read_at(*_item(sim)))[0].store_host
    rules = [[1, *rule, [], True] for rule in (*EVE_RULES, ("Topic:T", ["Sub"]))]
    assert ask_admin(sim, "set_rules", "eve", rules) is None
    settle(sim)
    client = consumer(sim, eve, "eve", "off")
    fields = {"clientId": "off", "consumerGroup": "eve", "msgId": encode_message_id(host, place.position)}
    path = sim.running[holder].connect()
    path.ask(request(ROOT, code, OPAQUE, fields))
    sim.loop.run_for(3)
    (asked,) = [data for data in client.written if decode_header(data[4], _header(data)).code == code]
    given = ext_of(decode_header(asked[4], _header(asked)))
    forged = {"mode": given.pop("clientId"), "n": given.pop("consumerGroup"), "z": given.pop("msgId"), **given}
    answered = ask(sim, sim.leader(), None, RequestCode.SET_AUTH_MODE, forged)
    assert (answered[0], sim.leader().state.access.mode) == (ResponseCode.NO_PERMISSION, Mode.ENFORCE)
    assert given == {}


@pytest.mark.parametrize("leads", [True, False])
def test_314_without_a_topic_needs_a_right_to_each_that_it_finds(
    sim: SimCluster, eve: Credentials, leads: bool
) -> None:
    """The group eve has offsets of T too, which eve may not change."""
    node = sim.leader() if leads else sim.followers()[0]
    state = sim.leader().state
    places = [(state.topics[topic].id, 0, offset) for topic, offset in (("T", 0), ("eve", 1))]
    made = sim.propose(sim.leader(), PutGroup({"name": "eve-2"}, True))
    offsets = [("eve-2", *place) for place in places]
    put = sim.propose(sim.leader(), CommitOffsets(offsets))
    sim.loop.run_until(lambda: made and put, 10, "offsets")
    eves = [[1, *rule, [], True] for rule in (*EVE_RULES, ("Group:eve-2", ["Get"]))]
    assert ask_admin(sim, "set_rules", "eve", eves) is None
    settle(sim)
    all_of_it = {"srcGroup": "eve-2", "destGroup": "eve"}
    code, remark, _, _ = ask(sim, node, eve, RequestCode.CLONE_GROUP_OFFSET, all_of_it)
    assert (code, "topic T" in remark) == (ResponseCode.NO_PERMISSION, True)
    assert state.offsets_by_topic("eve") == {}
    assert ask(sim, node, eve, RequestCode.CLONE_GROUP_OFFSET, all_of_it | {"topic": "eve"})[0] == 0
    assert state.offset("eve", *places[1][:2]) == 1
    assert state.offset("eve", *places[0][:2]) is None
    assert ask(sim, node, ROOT, RequestCode.CLONE_GROUP_OFFSET, all_of_it)[0] == 0
    assert state.offset("eve", *places[0][:2]) == 0


def test_the_order_of_a_topic_is_a_setting_of_that_topic(sim: SimCluster) -> None:
    """A right on the cluster, as who acknowledges alarms has it, tells and changes nothing of a topic."""
    keeper = add_user(sim, "keeper", ("Cluster:*", ["Get", "Update"]))
    owner = add_user(sim, "owner", ("Topic:T", ["Update"]))
    row = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    put = row | {"value": f"{sim.leader().config.cluster.broker_name}:{sim.leader().state.topics['T'].write_queues}"}
    for code, ext in ((RequestCode.PUT_KV_CONFIG, put), (RequestCode.GET_KV_CONFIG, row)):
        assert ask(sim, sim.leader(), keeper, code, ext)[0] == ResponseCode.NO_PERMISSION
    assert ask(sim, sim.leader(), owner, RequestCode.PUT_KV_CONFIG, put)[0] == 0
    assert ask(sim, sim.leader(), SHOP, RequestCode.GET_KV_CONFIG, row)[0] == 0
    assert ask(sim, sim.leader(), keeper, RequestCode.DELETE_KV_CONFIG, row)[0] == ResponseCode.NO_PERMISSION
    assert sim.leader().state.topics["T"].order
    assert ask(sim, sim.leader(), owner, RequestCode.DELETE_KV_CONFIG, row)[0] == 0
    assert not sim.leader().state.topics["T"].order


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.PULL_MESSAGE, PULL),
        (RequestCode.QUERY_MESSAGE, BY_KEY),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}),
    ],
)
def test_what_waits_for_memory_is_judged_by_the_rules_of_when_it_is_answered(
    sim: SimCluster, leads: bool, code: RequestCode, ext: dict[str, str]
) -> None:
    """A client that does not read holds up its own answers, for as long as it likes."""
    rules = [[1, "Topic:T", ["Sub"], [], True], [1, "Group:g", ["Sub", "Get"], [], True]]
    assert ask_admin(sim, "set_rules", "shop", rules) is None
    sim.propose(sim.leader(), PutGroup({"name": "g"}, True))
    settle(sim)
    send(sim, ROOT, "J")
    node = sim.leader() if leads else sim.followers()[0]
    held = [each.running.serving.remoting.router.memory.unsent for each in sim.running]
    shares = [room.share(room.size) for room in held]
    path = node.connect()
    path.ask(request(SHOP, code, OPAQUE, ext))
    sim.loop.run_for(0.5)
    assert not path.replies, "it waits"
    assert ask_admin(sim, "remove_rules", "shop", None, None) is None
    settle(sim)
    send(sim, ROOT, "K")
    for share in shares:
        share.hold(0)
    sim.loop.run_until(lambda: path.replies.get(OPAQUE), 20, "an answer")
    assert b"<<T>>" not in got(path)
    allowed = {ResponseCode.NO_PERMISSION} if leads else {ResponseCode.NO_PERMISSION, *ASK_AGAIN}
    assert path.replies[OPAQUE][0][0] in allowed


def _header(data: bytes) -> bytes:
    return data[8 : 8 + int.from_bytes(data[5:8], "big")]


def _item(sim: SimCluster) -> tuple[int, int]:
    (item,) = sim.leader().state.fetch(sim.leader().state.topics["T"].id, 0, 0, 9)
    return item.position, item.size


@pytest.mark.parametrize("leads", [True, False])
def test_370_takes_back_no_message_of_another_topic(sim: SimCluster, eve: Credentials, leads: bool) -> None:
    """A handle is text of a client: it names the topic of its writer, and a position of somebody else."""
    node = sim.leader() if leads else sim.followers()[0]
    place = send(sim, SHOP, "K", "TIMER_DELAY_MS\x015000\x02")
    (row,) = sim.leader().state.timers.due(1 << 62)
    forged = RecallHandle("eve", "raftmq", row.due_ms, "K", row.position)
    ext = {"producerGroup": "p", "topic": "eve", "recallHandle": forged.encode()}
    nowhere = ext | {"recallHandle": forged._replace(position=row.position + 1).encode()}
    assert alike(sim, node, eve, RequestCode.RECALL_MESSAGE, ext, nowhere)[0] == 604
    sim.loop.run_for(8)
    assert sim.leader().state.timers.counts.recalled == 0
    assert sim.leader().bodies("T") == [b"<<T>> K"]
    assert place.handle


def test_37_is_judged_by_the_half_message_and_not_by_the_topic_that_a_client_names(
    sim: SimCluster, eve: Credentials
) -> None:
    place = half(sim, SHOP, "H")
    for wish in (COMMIT, ROLLBACK):
        for more in ({}, {"topic": "eve"}, {"topic": "T"}):
            fields = end_fields(place, wish, **more)
            none = fields | {"commitLogOffset": str(place.position + 1), "tranStateTableOffset": str(place.offset + 1)}
            assert alike(sim, sim.leader(), eve, RequestCode.END_TRANSACTION, fields, none)[0] == 0
    assert open_halves(sim) == 1
    assert sim.leader().bodies("T") == []


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("more", [{}, {"topic": "T"}])
def test_the_sender_of_a_half_message_ends_it_without_naming_a_topic(
    sim: SimCluster, leads: bool, more: dict[str, str]
) -> None:
    """Java 4.9.8 and Go name none."""
    node = sim.leader() if leads else sim.followers()[0]
    place = half(sim, SHOP, "H")
    assert ask(sim, node, SHOP, RequestCode.END_TRANSACTION, end_fields(place, COMMIT, **more))[0] == 0
    assert open_halves(sim) == 0
    assert sim.leader().bodies("T") == [b"<<T>> H"]
    assert sim.leader().state.halves.owner(place.position) == 0, "the row of the owner goes with the half message"


def test_the_sender_may_end_what_he_may_not_send_any_more_and_others_may_by_their_right(sim: SimCluster) -> None:
    first, second = half(sim, SHOP, "H1"), half(sim, SHOP, "H2")
    assert ask_admin(sim, "set_rules", "shop", [[1, "Topic:T", ["Sub"], [], True]]) is None
    settle(sim)
    assert ask(sim, sim.leader(), SHOP, RequestCode.END_TRANSACTION, end_fields(first, COMMIT))[0] == 0
    other = add_user(sim, "other", ("Topic:T", ["Pub"]))
    assert ask_admin(sim, "remove", "shop") is None
    settle(sim)
    assert ask(sim, sim.leader(), other, RequestCode.END_TRANSACTION, end_fields(second, COMMIT))[0] == 0
    assert open_halves(sim) == 0
    assert sim.leader().bodies("T") == [b"<<T>> H1", b"<<T>> H2"]


def test_a_half_message_of_below_the_level_has_no_owner(tmp_path: Path) -> None:
    with with_key(tmp_path) as sim:
        sim.create_topic("T")
        begin(sim, level=OWNERS_LEVEL - 1)
        place = half(sim, SHOP, "H")
        (owner,) = {node.state.halves.owner(place.position) for node in sim.running}
        assert owner == 0
        assert ask(sim, sim.leader(), SHOP, RequestCode.END_TRANSACTION, end_fields(place, COMMIT))[0] == 0
        assert open_halves(sim) == 0


def test_what_is_only_observed_passes_and_is_counted(sim: SimCluster, eve: Credentials) -> None:
    assert ask_admin(sim, "set_mode", "observe") is None
    settle(sim)
    place = send(sim, SHOP, "K")
    denials = sim.leader().running.serving.broker.denials
    before = sum(each.times for each in denials.last_hour())
    assert ask(sim, sim.leader(), eve, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place.position)})[0] == 0
    fields = {"group": "eve", "delayLevel": "1", "offset": str(place.position)}
    assert ask(sim, sim.leader(), eve, RequestCode.CONSUMER_SEND_MSG_BACK, fields)[0] == 0
    assert sum(each.times for each in denials.last_hour()) == before + 2
    assert not any(each.enforced for each in denials.last_hour())


def test_a_topic_that_was_deleted_and_made_again_inherits_no_message(sim: SimCluster) -> None:
    place, waiting = send(sim, SHOP, "K"), send(sim, SHOP, "D", "TIMER_DELAY_MS\x0150000\x02")
    results = sim.propose(sim.leader(), DeleteTopic("T"))
    sim.loop.run_until(lambda: results, 10, "deleted")
    sim.create_topic("T")
    for position in (place.position, waiting.position):
        assert ask(sim, sim.leader(), SHOP, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)})[0] == 1


def test_nobody_is_asked_about_a_half_message_of_a_topic_that_he_may_not_send_to(
    sim: SimCluster, eve: Credentials
) -> None:
    """Eve announces the producer group of others, on a node where no honest producer is connected."""
    path = sim.leader().connect()
    heartbeat = {"clientID": "e", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []}
    path.ask(request(eve, RequestCode.HEART_BEAT, OPAQUE, {}, json.dumps(heartbeat).encode()))
    sim.loop.run_until(lambda: path.replies.get(OPAQUE), 20, "an answer")
    assert path.replies[OPAQUE][0][0] == 0, "anybody may announce a producer group"
    half(sim, SHOP, "H")
    sim.loop.run_for(100)
    assert sample(sim.leader().running.serving.broker.transactions.metrics, "raftmq_transaction_checks_total")
    assert b"<<T>>" not in got(path)
