"""Commands that a member may not know yet: what precedes them in the log (docs/adr/0048)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from statemachine.commands import Command


def raising(services: Services, level: int, what: str, then: str = "") -> list[Command]:
    """Commands that must precede one of this level in its entry, [] most of the time. Leader only. Raises Refused while
    a member has not announced that it knows `what`; `then` ends the remark."""
    before = services.raising(level)
    if not isinstance(before, list):
        remark = f"node {before} has not announced that it knows {what}: upgrade it, or wait until it is up{then}"
        raise Refused(Reason.UNAVAILABLE, remark)
    return before
