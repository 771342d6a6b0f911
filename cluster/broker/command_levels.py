"""Proposes commands that a member may not know yet (docs/adr/0048), and in parts what is too long for one entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from cluster.broker.refusal import Reason, Refused
from cluster.replication.outcome import Outcome, ProposeResult
from statemachine.commands import BOUNDED_LEVEL

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.outcome import Done
    from statemachine.commands import Command


def raising(services: Services, level: int, what: str, then: str = "") -> list[Command]:
    """Commands that must precede one of this level in its entry, [] most of the time. Leader only. Raises Refused while
    a member has not announced that it knows `what`; `then` ends the remark."""
    before = services.raising(level)
    if not isinstance(before, list):
        remark = f"node {before} has not announced that it knows {what}: upgrade it, or wait until it is up{then}"
        raise Refused(Reason.UNAVAILABLE, remark)
    return before


def propose_bounded(services: Services, command: Command, done: Done) -> None:
    """Proposes a command that leaves rows to slices once every member knows them; until then it does all of it at once.
    `done` hears of this command alone. Leader only."""
    before = services.raising(BOUNDED_LEVEL)
    run = [*before, command] if isinstance(before, list) else [command]

    def applied(result: ProposeResult) -> None:
        done(result._replace(results=result.results[-1:]))

    services.propose(run, applied)


PART_MAX = 4_096
"""Rows that one command names, as `statemachine` has it for locks and resets."""

Row = TypeVar("Row")


def parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows, PART_MAX at a time, each part made when it is asked for; one empty part if there are none."""
    left = iter(rows)
    part = list(islice(left, PART_MAX))
    yield part
    while part := list(islice(left, PART_MAX)):
        yield part


def propose_in_parts(services: Services, runs: Iterable[list[Command]], done: Done) -> None:
    """Proposes each run of commands when the one before is applied. `done` hears the result of the last one, or of the
    first that is not OK. Where a part is written already, a failure is UNKNOWN: not all of it, and not nothing."""
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
