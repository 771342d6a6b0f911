"""The parts of a node that a plain send meets on its way into the queue, and the requests that clients write."""

from __future__ import annotations

import json
import struct
from collections import deque
from types import SimpleNamespace
from typing import Any

from cluster.broker.access.denials import Denials
from cluster.broker.access.guesses import Guesses
from cluster.broker.access.secrets import Secrets
from cluster.broker.sends.send_service import Sends
from cluster.flow.gate import Gate
from cluster.remoting.admission import Admission
from cluster.remoting.connection.frame import Frame
from cluster.remoting.handlers.send import SendHandler, make_intake
from cluster.replication.message_batch import QueueCursor, Send, TopicSlot
from cluster.replication.send_identity import ConnectionSession, RetryMemory
from cluster.requests.judge import Judge
from cluster.runtime.framing import FrameBuffer
from raftmq_wire.codec import CodecError, decode_header
from raftmq_wire.kernel import SHORTCUTS
from statemachine.access.users import Access
from tests.support.contexts import CONFIG

INCARNATION = b"12345678"
STORE_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


class _Path:
    """What a send sees of its connection."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Node:
    """The part of a leading node that a send meets."""

    def __init__(self) -> None:
        self.limits = CONFIG.limits
        self.queue = SimpleNamespace(waiting=deque())
        self.plain: dict[bytes, TopicSlot] = {}
        self.session_max: dict[bytes, int] = {}
        self.gate = Gate(CONFIG)
        self.now_ms = 77
        self.refusing = ""
        self.open = True
        self.retries = RetryMemory()
        self.early = SimpleNamespace()
        self.slots = {
            name: TopicSlot(name, at, 4, 8, perm, dedup, lambda t, q: QueueCursor(t, q, 0), ack)
            for at, (name, perm, dedup, ack) in enumerate(
                [
                    ("orders", 6, "retry", 0),
                    ("closed", 4, "retry", 0),
                    ("strict", 6, "strict", 0),
                    ("loose", 6, "off", 0),
                    ("quick", 6, "retry", 1),
                    ("%RETRY%sales", 6, "retry", 0),
                    ("l" * 200, 6, "retry", 0),
                ],
                start=1,
            )
        }
        self.state: Any = SimpleNamespace(groups={}, level=0, session=lambda _: None, unique=lambda *_: None)
        services: Any = SimpleNamespace(config=CONFIG, state=self.state, log_time_ms=lambda: 1_700_000_000_000)
        clock: Any = SimpleNamespace(monotonic_ms=lambda: 0)
        proposals: Any = self
        self.topics = self.repeats = self
        self.refused: list[Any] = []
        self.sends: Sends[Frame] = Sends(
            services,
            clock,
            proposals,
            self.retries,
            INCARNATION,
            entropy=bytes,
            route=lambda _: None,
            refuse=lambda _, __: None,
        )
        replies: Any = SimpleNamespace(refuse=lambda frame, refused: self.refused.append(refused.reason))
        self.intake = make_intake(proposals, self.sends, self.retries, self.limits)
        self.handler = SendHandler(self.sends, replies, lambda _: self.intake, self.limits, lambda *_: None)
        self.session = ConnectionSession(INCARNATION + bytes(8))
        self.session.issue()  # the first send of a connection goes the long way
        self.session_max[self.session.producer_id] = 1
        self.path: Any = _Path(
            session=self.session,
            in_flight=self.gate.holder("10.0.0.1"),
            born_host=b"\x0a\x00\x00\x01\x00\x00\x04\xd2",
            closed=False,
            forwarded=False,
        )

    @property
    def as_proposals(self) -> Any:
        """The node in the place of its `Proposals`."""
        return self

    def in_python(self) -> Node:
        """The same node whose long way is Python's alone."""
        limits: Any = self.limits
        self.sends._plain_batches = SHORTCUTS["PlainBatches"](limits, self.sends.suffix)
        return self

    def judged_by(self, access: Access, secrets: Secrets) -> Admission:
        """The judge of this node's requests, by these users and secrets; needs are those of sends."""
        nothing: Any = SimpleNamespace(judge_by=lambda *_: None)
        self.path.peer_address, self.path.on_close = ("10.0.0.1", 1234), []
        return Admission(
            access,
            secrets,
            Judge(access, Denials(lambda: 0), "c"),
            polls=nothing,
            stale=lambda: "",
            refuse=lambda frame, refused: self.refused.append(refused.remark),
            turns=nothing,
            guesses=Guesses(lambda: 0, lambda: 0, lambda *_: lambda: None),
            confirms=SimpleNamespace(is_possible=False, ask=lambda _: None),  # type: ignore[arg-type]
        )

    def slot(self, topic: str) -> TopicSlot | None:
        return self.slots.get(topic)

    def changing(self, _: str) -> bool:
        return True

    def submit_commands(self, *_: Any) -> None:
        self.refused.append("waits for its topic")

    def submit_send(self, send: Send) -> None:
        self.queue.waiting.append(send)

    def submit_plain(self, path: Any, sends: list[Send]) -> None:
        self.gate.hold_each(path.in_flight, sends, sends[-1].user)
        self.queue.waiting.extend(sends)
        self.session_max[sends[-1].producer_id] = sends[-1].sequence

    def find(self, producer_id: bytes, sequence: int) -> Send | None:
        named = (producer_id, sequence)
        return next((send for send in self.queue.waiting if (send.producer_id, send.sequence) == named), None)

    def strict_inflight(self, _: Send, __: list[int]) -> None:
        return None

    def read(self, data: bytes) -> list[Send]:
        """One read, as a node takes it: by the kernel what it takes, else the long way. Returns the sends that wait."""
        _, frames = FrameBuffer(1 << 24).feed(data)
        at = 0
        while (at := self.intake.take(self.path, data, frames, at)) < len(frames):
            self.long_way(data, *frames[at])
            at += 1
        return list(self.queue.waiting)

    def long_way(self, data: bytes, start: int, stop: int) -> None:
        """Takes a frame the way that `RemotingConnection` and `Router` do."""
        made = self.frame_of(data, start, stop)
        if made.header.code in (10, 310, 320) and not made.header.flag & 1:
            self.handler.on_send(made)

    def frame_of(self, data: bytes, start: int, stop: int) -> Frame:
        """The frame as it is given to the router. Raises CodecError."""
        end = start + 4 + int.from_bytes(data[start + 1 : start + 4], "big")
        if end > stop:
            raise CodecError("the header is longer than its frame")
        header = decode_header(data[start], data[start + 4 : end])
        return Frame(self.path, data[start], header, data[start + 4 : end], data[end:stop], stop - start - 4)


def frame(header: bytes, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def request(
    properties: str = "TAGS\x01blue\x02UNIQ_KEY\x01AC10\x02WAIT\x01true\x02",
    body: bytes = b"hello",
    *,
    ascii_only: bool = True,
    spaces: bool = False,
    code: Any = 310,
    ext: dict[str, Any] | None = None,
    **header: Any,
) -> bytes:
    """A send as the Java client writes it, with the differences named."""
    fields: dict[str, Any] = {
        "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "false", "n": "raftmq",
    }  # fmt: skip
    fields |= ext or {}
    fields = {name: value for name, value in fields.items() if value is not ...}
    whole = {
        "code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 11,
        "serializeTypeCurrentRPC": "JSON", "version": 477,
    } | header  # fmt: skip
    separators = (", ", ": ") if spaces else (",", ":")
    return frame(json.dumps(whole, ensure_ascii=ascii_only, separators=separators).encode(), body)
