"""Consumers of three whole nodes read from offset zero to the end while the beginning is only in the tier."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from cluster.broker.group_lag import queue_lags
from cluster.broker.old_pulls import first_offset
from cluster.wire.codec import decode_header, encode_frame
from jepsen_like.sim.tier_store import CALM, Weather
from statemachine.groups import GroupConfig
from tests.support.sim_cluster import ClientPath, SimNode
from tests.support.tiered_cluster import EVICTING, FOLDER, Tiered

FOUND, BUSY, NOT_MATCHED, MOVED = 0, 2, 20, 21
_SIZE_OFFSET = struct.Struct(">i16xq")
"""Of a stored message: its size and, behind four fields, its queue offset."""


class Answer(NamedTuple):
    code: int
    remark: str
    next_offset: int
    min_offset: int
    max_offset: int
    offsets: list[int]
    """Of the messages that came."""


class PullPath(ClientPath):
    """Keeps the bodies of answers."""

    def __init__(self, node: SimNode) -> None:
        super().__init__(node)
        self.answers: list[Answer] = []

    def write(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[5:8], "big")
        header = decode_header(data[4], data[8:end])
        body, offsets = data[end:], []
        while body:
            size, offset = _SIZE_OFFSET.unpack_from(body)
            offsets.append(offset)
            body = body[size:]
        ext = json.loads(bytes(header.extFields) or b"{}")
        begin, low, high = (int(ext.get(name, -1)) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
        self.answers.append(Answer(header.code, header.remark or "", begin, low, high, offsets))


def pull(made: Tiered, node: SimNode, queue_id: int, offset: int, **fields: object) -> Answer:
    path = PullPath(node)
    node.paths.append(path)
    ext = {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": 7,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
        "subscription": "*",
    }
    texts = {name: str(value) for name, value in (ext | fields).items()}
    path.ask(encode_frame(11, 1, 0, ext=texts, body=b"", serialize_type=0, language="JAVA"))
    made.sim.loop.run_until(lambda: bool(path.answers), 60, "an answer to a pull")
    assert len(path.answers) == 1
    return path.answers[0]


def read_all(made: Tiered, node: SimNode, queue_id: int) -> list[int]:
    """Queue offsets, as a consumer gets them that begins at 0."""
    at, got = 0, []
    while True:
        answer = pull(made, node, queue_id, at)
        assert answer.code in (FOUND, NOT_MATCHED), answer
        assert answer.min_offset == 0
        got += answer.offsets
        at = answer.next_offset
        if at == answer.max_offset:
            return got


@pytest.fixture
def evicted() -> Iterator[Callable[..., Tiered]]:
    """Nodes that keep two segments or three, and the others only in the tier."""
    with ExitStack() as running:

        def make(seed: int, messages: int = 100) -> Tiered:
            made = running.enter_context(Tiered(seed, **EVICTING))
            made.send(messages)
            made.upload_all()
            made.sim.loop.run_until(lambda: made.leader_state().trim_position > 2 << 14, 300, "an EVICT")
            made.sim.loop.run_until(lambda: made.leader_state().sweep is None, 300, "its end")
            made.sim.settle()
            return made

        yield make


def queues(made: Tiered) -> list[tuple[int, int]]:
    """(topic_id, queue_id) of those that have messages."""
    state = made.leader_state()
    topic = state.topics["t"]
    return [(topic.id, queue) for queue in range(topic.queues) if state.max_offset(topic.id, queue)]


def test_every_node_reads_every_message_from_offset_zero_on(evicted: Callable[..., Tiered]) -> None:
    made = evicted(21)
    for node in made.sim.running:
        for topic_id, queue_id in queues(made):
            assert node.state.min_offset(topic_id, queue_id) > 0
            assert read_all(made, node, queue_id) == list(range(node.state.max_offset(topic_id, queue_id)))


def test_a_queue_begins_where_the_tier_does(evicted: Callable[..., Tiered]) -> None:
    made = evicted(28)
    for node in made.sim.running:
        for topic_id, queue_id in queues(made):
            assert node.state.min_offset(topic_id, queue_id) > 0 == first_offset(node.state, topic_id, queue_id)
        lags = queue_lags(node.state, GroupConfig("g", subscriptions={"t": ("TAG", "*", 1)}))
        assert lags
        assert all(lag.min_offset == 0 and lag.lag == lag.max_offset for lag in lags)


def test_below_the_tier_there_is_nothing(evicted: Callable[..., Tiered]) -> None:
    made = evicted(22)
    answer = pull(made, made.sim.leader(), queues(made)[0][1], -1)
    assert (answer.code, answer.remark, answer.next_offset, answer.min_offset) == (MOVED, "OFFSET_TOO_SMALL", 0, 0)


def test_a_filter_passes_over_what_it_does_not_want(evicted: Callable[..., Tiered]) -> None:
    made = evicted(23)
    answer = pull(made, made.sim.leader(), queues(made)[0][1], 0, subscription="other")
    assert (answer.code, answer.offsets) == (NOT_MATCHED, [])
    assert answer.next_offset > 0
    by_sql = pull(made, made.sim.leader(), queues(made)[0][1], 0, subscription="a > 5", expressionType="SQL92")
    assert (by_sql.code, by_sql.offsets) == (NOT_MATCHED, [])


def test_a_store_that_is_away_is_no_end_of_the_queue(evicted: Callable[..., Tiered]) -> None:
    made = evicted(24)
    topic_id, queue_id = queues(made)[0]
    made.store.weather = Weather(refused=1.0)
    answer = pull(made, made.sim.leader(), queue_id, 0)
    assert (answer.code, answer.next_offset, answer.offsets) == (BUSY, 0, [])
    assert "in the tier" in answer.remark
    made.store.weather = CALM
    assert read_all(made, made.sim.leader(), queue_id) == list(
        range(made.leader_state().max_offset(topic_id, queue_id))
    )


def test_damage_is_never_served_and_nothing_is_passed_over(evicted: Callable[..., Tiered]) -> None:
    made = evicted(25)
    leader, (topic_id, queue_id) = made.sim.leader(), queues(made)[0]
    row = leader.state.tier.rows[0]
    for _ in range(60):
        if leader.log.first_position >= row.end:  # until then the node's own file mends what is damaged
            break
        made.send(4)
        made.sim.loop.run_for(1)
    assert leader.log.first_position >= row.end
    objects = made.store.inner.objects
    for part in row.parts:
        name = f"{FOLDER}/{part.name}"
        intact = objects[name]
        objects[name] = bytes(len(intact))
        answer = pull(made, leader, queue_id, 0)
        assert (answer.code, answer.next_offset, answer.offsets) == (BUSY, 0, [])
        assert "raftmq tier repair" in answer.remark
        objects[name] = intact
    assert read_all(made, leader, queue_id) == list(range(leader.state.max_offset(topic_id, queue_id)))


def test_a_new_leader_reads_what_its_predecessor_evicted(evicted: Callable[..., Tiered]) -> None:
    made = evicted(26)
    old = made.sim.leader()
    old.kill(power=True)
    new = made.sim.leader(besides=old)
    for topic_id, queue_id in queues(made):
        assert read_all(made, new, queue_id) == list(range(new.state.max_offset(topic_id, queue_id)))
    old.start()
