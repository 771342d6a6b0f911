"""The history of a simulated run, in memory, in virtual time (see `jepsen_like.history`)."""

from __future__ import annotations

from collections import Counter
from typing import Any
from zlib import crc32

from jepsen_like.history import Op, OpType
from jepsen_like.sim.loop import SimLoop


class Recorder:
    """Every operation is a process of its own: clients here have many in flight. `hash` covers all steps."""

    def __init__(self, loop: SimLoop) -> None:
        self.ops: list[Op] = []
        self.counts: Counter[str] = Counter()
        self.hash = 0
        self._loop = loop
        self._processes = 0

    def invoke(self, f: str, value: Any) -> Op:
        """Somebody asks for `f` now."""
        self._processes += 1
        return self._append(self._processes, "invoke", f, value)

    def end(self, invoked: Op, outcome: OpType, value: Any) -> Op:
        """It happened (ok), is proved never to happen (fail), or nobody knows (info)."""
        self.counts[f"{invoked.f} {outcome}"] += 1
        return self._append(invoked.process, outcome, invoked.f, value)

    @property
    def acked(self) -> int:
        """Operations that were answered as done, reads left out."""
        return sum(count for name, count in self.counts.items() if name.endswith(" ok") and not name.startswith("read"))

    def _append(self, process: int, kind: OpType, f: str, value: Any) -> Op:
        op = Op(len(self.ops), process, kind, f, value, int(self._loop.now * 1e9))
        self.ops.append(op)
        self.hash = crc32(f"{op.time_ns} {process} {kind} {f} {value}".encode(), self.hash)
        return op
