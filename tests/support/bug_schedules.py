"""The planted bugs' schedules on the product: each is played once in a process, for all tests that ask for it."""

from __future__ import annotations

from functools import cache

from jepsen_like.seeded_bugs.catalogue import DATA, load
from jepsen_like.seeded_bugs.engines import ENGINES, Fired


@cache
def fired_in(bug_id: str) -> Fired:
    """Returns the checkers that fire in the schedule of this bug. The same schedule is the same run, so a second one
    would tell nothing."""
    bug = load(DATA / f"{bug_id}.toml")
    return ENGINES[bug.engine].play(bug.schedule, bug.checkers)


def holds(bug_id: str) -> None:
    """A witness that is the bug's own schedule."""
    fired = fired_in(bug_id)
    assert fired.checker is None, fired.detail
