"""A leader that did not stop in order scrubs its tier soon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.tier.scrub.scrub_service import AFTER_MS, AFTER_UNCLEAN, BY_ITSELF, HOUR_MS, TierScrubs
from cluster.tier.scrub.scrubber import ScrubOptions
from tests.support.sim_cluster import SimNode
from tests.support.tiered_cluster import FOLDER, Tiered

ORPHAN = f"{FOLDER}/log/{0:020d}-{1:020d}.{'0' * 16}.seg"
"""An object of a leader that died between writing it and recording it."""


@pytest.fixture
def made() -> Iterator[Tiered]:
    with Tiered(2600010) as tiered:
        tiered.send(60)
        tiered.upload_all()
        tiered.store.inner.objects[ORPHAN] = b"of a leader that died"
        yield tiered


def scrubs_of(node: SimNode) -> TierScrubs:
    scrubs = node.running.keeping.tier_scrubs
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


class Begun(TierScrubs):
    """Notes what is to begin."""

    leading = False

    def __init__(self) -> None:
        self.wishes: list[ScrubOptions] = []
        scrubber: Any = None
        super().__init__(
            1,
            scrubber,
            every_hours=1,
            wall_ms=lambda: 0,
            leads=lambda: self.leading,
            alarm=lambda key, text: None,
            clear=lambda key: None,
        )

    def begin(self, wishes: ScrubOptions) -> bool:
        self.wishes.append(wishes)
        return True


@pytest.mark.parametrize(("clean", "due_ms", "first"), [(True, HOUR_MS, BY_ITSELF), (False, AFTER_MS, AFTER_UNCLEAN)])
def test_the_first_comes_soon_only_after_a_stop_that_was_not_in_order(
    clean: bool, due_ms: int, first: ScrubOptions
) -> None:
    scrubs = Begun()
    scrubs.plan(clean=clean)
    scrubs.tick(0)
    scrubs.leading = True
    for now_ms, count in ((100, 0), (99 + due_ms, 0), (100 + due_ms, 1), (99 + due_ms + HOUR_MS, 1)):
        scrubs.tick(now_ms)
        assert len(scrubs.wishes) == count
    scrubs.tick(100 + due_ms + HOUR_MS)
    assert scrubs.wishes == [first, BY_ITSELF]
