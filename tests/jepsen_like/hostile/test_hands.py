"""Attacks dealt in hands: each often enough, none beside one that hinders it, and the same again from the same seed."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest

from jepsen_like.hostile.attacks import ATTACKS
from jepsen_like.hostile.hands import deal
from tests.support.rows import each_row

EVERY = list(ATTACKS.values())
HEAVY = {attack.name for attack in EVERY if attack.is_heavy}
HANDS = 28
"""Hands of a full run."""


@each_row("seed", range(20))
@each_row("at_once", [2, 3, 4, 8, 16, 27])
def test_each_attack_comes_in_each_round_and_none_beside_one_that_hinders_it(seed: int, at_once: int) -> None:
    hands = deal(EVERY, HANDS, at_once, random.Random(seed))
    assert len(hands) == HANDS
    assert all(0 < len(hand) <= at_once and len(set(hand)) == len(hand) for hand in hands)
    rounds = HANDS // max(2, -(-len(EVERY) // at_once))
    assert rounds >= 2
    for number in range(rounds):
        part = hands[HANDS * number // rounds : HANDS * (number + 1) // rounds]
        assert {name for hand in part for name in hand} == set(ATTACKS)
    assert not any({"half-frames", "too-large"} <= set(hand) for hand in hands)


@each_row("seed", range(20))
def test_on_two_cores_heavy_attacks_are_spread_and_no_pair_comes_twice(seed: int) -> None:
    hands = deal(EVERY, HANDS, 2, random.Random(seed))
    assert Counter(name for hand in hands for name in hand) == dict.fromkeys(ATTACKS, 2)
    assert all(len(HEAVY.intersection(hand)) == 1 for hand in hands), "14 of 28 are heavy"
    pairs = Counter(frozenset(pair) for hand in hands for pair in combinations(hand, 2))
    assert max(pairs.values()) == 1


def test_the_seed_decides() -> None:
    first, again, other = (deal(EVERY, HANDS, 2, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@each_row("seed", range(20))
def test_a_short_run_plays_some_of_the_attacks_once(seed: int) -> None:
    hands = deal(EVERY, 3, 2, random.Random(seed))
    assert max(Counter(name for hand in hands for name in hand).values()) == 1
    assert [len(hand) for hand in hands] == [2, 2, 2]


@each_row("seed", range(5))
def test_few_attacks_are_dealt_too(seed: int) -> None:
    pair = [ATTACKS["half-frames"], ATTACKS["too-large"]]
    assert {*deal(pair, 2, 2, random.Random(seed))} == {("half-frames",), ("too-large",)}
    assert len(*deal(pair, 1, 2, random.Random(seed))) == 1
    assert deal([ATTACKS["idle-connections"]], 3, 2, random.Random(seed)) == [("idle-connections",)] * 3
    with pytest.raises(ValueError, match="0 hands"):
        deal(pair, 0, 2, random.Random(seed))


def test_what_hinders_an_attack_is_the_name_of_an_attack() -> None:
    named = {other for attack in EVERY for other in attack.hinders}
    assert named
    assert named <= ATTACKS.keys()
