"""The closing of clients that stand still, look by look: a node that stood still itself blames no client."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from cluster.config.service_sections import LimitsSection
from cluster.flow.gate import Gate
from cluster.remoting.connection.connection_memory import PRESSED_MS, PROGRESS_BYTES, ConnectionMemory
from cluster.remoting.connection.stuck_clients import LOOK_MS, StuckClients
from tests.support.contexts import CONFIG
from tests.support.rows import each_row

STALLED_MS = 1_400
BEGAN_MS = 10_000


class Watched:
    """A connection whose client holds something of the node, and its first look at BEGAN_MS."""

    def __init__(self, **holds: bool) -> None:
        self.memory = ConnectionMemory(LimitsSection(stalled_ms=STALLED_MS), lambda call, *args: None, Gate(CONFIG))
        self.stuck = StuckClients(self.memory)
        self.aborted = False
        self.connection: Any = Mock(
            handed=100_000,
            unsent_bytes=50_000,
            received=0,
            finished=False,
            peer_address=("127.0.0.1", 1),
            abort=self._abort,
            **{"is_slow": False, "is_unfinished": False, "holds_room": False, **holds},
        )
        self.stuck.follow(self.connection)
        self.stuck.tick(BEGAN_MS)

    def _abort(self) -> None:
        self.aborted = True
        self.stuck.forget(self.connection)

    def closed_at(self, *looks_ms: int) -> int | None:
        """Returns the look at which it was closed, in ms since the first."""
        for at_ms in looks_ms:
            self.stuck.tick(BEGAN_MS + at_ms)
            if self.aborted:
                return at_ms
        return None


SLOW, UNFINISHED = {"is_slow": True}, {"is_unfinished": True}


@each_row("holds", [SLOW, UNFINISHED])
@each_row(
    ("looks_ms", "closed_ms"),
    [
        ((500, 1000, 1500, 2000), 1500),
        ((500, 999, 1000, 1399), None),
        ((500, 1900, 2400), 2400),  # the node stood still from 1000 to 1900
        ((5_000, 5_500, 6_000), 6_000),
        ((500, 60_000, 60_500), 60_500),
        ((900, 1_800, 2_700, 3_600), 2_700),  # it had 1500 of 2700 ms
    ],
)
def test_the_time_in_which_the_node_stood_still_counts_for_nobody(
    holds: dict[str, bool], looks_ms: tuple[int, ...], closed_ms: int | None
) -> None:
    assert Watched(**holds).closed_at(*looks_ms) == closed_ms


def test_a_pause_of_the_node_does_not_close_who_holds_room_that_others_want() -> None:
    watched = Watched(is_unfinished=True, holds_room=True)
    watched.memory.unfinished.waiting = 1
    pause_ms = 3 * PRESSED_MS
    assert watched.closed_at(pause_ms, pause_ms + LOOK_MS) == pause_ms + LOOK_MS


def test_a_client_that_moves_stays() -> None:
    watched = Watched(is_slow=True, is_unfinished=True)
    for at_ms in range(500, 10_000, 500):
        watched.connection.unsent_bytes -= 1
        watched.connection.received += PROGRESS_BYTES // 2
        assert watched.closed_at(at_ms) is None


def test_who_has_nothing_unfinished_is_not_looked_at_again() -> None:
    watched = Watched(is_slow=True)
    watched.connection.is_slow = False
    assert watched.closed_at(500, 10_000) is None
    assert len(watched.stuck) == 0
