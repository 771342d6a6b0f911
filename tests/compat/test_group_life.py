"""Groups as they live, with unmodified clients: request and reply, resets of running consumers, broadcasting, tags of
several kinds, where a new group begins, message trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq_wire.message_format import encode_message_id
from tests.compat.test_mqadmin import rows
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

Start = Callable[..., Any]
JAVAS = ["java-oldest-groups", "java-groups", "java-newest-groups"]
QUEUES, MESSAGES = 4, 40
QUIET_S = 3.0


@pytest.fixture
def admin(live: LocalCluster) -> AdminApi:
    return AdminApi(admin_addresses(None, str(live.data)))


def send_some(mq: raftmq.Client, topic: str, first: int, count: int = MESSAGES) -> None:
    """Messages first..first+count, with the tags a, b and c in turn."""
    with mq.producer() as producer:
        for number in range(first, first + count):
            producer.send_soon(topic, b"m", key=f"k{number}", tag="abc"[number % 3])


def keys_of(lines: list[dict[str, Any]]) -> set[str]:
    return {line["key"] for line in lines}


@pytest.mark.parametrize("kind", JAVAS)
def test_a_reply_reaches_who_asked(mq: raftmq.Client, start: Start, kind: str) -> None:
    topic = f"{kind}-requests"
    mq.admin.create_topic(topic, QUEUES)
    replier = start(kind, "reply", topic, f"{kind}-repliers")
    replier.wait("ready")
    asker = start(kind, "request", topic, f"{kind}-askers", "10")
    asker.wait("done", timeout_s=at_most(120))
    answers = {line["key"]: line["body"] for line in asker.lines("answer")}
    assert answers == {f"ask-{number}": f"reply to ask-{number}" for number in range(10)}, replier.lines("replied")
    asker.finish()
    replier.finish()


@pytest.mark.parametrize("kind", [*JAVAS, "cpp", "js"])
def test_a_running_consumer_goes_back_and_skips(mq: raftmq.Client, start: Start, admin: AdminApi, kind: str) -> None:
    """A reset goes to the first message while it runs, over HTTP; what it commits afterwards counts."""
    topic, group = f"{kind}-reset", f"{kind}-reset-readers"
    mq.admin.create_topic(topic, QUEUES)
    send_some(mq, topic, 0)
    arguments = (group,) if kind in JAVAS else ("--group", group)
    reader = start(kind, "consume", topic, *arguments)
    reader.wait("message", MESSAGES)
    admin.post(f"/v1/groups/{group}/reset", {"topic": topic, "to": "earliest"})
    reader.wait("message", 2 * MESSAGES, timeout_s=at_most(90))
    assert len(keys_of(reader.lines("message"))) == MESSAGES
    deadline = time.monotonic() + at_most(60)
    while any(row.lag for row in mq.admin.offsets(group, topic)):
        assert time.monotonic() < deadline, "its commits count again"
        time.sleep(0.5)
    reader.finish()


def test_mqadmin_resets_and_asks_a_running_consumer(
    live: LocalCluster,
    mq: raftmq.Client,
    start: Start,
    mqadmin: Callable[..., str],
    request: pytest.FixtureRequest,
) -> None:
    version = request.node.callspec.params["mqadmin"].replace(".", "-")
    topic, group = f"tool-reset-{version}", f"tool-reset-{version}-readers"
    mq.admin.create_topic(topic, QUEUES)
    sent = mq.send(topic, b"m", key="k0", tag="a")
    send_some(mq, topic, 1, MESSAGES - 1)
    reader = start("java-groups", "consume", topic, group)
    (ready,) = reader.wait("ready")
    reader.wait("message", MESSAGES)

    printed = mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert sorted(row[1:] for row in rows(printed, "raftmq")) == [[str(queue), "0"] for queue in range(QUEUES)]
    reader.wait("message", 2 * MESSAGES, timeout_s=at_most(90))

    printed = mqadmin("consumerStatus", "-g", group, "-i", ready["key"])
    assert "#Consumer Properties#" in printed, printed
    of_topic = () if version.startswith("4") else ("-t", topic)
    host, _, port = live.servers.replace(",", ";").split(";")[0].rpartition(":")
    message_id = encode_message_id((host, int(port)), sent.position)
    printed = mqadmin("queryMsgById", "-i", message_id, *of_topic, "-g", group, "-d", ready["key"])
    assert "CR_SUCCESS" in printed, printed
    reader.finish()

    mq.admin.create_group(f"{group}-clone")
    mqadmin("cloneGroupOffset", "-s", group, "-d", f"{group}-clone", "-t", topic)
    assert sum(row.committed or 0 for row in mq.admin.offsets(f"{group}-clone", topic)) == MESSAGES


@pytest.mark.parametrize("kind", JAVAS)
def test_each_client_of_a_broadcasting_group_gets_everything(mq: raftmq.Client, start: Start, kind: str) -> None:
    topic, group = f"{kind}-broadcast", f"{kind}-broadcast-readers"
    mq.admin.create_topic(topic, QUEUES)
    readers = [start(kind, "consume", topic, group, "*", "first", "broadcasting") for _ in range(2)]
    for reader in readers:
        reader.wait("ready")
    send_some(mq, topic, 0)
    for reader in readers:
        assert len(keys_of(reader.wait("message", MESSAGES))) == MESSAGES
    for reader in readers:
        reader.finish()


@pytest.mark.parametrize("kind", JAVAS)
def test_several_tags(mq: raftmq.Client, start: Start, kind: str) -> None:
    topic, group = f"{kind}-tags", f"{kind}-tags-readers"
    mq.admin.create_topic(topic, QUEUES)
    reader = start(kind, "consume", topic, group, "a || c")
    reader.wait("ready")
    send_some(mq, topic, 0)
    wanted = {f"k{number}" for number in range(MESSAGES) if number % 3 != 1}
    assert keys_of(reader.wait("message", len(wanted))) == wanted
    time.sleep(QUIET_S)
    assert {line["body"] for line in reader.lines("message")} == {"a", "c"}
    reader.finish()


@pytest.mark.parametrize("kind", JAVAS)
def test_where_a_new_client_begins(mq: raftmq.Client, start: Start, kind: str) -> None:
    """The client decides in broadcasting mode: it begins at the end, or at a time, of which RocketMQ counts whole
    seconds. A new clustering group begins with the first message while the queue still has it."""
    topic = f"{kind}-begin"
    mq.admin.create_topic(topic, QUEUES)
    send_some(mq, topic, 0)
    time.sleep(2.1)
    between_ms = int(time.time() * 1000)
    time.sleep(0.1)
    send_some(mq, topic, MESSAGES)
    from_time = start(kind, "consume", topic, f"{kind}-from-time", "*", str(between_ms), "broadcasting")
    from_last = start(kind, "consume", topic, f"{kind}-from-last", "*", "last", "broadcasting")
    together = start(kind, "consume", topic, f"{kind}-together", "*", "last")
    later = {f"k{number}" for number in range(MESSAGES, 2 * MESSAGES)}
    assert keys_of(from_time.wait("message", MESSAGES)) == later
    assert len(keys_of(together.wait("message", 2 * MESSAGES))) == 2 * MESSAGES
    from_last.wait("ready")
    time.sleep(QUIET_S)
    assert not keys_of(from_last.lines("message")) & {f"k{number}" for number in range(2 * MESSAGES)}
    send_some(mq, topic, 2 * MESSAGES)
    from_last.wait("message", MESSAGES)
    for reader in (from_time, from_last, together):
        reader.finish()


@pytest.mark.parametrize("kind", JAVAS)
def test_traces_are_kept_in_their_topic(mq: raftmq.Client, start: Start, kind: str) -> None:
    """The first trace makes the topic."""
    topic = f"{kind}-traced"
    mq.admin.create_topic(topic, QUEUES)
    before = traces(mq)
    sender = start(kind, "traced", topic, f"{kind}-traced-senders", "5")
    sender.wait("send", 5)
    deadline = time.monotonic() + at_most(30)
    while traces(mq) == before:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    sender.finish()


def traces(mq: raftmq.Client) -> int:
    """Messages of the trace topic."""
    name = "RMQ_SYS_TRACE_TOPIC"
    return mq.admin.describe_topic(name).messages if name in mq.admin.topics() else 0
