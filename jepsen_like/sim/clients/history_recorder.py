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
    from jepsen_like.client_kit.frames import Answer
    from raftmq.client.connection import Reply


def stored_at(answer: Answer | Reply) -> tuple[int, int]:
    """Returns queue and offset of a message from the answer to its send."""
    return int(answer.ext["queueId"]), int(answer.ext["queueOffset"])


class Recorder:
    """Records the operations of all clients. Each operation is a separate process in the history, because a client here
    has many in flight. `hash` covers all steps."""

    def __init__(self, loop: SimLoop) -> None:
        self.ops: list[Op] = []
        self.counts: Counter[str] = Counter()
        self.hash = 0
        self._loop = loop
        self._processes = 0

    def invoke(self, f: str, value: Any) -> Op:
        """Records that a client begins operation `f` now, and returns the record."""
        self._processes += 1
        return self._append(self._processes, "invoke", f, value)

    def end(self, invoked: Op, outcome: OpType, value: Any) -> Op:
        """Records the operation's outcome: it happened (ok), is proved never to happen (fail), or is unknown (info)."""
        self.counts[f"{invoked.f} {outcome}"] += 1
        return self._append(invoked.process, outcome, invoked.f, value)

    def stored(self, sent: Op, queue_id: int, queue_offset: int) -> None:
        """Records that the message of a send is stored at this queue and offset."""
        self.end(sent, "ok", {**sent.value, "queue_id": queue_id, "queue_offset": queue_offset})

    def failed(self, sent: Op, error: Exception) -> None:
        """Records the error that the client library raised for a send. The outcome is fail if the error proves that
        nothing is stored, info if it is Unknown or no RaftMQError."""
        clear = isinstance(error, RaftMQError) and not isinstance(error, Unknown)
        self.end(sent, "fail" if clear else "info", {**sent.value, "error": str(error)[:100]})

    def answered(self, sent: Op, answer: Answer | Reply | None) -> tuple[int, int] | None:
        """Records a node's answer to a send, or that none came. Returns the message's (queue, offset) if it is certain,
        else None."""
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
        """Returns the number of operations that were answered as done, not counting reads."""
        return sum(count for name, count in self.counts.items() if name.endswith(" ok") and not name.startswith("read"))

    def _append(self, process: int, kind: OpType, f: str, value: Any) -> Op:
        op = Op(len(self.ops), process, kind, f, value, int(self._loop.now * 1e9))
        self.ops.append(op)
        self.hash = crc32(f"{op.time_ns} {process} {kind} {f} {value}".encode(), self.hash)
        return op
