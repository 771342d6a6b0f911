"""Unmodified RocketMQ clients send, read and commit; what one of them stores, every other one and ours reads."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

import raftmq

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

Start = Callable[..., Any]
FOREIGN = ["cpp", "js", "java"]
ALL = [*FOREIGN, "ours"]
PAIRS = [
    *((sender, reader) for sender in ALL for reader in ALL),
    # The same Java client, with binary headers instead of JSON.
    ("java-binary", "java-binary"),
    ("java-binary", "ours"),
    ("ours", "java-binary"),
]
QUEUES = 4
MESSAGES = 500
SAMPLE_BYTES = bytes(range(1, 256))
"""Every value but zero: the C++ binding hands bodies over as C strings."""


class Seen(NamedTuple):
    """A message as its reader saw it, whichever client that was. `shade` is a property of the user's."""

    key: str
    tag: str
    shade: str
    body: bytes


def expected(prefix: str, number: int) -> Seen:
    """Returns the message that every client sends as its message `number`."""
    key = f"{prefix}-{number}"
    return Seen(key, "odd" if number % 2 else "even", f"blue {number}", f"{key} ".encode() + SAMPLE_BYTES)


def send_foreign(start: Start, kind: str, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """Sends MESSAGES one after the other; all must be acknowledged."""
    client = start(
        kind, "produce", topic, "--group", f"{topic}-senders", "--count", str(MESSAGES), "--prefix", kind, *arguments
    )
    client.wait("done")
    sent: list[dict[str, Any]] = client.lines("send")
    assert [line for line in sent if "error" in line] == [], client.story()
    assert len(sent) == MESSAGES
    return sent


def send_ours(mq: raftmq.Client, topic: str) -> None:
    with mq.producer() as producer:
        for number in range(MESSAGES):
            message = expected("ours", number)
            producer.send_soon(
                topic, message.body, key=message.key, tag=message.tag, properties={"shade": message.shade}
            )


@contextmanager
def reading(start: Start, kind: str, topic: str, group: str) -> Iterator[list[Seen]]:
    """All messages of the topic as a foreign push consumer got them; it runs on inside the block."""
    client = start(kind, "consume", topic, "--group", group)
    lines = client.wait("message", MESSAGES)
    yield [Seen(line["key"], line["tag"], line["shade"], base64.b64decode(line["body"])) for line in lines]
    client.finish()


def read_ours(mq: raftmq.Client, topic: str, group: str) -> list[Seen]:
    with mq.consumer(group, topic, follow=False) as consumer:
        return [Seen(m.key or "", m.tag or "", m.properties["shade"], m.body) for m in consumer]


def wait_committed(mq: raftmq.Client, group: str, topic: str, limit_s: float = 30.0) -> list[raftmq.GroupOffset]:
    """The group's offsets once it has no lag: foreign clients commit on a timer of 5 s."""
    deadline = time.monotonic() + limit_s
    while True:
        offsets = mq.admin.offsets(group, topic)
        if not any(offset.lag for offset in offsets) or time.monotonic() > deadline:
            return offsets
        time.sleep(0.2)


@pytest.mark.parametrize(("sender", "reader"), PAIRS)
def test_who_sends_and_who_reads(mq: raftmq.Client, start: Start, sender: str, reader: str) -> None:
    topic, group = f"{sender}-to-{reader}", f"{sender}-to-{reader}-readers"
    mq.admin.create_topic(topic, QUEUES)
    if sender == "ours":
        send_ours(mq, topic)
    else:
        send_foreign(start, sender, topic)

    if reader == "ours":
        got = read_ours(mq, topic, group)
        offsets = wait_committed(mq, group, topic)
    else:
        with reading(start, reader, topic, group) as got:
            offsets = wait_committed(mq, group, topic)

    assert sorted(got) == sorted(expected(sender, number) for number in range(MESSAGES))
    assert len(offsets) == QUEUES
    assert sum(offset.committed or 0 for offset in offsets) == MESSAGES
    assert [offset.lag for offset in offsets] == [0] * QUEUES


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_reply_says_where_the_message_is(mq: raftmq.Client, start: Start, kind: str) -> None:
    topic = f"{kind}-replies"
    mq.admin.create_topic(topic, QUEUES)
    sent = send_foreign(start, kind, topic)
    stored = [m for queue in range(QUEUES) for m in pull_all(mq, topic, queue)]
    assert Counter((m.key, m.queue_offset) for m in stored) == Counter((s["key"], s["queue_offset"]) for s in sent)
    assert len({line["msg_id"] for line in sent}) == MESSAGES


def pull_all(mq: raftmq.Client, topic: str, queue: int) -> list[raftmq.Message]:
    """Every message of a queue up to its end, by plain pulls: no group, no dedup.

    The end is linearizable; the node that answers the pull may lag a moment behind it.
    """
    end = mq.admin.max_offset(topic, queue)
    messages: list[raftmq.Message] = []
    while len(messages) < end:
        pulled = mq.pull(topic, queue, len(messages), wait_s=5).messages
        assert pulled, f"queue {queue} ends at {end}, and {len(messages)} is not served"
        messages += pulled
    return messages


@pytest.mark.parametrize(("kind", "ids"), [("cpp", 1000), ("js", 1000), ("java", 1)])
def test_one_message_object_sent_1000_times_is_stored_1000_times(
    mq: raftmq.Client, start: Start, kind: str, ids: int
) -> None:
    """Only the Java client leaves UNIQ_KEY in the object; C++ makes a new one for each send, Node.js sends none."""
    topic = f"{kind}-same-object"
    mq.admin.create_topic(topic, QUEUES)
    client = start(kind, "produce", topic, "--group", f"{kind}-same", "--count", "1000", "--same", "--prefix", kind)
    client.wait("done")
    assert [line for line in client.lines("send") if "error" in line] == []
    stored = [m for queue in range(QUEUES) for m in pull_all(mq, topic, queue)]
    assert len(stored) == 1000
    assert {m.body for m in stored} == {expected(kind, 0).body}
    assert len({m.message_id for m in stored}) == ids


def test_the_first_message_of_the_cpp_client_makes_its_topic(mq: raftmq.Client, start: Start) -> None:
    """ali-ons cannot: it takes "no such topic" for an error before it asks for the template topic."""
    send_foreign(start, "cpp", "made-by-cpp")
    assert mq.admin.describe_topic("made-by-cpp").messages == MESSAGES


def test_two_cpp_consumers_share_a_group(mq: raftmq.Client, start: Start) -> None:
    """The second one's heartbeat makes the cluster tell the first, and both then agree who has which queue."""
    topic, group = "shared", "shared-readers"
    mq.admin.create_topic(topic, QUEUES)
    readers = [start("cpp", "consume", topic, "--group", group) for _ in range(2)]
    for reader in readers:
        reader.wait("ready")
    send_ours(mq, topic)
    wait_committed(mq, group, topic)
    got = Counter(line["key"] for reader in readers for line in reader.finish() if line["event"] == "message")
    assert set(got) == {expected("ours", number).key for number in range(MESSAGES)}


@pytest.mark.parametrize("kind", ["java", "java-binary"])
def test_batches_of_the_java_client(mq: raftmq.Client, start: Start, kind: str) -> None:
    topic = f"{kind}-batches"
    mq.admin.create_topic(topic, QUEUES)
    sent = send_foreign(start, kind, topic, "--batch", "50")
    stored = [m for queue in range(QUEUES) for m in pull_all(mq, topic, queue)]
    assert {(m.key, m.queue_offset, m.message_id) for m in stored} == {
        (s["key"], s["queue_offset"], s["msg_id"]) for s in sent
    }
    assert len(stored) == MESSAGES
