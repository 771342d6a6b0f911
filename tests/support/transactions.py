"""A producer of transactions in frames: sends half messages, ends them, records what it is asked about them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, decode_header, encode_frame
from raftmq_wire.message_format import Message, decode_message, decode_message_id
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "PG"
HALF = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"


class Half(NamedTuple):
    """The answer to a half message."""

    position: int
    offset: int
    key: str
    queue_id: int


class Producer(ClientPath):
    """A connection whose client answers nothing by itself."""

    def __init__(self, node: SimNode, client_id: str = "p1", group: str = GROUP) -> None:
        super().__init__(node)
        node.paths.append(self)
        self.checks: list[tuple[dict[str, str], Message]] = []
        self.opaque = 1000
        body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": group}]}).encode()
        self.ask(encode_frame(34, 1, 0, body=body))

    def write(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[5:8], "big")
        header = decode_header(data[4], data[8:end])
        if header.flag & FLAG_RESPONSE:
            super().write(data)
        elif not self.closed:
            assert (header.code, header.flag) == (39, FLAG_ONEWAY)
            self.checks.append((json.loads(bytes(header.extFields)), decode_message(data[end:])[0]))

    def send(self, sim: SimCluster, key: str, body: bytes = b"m", topic: str = "T", **fields: Any) -> Half:
        """Sends a half message and waits for its answer."""
        self.opaque += 1
        opaque = self.opaque
        properties = HALF + fields.pop("properties", "")
        self.ask(send_frame(opaque, topic, body, key=key, properties=properties, **fields))
        sim.loop.run_until(lambda: opaque in self.replies, 20, "the half message is stored")
        code, remark, ext = self.replies[opaque][0]
        assert code == 0, remark
        answer = json.loads(ext)
        assert answer["transactionId"] == key
        position = decode_message_id(answer["msgId"])[1]
        return Half(position, int(answer["queueOffset"]), key, int(answer["queueId"]))

    def end(self, half: Half, wish: int, *, oneway: bool = True, **ext: Any) -> int:
        """Sends END_TRANSACTION; the request's number."""
        self.opaque += 1
        self.ask(end_frame(self.opaque, half, wish, FLAG_ONEWAY if oneway else 0, **ext))
        return self.opaque

    def ask_to_end(self, sim: SimCluster, half: Half, wish: int, **ext: Any) -> tuple[int, str]:
        """The same with an answer: code and remark."""
        opaque = self.end(half, wish, oneway=False, **ext)
        sim.loop.run_until(lambda: opaque in self.replies, 20, "an answer")
        assert len(codes(self, opaque)) == 1
        return self.replies[opaque][0][:2]


def end_frame(opaque: int, half: Half, wish: int, flag: int, **ext: Any) -> bytes:
    """END_TRANSACTION as a Java producer writes it; `ext` replaces fields, None leaves one out."""
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": half.offset,
        "commitLogOffset": half.position,
        "commitOrRollback": wish,
        "fromTransactionCheck": "false",
        "msgId": half.key,
        "transactionId": half.key,
        **ext,
    }
    named = {name: str(value) for name, value in fields.items() if value is not None}
    return encode_frame(37, opaque, flag, ext=named, language="JAVA", version=401)
