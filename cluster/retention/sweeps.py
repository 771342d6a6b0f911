"""Proposes long work of the state in slices: TRIMs, and the removal of the rows of deleted topics and groups. Applied
at once, either would block the node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from raftlog.errors import NotLeaderError, ProposalDroppedError
from raftlog.types import EntryId, EntryType
from statemachine.trim import RemoveRows, Trim, encode
from statemachine.trim import Slice as TrimSlice

if TYPE_CHECKING:
    from cluster.runtime.context import NodeContext
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)


class Sweeper:
    """Proposes TRIMs, and then the slices in which the state carries each of them out. A TRIM in progress is called a
    sweep. Event loop only."""

    def __init__(self, context: NodeContext, state: BrokerState, leads: Callable[[], bool]) -> None:
        """`leads()` returns True if this node leads and accepts writes."""
        self._raw: RawNode = context.raw
        self._rows = context.environment.sweep_rows
        self._wake = context.wake
        self._state = state
        self._leads = leads
        self._proposed = EntryId(0, -1)

    @property
    def busy(self) -> bool:
        """True while a TRIM is carried out slice by slice. The log begins at the new position once all slices are
        applied."""
        return self._state.sweep is not None

    def cut(self, trim: Trim) -> EntryId:
        """Proposes the TRIM and returns the id of its entry; `go_on` proposes its slices. Raises NotLeaderError or
        ProposalDroppedError."""
        return self._raw.propose(EntryType.TRIM, encode(trim._replace(sliced=True)), self._raw.log_time_ms()).id

    def go_on(self) -> None:
        """Proposes the next slice if this node leads and a sweep is in progress. Does nothing until the slice proposed
        last is applied or its term is over."""
        sweep = self._state.sweep
        if sweep is None or not self._leads() or not self._settled():
            return
        raw = self._raw
        try:
            slice_ = encode(TrimSlice(sweep.index, self._rows))
            self._proposed = raw.propose(EntryType.TRIM, slice_, raw.log_time_ms()).id
        except (NotLeaderError, ProposalDroppedError) as error:
            logger.info("the sweep pauses: %s", error)
            return
        self._wake()

    def _settled(self) -> bool:
        return self._state.applied.index >= self._proposed.index or self._raw.term != self._proposed.term


class Remover:
    """Removes the rows of deleted topics and groups slice by slice: proposes one slice per call while the state has
    anything to remove. Event loop only.

    The pending removals and their progress are rows of the state (statemachine/removals.py). Nothing is therefore
    remembered here: a new leader continues from those rows, and a slice that comes late, or twice, does no harm.
    """

    def __init__(self, context: NodeContext, state: BrokerState, leads: Callable[[], bool]) -> None:
        """`leads()` returns True if this node leads and accepts writes."""
        self._raw: RawNode = context.raw
        self._payload = encode(RemoveRows(context.environment.sweep_rows))
        self._wake = context.wake
        self._state = state
        self._leads = leads
        self._proposed = EntryId(0, -1)

    def go_on(self) -> None:
        """Proposes the next slice if this node leads and there is anything to remove. Does nothing until the slice
        proposed last is applied or its term is over."""
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
