"""Unmodified clients in clusters of two and four groups of brokers: what they send, read, commit, retry and decide is
in the group that has the queue, and they read the queues of all groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import raftmq
from cluster.config.local_layout import groups_of
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import group_of, number_of
from tests.compat.conftest import all_servers
from tests.compat.many_groups import QUEUES, patient, queues_of, slots_of
from tests.compat.places import Place, places, stored_in
from tests.compat.test_orderly import check_order, send_some, wait_for
from tests.compat.test_transactions import CHECKED_S, COUNT, DECISIONS, decided
from tests.raftmq.local.test_truth_live import ask
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

Start = Callable[..., Any]
MESSAGES = 60
SECOND_TRY_S = 90.0
"""A message that failed comes again after 10 s."""


def send_to_each(mq: raftmq.Client, live: LocalCluster, topic: str) -> list[str]:
    """Sends a message to the first queue of each group; returns their keys."""
    groups = groups_of(live.nodes)
    for group in groups:
        mq.send(topic, b"body of %d" % group, key=f"g{group}", tag="red", queue_id=number_of(group, 0))
    return [f"g{group}" for group in groups]


def place_of(line: dict[str, Any]) -> Place:
    return Place(line["key"], line["queue_id"], line["queue_offset"])


def read_by(*readers: Any) -> Counter[str]:
    """Returns how often each message was given to one of the readers, by its key."""
    return Counter(line["key"] for reader in readers for line in reader.lines("message"))


def wait_read(keys: set[str], *readers: Any) -> None:
    wait(
        lambda: keys <= read_by(*readers).keys(),
        lambda: f"not read: {sorted(keys - read_by(*readers).keys())}; {readers[0].story()}",
        progress=lambda: read_by(*readers).total(),
    )


def wait_committed(mq: raftmq.Client, group: str, topic: str) -> None:
    wait(lambda: not any(row.lag for row in mq.admin.offsets(group, topic)), lambda: mq.admin.offsets(group, topic))


def test_every_node_shows_a_client_all_queues(live: LocalCluster, mq: raftmq.Client, topic: str) -> None:
    def shown() -> set[bytes]:
        ports = [port for node in live.nodes for port in (node.namesrv_port, node.broker_port)]
        answers = [ask(port, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}) for port in ports]
        assert [(code, remark) for code, remark, _ in answers if code != 0] == []
        return {body for _, _, body in answers}

    wait(lambda: len(shown()) == 1, shown)
    (body,) = shown()
    rows = msgspec.json.decode(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))["queueDatas"]
    assert sum(row["readQueueNums"] for row in rows) == len(queues_of(live))
    written = [row for row in rows if row["perm"] & 2]
    assert sum(row["writeQueueNums"] for row in written) == len(queues_of(live)) * slots_of(live)
    assert [queue.queue_id for queue in mq.admin.describe_topic(topic).queues] == queues_of(live)


WAYS = [
    *((kind, ()) for kind in ("java", "java-newest", "java-oldest", "java-binary", "cpp")),
    *(
        ("java-newest", how)
        for how in (("--batch", "5"), ("--oneway",), ("--delay-level", "1"), ("--delay-ms", "1500"))
    ),
]


@pytest.mark.parametrize(
    ("kind", "how"), WAYS, ids=lambda value: value if isinstance(value, str) else "".join(value[:1])
)
def test_sends_reach_all_groups_once(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str, how: tuple[str, ...]
) -> None:
    arguments = ("--group", f"{topic}-senders", "--count", str(MESSAGES), *patient(kind), *how)
    sender = start(kind, "produce", topic, *arguments, servers=all_servers(live))
    sender.wait("done")
    sent = sender.lines("send")
    assert [line for line in sent if "error" in line] == [], sender.story()
    wait(lambda: mq.admin.describe_topic(topic).messages >= MESSAGES, "delayed and oneway messages are there")
    found = places(mq, topic)
    assert Counter(place.key for place in found) == Counter(line["key"] for line in sent)
    assert {group_of(number) for number in found.values()} == {*groups_of(live.nodes)}
    if not how:
        assert {(place.key, place.offset) for place in found} == {(line["key"], line["queue_offset"]) for line in sent}
        assert {*found.values()} == {*queues_of(live)}


@pytest.mark.parametrize("how", ["--select", "--hash"])
@pytest.mark.parametrize("kind", ["java", "java-newest", "java-oldest"])
def test_a_selector_is_given_the_queues_of_all_groups_in_their_order(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str, how: str
) -> None:
    """Place n of its list is queue `n % QUEUES` of a slot; the slots of a group follow those of the one before it."""
    arguments = ("--group", f"{topic}-senders", "--count", str(MESSAGES), "--prefix", "k", *patient(kind), how)
    sender = start(kind, "produce", topic, *arguments, servers=all_servers(live))
    sender.wait("done")
    assert [line for line in sender.lines("send") if "error" in line] == [], sender.story()
    groups, each = groups_of(live.nodes), slots_of(live) * QUEUES

    def chosen(number: int) -> int:
        place = (number if how == "--select" else java_hash(f"k-{number}")) % (len(groups) * each)
        return number_of(groups[place // each], place % QUEUES)

    stored = {message.key: message.queue_id for message in stored_in(mq, topic)}
    assert stored == {f"k-{number}": chosen(number) for number in range(MESSAGES)}


def java_hash(text: str) -> int:
    """Returns what SelectMessageQueueByHash takes of a text: the amount of String.hashCode."""
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >> 31 else value)


@pytest.mark.parametrize("kind", ["java", "java-newest", "java-oldest", "cpp"])
def test_one_then_three_consumers_read_the_queues_of_all_groups(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str
) -> None:
    """Each message comes once to a group that does not change. Members that come and go divide all queues anew, and who
    comes back goes on from the offsets that each group of brokers keeps."""
    group, sent = f"{topic}-readers", set[str]()

    def member() -> Any:
        reader = start(kind, "consume", topic, "--group", group, *patient(kind), servers=all_servers(live))
        reader.wait("ready")
        return reader

    def send_round() -> set[str]:
        keys = {f"{len(sent) + number}" for number in range(4 * len(queues_of(live)))}
        for number, key in enumerate(sorted(keys)):
            mq.send(topic, b"x", key=key, queue_id=queues_of(live)[number % len(queues_of(live))])
        sent.update(keys)
        return keys

    one = member()
    wait_read(send_round(), one)
    wait_committed(mq, group, topic)
    assert {*read_by(one).values()} == {1}
    assert {places(mq, topic)[place_of(line)] for line in one.lines("message")} == {*queues_of(live)}

    all_three = [one, member(), member()]

    def round_is_divided() -> bool:
        keys = send_round()
        wait_read(keys, *all_three)
        return all(keys & read_by(each).keys() for each in all_three)

    wait(round_is_divided, "three members read", every_s=1)
    all_three[1].finish()
    wait_read(send_round(), *all_three)
    wait_committed(mq, group, topic)
    for each in (all_three[0], all_three[2]):
        each.finish()
    assert read_by(*all_three).keys() == sent

    later = send_round()
    back = member()
    wait_read(later, back)
    wait_committed(mq, group, topic)
    back.finish()
    assert read_by(back) == Counter(later), "it went on from the offsets of every group"


@pytest.mark.parametrize("kind", ["java", "java-newest"])
def test_consumers_that_ask_for_their_queues_share_those_of_all_groups(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str
) -> None:
    arguments = ("--group", f"{topic}-readers", "--broker-assigns", *patient(kind))
    readers = [start(kind, "consume", topic, *arguments, servers=all_servers(live)) for _ in range(2)]
    for reader in readers:
        reader.wait("ready")
    rounds = 0

    def round_is_divided() -> bool:
        nonlocal rounds
        rounds += 1
        keys = {f"{rounds}-{queue}" for queue in queues_of(live)}
        for queue in queues_of(live):
            mq.send(topic, b"x", key=f"{rounds}-{queue}", queue_id=queue)
        wait_read(keys, *readers)
        shares = [keys & read_by(reader).keys() for reader in readers]
        return sorted(map(len, shares)) == [len(keys) // 2, len(keys) - len(keys) // 2]

    wait(round_is_divided, "each has half of the queues; they ask anew every 20 s", every_s=1)
    for reader in readers:
        reader.finish()


@pytest.mark.parametrize("kind", ["java", "java-newest", "java-oldest", "cpp"])
def test_what_fails_comes_again_from_its_own_group_and_dies_there(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str
) -> None:
    group, dead = f"{topic}-readers", f"{topic}-dead"
    admin = AdminApi(admin_addresses(None, str(live.data)))
    admin.post("/v1/groups", {"name": dead, "retry_max_times": 1})
    own = () if kind == "cpp" else ("--max-times", "1")  # C++ leaves it to the group
    failing = (("--group", group, "--fail", "1"), ("--group", dead, "--fail", "99", *own))
    again, dying = (start(kind, "consume", topic, *each, *patient(kind), servers=all_servers(live)) for each in failing)
    for reader in (again, dying):
        reader.wait("ready")
    keys = send_to_each(mq, live, topic)
    for reader in (again, dying):
        reader.wait("message", 2 * len(keys), SECOND_TRY_S)
    where = {f"g{number}": number for number in groups_of(live.nodes)}

    def stored_of(name: str) -> list[tuple[str | None, int]]:
        try:
            return sorted((message.key, group_of(message.queue_id)) for message in stored_in(mq, name))
        except raftmq.NotFound:
            return []

    wait(lambda: stored_of(f"%DLQ%{dead}") == [*where.items()], lambda: stored_of(f"%DLQ%{dead}"))
    assert stored_of(f"%RETRY%{group}") == [*where.items()]
    for reader in (again, dying):
        seen = [(line["key"], line["tried"]) for line in reader.lines("message")]
        assert sorted(seen) == sorted((key, tried) for key in keys for tried in (0, 1))
        reader.finish()


@pytest.mark.parametrize("kind", ["java", "java-newest", "java-oldest", "cpp", "go"])
def test_orderly_consumers_lock_the_queues_of_all_groups(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str
) -> None:
    queues, each = queues_of(live), 10

    def member() -> Any:
        arguments = ("--group", f"{topic}-readers", "--orderly", *patient(kind))
        reader = start(kind, "consume", topic, *arguments, servers=all_servers(live))
        reader.wait("ready")
        return reader

    readers = [member()]
    rounds = 0

    def send_round() -> None:
        nonlocal rounds
        send_some(mq, topic, rounds * each, queues, each)
        rounds += 1
        wait_for(readers, rounds * each * len(queues))

    send_round()
    readers.append(member())

    def both_read() -> bool:
        before = [len(reader.lines("message")) for reader in readers]
        send_round()
        return all(len(reader.lines("message")) > count for reader, count in zip(readers, before, strict=True))

    wait(both_read, "both have queues", every_s=1)
    readers[1].finish()
    send_round()
    readers[0].finish()
    check_order(readers, rounds * each, queues)


@pytest.mark.parametrize("kind", ["java-newest-transactions", "java-oldest-transactions"])
def test_transactions_are_decided_in_their_groups(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str
) -> None:
    waits = ("0", patient(kind)[1])  # for nothing between two messages, so long for an answer
    arguments = (f"{topic}-group", "one", str(COUNT), ",".join(DECISIONS), "COMMIT_MESSAGE", *waits)
    producer = start(kind, "transact", topic, *arguments, servers=all_servers(live))
    checks = producer.wait("check", COUNT // len(DECISIONS), CHECKED_S)
    assert {line["key"] for line in checks} == {*decided("one", 2)}
    expected = decided("one", 0, 2)
    wait(lambda: mq.admin.describe_topic(topic).messages == len(expected), lambda: stored_in(mq, topic))
    producer.finish()
    stored = stored_in(mq, topic)
    assert sorted(message.body.decode() for message in stored) == expected
    assert {group_of(message.queue_id) for message in stored} == {*groups_of(live.nodes)}


@pytest.mark.parametrize("kind", ["java-newest-groups", "java-oldest-groups"])
def test_requests_are_answered_through_all_groups(live: LocalCluster, start: Start, topic: str, kind: str) -> None:
    replier = start(kind, "reply", topic, f"{topic}-repliers", servers=all_servers(live))
    replier.wait("ready")
    asker = start(kind, "request", topic, f"{topic}-askers", "12", servers=all_servers(live))
    asker.wait("done", timeout_s=at_most(120))
    answers = {line["key"]: line["body"] for line in asker.lines("answer")}
    assert answers == {f"ask-{number}": f"reply to ask-{number}" for number in range(12)}, replier.lines("replied")
    for each in (asker, replier):
        each.finish()


@pytest.mark.parametrize("kind", ["java-newest", "java-oldest", "cpp"])
def test_the_first_send_makes_a_topic_that_every_group_knows(
    live: LocalCluster, mq: raftmq.Client, start: Start, kind: str
) -> None:
    """It is made in the group whose route the client was given, as by RocketMQ's brokers."""
    topic = f"made-by-{kind}"
    arguments = ("--group", f"{topic}-senders", "--count", str(MESSAGES), *patient(kind))
    sender = start(kind, "produce", topic, *arguments, servers=all_servers(live))
    sender.wait("done")
    assert [line for line in sender.lines("send") if "error" in line] == [], sender.story()
    stored = stored_in(mq, topic)
    assert len(stored) == MESSAGES
    assert len({group_of(message.queue_id) for message in stored}) == 1
    arguments = ("--group", f"{topic}-readers", *patient(kind))
    reader = start(kind, "consume", topic, *arguments, servers=all_servers(live))
    wait_read({line["key"] for line in sender.lines("send")}, reader)
    reader.finish()
