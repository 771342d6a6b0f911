"""Writers that make a topic hot: separate processes with many sends in flight, each of which reports the outcomes of
its sends."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

from raftmq.client import connect
from raftmq.client.errors import RaftMQError, Unknown
from raftmq.local.local_users import ClientOptions
from raftmq_wire.queue_numbers import group_of

AT_ONCE = 1_000
"""Sends that each writer has in flight."""


class Written(NamedTuple):
    """The outcomes of the sends of one writer. The writer's message `number` has the body b"writer/number"."""

    writer: int
    sent: int
    failed: frozenset[int]
    unknown: frozenset[int]
    by_group: dict[int, int]
    """Group of brokers -> the number of messages that it acknowledged."""


def write(servers: str, options: ClientOptions, topic: str, writer: int, seconds: float) -> Written:
    """Sends to the topic for `seconds`, and returns the outcomes. Runs in a separate process."""
    number = 0
    failed, unknown, by_group = set[int](), set[int](), Counter[int]()
    until = time.monotonic() + seconds
    with connect(servers, **options) as mq, mq.producer() as producer:
        while time.monotonic() < until:
            sends = [producer.send_soon(topic, b"%d/%d" % (writer, number + place)) for place in range(AT_ONCE)]
            for place, send in enumerate(sends):
                try:
                    by_group[group_of(send.result().queue_id)] += 1
                except Unknown:
                    unknown.add(number + place)
                except RaftMQError:
                    failed.add(number + place)
            number += AT_ONCE
    return Written(writer, number, frozenset(failed), frozenset(unknown), dict(by_group))


class HotWriters:
    """A context in which `writers` processes send to a topic for some seconds."""

    def __init__(self, servers: str, options: ClientOptions, topic: str, writers: int, seconds: float) -> None:
        self._pool = ProcessPoolExecutor(writers, multiprocessing.get_context("spawn"))
        self._writing: list[Future[Written]] = [
            self._pool.submit(write, servers, options, topic, writer, seconds) for writer in range(writers)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def written(self) -> list[Written]:
        """Waits until all have ended; returns what each sent."""
        return [each.result() for each in self._writing]


def wrong_rows(written: Iterable[Written], bodies: Iterable[bytes]) -> list[str]:
    """Returns what is wrong with the bodies that a reader of the topic got: acknowledged ones are there once, failed
    ones are not, unknown ones are there once at most."""
    found, wrong = Counter(bodies), []
    for each in written:
        for number in range(each.sent):
            times = found.pop(b"%d/%d" % (each.writer, number), 0)
            allowed = (0,) if number in each.failed else (0, 1) if number in each.unknown else (1,)
            if times not in allowed:
                wrong.append(f"message {each.writer}/{number} is there {times} times")
    return wrong + [f"{body!r} was never sent" for body in found]
