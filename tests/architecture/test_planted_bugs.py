"""A change of the product takes the planted bugs along: `make check` says so, not the whole suite an hour later."""

from __future__ import annotations

from jepsen_like.seeded_bugs.catalogue import Bug, load_all, patched
from tests.support.rows import each_row
from tests.support.unit_bugs import Planted, all_planted, assert_fits

BUGS = load_all()
UNIT_BUGS = all_planted()


def test_the_catalogue_has_each_bug_once() -> None:
    assert len({bug.id for bug in BUGS}) == len(BUGS) >= 40


@each_row("bug", BUGS, ids=lambda bug: bug.id)
def test_every_edit_of_a_planted_bug_fits_exactly_once(bug: Bug) -> None:
    assert patched(bug)


def test_each_unit_bug_has_an_id_of_its_own() -> None:
    ids = {planted["id"] for planted in UNIT_BUGS}
    assert len(ids) == len(UNIT_BUGS)
    assert {"KB05", "QB17"} <= ids  # from two tables


@each_row("planted", UNIT_BUGS, ids=lambda planted: planted["id"])
def test_every_edit_of_a_unit_bug_fits_exactly_once(planted: Planted) -> None:
    assert_fits(planted)
