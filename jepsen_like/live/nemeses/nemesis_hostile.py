"""Hostile clients as nemeses: each attack by its name. If only attacks are named, they are played together
(`story_hostile`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jepsen_like.hostile.attacks import ATTACKS
from jepsen_like.live.harm.attack_process import Assault, AttackRound, broken_in, orders_for
from jepsen_like.live.nemeses.nemesis_interface import Effect, Nemesis, Stage
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from jepsen_like.live.subjects.subject import Capability

DEALT_SIZE = 0.25
"""The size of an attack that is dealt as one fault among others, as a share of the full size."""


def _apply(name: str) -> Callable[[Stage, float], Effect]:
    def apply(stage: Stage, hold_s: float) -> Effect:
        subject = stage.subject
        assert isinstance(subject, RaftMQSubject), "Capability.CLIENTS is that of our own nodes"
        orders = orders_for(subject, stage.leader(), [name], stage.rng.getrandbits(32), DEALT_SIZE)
        rounds: list[AttackRound] = []
        with Assault(subject.processes, orders, rounds.append):
            stage.sleep(max(hold_s, orders.every_s))
        return effect_of(rounds)

    return apply


def effect_of(rounds: Iterable[AttackRound]) -> Effect:
    """Returns the effect of an attack with these reports of its rounds: what they found is broken."""
    done = [each for each in rounds if each.is_over]
    told = f"{len(done)} rounds, {sum(each.sent for each in done)} requests"
    broken = tuple(filter(None, [broken_in(done)]))
    numbers: dict[str, float] = {"rounds": len(done), "wrong": sum(len(each.wrong) for each in done)}
    return Effect(bool(done), "; ".join([told, *broken]), numbers, broken)


NEMESES = tuple(
    Nemesis(
        attack.name, attack.does, _apply(attack.name), frozenset({Capability.CLIENTS}), is_mixed=False, is_hostile=True
    )
    for attack in ATTACKS.values()
)
