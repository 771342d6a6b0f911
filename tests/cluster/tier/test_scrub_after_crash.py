"""A leader that did not stop in order scrubs its tier soon: in three whole nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.tier.scrub.scrub_service import AFTER_MS, TierScrubs
from tests.support.sim_cluster import SimNode
from tests.support.tiered_cluster import FOLDER, Tiered

ORPHAN = f"{FOLDER}/log/{0:020d}-{1:020d}.{'0' * 16}.seg"
"""As a leader leaves it that dies between writing an object and recording it."""


@pytest.fixture
def made() -> Iterator[Tiered]:
    with Tiered(2600010) as tiered:
        tiered.send(60)
        tiered.upload_all()
        tiered.store.inner.objects[ORPHAN] = b"of a leader that died"
        yield tiered


def scrubs_of(node: SimNode) -> TierScrubs:
    scrubs = node.running.tier_scrubs
    assert scrubs is not None
    return scrubs


def test_after_a_crash_what_is_left_over_goes_and_damage_is_repaired(made: Tiered) -> None:
    name = f"{FOLDER}/{made.leader_state().tier.rows[-1].parts[0].name}"
    intact = made.object(name.removeprefix(f"{FOLDER}/"))
    objects = made.store.inner.objects
    objects[name] = bytes(len(intact))
    for node in made.sim.nodes.values():
        node.kill(power=False)
    for node in made.sim.nodes.values():
        node.start()
    scrubs = scrubs_of(made.sim.leader())
    made.sim.loop.run_for(AFTER_MS / 1000 - 10)
    assert scrubs.view.number == 0
    made.sim.loop.run_until(lambda: scrubs.view.finished_ms, 60, "a scrub")
    assert (scrubs.view.bad, scrubs.view.repaired, scrubs.view.swept, scrubs.view.failure) == (1, 1, 1, "")
    assert objects[name] == intact
    assert ORPHAN not in objects
    made.sim.loop.run_for(1.2 * AFTER_MS / 1000)
    assert scrubs.view.number == 1


def test_after_a_stop_in_order_there_is_nothing_to_look_for(made: Tiered) -> None:
    before = {node: node.running for node in made.sim.nodes.values()}
    for node in before:
        node.stop()

    def began_again() -> bool:
        return all(node.is_started and node.running is not former for node, former in before.items())

    made.sim.loop.run_until(began_again, 60, "every node stopped and began again")
    leader = made.sim.leader()
    made.sim.loop.run_for(1.2 * AFTER_MS / 1000)
    assert made.sim.leader() is leader
    assert scrubs_of(leader).view.number == 0
    assert ORPHAN in made.store.inner.objects
