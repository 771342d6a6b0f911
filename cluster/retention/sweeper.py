"""Has what a TRIM cuts off removed slice by slice: the leader proposes one bounded slice after the other.

How far a sweep has come is a row of the state (statemachine/trim.py). So nothing is remembered here: a new leader goes
on with what it finds, and a slice that comes late, or twice, does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from raftlog.errors import NotLeaderError, ProposalDroppedError
from raftlog.types import EntryId, EntryType
from statemachine.commands import SWEEP_LEVEL, TIER_LEVEL, Command, pack
from statemachine.trim import RemoveRows, Slice, Trim, encode

if TYPE_CHECKING:
    from cluster.runtime.context import NodeContext
    from raftlog.core.raw_node import RawNode
    from raftlog.types import NodeId
    from statemachine.broker_state import BrokerState


logger = logging.getLogger(__name__)

Raising = Callable[[int], "list[Command] | NodeId"]
"""Returns the commands that must precede one of this level, or the id of a member that has not announced that it can
apply it (`cluster.broker.services.Services.raising`)."""


class Sweeper:
    """Proposes cuts, and slices while the state has a sweep. Event loop only."""

    def __init__(
        self, context: NodeContext, state: BrokerState, leads: Callable[[], bool], raising: Raising | None
    ) -> None:
        """`leads`: whether this node leads and takes writes. Without `raising` every TRIM is whole."""
        self._raw: RawNode = context.raw
        self._rows = context.environment.sweep_rows
        self._wake = context.wake
        self._state = state
        self._leads = leads
        self._raising = raising
        self._proposed = EntryId(0, -1)

    @property
    def busy(self) -> bool:
        """A cut is being carried out: the log begins there once all of it is."""
        return self._state.sweep is not None

    def cut(self, trim: Trim) -> EntryId:
        """Proposes the TRIM: sliced if every member knows such, else whole. An EVICT is never made whole: that would
        take the messages from everybody. Raises NotLeaderError or ProposalDroppedError."""
        raw = self._raw
        before = None if self._raising is None else self._raising(TIER_LEVEL if trim.evicts else SWEEP_LEVEL)
        if isinstance(before, list):
            trim = trim._replace(sliced=True)
            if before:  # the entry of the level precedes the cut in the log, so it is applied first or both are lost
                raw.propose(EntryType.COMMAND, pack(before), raw.log_time_ms())
        elif trim.evicts:
            raise ProposalDroppedError(f"node {before} has not announced that it knows EVICT")
        elif before is not None:
            logger.info("the TRIM is one entry: node %d has not announced that it knows slices", before)
        return raw.propose(EntryType.TRIM, encode(trim), raw.log_time_ms()).id

    def go_on(self) -> None:
        """Proposes the next slice, if there is one and none is on its way."""
        sweep = self._state.sweep
        if sweep is None or not self._leads() or not self._settled():
            return
        raw = self._raw
        try:
            slice_ = encode(Slice(sweep.index, self._rows))
            self._proposed = raw.propose(EntryType.TRIM, slice_, raw.log_time_ms()).id
        except (NotLeaderError, ProposalDroppedError) as error:
            logger.info("the sweep pauses: %s", error)
            return
        self._wake()

    def _settled(self) -> bool:
        return self._state.applied.index >= self._proposed.index or self._raw.term != self._proposed.term


# Has the rows of what was deleted removed slice by slice: the leader proposes one bounded slice after the other.
#
# What is pending, and how far it has come, are rows of the state (statemachine/removals.py). So nothing is remembered
# here: a new leader goes on with what it finds, and a slice that comes late, or twice, does no harm.


class Remover:
    """Proposes slices while the state has anything to remove, one each time it is asked. Event loop only."""

    def __init__(self, context: NodeContext, state: BrokerState, leads: Callable[[], bool]) -> None:
        """`leads`: whether this node leads and takes writes."""
        self._raw: RawNode = context.raw
        self._payload = encode(RemoveRows(context.environment.sweep_rows))
        self._wake = context.wake
        self._state = state
        self._leads = leads
        self._proposed = EntryId(0, -1)

    def go_on(self) -> None:
        """Proposes the next slice, if there is one and none is on its way."""
        if not self._state.removing or not self._leads() or not self._settled():
            return
        raw = self._raw
        try:
            self._proposed = raw.propose(EntryType.TRIM, self._payload, raw.log_time_ms()).id
        except (NotLeaderError, ProposalDroppedError) as error:
            logger.info("what was deleted is removed later: %s", error)
            return
        self._wake()

    def _settled(self) -> bool:
        return self._state.applied.index >= self._proposed.index or self._raw.term != self._proposed.term
