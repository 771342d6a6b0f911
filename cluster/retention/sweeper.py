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
from statemachine.trim import RemoveRows, Slice, Trim, encode

if TYPE_CHECKING:
    from cluster.runtime.context import NodeContext
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState


logger = logging.getLogger(__name__)


class Sweeper:
    """Proposes cuts, and slices while the state has a sweep. Event loop only."""

    def __init__(self, context: NodeContext, state: BrokerState, leads: Callable[[], bool]) -> None:
        """`leads`: whether this node leads and takes writes."""
        self._raw: RawNode = context.raw
        self._rows = context.environment.sweep_rows
        self._wake = context.wake
        self._state = state
        self._leads = leads
        self._proposed = EntryId(0, -1)

    @property
    def busy(self) -> bool:
        """A cut is being carried out: the log begins there once all of it is."""
        return self._state.sweep is not None

    def cut(self, trim: Trim) -> EntryId:
        """Proposes the TRIM: slices follow it. Raises NotLeaderError or ProposalDroppedError."""
        return self._raw.propose(EntryType.TRIM, encode(trim._replace(sliced=True)), self._raw.log_time_ms()).id

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
