"""Lets a follower answer reads linearizably: the leader tells the follower up to which index it must have applied the
log.

This is ReadIndex (thesis, 6.4), asked by a follower. The follower sends READ_INDEX to the leader. The leader has a
majority confirm that it still leads, and answers with its applied index (READ_INDEX_REPLY). As soon as the follower has
applied that index, its state contains everything that was acknowledged before the question. Reads that arrive while a
question is in flight wait for the next question, which they share: the index that answers the present one may be older
than the writes that they must see. So a follower has at most one question in flight, however many reads there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cluster.peer.wire import INDEX_MAX
from cluster.runtime.peer_frames import Kind, PeerLinks, WireError
from cluster.runtime.service_lifecycle import Part
from raftlog.types import NOBODY, NodeId
from raftlog.work import charge
from statemachine.levels import OWNERS_LEVEL

if TYPE_CHECKING:
    from cluster.runtime.turns.work import Turns
    from raftlog.core.raw_node import RawNode

WAIT_MS: Final = 1000
"""Milliseconds after which a waiting read ends without a confirmation: its `done(False)` is called."""
ANSWER_MS: Final = 300
"""Milliseconds after which a question without an answer is sent again: the frame may have been lost with its
connection."""
LOOK_MS: Final = 5
"""Milliseconds between two looks at the applied index while somebody waits for it."""
NUMBER_MAX: Final = 1 << 63
TOLD_PER_STEP: Final = 16

Confirmed = Callable[[bool], None]


class ReadIndexes(Protocol):
    """The node's services that ConfirmedIndex calls."""

    def writes_open(self) -> bool:
        """Returns True if this node leads and has applied the no-op of its term."""

    def read_index(self, done: Confirmed) -> None:
        """Calls `done(True)` once this node has confirmed that it leads and its applied state answers linearizably;
        else calls `done(False)`."""

    def monotonic_ms(self) -> int:
        """Returns the milliseconds of the node's monotonic clock."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> object:
        """Schedules the callback on the event loop."""


class _WaitingRead(NamedTuple):
    deadline_ms: int
    done: Confirmed


class _AskedIndex(NamedTuple):
    """A READ_INDEX question that is in flight."""

    number: int
    leader: NodeId
    again_ms: int
    waiting: list[_WaitingRead]


class ConfirmedIndex:
    """Asks the leader for its applied index while this node is a follower, and answers such questions while it leads.
    Event loop only."""

    def __init__(
        self,
        links: PeerLinks,
        reads: ReadIndexes,
        turns: Turns,
        *,
        leader: Callable[[], NodeId],
        applied: Callable[[], int],
        level: Callable[[], int],
    ) -> None:
        """`leader` returns the node to ask, 0 if none is known (`cluster.placement.route_map`). `applied` returns the
        applied index of this node, `level` the level of the cluster."""
        self._links, self._reads, self._turns, self._leader = links, reads, turns, leader
        self._applied, self._level = applied, level
        self._numbers = links.request_ids()
        self._waiting: list[_WaitingRead] = []
        """The reads that wait for the next question."""
        self._asked: _AskedIndex | None = None
        self._behind: deque[tuple[int, list[_WaitingRead]]] = deque()
        """(index that this node has not applied yet, the reads that wait for it), ascending by index."""
        self._looks = False
        """True while a look at the applied index is scheduled. The applied index is polled, so that a node without
        waiting reads pays nothing when it applies entries."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="confirmed index",
            tick=self.tick,
            role=self.on_role,
            peer_closed=self.peer_closed,
            frames={Kind.READ_INDEX: self.on_frame, Kind.READ_INDEX_REPLY: self.on_frame},
        )

    @property
    def is_possible(self) -> bool:
        """True if `ask` can succeed: this node does not lead with writes open, and all nodes of the cluster know the
        frames READ_INDEX and READ_INDEX_REPLY."""
        return not self._reads.writes_open() and self._level() >= OWNERS_LEVEL

    def ask(self, done: Confirmed) -> None:
        """Calls `done(True)` later, when the applied state contains every write that was acknowledged before this call,
        and `done(False)` if no leader confirms that within WAIT_MS. The caller must bound the number of waiting
        reads."""
        self._waiting.append(_WaitingRead(self._reads.monotonic_ms() + WAIT_MS, done))
        self._put()

    def _put(self) -> None:
        """Sends one question for all waiting reads, unless one is in flight. If this node leads now, it answers them
        itself."""
        if self._asked is not None or not self._waiting:
            return
        if self._reads.writes_open():
            waiting, self._waiting = self._waiting, []
            self._reads.read_index(lambda ok: self._tell(waiting, ok))
            return
        leader, number = self._leader(), next(self._numbers)
        if leader == NOBODY or not self._links.send_frame(leader, Kind.READ_INDEX, [number], b""):
            return
        again_ms = self._reads.monotonic_ms() + ANSWER_MS
        self._asked, self._waiting = _AskedIndex(number, leader, again_ms, self._waiting), []

    def _put_again(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            self._waiting = [*asked.waiting, *self._waiting]
        self._put()

    # --- answers -----------------------------------------------------------------------------------------------------

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """Handles a frame READ_INDEX (a question) or READ_INDEX_REPLY (an answer). Raises WireError if the frame is
        malformed."""
        if kind == Kind.READ_INDEX:
            match header:
                case [int(number)] if 0 <= number < NUMBER_MAX:
                    self._reads.read_index(lambda ok: self._answer(peer, number, self._applied() if ok else -1))
                    return
        else:
            match header:
                case [int(number), int(index)] if 0 <= number < NUMBER_MAX and -1 <= index <= INDEX_MAX:
                    self._answered(peer, number, index)
                    return
        raise WireError(f"malformed question for an index, or answer to it: {header!r:.200}")

    def _answer(self, peer: NodeId, number: int, index: int) -> None:
        self._links.send_frame(peer, Kind.READ_INDEX_REPLY, [number, index], b"")

    def _answered(self, peer: NodeId, number: int, index: int) -> None:
        asked = self._asked
        if asked is None or (asked.number, asked.leader) != (number, peer):
            return
        if index < 0:  # the peer does not lead: Raft tells this node who does, and `tick` asks again
            self._waiting, self._asked = [*asked.waiting, *self._waiting], None
            return
        self._asked = None
        self._behind.append((max(index, self._behind[-1][0] if self._behind else 0), asked.waiting))
        self._tell_applied()
        self._put()

    # --- what happens meanwhile --------------------------------------------------------------------------------------

    def _tell_applied(self) -> None:
        """Answers the reads whose index is applied by now, and checks again after LOOK_MS if other reads still wait."""
        while self._behind and self._behind[0][0] <= self._applied():
            self._tell(self._behind.popleft()[1], True)
        if self._behind and not self._looks:
            self._looks = True
            self._reads.call_later(LOOK_MS, self._look)

    def _look(self) -> None:
        self._looks = False
        self._tell_applied()

    def on_role(self, raw: RawNode) -> None:
        """Sends the question in flight, and the waiting reads, to the new leader."""
        self._put_again()

    def peer_closed(self, peer: NodeId) -> None:
        """Sends the question again if it went to this peer, whose connection has closed."""
        if self._asked is not None and self._asked.leader == peer:
            self._put_again()

    def tick(self, now_ms: int) -> None:
        """Ends reads that have waited too long, and sends the question again if it got no answer within ANSWER_MS."""
        if not (self._waiting or self._asked or self._behind):
            return
        held = [self._waiting, *(waiting for _, waiting in self._behind)]
        if self._asked is not None:
            held.append(self._asked.waiting)
        late: list[_WaitingRead] = []
        for waiting in held:  # each list is in the order of deadlines
            count = next((at for at, each in enumerate(waiting) if each.deadline_ms > now_ms), len(waiting))
            late += waiting[:count]
            del waiting[:count]
        # `_behind` is short: it has at most the questions of the last WAIT_MS.
        self._behind = deque(each for each in self._behind if each[1])
        self._tell(late, False)
        if self._asked is None or self._asked.again_ms <= now_ms:
            self._put_again()

    def _tell(self, waiting: list[_WaitingRead], ok: bool) -> None:
        if waiting:
            self._turns.begin_later("confirmed index", _told(waiting, ok))


def _told(waiting: list[_WaitingRead], ok: bool) -> Generator[None, None, None]:
    """Calls `done(ok)` of each waiting read, TOLD_PER_STEP per step. The steps are small because each `done` goes on
    with a client's request, whose signature may have to be checked."""
    for at, each in enumerate(waiting):
        if at % TOLD_PER_STEP == 0:
            yield
        charge(1)
        each.done(ok)
