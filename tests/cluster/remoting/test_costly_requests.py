"""Costly requests get their turns: a few at once, each asker after the others, none for a client that is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.remoting.costly_requests import (
    ALL_WAITING_MAX,
    AT_ONCE_MAX,
    LOST_MS,
    OF_ONE_MAX,
    WAITING_MAX,
    CostlyRequests,
)
from cluster.requests.verb import Cost
from raftmq_wire.codes import RequestCode

LIST = RequestCode.AUTH_LIST_ACL


class Asked:
    """A request that is answered when the test wants."""

    def __init__(self, user: int, path: Any) -> None:
        self.user = user
        self.connection = path
        self.replies: list[int] = []
        self._ended: Callable[[Any], None] = lambda _: None

    def when_answered(self, ended: Callable[[Any], None]) -> None:
        self._ended = ended

    def reply(self, code: int, *_: Any) -> None:
        self.replies.append(code)
        self._ended(self)


class Path:
    """A client's connection."""

    def __init__(self, address: str) -> None:
        self.peer_address = address, 1
        self.closed = False
        self.on_close: list[Callable[[], None]] = []


class World:
    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.costly = CostlyRequests(self.later.append, Cost.READS_MUCH)
        self.began: list[Asked] = []
        self.handle = self.costly.dealt_out({LIST: self.began.append})[LIST]  # type: ignore[dict-item]

    def path(self, address: str = "10.0.0.1") -> Any:
        return Path(address)

    def ask(self, count: int, user: int = 0, path: Any = None) -> list[Asked]:
        path = path or self.path()
        made = [Asked(user, path) for _ in range(count)]
        for each in made:
            self.handle(each)  # type: ignore[arg-type]
        return made

    def turn(self) -> None:
        later, self.later[:] = list(self.later), []
        for each in later:
            each()

    def answer_all(self) -> None:
        """Answers what has begun, and what begins then, one after the other."""
        seen = list(self.began)
        while seen:
            seen.pop(0).reply(0)
            before = len(self.began)
            self.turn()
            seen += self.began[before:]


@pytest.fixture
def world() -> World:
    return World()


def test_two_hundred_of_one_asker_are_a_few_at_once_and_the_rest_is_told_to_ask_again(world: World) -> None:
    made = world.ask(200)
    assert world.began == made[:OF_ONE_MAX]
    assert [each.replies for each in made].count([2]) == 200 - OF_ONE_MAX - WAITING_MAX
    while world.costly.waiting:
        world.began[-OF_ONE_MAX].reply(0)
        world.turn()
    assert world.began == made[: OF_ONE_MAX + WAITING_MAX]


def test_the_next_turn_is_the_other_askers_however_many_connections_the_first_one_has(world: World) -> None:
    for _ in range(50):
        world.ask(1, user=7, path=world.path())
    (other,) = world.ask(1, user=8)
    assert world.began[-1] is other, "there is a place for each"
    assert len(world.began) == OF_ONE_MAX + 1


def test_all_askers_together_have_so_many_places_and_take_turns(world: World) -> None:
    made = {user: world.ask(3, user=user) for user in range(1, 2 * AT_ONCE_MAX)}
    assert len(world.began) == AT_ONCE_MAX
    world.answer_all()
    assert sorted(map(id, world.began)) == sorted(id(each) for three in made.values() for each in three)
    assert len({each.user for each in world.began[: 2 * AT_ONCE_MAX]}) >= AT_ONCE_MAX, "not one asker after the other"


def test_an_answer_that_is_made_at_once_begins_the_next_in_another_turn(world: World) -> None:
    answered: list[Asked] = []

    def at_once(request: Any) -> None:
        answered.append(request)
        request.reply(0)

    handle = world.costly.dealt_out({LIST: at_once})[LIST]
    path = world.path()
    for _ in range(10):
        handle(Asked(1, path))  # type: ignore[arg-type]
    first = len(answered)
    for _ in range(10):
        world.turn()
    assert len(answered) == 10
    assert first == 10 or first <= OF_ONE_MAX + 8


def test_what_a_client_that_is_gone_has_asked_for_ends(world: World) -> None:
    path = world.path()
    world.ask(20, user=7, path=path)
    (other,) = world.ask(1, user=7)
    for told in path.on_close:
        told()
    world.turn()
    assert world.began[OF_ONE_MAX:] == [other]
    assert not world.costly._paths.keys() & {path}
    world.began[0].reply(0)
    other.reply(0)
    assert not world.costly._of


def test_what_is_never_answered_gives_its_place_back(world: World) -> None:
    world.ask(OF_ONE_MAX + 1)
    world.costly.tick(LOST_MS)
    world.turn()
    assert len(world.began) == OF_ONE_MAX + 1


def test_the_number_that_waits_is_bounded_over_all_askers(world: World) -> None:
    for user in range(1, 200):
        world.ask(20, user=user)
    assert world.costly.waiting <= ALL_WAITING_MAX


def test_others_are_not_touched(world: World) -> None:
    handlers: Any = {RequestCode.PULL_MESSAGE: print}
    assert world.costly.dealt_out(handlers) == handlers


def test_one_write_is_under_way_at_once(world: World) -> None:
    world.costly = CostlyRequests(world.later.append, Cost.WRITES_MUCH)
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    world.handle = world.costly.dealt_out({code: world.began.append})[code]  # type: ignore[dict-item]
    first, second = world.ask(1, user=1) + world.ask(1, user=2)
    assert world.began == [first]
    first.reply(0)
    world.turn()
    assert world.began == [first, second]


def test_a_write_that_has_begun_keeps_its_place_when_its_client_goes(world: World) -> None:
    """Seed 998100116: each request that another node forwards has a path of its own, so each end of 60 began the next,
    whose rows were written for minutes after the client had gone."""
    world.costly = CostlyRequests(world.later.append, Cost.WRITES_MUCH)
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    world.handle = world.costly.dealt_out({code: world.began.append})[code]  # type: ignore[dict-item]
    made = [world.ask(1, user=7)[0] for _ in range(60)]
    for each in made:
        for told in each.connection.on_close:
            told()
        world.turn()
    assert (world.began, world.costly.waiting) == ([made[0]], 0)
    (other,) = world.ask(1, user=8)
    assert world.began == [made[0]]
    made[0].reply(0)
    world.turn()
    assert world.began == [made[0], other]


def test_what_is_handled_after_the_client_has_gone_takes_no_place(world: World) -> None:
    """Seed 770000038: it was never answered, as nobody waits for an answer, and its user had no turn for a minute."""
    path = world.path()
    path.closed = True
    world.ask(OF_ONE_MAX + 1, user=7, path=path)
    assert world.began == []
    assert world.costly.waiting == 0
    (next_one,) = world.ask(1, user=7)
    assert world.began == [next_one]


def test_who_is_refused_because_all_places_are_taken_leaves_no_empty_place_in_the_line(world: World) -> None:
    users = range(1, ALL_WAITING_MAX // WAITING_MAX + AT_ONCE_MAX)
    for user in users:
        world.ask(WAITING_MAX + OF_ONE_MAX, user=user)
    assert world.costly.waiting == ALL_WAITING_MAX
    (refused,) = world.ask(1, user=users[-1] + 1)
    assert refused.replies == [2]
    world.answer_all()
    assert world.costly.waiting == 0
