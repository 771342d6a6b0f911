"""Quorum arithmetic against the definition, counted out."""

from __future__ import annotations

from itertools import product

from raftlog.core.state.quorum import agreed_value, lower_median, majority
from tests.support.rows import each_row


@each_row("voters", range(1, 10))
def test_two_majorities_always_meet(voters: int) -> None:
    assert 2 * majority(voters) > voters
    assert 2 * (majority(voters) - 1) <= voters


@each_row("voters", range(1, 6))
def test_agreed_value_is_the_largest_that_a_majority_reached(voters: int) -> None:
    for values in product(range(4), repeat=voters):
        reached = [v for v in range(4) if sum(value >= v for value in values) >= majority(voters)]
        assert agreed_value(values) == max(reached)


def test_median_is_the_lower_of_two() -> None:
    assert lower_median([9]) == 9
    assert lower_median([9, 1]) == 1
    assert lower_median([0, 5, 10**12]) == 5
    assert lower_median([4, 3, 2, 1]) == 2
