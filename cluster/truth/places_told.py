"""Tells the registry which groups have each topic (frame PLACES, docs/wire-protocol.md), on the leader of the first
group.

A connection to a process of the registry gets all topics when it opens, in bounded steps, and then each change. The
version of a row is that of the topic's newest change in the truth, so a row that comes late, or again, replaces nothing
newer. Deleted topics are not sent: the registry only adds rows, and deletes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from cluster.runtime.peer_frames import Kind
from cluster.runtime.service_lifecycle import Part
from cluster.truth.truth_source import TruthLink
from raftlog.work import METER, charge
from statemachine.cluster_wide.truth_journal import TruthKind

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState

EVERY_MS = 50
NAMES_PER_FRAME = 90
"""The most topics in a frame. A frame of so many is shorter than 32 KiB, however long the names are."""
CHANGES_PER_FRAME = 100
"""The most changes of the journal that are read for one frame. Changes of other names than topics are skipped, so a
frame may have fewer rows."""
UNITS_PER_TURN = 300
"""Once a tick has charged this many units (`raftlog.work`), for all connections together, it makes no further frame.
Three processes then get 50,000 topics in a minute and a half."""

PlaceRow = tuple[str, int, list[int]]
_encoder = msgspec.msgpack.Encoder()


class PlacesTold:
    """Sends the places of topics to the registry, from the journal of the truth. Event loop only."""

    def __init__(self, state: BrokerState, leads: Callable[[], bool], links: Callable[[], Iterable[TruthLink]]) -> None:
        """`leads` returns True if this node leads the first group. `links` returns the connections to the registry."""
        self._state, self._leads, self._links = state, leads, links
        self._told: dict[TruthLink, int] = {}
        """Connection -> the version of the truth up to which its changes were sent on it."""
        self._due_ms = 0
        self._turn = 0
        """Counts the ticks that sent. The count selects the connection that is served first, so that each has its
        turn."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="places told", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Sends the next changes on each connection, if EVERY_MS have passed since the last time. Called several times
        a second."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + EVERY_MS
        journal = self._state.truth_journal
        can_tell = journal.is_kept and journal.is_ready and self._leads()
        links = [*self._links()] if can_tell else []
        self._told = {link: self._told.get(link, 0) for link in links}
        self._turn += 1
        before = METER.units
        for at in range(len(links)):
            link = links[(at + self._turn) % len(links)]
            self._told[link] = self._tell(link, self._told[link], before + UNITS_PER_TURN)

    def _tell(self, link: TruthLink, after: int, units: int) -> int:
        """Sends the topics that changed after version `after`, until the meter has reached `units` or the connection
        takes no more frames. Returns the version up to which everything was sent."""
        while METER.units < units and after < self._state.truth_journal.version:
            rows, reached = self._rows(after)
            charge(1 + len(rows))
            if rows and not link.send(Kind.PLACES, [], _encoder.encode(rows)):
                break
            after = reached
        return after

    def _rows(self, after: int) -> tuple[list[PlaceRow], int]:
        rows: list[PlaceRow] = []
        reached, topics = after, self._state.topics
        for count, change in enumerate(self._state.truth_journal.changes(after)):
            if len(rows) == NAMES_PER_FRAME or count == CHANGES_PER_FRAME:
                return rows, reached
            reached = change.version
            config = topics.get(str(change.name)) if change.kind is TruthKind.TOPIC and not change.ended else None
            if config is not None:
                rows.append((config.name, change.version, sorted(config.queues_of_groups)))
        return rows, max(reached, after)
