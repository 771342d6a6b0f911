"""Few places are left: who loses one to a newcomer, and who never does."""

from __future__ import annotations

from cluster.runtime.host.connection_eviction import LOOKED_AT, ConnectionSlots


class Hall:
    """Connections are names; `idle` has the seconds of those that may go."""

    def __init__(self) -> None:
        self.idle: dict[str, float] = {}
        self.asked = 0
        self.places: ConnectionSlots[str] = ConnectionSlots(self._idle_s)

    def _idle_s(self, connection: str) -> float | None:
        self.asked += 1
        return self.idle.get(connection)

    def fill(self, address: str, count: int, idle_s: float | None = 1.0) -> None:
        for number in range(count):
            name = f"{address}:{number}"
            self.places.add(address, name)
            if idle_s is not None:
                self.idle[name] = idle_s + number


def test_the_longest_idle_connection_of_the_address_that_holds_most_goes() -> None:
    hall = Hall()
    hall.fill("many", 5)
    hall.fill("few", 2)
    assert hall.places.victim("new") == "many:4"
    assert hall.places.victim("few") == "many:4"


def test_an_address_never_takes_a_place_of_one_that_holds_no_more() -> None:
    hall = Hall()
    hall.fill("a", 3)
    hall.fill("b", 2)
    assert hall.places.victim("a") is None
    assert hall.places.victim("b") is None, "they would take it from each other for ever"


def test_a_connection_in_use_stays() -> None:
    hall = Hall()
    hall.fill("many", 5, idle_s=None)
    assert hall.places.victim("new") is None
    hall.idle["many:2"] = 7.0
    assert hall.places.victim("new") == "many:2"


def test_what_is_closed_counts_no_more() -> None:
    hall = Hall()
    hall.fill("many", 5)
    hall.fill("some", 4)
    for number in range(5):
        hall.places.remove("many", f"many:{number}")
    assert hall.places.victim("new") == "some:3"
    for number in range(4):
        hall.places.remove("some", f"some:{number}")
    assert hall.places.victim("new") is None


def test_a_newcomer_looks_at_few_and_the_next_at_others() -> None:
    hall = Hall()
    hall.fill("many", 10 * LOOKED_AT, idle_s=None)
    hall.idle[f"many:{LOOKED_AT + 3}"] = 1.0
    assert hall.places.victim("new") is None
    assert hall.asked == LOOKED_AT
    assert hall.places.victim("new") == f"many:{LOOKED_AT + 3}"


def test_connections_that_come_and_go_leave_nothing() -> None:
    hall = Hall()
    for number in range(10_000):
        hall.places.add("a", str(number))
        hall.places.remove("a", str(number))
    assert len(hall.places._most) <= 2 * LOOKED_AT
    assert hall.places._of == {}
