"""The log workload: it sends unique messages at a steady rate, many in flight, and records every outcome."""

from __future__ import annotations

import asyncio

from jepsen_like.history import HistoryWriter, Op
from jepsen_like.live.nemeses.nemesis_interface import Counts
from jepsen_like.live.probes.recorded_sends import RecordedSends
from jepsen_like.live.subjects.subject import LoadPlan, LogClient, PlacedMessage, Subject
from raftmq.client.loop_thread import LoopThread
from raftmq.local.waiting import until

TICK_S = 0.01
_SETTLE_S = 45.0


class LogWorkload:
    """Sends messages from several writers, each with a client of its own, on one loop in one thread. `start` and `stop`
    are called in the main thread."""

    def __init__(self, subject: Subject, history: HistoryWriter, load: LoadPlan, *, writers: int = 4) -> None:
        """`load.rate` is the number of sends per second over all writers."""
        self.factor = 1.0
        """Multiplies the rate of sends and the number that may be in flight."""
        self._subject = subject
        self._rate = load.rate
        self._in_flight_max = load.in_flight_max
        self.writers = tuple(f"{load.prefix}{number}" for number in range(writers))
        """The names of the writers: what their message ids have before the dash."""
        self._sends = RecordedSends(history)
        self._position = -1
        self._stopping = False
        self._thread = LoopThread()
        self._clients: list[LogClient] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def counts(self) -> Counts:
        """The counts so far. Any thread may read them."""
        return self._sends.counts

    @property
    def position(self) -> int:
        """The highest byte position in the commit log that was acknowledged; -1 if none is known. Any thread may read
        it."""
        return self._position

    def start(self) -> None:
        """Begins to send."""
        self._thread.run(self._start())

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        for writer in self.writers:
            client = await self._subject.open_client()
            self._clients.append(client)
            self._tasks.append(loop.create_task(self._write(writer, client)))

    def stop(self) -> int:
        """Stops sending and waits for open sends. Returns how many never had an outcome (they count as unknown)."""
        if self._thread.loop.is_closed():
            return 0
        try:
            return self._thread.run(self._stop())
        finally:
            self._thread.close()

    async def _stop(self) -> int:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        deadline = asyncio.get_running_loop().time() + _SETTLE_S
        while self._sends.counts.in_flight and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(TICK_S)
        left = self._sends.counts.in_flight
        for client in self._clients:
            await client.close()
        return left

    def abort(self) -> None:
        """Stops at once, with sends in flight; does nothing after `stop`."""
        self._thread.close()

    def wait_acks(self, more: int, timeout_s: float) -> bool:
        """Waits until `more` sends were acknowledged from now on, which shows that the cluster makes progress; returns
        True if they were in time.
        """
        wanted = self.counts.acked + more
        return until(lambda: self.counts.acked >= wanted, timeout_s, 0.02)

    async def _write(self, writer: str, client: LogClient) -> None:
        loop = asyncio.get_running_loop()
        begun, due, sent = loop.time(), 0.0, 0
        while not self._stopping:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            due += (now - begun) * self._rate * self.factor / len(self.writers)
            begun = now
            room = max(0, int(self._in_flight_max * self.factor) - self._sends.counts.in_flight) // len(self.writers)
            count = min(int(due), room)
            due -= int(due)  # sends without room are not made up for: no load piles up behind an outage
            for _ in range(count):
                sent += 1
                await self._send(client, f"{writer}-{sent:07d}")

    async def _send(self, client: LogClient, message_id: str) -> None:
        value = {"topic": self._subject.topic, "id": message_id}
        invoked = self._sends.begin(value)
        outcome = await client.submit(message_id)
        outcome.add_done_callback(lambda done: self._settle(invoked, done))

    def _settle(self, invoked: Op, done: asyncio.Future[PlacedMessage]) -> None:
        outcome = self._sends.end(invoked, done)
        if isinstance(outcome, PlacedMessage):
            self._position = max(self._position, outcome.position)
