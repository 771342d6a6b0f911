"""Histories of any length, written step by step: healthy ones, with known anomalies planted among them.

Nothing is kept but one number per stored message, so ten million operations fit. The steps of 64 processes interleave:
what is acknowledged takes effect when it completes.
"""

from __future__ import annotations

import random
import zlib
from array import array
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jepsen_like.history import FORMAT, READERS_FROM, VERSION

PROCESSES = 64
QUEUES = 16
TOPICS = ("orders", "payments")
NODES = (1, 2, 3)
PAGE = 1000
"""Messages of one read."""
KEY_OPERATIONS = 50
"""About so many for each register."""
_REGISTER_SHARE = 0.1
_ELSEWHERE = ("lost-on-node",) * (len(NODES) - 1)
"""A message that one replica shows is missing on the others."""
_FAR = 1 << 40
"""Planted rows stand behind the end of their queue, so that they disturb no other finding."""

Step = tuple[int, str, str, dict[str, Any]]
"""(process, type, f, value)."""
Queue = tuple[str, int]
Row = tuple[int, str]
"""(offset, message id)."""


class _Send(NamedTuple):
    process: int
    value: dict[str, Any]


class LargeHistory:
    """About `operations` operations of workload `ordered`; `planted` anomalies of each kind, in `expected`."""

    def __init__(self, operations: int, planted: int, seed: int = 1) -> None:
        self._operations = operations
        self._planted = planted
        self._chance = random.Random(seed)
        self._queues: dict[Queue, array[int]] = {
            (TOPICS[queue % len(TOPICS)], queue): array("Q") for queue in range(QUEUES)
        }
        self._sent = 0
        self._processes = 0
        self._registers: dict[str, int | None] = {}
        self._asked_of_registers = 0
        self._missing: set[tuple[int, Queue, int]] = set()
        self._extra: dict[tuple[int, Queue], list[Row]] = {}
        self.expected: dict[str, int] = {}
        self.operations = 0
        """The number of operations that were written."""

    def write(self, path: Path) -> Path:
        """The whole history."""
        encode, crc, count = msgspec.json.Encoder().encode, 0, 0
        with path.open("xb", buffering=1 << 20) as file:
            for body in self._lines(encode):
                crc = zlib.crc32(body, crc)
                file.write(body[:-1] + b',"crc":"%08x"}\n' % crc)
                count += 1
            body = encode({"end": count - 1})
            file.write(body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body, crc))
        return path

    def _lines(self, encode: Any) -> Iterator[bytes]:
        yield encode({"format": FORMAT, "version": VERSION, "meta": {"workload": "ordered"}})
        for index, (process, kind, f, value) in enumerate(self._steps()):
            self.operations += kind == "invoke"
            step = {"index": index, "process": process, "type": kind, "f": f, "value": value, "time_ns": index * 1000}
            yield encode(step)

    def _steps(self) -> Iterator[Step]:
        """Traffic, with a share of the planted anomalies after every part of it, and then the final reads."""
        at_work = [self._process() for _ in range(PROCESSES)]
        pending: dict[int, _Send | tuple[str, dict[str, Any]]] = {}
        for share in range(self._planted):
            end = self._operations * (share + 1) // self._planted
            while self.operations < end:
                yield from self._traffic(at_work, pending)
            yield from self._plant()
        for number, process in enumerate(at_work):
            if process in pending:
                yield self._complete(at_work, number, pending.pop(process))
        yield from self._final_reads()

    def _traffic(self, at_work: list[int], pending: dict[int, Any]) -> Iterator[Step]:
        """One step of one process."""
        number = int(self._chance.random() * PROCESSES)
        process = at_work[number]
        if process in pending:
            yield self._complete(at_work, number, pending.pop(process))
            return
        if self._chance.random() < _REGISTER_SHARE:
            f, asked = self._ask_register()
            pending[process] = f, asked
            yield process, "invoke", f, asked
            return
        value = self._message(producer=f"p{process}")
        pending[process] = _Send(process, value)
        yield process, "invoke", "send", value

    def _process(self) -> int:
        self._processes += 1
        return self._processes

    def _message(self, topic: str | None = None, **more: Any) -> dict[str, Any]:
        self._sent += 1
        return {"topic": topic or TOPICS[self._sent % len(TOPICS)], "id": f"m{self._sent}", **more}

    def _complete(self, at_work: list[int], number: int, asked: Any) -> Step:
        process = at_work[number]
        if not isinstance(asked, _Send):
            return process, "ok", asked[0], self._answer(*asked)
        outcome = self._chance.random()
        if outcome < 0.002:
            at_work[number] = self._process()  # nobody knows what happened: it is retired
            if outcome < 0.001:
                self._append(asked.value)
            return process, "info", "send", asked.value
        if outcome < 0.004:
            return process, "fail", "send", asked.value
        return process, "ok", "send", self._append(asked.value)

    def _append(self, value: dict[str, Any]) -> dict[str, Any]:
        """Stores the message; the answer to its send."""
        queue = self._queue_of(value["topic"])
        ids = self._queues[queue]
        ids.append(int(value["id"][1:]))
        return {**value, "queue_id": queue[1], "queue_offset": len(ids) - 1}

    def _queue_of(self, topic: str) -> Queue:
        return topic, int(self._chance.random() * QUEUES / len(TOPICS)) * len(TOPICS) + TOPICS.index(topic)

    def _ask_register(self) -> tuple[str, dict[str, Any]]:
        self._asked_of_registers += 1
        name = f"k{self._asked_of_registers // KEY_OPERATIONS}"
        if self._asked_of_registers % 2:
            return "get", {"key": name}
        return "put", {"key": name, "value": self._asked_of_registers}

    def _answer(self, f: str, asked: dict[str, Any]) -> dict[str, Any]:
        if f == "put":
            self._registers[asked["key"]] = asked["value"]
            return asked
        return {**asked, "value": self._registers.get(asked["key"])}

    def _plant(self) -> Iterator[Step]:
        """One anomaly of each kind."""
        yield from self._plant_losses()
        yield from self._plant_origins()
        yield from self._plant_places()
        yield from self._plant_realtime()
        yield from self._plant_producer()
        name = f"wrong{self._processes}"
        yield from self._did("put", {"key": name, "value": 1}, {})
        yield from self._did("get", {"key": name}, {"value": 2})
        self._expect("nonlinearizable")

    def _plant_losses(self) -> Iterator[Step]:
        for kind, nodes in (("lost-write", NODES), ("lost-on-node", NODES[1:2])):
            answer = yield from self._send()
            place = (answer["topic"], answer["queue_id"]), answer["queue_offset"]
            self._missing |= {(node, *place) for node in nodes}
            self._expect(kind)

    def _plant_origins(self) -> Iterator[Step]:
        queue = self._queue_of(TOPICS[0])
        self._stand(1, queue, f"never{self._processes}")
        self._expect("phantom")
        failed = yield from self._send("fail", TOPICS[0])
        self._stand(2, queue, failed["id"])
        self._expect("aborted-read")
        elsewhere = yield from self._send("info", TOPICS[1])
        self._stand(3, queue, elsewhere["id"])
        self._expect("misplaced", *_ELSEWHERE)
        seen = [_FAR - self._sent, f"m{self._sent + 1}"]
        asked = {"node": 1, "topic": queue[0], "queue_id": queue[1], "offset": seen[0]}
        yield from self._did("read", asked, {"messages": [seen], "end": False})
        yield from self._send("info", TOPICS[0])
        self._expect("future-read", *_ELSEWHERE)

    def _plant_places(self) -> Iterator[Step]:
        stored = yield from self._send()
        self._stand(2, (stored["topic"], stored["queue_id"]), stored["id"])
        self._expect("duplicate", "offset-mismatch")
        queue = self._queue_of(TOPICS[0])
        one = yield from self._send("info", TOPICS[0])
        other = yield from self._send("info", TOPICS[0])
        offset = self._stand(2, queue, one["id"])
        self._extra.setdefault((3, queue), []).append((offset, other["id"]))
        self._expect("inconsistent-offset", *_ELSEWHERE, *_ELSEWHERE)

    def _plant_realtime(self) -> Iterator[Step]:
        """The offset of a message that is sent last is below that of one acknowledged before."""
        late = self._message(TOPICS[0])
        ids = self._queues[TOPICS[0], 0]
        ids.append(int(late["id"][1:]))
        answer = {"queue_id": 0, "queue_offset": len(ids) - 1}
        before = self._message(TOPICS[0])
        ids.append(int(before["id"][1:]))
        yield from self._did("send", before, {"queue_id": 0, "queue_offset": len(ids) - 1})
        yield from self._did("send", late, answer)
        self._expect("realtime-order")

    def _plant_producer(self) -> Iterator[Step]:
        """Two sends of one producer at once; the second stands before the first."""
        one, two = (self._message(TOPICS[0], producer=f"hasty{self._processes}") for _ in range(2))
        first, second = self._process(), self._process()
        ids = self._queues[TOPICS[0], 0]
        ids.extend((int(two["id"][1:]), int(one["id"][1:])))
        yield first, "invoke", "send", one
        yield second, "invoke", "send", two
        yield second, "ok", "send", {**two, "queue_id": 0, "queue_offset": len(ids) - 2}
        yield first, "ok", "send", {**one, "queue_id": 0, "queue_offset": len(ids) - 1}
        self._expect("producer-order")

    def _expect(self, *kinds: str) -> None:
        for kind in kinds:
            self.expected[kind] = self.expected.get(kind, 0) + 1

    def _stand(self, node: int, queue: Queue, message_id: str) -> int:
        """A row behind the end of the queue, on one replica; its offset."""
        self._processes += 1
        offset = _FAR + self._processes
        self._extra.setdefault((node, queue), []).append((offset, message_id))
        return offset

    def _send(self, outcome: str = "ok", topic: str | None = None) -> Generator[Step, None, dict[str, Any]]:
        """Sends by a process of its own; returns the answer. A send that is not ok is not stored."""
        value, process = self._message(topic), self._process()
        yield process, "invoke", "send", value
        answer = self._append(value) if outcome == "ok" else value
        yield process, outcome, "send", answer
        return answer

    def _did(self, f: str, asked: dict[str, Any], answer: dict[str, Any]) -> Iterator[Step]:
        process = self._process()
        yield process, "invoke", f, asked
        yield process, "ok", f, {**asked, **answer}

    def _final_reads(self) -> Iterator[Step]:
        for node in NODES:
            for queue, ids in self._queues.items():
                for first in range(0, len(ids), PAGE):
                    yield from self._read(node, queue, first, self._rows(node, queue, first), end=False)
                yield from self._read(node, queue, len(ids), self._extra.get((node, queue), []), end=True)

    def _rows(self, node: int, queue: Queue, first: int) -> list[Row]:
        rows = [(first + at, f"m{number}") for at, number in enumerate(self._queues[queue][first : first + PAGE])]
        return [row for row in rows if (node, queue, row[0]) not in self._missing]

    def _read(self, node: int, queue: Queue, offset: int, rows: list[Row], *, end: bool) -> Iterator[Step]:
        asked = {"node": node, "topic": queue[0], "queue_id": queue[1], "offset": offset}
        yield READERS_FROM + node, "invoke", "read", asked
        yield READERS_FROM + node, "ok", "read", {**asked, "messages": rows, "end": end}
