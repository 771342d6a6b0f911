"""Deals attacks in hands: a few at once, so that honest clients measure the attacks and not a machine that has no time
left."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from jepsen_like.hostile.attack import Attack

Hand = tuple[str, ...]
"""Names of the attacks that are played at the same time."""
_TRIES = 1_000
_PAIR = 2


def deal(attacks: Sequence[Attack], hands: int, at_once: int, rng: random.Random) -> list[Hand]:
    """Returns `hands` hands of at most `at_once` attacks, drawn by `rng`.

    - The hands are divided into rounds of about equal length, as many as fit. Each attack comes in each round, once or,
      where there is room, twice. If not even one round fits, some attacks are left out.
    - Two attacks of which one hinders the other never share a hand.
    - No hand of a round has two heavy attacks more than another one. Pairs of attacks that have not shared a hand yet
      come before pairs that have.

    Raises ValueError if `hands` or `at_once` is below 1, or if the attacks cannot be dealt in this way.
    """
    if hands < 1 or at_once < 1:
        raise ValueError(f"{hands} hands of {at_once} attacks cannot be dealt")
    hinders = _hinders(attacks)
    per_round = max(-(-len(attacks) // at_once), _PAIR if hinders else 1)
    rounds = hands // per_round
    if not rounds:
        few = list(attacks)
        rng.shuffle(few)
        return deal(few[: hands * at_once if not hinders else min(len(few) - 1, hands * at_once)], hands, at_once, rng)
    seen: Counter[frozenset[str]] = Counter()
    dealt: list[Hand] = []
    for number in range(rounds):
        size = hands * (number + 1) // rounds - hands * number // rounds
        for hand in _round(attacks, size, at_once, seen, rng):
            seen.update(map(frozenset, combinations(hand, _PAIR)))
            dealt.append(hand)
    return dealt


def _hinders(attacks: Sequence[Attack]) -> set[frozenset[str]]:
    """Returns the pairs that never share a hand."""
    names = {attack.name for attack in attacks}
    return {frozenset((attack.name, other)) for attack in attacks for other in attack.hinders if other in names}


def _round(
    attacks: Sequence[Attack], size: int, at_once: int, seen: Mapping[frozenset[str], int], rng: random.Random
) -> list[Hand]:
    """Returns `size` hands in which each attack comes once, and some come again where there is room. Raises ValueError
    if no such hands were found.
    """
    hinders = _hinders(attacks)
    heavy = {attack.name for attack in attacks if attack.is_heavy}
    heavy_max = -(-len(heavy) // size)

    def fits(name: str, hand: Sequence[str]) -> bool:
        return (
            len(hand) < at_once
            and name not in hand
            and not any(frozenset((name, other)) in hinders for other in hand)
            and (name not in heavy or len(heavy.intersection(hand)) < heavy_max)
        )

    best: tuple[int, list[Hand]] | None = None
    for _ in range(_TRIES):
        order = [attack.name for attack in attacks]
        rng.shuffle(order)
        order.sort(key=lambda name: name not in heavy)
        order += reversed(order)  # fill the remaining room with light attacks first
        hands: list[list[str]] = [[] for _ in range(size)]
        for name in order:
            if open_hands := [hand for hand in hands if fits(name, hand)]:
                _best(name, open_hands, seen, rng).append(name)
        if len({name for hand in hands for name in hand}) < len(attacks):
            continue
        rng.shuffle(hands)
        again = sum(seen.get(frozenset(pair), 0) for hand in hands for pair in combinations(hand, _PAIR))
        if best is None or again < best[0]:
            best = again, [tuple(hand) for hand in hands]
        if best[0] == 0 or at_once > _PAIR:
            return best[1]
    if best is None:
        raise ValueError(f"{len(attacks)} attacks cannot be dealt to {size} hands of {at_once}")
    return best[1]


def _best(name: str, hands: Sequence[list[str]], seen: Mapping[frozenset[str], int], rng: random.Random) -> list[str]:
    """Returns the hand to which to add the attack `name`: one of the smallest hands. Among those, one whose attacks
    shared a hand with this attack least often.
    """
    return min(
        hands,
        key=lambda hand: (len(hand), sum(seen.get(frozenset((name, each)), 0) for each in hand), rng.random()),
    )
