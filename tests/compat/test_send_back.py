"""Consumers that return RECONSUME_LATER: the message comes again, not too soon, and ends among the dead letters."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

import raftmq
from raftmq.client.errors import NotFound
from raftmq.local.cluster import LocalCluster
from raftmq_wire.codec import JSON, decode_header, encode_frame

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

Start = Callable[..., Any]
BACK_OFF_S = (10.0, 30.0)
"""Levels 3 and 4: how long a message waits after its first failure, and after its second."""


def send_one(mq: raftmq.Client, topic: str, key: str) -> None:
    mq.send(topic, f"body of {key}".encode(), key=key, tag="red", properties={"shade": "blue"})


def put_group(live: LocalCluster, group: str, retry_max_times: int) -> None:
    """Makes the group as mqadmin does (code 200)."""
    body = msgspec.json.encode({"groupName": group, "retryMaxTimes": retry_max_times})
    with socket.create_connection(("127.0.0.1", live.nodes[0].broker_port), 10) as connection:
        connection.sendall(encode_frame(200, 1, 0, body=body))
        data = connection.recv(1 << 16)
    assert decode_header(JSON, data[8 : 8 + int.from_bytes(data[5:8], "big")]).code == 0


def dead_letters(mq: raftmq.Client, group: str, limit_s: float) -> list[raftmq.Message]:
    """Returns the messages of %DLQ%group once there are some, or none after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if mq.admin.max_offset(f"%DLQ%{group}", 0):
                return list(mq.pull(f"%DLQ%{group}", 0, 0, wait_s=5).messages)
        except NotFound:
            pass
        if time.monotonic() > deadline:
            return []
        time.sleep(0.5)


@pytest.mark.parametrize("kind", ["cpp", "java"])
def test_it_comes_again_until_it_is_handled(
    mq: raftmq.Client, start: Start, tell: Callable[[str], None], kind: str
) -> None:
    topic, group = f"{kind}-again", f"{kind}-again-readers"
    mq.admin.create_topic(topic, 1)
    reader = start(kind, "consume", topic, "--group", group, "--fail", "2")
    reader.wait("ready")
    send_one(mq, topic, "K")
    lines = reader.wait("message", 3, 90.0)
    time.sleep(5)
    seen = reader.lines("message")
    reader.finish()
    gaps = [later["at"] - earlier["at"] for earlier, later in pairwise(lines)]
    tell(f"{kind}: seen {len(seen)} times, {', '.join(f'{gap:.2f} s' for gap in gaps)} apart")
    assert [line["tried"] for line in seen] == [0, 1, 2]
    assert {line["body"] for line in seen} == {lines[0]["body"]}
    assert {(line["key"], line["tag"], line["shade"]) for line in seen} == {("K", "red", "blue")}
    assert all(gap >= least for gap, least in zip(gaps, BACK_OFF_S, strict=True))
    assert dead_letters(mq, group, 0) == []


@pytest.mark.parametrize("kind", ["cpp", "java"])
def test_at_the_maximum_it_is_a_dead_letter(live: LocalCluster, mq: raftmq.Client, start: Start, kind: str) -> None:
    """C++ leaves the maximum to the group, Java names its own."""
    topic, group = f"{kind}-dead", f"{kind}-dead-readers"
    mq.admin.create_topic(topic, 1)
    put_group(live, group, 1 if kind == "cpp" else 9)
    own = () if kind == "cpp" else ("--max-times", "1")
    reader = start(kind, "consume", topic, "--group", group, "--fail", "99", *own)
    reader.wait("ready")
    send_one(mq, topic, "K")
    reader.wait("message", 2, 90.0)
    (letter,) = dead_letters(mq, group, 30.0)
    reader.finish()
    assert [line["tried"] for line in reader.lines("message")] == [0, 1]
    assert (letter.body, letter.key, letter.tag) == (b"body of K", "K", "red")
    assert letter.properties["RETRY_TOPIC"] == topic
