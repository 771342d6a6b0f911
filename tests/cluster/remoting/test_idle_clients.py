"""Clients that say nothing lose their connection after 120 s, or earlier to a newcomer."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.remoting.connection.stuck_clients import IDLE_S, LEAVES_S, SLICE, IdleClients

TICK_MS = 50


class Connection:
    def __init__(self, address: str, number: int = 0) -> None:
        self.peer_address = (address, number)
        self.received = 0
        self.aborted = False
        self.used = False

    def abort(self) -> None:
        self.aborted = True


class Room:
    def __init__(self) -> None:
        self.clients = IdleClients(lambda connection: connection.used)
        self.now_ms = 0

    def connect(self, address: str, count: int = 1) -> list[Any]:
        found: list[Any] = [Connection(address, number) for number in range(count)]
        for each in found:
            self.clients.opened(each)
        return found

    def wait(self, seconds: float) -> None:
        end = self.now_ms + int(1000 * seconds)
        while self.now_ms < end:
            self.now_ms += TICK_MS
            self.clients.tick(self.now_ms)


def test_an_idle_client_is_closed_after_its_time_and_not_before() -> None:
    room = Room()
    idle, talking, waiting = room.connect("10.0.0.1", 3)
    waiting.used = True
    for _ in range(int(IDLE_S) // 10 - 1):
        room.wait(10)
        talking.received += 1
    assert not idle.aborted
    room.wait(20)
    assert (idle.aborted, talking.aborted, waiting.aborted) == (True, False, False)


def test_time_in_which_the_node_stood_still_does_not_count() -> None:
    room = Room()
    (idle,) = room.connect("10.0.0.1")
    room.now_ms += 3_600_000
    room.wait(30)
    assert not idle.aborted


def test_one_tick_looks_at_a_slice() -> None:
    room = Room()
    room.connect("10.0.0.1", 3 * SLICE)
    room.clients.tick(TICK_MS)
    assert len(room.clients._round) == 2 * SLICE


def newcomer(room: Room, address: str, count: int, limit: int) -> list[Any]:
    closed: list[Any] = []
    room.clients.make_room(address, count - len(room.clients._places), limit, closed.append)
    return closed


def test_a_newcomer_takes_the_place_of_an_idle_client_when_few_are_left(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    crowd = room.connect("10.0.0.1", 10)
    room.wait(LEAVES_S + 1)
    assert newcomer(room, "10.0.0.2", 7, 10) == [], "there is room"
    assert newcomer(room, "10.0.0.1", 10, 10) == [], "the crowd's own newcomer takes nobody's place"
    assert newcomer(room, "10.0.0.2", 10, 10) == [crowd[0]]
    assert "a client makes room for another one" in caplog.text
    assert newcomer(room, "10.0.0.2", 10, 10) == [crowd[1]], "the first is counted no more"


def test_who_has_said_something_lately_or_waits_stays() -> None:
    room = Room()
    talking, waiting = room.connect("10.0.0.1", 2)
    waiting.used = True
    room.wait(LEAVES_S + 1)
    talking.received += 1
    assert newcomer(room, "10.0.0.2", 10, 10) == []
