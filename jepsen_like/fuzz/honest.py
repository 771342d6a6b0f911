"""Honest clients beside the fuzzer, in a process of their own: they send, wait for the answer, and report how long it
took.

`python -m jepsen_like.fuzz.honest` reads `HonestOrders` from the first line of standard input, prints one line
`[start in ns, microseconds, code]` per send, and ends with standard input. `Honest` runs it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from jepsen_like.checkers.availability import quantile
from jepsen_like.client_kit.frames import request
from jepsen_like.fuzz.shot import Port, Shot
from jepsen_like.fuzz.shot_connections import AGAIN_EVERY, ANSWER_S, RemotingLane, ShotDefect
from jepsen_like.live.subjects.line_process import LineProcess
from jepsen_like.live.subjects.processes import Processes
from raftmq.commands.bench_load import signed_frame
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.signature import Credentials

TOPIC = "fuzz-honest"
"""The topic of the honest clients, which nothing else changes."""
EVERY_S = 0.15
"""Seconds from one send of a client to its next."""
UNANSWERED = -1
"""The code of a send that was not answered."""


class HonestOrders(msgspec.Struct):
    """The nodes' ports, and the user whose signature the clients use; both fields of the user are "" for nodes without
    users.
    """

    ports: list[int]
    user: str = ""
    secret: str = ""
    ca: str = ""
    """The CA's file; every second connection is one of TLS. "" for plain text."""


class SendFigures(NamedTuple):
    """The figures of the sends that began in certain spans of time. `p99_ms` is 0 if there were none."""

    sends: int
    p99_ms: float
    wrong: int
    """Sends that were refused or not answered."""


class Honest:
    """A context in which honest clients send."""

    def __init__(self, processes: Processes, orders: HonestOrders) -> None:
        self._processes = processes
        self._orders = orders
        self._rows: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._process = LineProcess(self._processes, "jepsen_like.fuzz.honest", self._hear)
        self._process.order(self._orders)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.end()

    def _hear(self, line: str) -> None:
        start_ns, took_us, code = json.loads(line)
        with self._lock:
            self._rows.append((start_ns, took_us, code))

    def seen_in(self, spans: Iterable[tuple[int, int]]) -> SendFigures:
        """Returns the figures of the sends that began in one of these spans (from, until), in nanoseconds of
        `time.monotonic_ns`.
        """
        wanted = list(spans)
        with self._lock:
            rows = [row for row in self._rows if any(start <= row[0] < stop for start, stop in wanted)]
        took = sorted(took_us for _, took_us, _ in rows)
        wrong = sum(code != ResponseCode.SUCCESS for _, _, code in rows)
        return SendFigures(len(rows), quantile(took, 0.99) / 1000 if took else 0.0, wrong)


async def _send_on(port: int, number: int, context: ssl.SSLContext | None, credentials: Credentials | None) -> None:
    """Sends again and again on connections to one port, without end."""
    lane = RemotingLane(port, context)
    await asyncio.sleep(EVERY_S * (number % AGAIN_EVERY) / AGAIN_EVERY)
    for opaque in range(1, 1 << 30):
        ext = {"a": "honest", "b": TOPIC, "e": str(opaque % 4), "i": "TAGS\1a\2", "g": "1"}
        _, frame = request(RequestCode.SEND_MESSAGE_V2, ext, b"x" * 100, opaque=opaque)
        frame = frame if credentials is None else signed_frame(frame, credentials)
        start_ns = time.monotonic_ns()
        try:
            code = UNANSWERED if not await lane.fire([Shot(Port.REMOTING, "", frame, opaque)]) else lane.code
        except (ShotDefect, OSError):
            code = UNANSWERED
        took_us = (time.monotonic_ns() - start_ns) // 1000 if code != UNANSWERED else round(ANSWER_S * 1e6)
        sys.stdout.write(json.dumps([start_ns, took_us, code]) + "\n")
        sys.stdout.flush()
        await asyncio.sleep(max(0.0, EVERY_S - took_us / 1e6))


async def _send_until_told(orders: HonestOrders) -> None:
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(cafile=orders.ca) if orders.ca else None
    credentials = Credentials(orders.user, orders.secret) if orders.user else None
    ended = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ended), sys.stdin)
    tasks = [loop.create_task(_send_on(port, number, context, credentials)) for number, port in enumerate(orders.ports)]
    done, _ = await asyncio.wait({loop.create_task(ended.read()), *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in done:
        each.result()


def main() -> None:
    """Sends until standard input ends."""
    asyncio.run(_send_until_told(msgspec.json.decode(sys.stdin.readline(), type=HonestOrders)))


if __name__ == "__main__":
    main()
