"""The sending half of the demo: many sends in flight, each recorded, and a blow at a chosen moment."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.demo_input import Record
from jepsen_like.history import HistoryWriter, Op, pair_up
from raftmq.client.errors import RaftMQError, Unknown

if TYPE_CHECKING:
    from raftmq.client import Producer, SendResult

Aim = Callable[[], Callable[[], None]]
"""Chooses the victim, and returns what strikes it without delay."""

_WAIT_S = 120.0


class SendError(Exception):
    """The run did not do what it set out to do, so it proves nothing."""


class Strike(NamedTuple):
    """The moment of the blow: sends invoked, sends acknowledged and sends under way."""

    invoked: int
    acked: int
    in_flight: int


class Slots:
    """Hands out process numbers: a single-threaded client has one operation under way, so each send takes a slot.

    A slot whose send ended as unknown is never used again, because that send may still be under way.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0
        self._lock = threading.Lock()
        self.busy = 0

    def take(self) -> int:
        """A process that has nothing under way."""
        with self._lock:
            self.busy += 1
            if self._free:
                return self._free.pop()
            self._next += 1
            return self._next - 1

    def give_back(self, process: int, *, reusable: bool) -> None:
        """The process's send has ended."""
        with self._lock:
            self.busy -= 1
            if reusable:
                self._free.append(process)


class Sender:
    """Sends records through one producer and writes down each invocation and outcome."""

    def __init__(self, producer: Producer, topic: str, history: HistoryWriter) -> None:
        self._producer = producer
        self._topic = topic
        self._history = history
        self._slots = Slots()
        self._settled = threading.Condition()
        self.acked = 0

    @property
    def in_flight(self) -> int:
        """Sends invoked and not yet settled."""
        return self._slots.busy

    def send_all(self, records: Iterable[Record], strike_at: int, in_flight_min: int, aim: Aim) -> Strike:
        """Sends every record and returns when each send has an outcome.

        When `strike_at` are sent, `aim()` is called and may take its time; what it returns is called at once when
        `in_flight_min` sends are under way. Raises SendError if that many never were.
        """
        struck: Strike | None = None
        blow: Callable[[], None] | None = None
        for number, record in enumerate(records):
            if number == strike_at:
                blow = aim()
            if blow is not None and struck is None and (in_flight := self.in_flight) >= in_flight_min:
                blow()
                struck = Strike(number, self.acked, in_flight)
            self._send(record)
        self._wait_settled()
        if struck is None:
            raise SendError(f"there were never {in_flight_min} sends in flight after message {strike_at}")
        return struck

    def _send(self, record: Record) -> None:
        value = {"topic": self._topic, "id": record.message_id}
        process = self._slots.take()
        invoked = self._history.invoke(process, "send", value)
        try:
            future = self._producer.send_soon(self._topic, record.body, key=record.key, tag=record.tag)
        except RaftMQError as error:
            self._settle(invoked, error, None)
            return
        future.add_done_callback(lambda done: self._done(invoked, done))

    def _done(self, invoked: Op, future: concurrent.futures.Future[SendResult]) -> None:
        error = future.exception()
        if error is None:
            self._settle(invoked, None, future.result())
        else:
            self._settle(invoked, error, None)

    def _settle(self, invoked: Op, error: BaseException | None, result: SendResult | None) -> None:
        """ok, proved not to have happened, or unknown. Only what the client promises as a failure counts as one."""
        value = dict(invoked.value)
        is_proved = False
        if result is not None:
            value |= {"queue_id": result.queue_id, "queue_offset": result.queue_offset}
            self._history.ok(invoked, value)
        elif is_proved := isinstance(error, RaftMQError) and not isinstance(error, Unknown):
            self._history.fail(invoked, value | {"error": str(error)})
        else:
            self._history.info(invoked, value | {"error": repr(error)})
        with self._settled:
            self.acked += result is not None
            self._slots.give_back(invoked.process, reusable=result is not None or is_proved)
            self._settled.notify_all()

    def _wait_settled(self) -> None:
        with self._settled:
            if not self._settled.wait_for(lambda: self.in_flight == 0, _WAIT_S):
                raise SendError(f"{self.in_flight} sends have no outcome after {_WAIT_S:.0f} s")


class Pause(NamedTuple):
    """The longest time without an acknowledgement, between the first send and the last outcome."""

    milliseconds: int
    after_acks: int
    """Number of sends that had been acknowledged when the pause began."""


def longest_pause(ops: Iterable[Op]) -> Pause:
    """Returns the longest pause of the sending client, which it saw as the failover; (0, 0) if nothing was sent."""
    sends = [o for o in pair_up(ops) if o.invoked.f == "send"]
    if not sends:
        return Pause(0, 0)
    acks = sorted(o.completed.time_ns for o in sends if o.completed is not None and o.outcome == "ok")
    ends = [o.completed.time_ns for o in sends if o.completed is not None]
    moments = [sends[0].invoked.time_ns, *acks, max(ends, default=sends[-1].invoked.time_ns)]
    pause, after = max((later - earlier, -i) for i, (earlier, later) in enumerate(itertools.pairwise(moments)))
    return Pause(round(pause / 1e6), -after)
