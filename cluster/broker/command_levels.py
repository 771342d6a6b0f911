"""Commands that a member may not know yet: what precedes them in the log (docs/adr/0048)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from statemachine.commands import BOUNDED_LEVEL

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.outcome import Done, ProposeResult
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
