"""The requests of one read do not all run in one turn of the loop: the rest goes on in the next, in order and
fairly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cluster.config.service_sections import LimitsSection
from cluster.flow.gate import Gate
from cluster.remoting.connection.connection_memory import ConnectionMemory
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.server import STEP_UNITS, Dispatch, RemotingConnection
from cluster.runtime.turns.work import Turns
from raftlog.work import METER, charge
from raftmq_wire.codec import FLAG_ONEWAY, encode_frame
from tests.support.contexts import CONFIG

SHARE = 1_000
REQUEST_UNITS = 100
MANY = 60


class Loop:
    """Calls in turns: one round of `turn` runs what was scheduled before it."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], object]] = []
        self.longest = 0
        """Units of the longest turn."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def time(self) -> float:
        return 0.0

    def turn(self, *first: Callable[[], object]) -> bool:
        """False if there was nothing to do."""
        ready, self._soon = [*first, *self._soon], []
        before = METER.units
        for callback in ready:
            callback()
        self.longest = max(self.longest, METER.units - before)
        return bool(ready)


class Counting(Dispatch):
    """Notes which request came of whom."""

    def __init__(self, loop: Loop) -> None:
        self.memory, self.turns = (
            ConnectionMemory(LimitsSection(), loop.call_soon, Gate(CONFIG)),
            Turns(loop.call_soon, SHARE),
        )
        self.seen: list[tuple[object, int]] = []
        self.refused: list[tuple[int, str, bytes]] = []
        """Opaque, remark and body of requests whose body is too long."""
        self.costs = REQUEST_UNITS

    def on_open(self, connection: RemotingConnection) -> bool:
        return True

    def watch(self, connection: RemotingConnection) -> None:
        pass

    def on_close(self, connection: RemotingConnection) -> None:
        pass

    def on_request(self, frame: Frame) -> None:
        charge(self.costs)
        self.seen.append((frame.path, frame.header.opaque))

    def on_too_long(self, frame: Frame, remark: str) -> None:
        self.refused.append((frame.header.opaque, remark, frame.body))

    def of(self, connection: RemotingConnection) -> list[int]:
        return [opaque for path, opaque in self.seen if path is connection]


class Transport(asyncio.Transport):
    """Knows whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def write(self, data: Any) -> None:
        raise AssertionError("nobody answers")


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def dispatch(loop: Loop) -> Counting:
    return Counting(loop)


def connect(dispatch: Counting, loop: Loop, limit: int = 1 << 20) -> tuple[RemotingConnection, Transport]:
    connection = RemotingConnection(dispatch, "broker", limit, loop)  # type: ignore[arg-type]
    transport = Transport()
    connection.connection_made(transport)
    return connection, transport


def requests(count: int, first: int = 0) -> bytes:
    return b"".join(encode_frame(999, opaque, FLAG_ONEWAY) for opaque in range(first, first + count))


def test_many_requests_of_one_read_run_in_several_turns_and_in_order(dispatch: Counting, loop: Loop) -> None:
    connection, transport = connect(dispatch, loop)
    loop.turn(lambda: connection.data_received(requests(MANY)))
    assert 0 < len(dispatch.seen) <= SHARE // REQUEST_UNITS + 1
    assert not transport.reads, "what is not handled yet is not added to"
    loop.turn(lambda: connection.data_received(requests(3, MANY)))  # was on its way
    while loop.turn():
        pass
    assert dispatch.of(connection) == list(range(MANY + 3))
    assert transport.reads
    assert loop.longest <= SHARE + 2 * STEP_UNITS


def test_connections_take_turns(dispatch: Counting, loop: Loop) -> None:
    (one, _), (two, _), (three, _) = (connect(dispatch, loop) for _ in range(3))
    many = requests(MANY)
    loop.turn(*(lambda each=each: each.data_received(many) for each in (one, two)))
    loop.turn()
    assert 0 < len(dispatch.of(two)) >= len(dispatch.of(one)) // 4
    loop.turn(lambda: three.data_received(requests(1)))
    assert dispatch.of(three) == [0], "a single request waits for nobody"
    while loop.turn():
        pass
    assert dispatch.of(one) == dispatch.of(two) == list(range(MANY))
    assert loop.longest <= SHARE + 4 * STEP_UNITS


def test_a_turn_that_others_have_used_up_handles_one_request_of_a_read(dispatch: Counting, loop: Loop) -> None:
    connection, _ = connect(dispatch, loop)
    loop.turn(dispatch.turns.spent, lambda: charge(SHARE), lambda: connection.data_received(requests(5)))
    assert dispatch.of(connection) == [0]
    while loop.turn():
        pass
    assert dispatch.of(connection) == list(range(5))


def test_reads_that_gathered_while_an_answer_waited_are_cut_as_well(dispatch: Counting, loop: Loop) -> None:
    connection, _ = connect(dispatch, loop)
    connection.work_waits(99)
    for opaque in range(MANY):
        connection.data_received(requests(1, opaque))
    assert not dispatch.seen
    connection.work_waits(-99)
    while loop.turn():
        pass
    assert dispatch.of(connection) == list(range(MANY))
    assert loop.longest <= SHARE + 2 * STEP_UNITS


def test_a_connection_that_closes_handles_nothing_more(dispatch: Counting, loop: Loop) -> None:
    connection, _ = connect(dispatch, loop)
    loop.turn(lambda: connection.data_received(requests(MANY)))
    handled = len(dispatch.seen)
    connection.connection_lost(None)
    while loop.turn():
        pass
    assert len(dispatch.seen) == handled


def test_a_connection_that_the_node_aborts_handles_nothing_more(dispatch: Counting, loop: Loop) -> None:
    """The transport tells that the connection is lost only in a later turn."""
    connection, _ = connect(dispatch, loop)
    loop.turn(lambda: connection.data_received(requests(MANY)))
    handled = len(dispatch.seen)
    connection.abort()
    loop.turn(lambda: connection.data_received(requests(3, MANY)))  # was on its way
    while loop.turn():
        pass
    assert len(dispatch.seen) == handled


def test_cut_work_of_the_client_does_not_hold_back_the_requests_behind_it(dispatch: Counting, loop: Loop) -> None:
    connection, _ = connect(dispatch, loop)

    def long() -> Any:
        while True:
            charge(SHARE)
            yield

    dispatch.turns.begin(connection.owner, long())
    loop.turn(lambda: connection.data_received(requests(5)))
    for _ in range(20):
        loop.turn()
    assert dispatch.of(connection) == list(range(5))
