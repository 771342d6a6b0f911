"""Resets of offsets take places: few for each asker, and who asks is served in turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.broker.groups.reset_places import PLACES, PLACES_EACH, ResetPlaces
from cluster.broker.refusal import Reason, Refused


@pytest.fixture
def later() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def places(later: list[Callable[[], None]]) -> ResetPlaces:
    return ResetPlaces(later.append)


def refused(places: ResetPlaces, asker: object) -> bool:
    try:
        places.take(asker)
    except Refused as error:
        return error.reason is Reason.BUSY
    return False


def test_an_asker_has_few_places_until_its_resets_are_done(places: ResetPlaces) -> None:
    assert [refused(places, "a") for _ in range(PLACES_EACH + 1)] == [False] * PLACES_EACH + [True]
    assert not refused(places, "b")
    places.leave("a")
    assert [refused(places, "a"), refused(places, "a")] == [False, True]


def test_all_askers_together_have_so_many(places: ResetPlaces) -> None:
    assert not any(refused(places, asker) for asker in range(PLACES))
    assert refused(places, "one more")
    places.leave(0)
    assert not refused(places, "one more")


def test_one_is_written_at_a_time_and_askers_take_turns(places: ResetPlaces, later: list[Callable[[], None]]) -> None:
    begun: list[str] = []
    for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
        places.write(name[0], lambda name=name: begun.append(name))  # type: ignore[misc]
    while later or len(begun) < 6:
        assert len(later) <= 1
        if not later:
            places.written()
        later.pop()()
    assert begun == ["a1", "a2", "b1", "c1", "a3", "b2"]


def test_a_write_that_raises_lets_the_next_one_begin(places: ResetPlaces, later: list[Callable[[], None]]) -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    begun: list[str] = []
    places.write("a", lambda: begun.append("a"))
    places.write("b", broken)
    places.write("c", lambda: begun.append("c"))
    places.written()
    with pytest.raises(RuntimeError):
        later.pop()()
    later.pop()()
    assert begun == ["a", "c"]
