"""The sending part of the demo: many sends in flight, each recorded, and the leader killed at a chosen moment."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.demo_input import DemoMessage
from jepsen_like.history import HistoryWriter, Op, pair_up
from raftmq.client.errors import RaftMQError, Unknown

if TYPE_CHECKING:
    from raftmq.client import Producer, SendResult

Aim = Callable[[], Callable[[], None]]
"""A function that chooses the node to kill, and returns a function that kills it without delay."""

_WAIT_S = 120.0


class SendError(Exception):
    """The run did not do what it was meant to do, so it proves nothing."""


class StrikeCounts(NamedTuple):
    """The numbers at the moment of the kill: sends invoked, sends acknowledged and sends in flight."""

    invoked: int
    acked: int
    in_flight: int


class Slots:
    """Hands out process numbers for the history. A Jepsen process has one operation in flight, so each send takes a
    number of its own.

    The number of a send that ended as unknown is never used again, because that send may still be carried out.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0
        self._lock = threading.Lock()
        self.busy = 0

    def take(self) -> int:
        """Returns a process number that has no operation in flight."""
        with self._lock:
            self.busy += 1
            if self._free:
                return self._free.pop()
            self._next += 1
            return self._next - 1

    def give_back(self, process: int, *, reusable: bool) -> None:
        """Records that the send of this process number has ended. The number is given out again only if `reusable` is
        True.
        """
        with self._lock:
            self.busy -= 1
            if reusable:
                self._free.append(process)


class Sender:
    """Sends records through one producer and records each invocation and outcome."""

    def __init__(self, producer: Producer, topic: str, history: HistoryWriter) -> None:
        self._producer = producer
        self._topic = topic
        self._history = history
        self._slots = Slots()
        self._settled = threading.Condition()
        self.acked = 0

    @property
    def in_flight(self) -> int:
        """The number of sends that were invoked and are not settled."""
        return self._slots.busy

    def send_all(self, records: Iterable[DemoMessage], strike_at: int, in_flight_min: int, aim: Aim) -> StrikeCounts:
        """Sends every record and returns when each send has an outcome.

        When `strike_at` records are sent, it calls `aim()`, which may take its time; it calls the returned function as
        soon as `in_flight_min` sends are in flight. Raises SendError if there never were that many, or if a send has no
        outcome _WAIT_S seconds after the last.
        """
        struck: StrikeCounts | None = None
        blow: Callable[[], None] | None = None
        for number, record in enumerate(records):
            if number == strike_at:
                blow = aim()
            if blow is not None and struck is None and (in_flight := self.in_flight) >= in_flight_min:
                blow()
                struck = StrikeCounts(number, self.acked, in_flight)
            self._send(record)
        self._wait_settled()
        if struck is None:
            raise SendError(f"there were never {in_flight_min} sends in flight after message {strike_at}")
        return struck

    def _send(self, record: DemoMessage) -> None:
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
        """Records the outcome of a send: ok, fail (proved not to have happened) or info (unknown). Only errors that the
        client promises to be failures count as fail."""
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
    """The number of sends that had been acknowledged when the pause began."""


def longest_pause(ops: Iterable[Op]) -> Pause:
    """Returns the longest pause between acknowledgements, which the client saw as the failover; (0, 0) if nothing was
    sent."""
    sends = [o for o in pair_up(ops) if o.invoked.f == "send"]
    if not sends:
        return Pause(0, 0)
    acks = sorted(o.completed.time_ns for o in sends if o.completed is not None and o.outcome == "ok")
    ends = [o.completed.time_ns for o in sends if o.completed is not None]
    moments = [sends[0].invoked.time_ns, *acks, max(ends, default=sends[-1].invoked.time_ns)]
    pause, after = max((later - earlier, -i) for i, (earlier, later) in enumerate(itertools.pairwise(moments)))
    return Pause(round(pause / 1e6), -after)
