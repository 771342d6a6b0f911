"""The history of a simulated run, in memory, in virtual time (see `jepsen_like.history`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from jepsen_like.history import Op, OpType
from jepsen_like.sim.machines.loop import SimLoop
from raftmq.client.errors import RaftMQError, Unknown, error_of
from raftmq_wire.codes import ResponseCode

if TYPE_CHECKING:
    from jepsen_like.hostile.wire import Answer
    from raftmq.client.connection import Reply


def stored_at(answer: Answer | Reply) -> tuple[int, int]:
    """Queue and offset of a message, as the answer to its send tells them."""
    return int(answer.ext["queueId"]), int(answer.ext["queueOffset"])


class Recorder:
    """Every operation is a process of its own: clients here have many in flight. `hash` covers all steps."""

    def __init__(self, loop: SimLoop) -> None:
        self.ops: list[Op] = []
        self.counts: Counter[str] = Counter()
        self.hash = 0
        self._loop = loop
        self._processes = 0

    def invoke(self, f: str, value: Any) -> Op:
        """Records that somebody asks for `f` now."""
        self._processes += 1
        return self._append(self._processes, "invoke", f, value)

    def end(self, invoked: Op, outcome: OpType, value: Any) -> Op:
        """Records the outcome: it happened (ok), is proved never to happen (fail), or nobody knows (info)."""
        self.counts[f"{invoked.f} {outcome}"] += 1
        return self._append(invoked.process, outcome, invoked.f, value)

    def stored(self, sent: Op, queue_id: int, queue_offset: int) -> None:
        """The message of a send stands at that place."""
        self.end(sent, "ok", {**sent.value, "queue_id": queue_id, "queue_offset": queue_offset})

    def failed(self, sent: Op, error: Exception) -> None:
        """The client library raised it for a send."""
        clear = isinstance(error, RaftMQError) and not isinstance(error, Unknown)
        self.end(sent, "fail" if clear else "info", {**sent.value, "error": str(error)[:100]})

    def answered(self, sent: Op, answer: Answer | Reply | None) -> tuple[int, int] | None:
        """A node answered a send, or gave no answer. Where the message stands; None unless it does for certain."""
        if answer is None:
            self.end(sent, "info", {**sent.value, "error": "no answer"})
        elif answer.code == ResponseCode.SUCCESS:
            place = stored_at(answer)
            self.stored(sent, *place)
            return place
        else:
            unknown = isinstance(error_of(answer.code, answer.remark, "send"), Unknown)
            error = f"{answer.code} {answer.remark}"[:100]
            self.end(sent, "info" if unknown else "fail", {**sent.value, "error": error})
        return None

    @property
    def acked(self) -> int:
        """Operations that were answered as done, reads left out."""
        return sum(count for name, count in self.counts.items() if name.endswith(" ok") and not name.startswith("read"))

    def _append(self, process: int, kind: OpType, f: str, value: Any) -> Op:
        op = Op(len(self.ops), process, kind, f, value, int(self._loop.now * 1e9))
        self.ops.append(op)
        self.hash = crc32(f"{op.time_ns} {process} {kind} {f} {value}".encode(), self.hash)
        return op
