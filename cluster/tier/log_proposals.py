"""Records the tier's steps in the log: the leader proposes entries and waits until they are applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cluster.broker.services import NotAppliedError, applied
from raftlog.types import Role
from statemachine.commands import Command
from statemachine.tier import MoveSegment, SegmentSpan, TierPart, TierState

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.runtime.context import NodeContext


class NotRecordedError(Exception):
    """The step is not known to be in the log. The caller looks at the state and decides again."""


class DeposedError(NotRecordedError):
    """This node does not lead any more in the term for which it began the step; the next leader continues."""


class TierSteps:
    """Proposes entries that record the states of segments, and waits until they are applied. Event loop only."""

    def __init__(self, context: NodeContext, services: Services) -> None:
        self._raw = context.raw
        self._services = services

    def leads(self, term: int) -> bool:
        """Returns True if this node leads in that term and takes writes."""
        return self._raw.role is Role.LEADER and self._raw.term == term and self._services.writes_open()

    async def record(
        self,
        base: int,
        state: TierState,
        term: int,
        span: SegmentSpan | None = None,
        parts: Sequence[TierPart] | None = None,
    ) -> None:
        """Records that the segment at `base` is in `state` now; returns when the log's state has applied that. Raises
        DeposedError if this node does not lead in `term`, NotRecordedError if the entry may be lost or was refused."""
        await self._record([MoveSegment(base, state, term, span, parts)], term)

    async def record_all(self, bases: Sequence[int], state: TierState, term: int) -> None:
        """Records the same state for several segments, in one entry. Raises what `record` raises; even then the state
        of some segments may be recorded."""
        await self._record([MoveSegment(base, state, term, None, None) for base in bases], term)

    async def _record(self, steps: list[Command], term: int) -> None:
        if not self.leads(term):
            raise DeposedError(f"this node does not lead in term {term} any more")
        try:
            results = await applied(self._services, steps)
        except NotAppliedError as error:
            raise NotRecordedError(str(error)) from None
        for refused_step in (step for step in results if not step.ok):
            raise NotRecordedError(str(refused_step.value))
