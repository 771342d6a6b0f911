"""Proposes in several entries what is too long for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from cluster.replication.outcome import Outcome, ProposeResult

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.outcome import Done
    from statemachine.commands import Command


PART_MAX = 4_096
"""The most rows that one command names; `statemachine` has the same limit for locks and resets."""

Row = TypeVar("Row")


def parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields the rows PART_MAX at a time; one empty part if there are none."""
    left = iter(rows)
    part = list(islice(left, PART_MAX))
    yield part
    while part := list(islice(left, PART_MAX)):
        yield part


def propose_in_parts(services: Services, runs: Iterable[list[Command]], done: Done) -> None:
    """Proposes each part when the one before is applied. `done` hears the result of the last part, or of the first that
    is not OK. If an earlier part was applied, a failure is reported as UNKNOWN: some of it happened, and not all."""
    left = iter(runs)
    written = 0

    def go_on(result: ProposeResult) -> None:
        nonlocal written
        if result.outcome is Outcome.FAIL and written:
            done(ProposeResult(Outcome.UNKNOWN, [], None, f"a part of it was written: {result.remark}"))
            return
        written += 1
        run = next(left, None) if result.outcome is Outcome.OK else None
        if run is None:
            done(result)
        else:
            services.propose(run, go_on)

    services.propose(next(left), go_on)
