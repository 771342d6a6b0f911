"""The account of what is held: it is the sum of its holders' figures, whichever of them go away, in whatever order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from cluster.runtime.resource_budget import Room, Share
from tests.support.rows import each_row


class Turns:
    """A loop that runs when the test says so."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def __call__(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def run(self) -> None:
        while self.soon:
            self.soon.popleft()()


def test_what_is_held_inside_is_held_around() -> None:
    node = Room(100, Turns())
    first, second = node.inside(60), node.inside(60)
    share = first.share(50)
    assert not first.fits(11)
    assert first.fits(10)
    assert second.fits(50)
    assert not second.fits(51)
    second.share(30)
    share.hold(20)
    assert (first.taken, second.taken, node.taken) == (20, 30, 50)


def test_a_closed_room_gives_everything_back_and_its_shares_count_no_more() -> None:
    node = Room(100, Turns())
    connection = node.inside(100)
    share = connection.share(70)
    connection.close()
    assert node.taken == 0
    share.hold(0)
    share.hold(30)
    connection.close()
    assert node.taken == 0


def test_who_waits_is_called_in_turn_and_nobody_goes_before() -> None:
    turns = Turns()
    room = Room(10, turns)
    share, called = room.share(8), []
    room.wait(6, lambda: called.append((6, room.fits(6))))
    room.wait(1, lambda: called.append((1, room.fits(1))))
    turns.run()
    assert called == []
    assert not room.fits(1), "there is room for one, but others wait"
    share.hold(4)
    turns.run()
    assert called == [(6, True), (1, True)]
    assert room.fits(6)


def test_one_that_waits_is_called_per_turn() -> None:
    turns = Turns()
    room = Room(10, turns)
    share, called = room.share(10), []
    for number in range(3):
        room.wait(1, lambda number=number: called.append(number))  # type: ignore[misc]
    share.hold(0)
    turns.soon.popleft()()
    assert called == [0]
    turns.run()
    assert called == [0, 1, 2]


def test_who_finds_the_next_room_full_waits_there() -> None:
    turns = Turns()
    node = Room(10, turns)
    connection = node.inside(5)
    own, other, called = connection.share(5), node.share(5), []

    def again() -> None:
        if connection.fits(4):
            called.append(True)
        else:
            connection.wait(4, again)

    connection.wait(4, again)
    other.hold(9)
    own.hold(1)
    turns.run()
    assert called == []
    assert (connection.waiting, node.waiting) == (0, 1)
    other.hold(0)
    turns.run()
    assert called == [True]


def test_who_leaves_the_queue_lets_the_next_one_go() -> None:
    turns = Turns()
    room = Room(10, turns)
    room.share(8)
    called: list[int] = []
    waiter = room.wait(5, lambda: called.append(5))
    room.wait(2, lambda: called.append(2))
    waiter.leave()
    waiter.leave()
    turns.run()
    assert called == [2]
    assert room.waiting == 0


def test_a_lone_holder_always_finds_room() -> None:
    turns = Turns()
    room = Room(10, turns)
    assert room.fits(11)
    share = room.share(11)
    called: list[bool] = []
    room.wait(20, lambda: called.append(room.fits(20)))
    turns.run()
    share.hold(1)
    turns.run()
    assert called == []
    share.hold(0)
    turns.run()
    assert called == [True]


def test_an_error_in_one_that_waited_keeps_nobody_else_waiting() -> None:
    turns = Turns()
    room = Room(10, turns)
    share, called = room.share(10), []

    def fail() -> None:
        raise ValueError("as the test wants")

    room.wait(1, fail)
    room.wait(1, lambda: called.append(True))
    share.hold(0)
    with pytest.raises(ValueError, match="as the test wants"):
        turns.run()
    turns.run()
    assert called == [True]
    assert room.fits(10)


@each_row("seed", range(5))
def test_the_account_is_the_sum_of_the_shares(seed: int) -> None:
    rng = random.Random(seed)
    turns = Turns()
    node = Room(1000, turns)
    rooms: dict[Room, list[Share]] = {}
    for _ in range(2000):
        action = rng.random()
        if action < 0.1 or not rooms:
            rooms[node.inside(300)] = []
        elif action < 0.15:
            room = rng.choice(list(rooms))
            room.close()
            for share in rooms.pop(room):
                share.hold(rng.randrange(5))
        elif action < 0.4:
            room = rng.choice(list(rooms))
            rooms[room].append(room.share(rng.randrange(100)))
        else:
            shares = rng.choice(list(rooms.values()))
            if shares:
                rng.choice(shares).hold(rng.randrange(100))
        turns.run()
        for room, shares in rooms.items():
            assert room.taken == sum(share.held for share in shares)
        assert node.taken == sum(room.taken for room in rooms)
