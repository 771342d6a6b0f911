"""What unmodified clients do when they are over a quota that is no rate: of new topics and groups, of what a topic
keeps, of connections and of requests at once.

No client may keep a node busy with its repetitions, die of a refusal, or take a message for stored that is not; and
each goes on once the quota is gone.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq_wire.errors import LocalError
from tests.compat.places import stored_in
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

Start = Callable[..., Any]
Limit = Callable[[str, str, int], None]
Tell = Callable[[str], None]
HERE = "address=127.0.0.1"
"""The subject of all foreign clients of these tests."""
KINDS = ("java", "java-newest", "java-oldest", "go", "cpp", "js")
WATCH_S = 10.0
REPEATS_MAX = 20
"""The most requests of one client in WATCH_S that are refused: more would be a busy loop."""
REFUSED = re.compile(r'^raftmq_quota_refused_total\{limit="(\w+)"\} (\S+)$', re.MULTILINE)


def refused(live: LocalCluster, limit: str) -> float:
    """Returns how often all nodes have refused something for this limit."""
    total = 0.0
    for node in live.nodes:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}/metrics", timeout=at_most(10)) as reply:
            total += sum(float(count) for name, count in REFUSED.findall(reply.read().decode()) if name == limit)
    return total


@pytest.fixture
def limit(live: LocalCluster) -> Iterator[Limit]:
    """`limit(subject, name, value)` sets a quota; all are gone after the test. A value of 0 takes it away."""
    api, subjects = AdminApi([address_of(node) for node in live.nodes]), set[str]()

    def limit(subject: str, name: str, value: int) -> None:
        limits = {name: value} if value else None
        api.put("/v1/quotas", {"quotas": [{"subject": subject, "limits": limits}]})
        subjects.add(subject)

    yield limit
    for subject in subjects:
        with suppress(LocalError):
            api.delete(f"/v1/quotas/{subject}")


def sends_of(client: Any) -> tuple[int, list[str]]:
    """Returns how many of its messages a client takes for stored, and the errors of the others."""
    lines = client.lines("send")
    errors = [line["error"] for line in lines if "error" in line]
    return len(lines) - len(errors), errors


def short(errors: list[str]) -> str:
    return errors[0].split("\n")[0][:160] if errors else "nothing"


def use_up(live: LocalCluster, topic: str) -> None:
    """Makes the one topic that may be made in this minute, unless a test before has made it."""
    with raftmq.connect(live.servers, timeout_s=1) as client, suppress(raftmq.RaftMQError):
        client.admin.create_topic(topic, 1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "js"])  # it makes no topics
def test_a_send_to_a_topic_that_it_may_not_make(
    live: LocalCluster, mq: raftmq.Client, start: Start, limit: Limit, tell: Tell, kind: str
) -> None:
    limit(HERE, "new_topics", 1)
    use_up(live, f"made-before-{kind}")
    before, topic = refused(live, "new_topics"), f"too-new-{kind}"
    sender = start(kind, "produce", topic, "--group", f"{topic}-senders", "--count", "1")
    sender.wait("done", timeout_s=at_most(60))
    stored, errors = sends_of(sender)
    asked = refused(live, "new_topics") - before
    tell(f"new_topics     {kind:12} asks {asked:.0f} times, says {short(errors)}")
    assert stored == 0
    assert 1 <= asked <= REPEATS_MAX
    limit(HERE, "new_topics", 0)
    again = start(kind, "produce", topic, "--group", f"{topic}-senders", "--count", "1")
    again.wait("done", timeout_s=at_most(60))
    assert sends_of(again)[0] == len(stored_in(mq, topic)) == 1


def test_a_topic_that_mqadmin_may_not_make(
    request: pytest.FixtureRequest, live: LocalCluster, limit: Limit, tell: Tell, mqadmin: Callable[..., str]
) -> None:
    limit(HERE, "new_topics", 1)
    topic = f"too-new-{request.node.callspec.params['mqadmin'].replace('.', '-')}"
    use_up(live, f"before-{topic}")
    before = refused(live, "new_topics")
    printed = mqadmin("updateTopic", "-c", "DefaultCluster", "-t", topic)
    asked = refused(live, "new_topics") - before
    told = next((line for line in printed.splitlines() if "quota" in line), printed[-300:])
    tell(f"new_topics     mqadmin      asks {asked:.0f} times, says {told.strip()[:200]}")
    assert 1 <= asked <= REPEATS_MAX
    assert "quota address=127.0.0.1" in printed
    limit(HERE, "new_topics", 0)
    assert "success" in mqadmin("updateTopic", "-c", "DefaultCluster", "-t", topic)


def test_consumers_of_groups_that_they_may_not_make(
    live: LocalCluster, mq: raftmq.Client, start: Start, limit: Limit, tell: Tell
) -> None:
    """A consumer tells its group again with its heartbeats, and reads meanwhile; one that locks its queues waits until
    the group may be made."""
    topic = "too-new-groups"
    mq.admin.create_topic(topic, 2)
    for number in range(4):
        mq.send(topic, b"body", key=str(number), tag="t", properties={"shade": "s"})
    limit(HERE, "new_groups", 1)
    mq.admin.create_group("made-before")
    clients = {}
    for kind in KINDS:
        before = refused(live, "new_groups")
        flags = ("--orderly",) if kind == "go" else ()
        clients[kind] = start(kind, "consume", topic, "--group", f"too-new-{kind}", *flags)
        clients[kind].wait("ready", timeout_s=at_most(60))
        time.sleep(WATCH_S)
        asked, got = refused(live, "new_groups") - before, len(clients[kind].lines("message"))
        tell(f"new_groups     {kind:12} asks {asked:.0f} times in {WATCH_S:.0f} s, and reads {got} messages")
        assert asked <= REPEATS_MAX + len(clients), "those before tell it again every 30 s"
    limit(HERE, "new_groups", 0)
    for client in clients.values():
        client.wait("message", 4, timeout_s=at_most(90))


@pytest.mark.parametrize("kind", KINDS)
def test_a_send_to_a_topic_that_is_full(
    live: LocalCluster, mq: raftmq.Client, start: Start, limit: Limit, tell: Tell, kind: str
) -> None:
    topic = f"full-{kind}"
    mq.admin.create_topic(topic, 1)
    mq.send(topic, b"x" * 4_000)
    limit(f"topic={topic}", "backlog_bytes", 1_000)
    with raftmq.connect(live.servers) as client, client.producer(timeout_s=2) as producer:
        wait(lambda: _is_refused(producer, topic))
    kept = len(stored_in(mq, topic))
    before = refused(live, "backlog_bytes")
    sender = start(kind, "produce", topic, "--group", f"{topic}-senders", "--count", "3")
    sender.wait("done", timeout_s=at_most(60))
    stored, errors = sends_of(sender)
    asked = refused(live, "backlog_bytes") - before
    tell(f"backlog_bytes  {kind:12} asks {asked / 3:.1f} times for each message, says {short(errors)}")
    assert stored == 0
    assert len(stored_in(mq, topic)) == kept
    assert 3 <= asked <= 3 * REPEATS_MAX


def _is_refused(producer: Any, topic: str) -> bool:
    try:
        producer.send(topic, b"x" * 10)
    except raftmq.Refused:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_may_open_no_more_connections(
    live: LocalCluster, mq: raftmq.Client, start: Start, limit: Limit, tell: Tell, kind: str
) -> None:
    topic = f"connections-{kind}"
    mq.admin.create_topic(topic, 1)
    limit(HERE, "connections", 1)
    for each in range(3):  # takes what each node would let pass
        with suppress(raftmq.RaftMQError), raftmq.connect(live.servers, timeout_s=0.5) as client:
            client.send(topic, b"%d" % each)
    kept, before = len(stored_in(mq, topic)), refused(live, "connections")
    sender = start(kind, "produce", topic, "--group", f"{topic}-senders", "--count", "200", "--pace-ms", "200")
    time.sleep(WATCH_S)
    asked = refused(live, "connections") - before
    stored, errors = sends_of(sender)
    tell(f"connections    {kind:12} connects {asked:.0f} times in {WATCH_S:.0f} s, says {short(errors)}")
    assert asked <= 10 * REPEATS_MAX
    assert stored <= len(stored_in(mq, topic)) - kept
    limit(HERE, "connections", 0)
    again = start(kind, "produce", topic, "--group", f"{topic}-senders", "--count", "1")
    again.wait("done", timeout_s=at_most(60))
    assert sends_of(again)[0] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_more_requests_at_once_than_allowed_wait(
    live: LocalCluster, mq: raftmq.Client, start: Start, limit: Limit, tell: Tell, kind: str
) -> None:
    topic, count = f"at-once-{kind}", 60
    mq.admin.create_topic(topic, 2)
    limit(HERE, "requests", 1)
    before = refused(live, "requests")
    arguments = ("--group", f"{topic}-senders", "--count", str(count), "--threads", "8", "--rate", "1000")
    sender = start(kind, "produce", topic, *arguments)
    sender.wait("done", timeout_s=at_most(60))
    stored, errors = sends_of(sender)
    asked = refused(live, "requests") - before
    tell(f"requests       {kind:12} {stored} of {count} are stored, {asked:.0f} refused, says {short(errors)}")
    assert stored <= len(stored_in(mq, topic)) <= count
    assert asked <= count
