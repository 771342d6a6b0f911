"""Weak acknowledgements in the simulator: who may lose what, by what happened; and scripts in which it does."""

from __future__ import annotations

import pytest

from jepsen_like.client_kit.fields import WAIT_FALSE
from jepsen_like.sim.checks.allowed_losses import Excuses
from jepsen_like.sim.checks.handovers import Reign, Reigns
from jepsen_like.sim.clients.client_machines import FULL, TOPIC, Wishes, promise_of
from jepsen_like.sim.options import Options, draw, stream
from jepsen_like.sim.scripted import play
from raftlog.types import NodeId

ONE, TWO = NodeId(1), NodeId(2)
QUEUE = (1, 0)
SYNCED = draw(0)._replace(flush_async=0, memory_pool=0)
WRITTEN = SYNCED._replace(flush_async=1)
MEMORY = WRITTEN._replace(memory_pool=1)


def world(*events: tuple[float, str], reigns: tuple[Reign, ...] = (), decided_s: float | None = None) -> Excuses:
    now = [0.0]
    led = Reigns(lambda checker, what: None)
    led.all.extend(reigns or (Reign(ONE, 1, 0.0, 1),))
    excuses = Excuses(led, lambda: now[0])
    for at_s, what in events:
        now[0] = at_s
        excuses.happened(ONE, what) if what == "gone" else excuses.ended(ONE, what)
    if decided_s is not None:
        now[0] = decided_s
        excuses.applied([(QUEUE, 1)])
    return excuses


def reign(node: NodeId, term: int, begun_s: float, ended_s: float, house: int | None = None) -> Reign:
    made = Reign(node, term, begun_s, term if house is None else house)
    made.ended_s = ended_s
    return made


OTHER = (reign(ONE, 1, 0.0, 5.5), reign(TWO, 2, 6.0, 99.0))
HEIR = (reign(ONE, 1, 0.0, 5.5), reign(TWO, 2, 5.6, 99.0, house=1))
SAME = (reign(ONE, 1, 0.0, 5.5), reign(ONE, 2, 6.0, 99.0, house=1))
STALE = (reign(ONE, 1, 0.0, 9.0), reign(TWO, 2, 3.0, 99.0))


@pytest.mark.parametrize(
    ("level", "options", "excuses", "allowed"),
    [
        ("quorum", SYNCED, world(), False),
        ("quorum", SYNCED, world((5.5, "kill")), False),
        ("quorum", SYNCED, world((5.5, "power")), True),
        ("quorum", SYNCED, world((5.5, "failed: fdatasync:EIO")), True),
        ("quorum", SYNCED, world((5.5, "gone")), True),
        ("quorum", SYNCED, world((4.5, "power")), False),
        ("quorum", SYNCED, world((5.5, "power"), decided_s=5.2), False),
        ("quorum", SYNCED, world((5.5, "power"), decided_s=5.8), True),
        ("quorum", SYNCED, world(reigns=OTHER), False),
        ("leader", SYNCED, world(), False),
        ("leader", SYNCED, world((5.5, "kill"), (5.7, "power")), False),
        ("leader", SYNCED, world((5.5, "gone")), True),
        ("leader", SYNCED, world(reigns=OTHER), True),
        ("leader", SYNCED, world(reigns=OTHER, decided_s=5.4), False),
        ("leader", SYNCED, world(reigns=HEIR), False),
        ("leader", SYNCED, world(reigns=STALE), True),
        ("leader", WRITTEN, world((5.5, "kill")), False),
        ("leader", WRITTEN, world((5.5, "power")), True),
        ("leader", MEMORY, world((5.5, "kill")), True),
        ("leader", MEMORY, world((5.5, "stopped")), False),
        ("leader", MEMORY, world((5.5, "stopped"), reigns=HEIR), False),
    ],
)
def test_what_takes_a_message_that_was_sent_at_second_five(
    level: str, options: Options, excuses: Excuses, allowed: bool
) -> None:
    assert excuses.allow(level, QUEUE, 0, 5.0, options) is allowed


def test_a_message_that_the_leader_alone_had_goes_with_it_by_right() -> None:
    script = "lead 1\nsend 2\ncut 1->2\ncut 1->3\nask 1 level=leader\nkill 1\nwait 2\nheal\nstart 1\nsettle\n"
    verdict = play("nodes 3\n" + script)
    assert not verdict.violations, verdict.violations
    assert verdict.sometimes["weakly acknowledged message lost"] == 1


@pytest.mark.parametrize("options", ["", " flush_async=1", " flush_async=1 memory_pool=1"])
@pytest.mark.parametrize("level", ["leader", "quorum", WAIT_FALSE])
def test_an_orderly_stop_takes_nothing_along(level: str, options: str) -> None:
    """A leader may be told to stop while its messages are under way: they are at no level an excuse."""
    script = f"nodes 3{options}\nlead 1\nsend 2\nask 1 6 level={level} later\nstop 1\nwait 2\nsettle\n"
    verdict = play(script)
    assert not verdict.violations, verdict.violations
    assert verdict.sometimes["weakly acknowledged message lost"] == 0
    assert verdict.sometimes["leadership handed over whole"] >= 2


def test_wishes() -> None:
    quiet, loud = draw(0)._replace(weak=0.0), draw(0)._replace(weak=1.0)
    rng = stream(0, "test")
    before = rng.getstate()
    assert Wishes(quiet, rng).draw() == (TOPIC, "", FULL)
    assert rng.getstate() == before, "chance is not asked"
    wishes = [Wishes(loud, rng).draw() for _ in range(300)]
    assert {wish.asked for wish in wishes} == {"", "leader", "quorum", WAIT_FALSE, "all", FULL}
    assert {wish.topic for wish in wishes} == {TOPIC, "brisk"}
    assert all(wish.level for wish in wishes)
    assert promise_of(WAIT_FALSE) == {"level": "leader"}
    assert promise_of("all") == promise_of(FULL) == promise_of("") == {}
