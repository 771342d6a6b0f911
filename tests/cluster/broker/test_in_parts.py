"""A change that is too long for one entry: its parts follow one another, and what is told is true of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from cluster.broker.services import PART_MAX, Services, propose_in_parts, rows_in_parts
from cluster.replication.outcome import Outcome, ProposeResult
from statemachine.removal_slices import Expire
from tests.support.rows import each_row


class Log:
    """Notes what is proposed; the test says what becomes of it."""

    def __init__(self) -> None:
        self.proposed: list[Any] = []
        self.waits: list[Callable[[ProposeResult], None]] = []

    def propose(self, run: list[Any], done: Callable[[ProposeResult], None]) -> None:
        self.proposed.append(run)
        self.waits.append(done)

    def settle(self, outcome: Outcome, remark: str = "") -> None:
        self.waits.pop()(ProposeResult(outcome, [], None, remark))


def test_parts() -> None:
    most = PART_MAX
    cut = [range(most), range(most, 2 * most), range(2 * most, 2 * most + 1)]
    assert list(rows_in_parts(range(2 * most + 1))) == [list(part) for part in cut]
    assert list(rows_in_parts(range(most))) == [list(range(most))]
    assert list(rows_in_parts([])) == [[]]


@each_row(
    ("outcomes", "told"),
    [
        ([Outcome.OK, Outcome.OK, Outcome.OK], Outcome.OK),
        ([Outcome.FAIL], Outcome.FAIL),
        ([Outcome.OK, Outcome.FAIL], Outcome.UNKNOWN),
        ([Outcome.UNKNOWN], Outcome.UNKNOWN),
        ([Outcome.OK, Outcome.UNKNOWN], Outcome.UNKNOWN),
    ],
)
def test_each_part_waits_for_the_one_before(outcomes: list[Outcome], told: Outcome) -> None:
    log, heard = Log(), list[ProposeResult]()
    propose_in_parts(cast("Services", log), ([Expire(at)] for at in range(3)), heard.append)
    for number, outcome in enumerate(outcomes, 1):
        assert len(log.proposed) == number
        assert not heard
        log.settle(outcome, "why")
    assert len(log.proposed) == len(outcomes), "nothing follows a part that is not written"
    assert [result.outcome for result in heard] == [told]
    assert told is Outcome.OK or "why" in heard[0].remark
