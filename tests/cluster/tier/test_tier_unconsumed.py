"""An evicted message is not lost: only if it leaves the tier, groups that have not consumed it raise an alarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from tests.support.tiered_cluster import EVICTING, Tiered

UNREAD = "unconsumed_messages_expire"


@pytest.fixture
def tiered() -> Iterator[Callable[..., Tiered]]:
    with ExitStack() as running:
        yield lambda *arguments, **named: running.enter_context(Tiered(*arguments, **EVICTING | named))


SOON_S = 20
"""Several times what the alarm takes where a tier is full; only messages that are too old take a minute."""


def alarmed(made: Tiered, committed: int = 0, within_s: int = SOON_S) -> list[str]:
    """Texts of the alarm while a group reads nothing of what is evicted."""
    topic_id = made.leader_state().topics["t"].id
    offsets = [("late", topic_id, queue_id, committed) for queue_id in range(2)]
    made.sim.propose(made.sim.leader(), PutGroup({"name": "late"}, True), CommitOffsets(offsets))
    made.send(120)
    made.sim.loop.run_until(lambda: made.leader_state().trim_position > 0, 200, "an EVICT")
    for _ in range(within_s):
        made.sim.loop.run_for(1)
        if found := [each.text for each in made.sim.leader().running.alarms.all() if each.key == UNREAD]:
            return found
    return []


def test_a_group_that_has_yet_to_read_what_is_evicted_loses_nothing(tiered: Callable[..., Tiered]) -> None:
    assert alarmed(tiered(40)) == []


@pytest.mark.parametrize("limit", [{"tier.bytes_max": 130_000}, {"tier.retention_ms": 60_000}])
def test_what_the_tier_gives_up_soon_is_told(tiered: Callable[..., Tiered], limit: dict[str, int]) -> None:
    (text,) = alarmed(tiered(41, **limit), within_s=SOON_S if "tier.bytes_max" in limit else 70)
    assert text.startswith("group late is ")
    assert "tier.retention_hours" in text


def test_a_group_that_has_consumed_them_is_not_told(tiered: Callable[..., Tiered]) -> None:
    assert alarmed(tiered(42, **{"tier.bytes_max": 130_000}), committed=1_000) == []
