"""Moves leadership to another voter when several turns of the leader's event loop were long and the voter's were not.

During a long turn the node serves no client and sends no heartbeat. If each turn is shorter than the followers'
election timeout, a leader with many long turns is not deposed, and serves badly. Voters tell each other in PING how
many such turns they had, so the leader does not choose a voter that is no better. If the turns are caused by the
clients' requests, or by a machine that all nodes share, the next leader has long turns as well. It keeps leadership,
because the cluster hands over at most once in PAUSE_MS.

A turn counts as slow whether it used the CPU or waited for it. Clients cannot tell the difference. A voter that lacks
CPU too has slow turns itself and is not chosen. The alarm tells people what the turn did.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cluster.config.local_layout import node_object
from cluster.runtime.alarms import Alarms
from cluster.runtime.clock import Clock
from cluster.runtime.findings import Code
from cluster.runtime.leader_handover import Slower, best, none_slower
from cluster.runtime.peer_frames import WireError
from cluster.runtime.service_lifecycle import Part
from raftlog.core.raw_node import RawNode
from raftlog.core.status import PeerStatus
from raftlog.errors import RaftLogError
from raftlog.types import FIRST_GROUP, NOBODY, NodeId, Role

logger = logging.getLogger(__name__)

SLOW_MS: Final = 500
"""Milliseconds. A turn that takes longer is slow."""
TURNS: Final = 3
WINDOW_MS: Final = 60_000
"""Milliseconds. A leader with TURNS slow turns within this time hands leadership over."""
PAUSE_MS: Final = 300_000
"""The least milliseconds between two hand-overs for slow turns in the whole cluster."""
TOLD_MS: Final = 5_000
"""Milliseconds for which a peer's report about itself is valid; three intervals of its PINGs if these are longer."""
LAG_MAX: Final = 256
"""The most entries that a successor may lack: no writes are accepted until it has received them."""
TURNS_MAX: Final = 1_000_000
ALARM = Code("slow_turns", "warning", "raftmq logs {n}")


class _TimedTurn(NamedTuple):
    at_ms: int
    took_ms: int
    worked: bool
    what: str
    led: bool
    """True if the node was the leader when the turn ended."""


class _TurnReport(NamedTuple):
    """A peer's report about its own turns."""

    at_ms: int
    turns: int


class SlowTurns:
    """Counts the slow turns of one node, records the reports of its peers, and hands leadership over if needed. Event
    loop only."""

    def __init__(
        self,
        raw: RawNode,
        clock: Clock,
        alarms: Alarms,
        transfer: Callable[[NodeId], None],
        interval_ms: int,
        group: int = FIRST_GROUP,
    ) -> None:
        """`transfer` hands leadership over to a node, or raises RaftLogError. `interval_ms` is the interval of PINGs in
        milliseconds. `group`: the number of the group of brokers."""
        self._group = group
        self._raw, self._clock, self._alarms, self._transfer = raw, clock, alarms, transfer
        self._turns: deque[_TimedTurn] = deque(maxlen=100)
        self._words: dict[NodeId, _TurnReport] = {}
        self.slower: Slower = none_slower
        self._own_ms: int | None = None
        """Time in milliseconds when this node last handed leadership over for slow turns; None if never."""
        self._handed_ms: int | None = None
        """Time in milliseconds when any leader last handed leadership over for slow turns, as far as reports say; None
        if never."""
        self.reload(interval_ms)
        self.total = 0
        """Slow turns since the start."""
        self.handed = 0
        """Hand-overs of this node for slow turns since the start."""
        self.on_slow: Callable[[], None] = lambda: None
        """Called at each slow turn."""
        self.on_handed: Callable[[], None] = lambda: None

    def reload(self, interval_ms: int) -> None:
        """Applies another interval of PINGs, in milliseconds."""
        self._told_ms = max(TOLD_MS, 3 * interval_ms)

    def note(self, took_ms: float, *, worked: bool = True, what: str = "") -> None:
        """Records a turn of the event loop that took `took_ms` milliseconds. `worked`: True if it used the processor,
        False if it waited for the processor. `what` names the work that ran."""
        if took_ms > SLOW_MS:
            self.total += 1
            led = self._raw.role is Role.LEADER
            self._turns.append(_TimedTurn(self._clock.monotonic_ms(), int(took_ms), worked, what, led))
            self.on_slow()

    # --- between nodes -----------------------------------------------------------------------------------------------

    def word(self) -> list[int]:
        """Returns this node's report for PING: [number of slow turns within WINDOW_MS, milliseconds since this node
        handed leadership over for them, or -1 for never]. It contains only this node's own hand-overs: if nodes passed
        on those of others, the ages would become wrong."""
        now_ms = self._clock.monotonic_ms()
        return [len(self._lately(now_ms)), -1 if self._own_ms is None else now_ms - self._own_ms]

    def heard(self, peer: NodeId, word: object) -> None:
        """Records the report in a peer's PING; `word` is None if the peer's release reports nothing. Raises WireError
        if the report is malformed."""
        if word is None:
            self._words.pop(peer, None)
            return
        turns, since_ms = _numbers(word)
        now_ms = self._clock.monotonic_ms()
        self._words[peer] = _TurnReport(now_ms, turns)
        if since_ms >= 0:
            self._handed_ms = max(now_ms - since_ms, -PAUSE_MS if self._handed_ms is None else self._handed_ms)

    def may_lead(self, node: NodeId) -> bool:
        """Returns True if that peer has reported recently that it has no slow turns."""
        word = self._words.get(node)
        return word is not None and not word.turns and self._clock.monotonic_ms() - word.at_ms <= self._told_ms

    def is_slow(self, node: NodeId) -> bool:
        """Returns True if that peer's last report, however old, has slow turns."""
        return node in self._words and self._words[node].turns > 0

    @property
    def paused(self) -> bool:
        """True if a leader handed over for slow turns within PAUSE_MS; the new leader then keeps leadership."""
        return self._handed_ms is not None and self._clock.monotonic_ms() - self._handed_ms < PAUSE_MS

    # --- by the clock ------------------------------------------------------------------------------------------------

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="slow turns", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Raises the alarm if this node had TURNS slow turns as leader within WINDOW_MS, and then hands leadership over
        if it still leads and a better voter exists. Clears the alarm otherwise. Called periodically."""
        if not self._turns and not self._alarms.raised(ALARM):
            return
        mine = [turn for turn in self._lately(now_ms) if turn.led]
        if len(mine) < TURNS:
            if self._alarms.raised(ALARM):
                self._alarms.clear(ALARM)
            return
        if not self._alarms.raised(ALARM):
            self._alarms.raise_alarm(ALARM, _text(mine))
        if self._raw.role is Role.LEADER and not self.paused:
            self._hand_over(now_ms)

    def _lately(self, now_ms: int) -> deque[_TimedTurn]:
        turns = self._turns
        while turns and now_ms - turns[0].at_ms > WINDOW_MS:
            turns.popleft()
        return turns

    def _hand_over(self, now_ms: int) -> None:
        status = self._raw.status()
        if status.transferee != NOBODY:
            return
        to = best(status.peers, status.voters, self._could_lead, self.slower)
        if to == NOBODY:
            return  # all voters are equally slow, or lag: a later `tick` tries again
        try:
            self._transfer(to)
        except (RaftLogError, ValueError) as error:
            logger.info("leadership cannot go to %s: %s", node_object(self._group, to), error)
            return
        heir = node_object(self._group, to)
        logger.warning("this leader had %d long turns within %d s; %s should lead", TURNS, WINDOW_MS // 1000, heir)
        self._own_ms = self._handed_ms = now_ms
        self.handed += 1
        self.on_handed()

    def _could_lead(self, peer: PeerStatus) -> bool:
        return peer.caught_up and peer.lag <= LAG_MAX and self.may_lead(peer.node_id)


def _numbers(word: object) -> tuple[int, int]:
    fields: list[Any] = word if isinstance(word, list) else []
    if len(fields) < 2 or any(type(field) is not int for field in fields[:2]) or not 0 <= fields[0] <= TURNS_MAX:
        raise WireError("malformed word of slow turns")
    return fields[0], max(-1, fields[1])


def _text(turns: list[_TimedTurn]) -> str:
    longest = max(turns, key=lambda turn: turn.took_ms)
    worked = sum(turn.worked for turn in turns)
    did = "worked" if worked == len(turns) else "waited for the processor" if not worked else f"worked in {worked}"
    what = f", the longest in {longest.what}" if longest.what else ""
    return (
        f"{len(turns)} turns of this leader's event loop took more than {SLOW_MS} ms within {WINDOW_MS // 1000} s, up "
        f"to {longest.took_ms} ms; it {did}{what}. Nobody is served meanwhile. Leadership goes to a voter without such "
        f"turns, if there is one: raftmq status"
    )
