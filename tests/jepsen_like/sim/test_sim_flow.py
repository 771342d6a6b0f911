"""Flow control in the simulated network: who pauses reading takes nothing, and who writes to it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.network import EdgeConditions, Endpoint, Network


class Side(asyncio.Protocol):
    """The calls that one side got, in order."""

    transport: Endpoint

    def __init__(self) -> None:
        self.told: list[str] = []
        self.read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Endpoint)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.read += data

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


class Pair:
    """Two processes with one connection between them."""

    def __init__(self) -> None:
        self.loop = SimLoop(10_000)
        self.network = Network(self.loop, EdgeConditions(random.Random(1), (0.001, 0.01), split=0.0))
        self.network.socket_buffer = 1000
        self.a, self.b = Process("a", "10.0.0.1"), Process("b", "10.0.0.2")
        self.near, self.far = Side(), Side()
        self.b.run(self.network.listen, lambda: self.far, "10.0.0.2", 80)
        self.a.run(self.loop.create_task, self.network.connect(lambda: self.near, "10.0.0.2", 80))
        self.pass_time(1)

    def pass_time(self, seconds: float) -> None:
        self.loop.call_outside(seconds, self.loop.stop)
        self.loop.run_forever()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.loop.bury([made.a, made.b])


def test_a_reader_that_pauses_takes_nothing_and_loses_nothing(pair: Pair) -> None:
    pair.far.transport.pause_reading()
    pair.near.transport.write(b"x" * 1500)
    pair.near.transport.write(b"y" * 100)
    pair.pass_time(60)
    assert not pair.far.read
    assert pair.near.transport.get_write_buffer_size() == 600
    pair.far.transport.resume_reading()
    pair.pass_time(1)
    assert pair.far.read == b"x" * 1500 + b"y" * 100
    assert pair.near.transport.get_write_buffer_size() == 0


def test_a_writer_is_told_to_pause_and_to_go_on(pair: Pair) -> None:
    pair.near.transport.set_write_buffer_limits(high=400)
    pair.far.transport.pause_reading()
    for _ in range(8):
        pair.near.transport.write(bytes(200))
    pair.pass_time(1)
    assert pair.near.told == ["pause"]
    pair.far.transport.resume_reading()
    pair.pass_time(1)
    assert pair.near.told == ["pause", "resume"]


def test_who_does_not_read_does_not_notice_the_end_either(pair: Pair) -> None:
    pair.far.transport.pause_reading()
    pair.near.transport.write(b"last")
    pair.near.transport.close()
    pair.pass_time(60)
    assert pair.far.told == []
    pair.far.transport.resume_reading()
    pair.pass_time(1)
    assert (pair.far.read, pair.far.told) == (b"last", ["lost"])


def test_bytes_that_arrive_in_the_moment_of_the_pause_wait(pair: Pair) -> None:
    pair.near.transport.write(b"now")
    pair.loop.call_outside(0.0, lambda: None)
    pair.far.transport.receive(pair.near.transport.out.popleft())
    pair.far.transport.pause_reading()
    pair.pass_time(1)
    assert not pair.far.read
    pair.far.transport.resume_reading()
    pair.pass_time(1)
    assert pair.far.read == b"now"
