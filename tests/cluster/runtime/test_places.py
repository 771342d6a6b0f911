"""The last quarter of the places, while users are enforced: strangers, however many, take places of strangers."""

from __future__ import annotations

import random

from cluster.runtime.host.connection_eviction import KNOWN_MAX, Places, prefix_of, shared_part
from tests.support.rows import each_row

LIMIT = 64


class Table:
    """Connections are numbers; those in `busy` must not leave, if others can."""

    def __init__(self, enforces: bool = True) -> None:
        self.enforces = enforces
        self.busy: set[int] = set()
        self.of: dict[int, str] = {}
        self.now = 0
        self.stands = False
        """True if no time passes between two arrivals."""
        self.came: dict[int, int] = {}
        self.places: Places[int] = Places(self._idle_s, lambda: self.enforces)

    def _idle_s(self, connection: int) -> float | None:
        return None if connection in self.busy else float(self.now - self.came[connection])

    def arrives(self, address: str, opening: int = 0) -> int | None:
        """Returns the new connection; None if there is no place for it."""
        leaving, is_free = self.places.make_room(address, opening, LIMIT)
        if leaving is not None:
            self.places.remove(self.of.pop(leaving), leaving)
        if not is_free:
            return None
        self.now += not self.stands
        number = len(self.came) + 1
        self.came[number] = self.now
        self.of[number] = address
        self.places.add(address, number)
        assert len(self.places) == len(self.of) <= LIMIT
        return number

    def proven(self, address: str) -> int:
        connection = self.arrives(address)
        assert connection is not None
        self.places.proven(address, connection)
        return connection


def test_strangers_of_many_addresses_keep_nobody_out() -> None:
    table = Table()
    for number in range(1000):
        table.arrives(f"10.0.{number % 250}.{number % 64}")
    assert table.places.strangers == shared_part(LIMIT) == 48
    table.busy = set(table.of)
    operators = [table.proven(f"10.0.0.{number}") for number in range(16)]
    for number in range(1000):
        assert table.arrives(f"10.1.0.{number % 250}") is not None, "a stranger takes the place of a stranger"
    assert set(operators) <= set(table.of)


def test_a_newcomer_takes_the_place_of_the_network_and_the_address_that_hold_most() -> None:
    table = Table()
    honest = [table.arrives("10.9.9.9"), table.arrives("10.8.8.8")]
    for number in range(46):
        table.arrives(f"10.0.0.{min(number, 9)}")
    for _ in range(30):
        table.arrives("10.7.7.7")
    assert set(honest) <= set(table.of)
    left = [address for address in table.of.values() if address.startswith("10.0.0")]
    assert 22 <= len(left) <= 24, "two networks share"
    assert len(set(left)) == 10, "the address with most has lost them"


def test_strangers_that_hold_the_same_lose_the_idle_one_first_and_known_addresses_last() -> None:
    table = Table()
    known = table.proven("10.0.0.1")
    table.places.remove(table.of.pop(known), known)
    first = [table.arrives(f"10.0.0.{number}") for number in range(1, 49)]
    table.busy = {first[1], first[2]}  # type: ignore[arg-type]
    assert table.arrives("10.0.0.77") is not None
    gone = [each for each in first if each not in table.of]
    assert gone == [first[3]], "not that of an address that has proven a user, nor one in use"


def test_a_newcomer_does_not_lose_its_place_before_its_request_is_here() -> None:
    table = Table()
    for number in range(48):
        table.arrives(f"10.0.0.{number}")
    table.busy, table.stands = set(table.of), True
    operator = table.arrives("10.0.0.99")
    for number in range(100, 140):
        table.busy.add(table.arrives(f"10.0.0.{number}") or 0)
    assert operator in table.of


def test_what_is_not_open_yet_takes_no_place_of_what_is() -> None:
    table = Table()
    for number in range(40):
        table.arrives(f"10.0.{number}.1")
    before = set(table.of)
    assert table.arrives("10.1.1.1", opening=24) is None
    assert set(table.of) == before
    table.proven("10.2.2.2")
    assert table.arrives("10.2.2.2", opening=24) is not None, "a known address is no stranger's"


def test_without_users_all_places_are_for_everybody() -> None:
    table = Table(enforces=False)
    for _ in range(LIMIT):
        assert table.arrives("10.0.0.1") is not None
    assert table.arrives("10.0.0.1") is None, "an address takes no place of its own"
    assert table.arrives("10.0.0.2") is not None


@each_row("seed", range(20))
def test_the_counts_are_right_whatever_happens(seed: int) -> None:
    rng, table = random.Random(seed), Table()
    for _ in range(2000):
        address = f"10.0.{rng.randrange(4)}.{rng.randrange(6)}"
        match rng.randrange(4):
            case 0 | 1:
                table.arrives(address, opening=rng.randrange(4))
            case 2 if table.of:
                connection = rng.choice(list(table.of))
                table.places.proven(table.of[connection], connection)
            case 3 if table.of:
                connection = rng.choice(list(table.of))
                table.places.remove(table.of.pop(connection), connection)
        assert len(table.places) == len(table.of)
        assert table.places.strangers <= shared_part(LIMIT)
        assert sum(len(each) for each in table.places._within.values()) == table.places.strangers
    table.places._known.clear()
    for number in range(2 * KNOWN_MAX):
        table.places.proven(f"a{number}", -1)
    assert len(table.places._known) == KNOWN_MAX


@each_row(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.255", True),
        ("10.0.0.1", "10.0.1.1", False),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:10.0.0.1", "10.0.0.2", True),
        ("a:b", "a:c", False),
    ],
)
def test_prefixes(one: str, other: str, same: bool) -> None:
    assert (prefix_of(one) == prefix_of(other)) is same
