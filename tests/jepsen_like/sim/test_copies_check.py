"""Copies of the truth are compared by what every copy of a version has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.sim.checks.truth_check import TruthCheck
from jepsen_like.sim.groups.map_check import CopiesCheck
from statemachine.commands import Command
from statemachine.levels import LEVEL
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from statemachine.truth import CopyTruth
from tests.statemachine.conftest import LogBuilder
from tests.support.truth_kit import SECOND, BrokerLog


class Both:
    """The first group, a group that copies it, and the check of both."""

    def __init__(self) -> None:
        self.first, self.copy = BrokerLog(LogBuilder(), level=LEVEL), BrokerLog(LogBuilder(), 2, level=LEVEL)
        self.found: list[str] = []
        self.truth = TruthCheck(lambda _, what: self.found.append(what))
        self.check = CopiesCheck(lambda _, what: self.found.append(what), self.truth)
        self.change(SECOND)
        self.first.make_ready()
        self.look()

    def change(self, *run: Command) -> None:
        assert all(result.ok for result in self.first.run(*run))
        self.look()

    def look(self) -> None:
        self.truth.applied(SimpleNamespace(node=SimpleNamespace(state=self.first.state), node_id=1))  # type: ignore[arg-type]

    def copied(self, version: int, rows: Any) -> list[str]:
        """Returns what the check finds in a copy that these rows bring to a version."""
        copied = self.copy.state.truth.copied
        assert self.copy.one(CopyTruth(copied, version, rows)).ok
        self.check.applied(SimpleNamespace(node=SimpleNamespace(state=self.copy.state), node_id=1))  # type: ignore[arg-type]
        return self.found

    def page(self, limit: int = 1 << 20) -> Any:
        return self.first.state.truth.after(self.copy.state.truth.copied, limit)


@pytest.fixture
def both() -> Both:
    return Both()


def topic(name: str, queues: int) -> CreateTopic:
    return CreateTopic({"name": name, "read_queues": queues, "write_queues": queues}, False)


def test_a_name_that_changed_again_later_may_be_as_it_was(both: Both) -> None:
    """Seed 982000075 of 8d8cb638: the page was made after the second change, whose row replaces that of the first."""
    both.change(topic("t", 1))
    assert both.copied(both.first.state.truth_journal.version, both.page().rows) == []
    both.change(topic("t", 2))
    both.change(topic("other", 1))
    version = both.first.state.truth_journal.version
    both.change(topic("t", 3))
    page = both.page()
    others = [row for row in page.rows if row[0] <= version]
    assert both.copied(version, others) == []
    assert both.copied(page.version, both.page().rows) == []
    assert both.copy.state.topics["t"].place == {1: (3, 3)}


@pytest.mark.parametrize("lost", ["change", "end", "new"])
def test_what_a_copy_lacks_or_has_too_much_is_found(both: Both, lost: str) -> None:
    both.change(topic("t", 1), topic("gone", 1))
    assert both.copied(both.first.state.truth_journal.version, both.page().rows) == []
    if lost == "change":
        both.change(topic("t", 2))
    elif lost == "end":
        both.change(DeleteTopic("gone"))
    else:
        both.change(topic("fresh", 1))
    name = {"change": "t", "end": "gone", "new": "fresh"}[lost]
    both.change(topic("other", 1))
    version = both.first.state.truth_journal.version
    rows = [row for row in both.page().rows if name not in row]
    assert both.copied(version, rows) == [
        f"node 1: topics ({name}) are not those that the first group had at version {version}"
    ]
