"""A change of the product takes the planted bugs along: `make check` says so, not the whole suite an hour later."""

from __future__ import annotations

from jepsen_like.seeded_bugs.catalogue import Bug, load_all, patched
from tests.support.rows import each_row

BUGS = load_all()


def test_the_catalogue_has_each_bug_once() -> None:
    assert len({bug.id for bug in BUGS}) == len(BUGS) >= 40


@each_row("bug", BUGS, ids=lambda bug: bug.id)
def test_every_edit_of_a_planted_bug_fits_exactly_once(bug: Bug) -> None:
    assert patched(bug)
