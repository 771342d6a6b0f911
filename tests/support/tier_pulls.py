"""Pulls of one consumer on three whole nodes, for tests of the tier."""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

from raftmq_wire.codec import decode_header, encode_frame
from tests.support.sim_cluster import ClientPath, SimNode
from tests.support.tiered_cluster import Tiered

FOUND, BUSY, NOT_MATCHED, MOVED = 0, 2, 20, 21
_SIZE_OFFSET = struct.Struct(">i16xq")
"""Two fields of a stored message: its size and, behind four fields, its queue offset."""


class Answer(NamedTuple):
    code: int
    remark: str
    next_offset: int
    min_offset: int
    max_offset: int
    offsets: list[int]
    """The queue offsets of the messages that came."""
    body: bytes = b""
    """These, one behind the other."""


class PullPath(ClientPath):
    """Keeps the bodies of answers."""

    def __init__(self, node: SimNode) -> None:
        super().__init__(node)
        self.answers: list[Answer] = []

    def write(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[5:8], "big")
        header = decode_header(data[4], data[8:end])
        body, offsets = bytes(data[end:]), []
        whole = body
        while body:
            size, offset = _SIZE_OFFSET.unpack_from(body)
            offsets.append(offset)
            body = body[size:]
        ext = json.loads(bytes(header.extFields) or b"{}")
        begin, low, high = (int(ext.get(name, -1)) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
        self.answers.append(Answer(header.code, header.remark or "", begin, low, high, offsets, whole))


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


def queues(made: Tiered) -> list[tuple[int, int]]:
    """(topic_id, queue_id) of those that have messages."""
    state = made.leader_state()
    topic = state.topics["t"]
    return [(topic.id, queue) for queue in range(topic.queues) if state.max_offset(topic.id, queue)]
