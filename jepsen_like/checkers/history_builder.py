"""Builds histories by hand, for the tests' tables of good and bad ones, and to try a checker."""

from __future__ import annotations

from typing import Any

from jepsen_like.history import Op, OpType


class Script:
    """Writes a history step by step. Every step takes one microsecond; `wait` lets more time pass."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.now_ns = 0
        self._processes = 0

    def wait(self, seconds: float) -> Script:
        """Lets time pass."""
        self.now_ns += round(seconds * 1e9)
        return self

    def invoke(self, f: str, **value: Any) -> Op:
        """Records that a new process invokes the operation named `f`."""
        self._processes += 1
        return self._step(self._processes, "invoke", f, value)

    def end(self, invoked: Op, outcome: OpType = "ok", **answer: Any) -> Script:
        """Records the end of an operation, with the fields of its invocation and those of `answer`."""
        self._step(invoked.process, outcome, invoked.f, {**invoked.value, **answer})
        return self

    def did(self, f: str, answer: dict[str, Any] | None = None, **value: Any) -> Script:
        """Records an operation that was answered with ok at once."""
        return self.end(self.invoke(f, **value), "ok", **(answer or {}))

    def unsure(self, f: str, **value: Any) -> Script:
        """Records an operation of unknown outcome."""
        return self.end(self.invoke(f, **value), "info")

    def send(self, message_id: str, offset: int, queue: int = 0, **value: Any) -> Script:
        """Records one acknowledged message of topic `t`."""
        return self.did("send", {"queue_id": queue, "queue_offset": offset}, topic="t", id=message_id, **value)

    def sent(self, *message_ids: str) -> Script:
        """Records acknowledged messages of topic `t`, queue 0, from offset 0 on."""
        for offset, message_id in enumerate(message_ids):
            self.send(message_id, offset)
        return self

    def read(self, node: int, *message_ids: str, queue: int = 0) -> Script:
        """Records the final read of one replica: a queue of topic `t` from offset 0 to its end."""
        rows = [[offset, message_id] for offset, message_id in enumerate(message_ids)]
        asked = {"node": node, "topic": "t", "queue_id": queue, "offset": 0}
        return self.did("read", {"messages": rows, "end": True}, **asked)

    def poll(self, consumer: str, offset: int, *rows: tuple[int, str], end: bool = False, **value: Any) -> Script:
        """Records one poll of topic `t`, queue 0."""
        answer = {"messages": [list(row) for row in rows], "end": end}
        return self.did("poll", answer, consumer=consumer, topic="t", queue_id=0, offset=offset, **value)

    def _step(self, process: int, kind: OpType, f: str, value: Any) -> Op:
        self.now_ns += 1000
        op = Op(len(self.ops), process, kind, f, value, self.now_ns)
        self.ops.append(op)
        return op
