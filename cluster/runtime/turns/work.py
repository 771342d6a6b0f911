"""Turns: work that grows with input or data is cut into steps, and takes at most a share of each turn of the loop.

Work is a generator. It yields between two of its steps, and each step charges the meter (`raftlog.work`) before it does
anything. All such work of a node shares one budget: in each turn, `share` units, dealt out one step at a time to the
owners in turn. An owner is the origin of the work, mostly a client (`Client.owner`): an owner with a hundred requests
gets no more steps than an owner with a single one. The work of one owner is done in order.

    turns.begin(client.owner, self._scan(request))    # a generator; begins in this turn if there is room
    await turns.breathe(client.owner)                 # a coroutine; returns at once while the turn has room

A step is never interrupted, so no step may be long: one message, one row, one term of a filter. Event loop only.

Answers to operators' questions, which may be megabytes, are *patient* work (`Turns.patient`): between two of its shares
there is a pause while the node has something else to do. A send goes through some ten turns of the loop; with a share
of such work in each, it took 16 ms instead of 3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable

from raftlog.work import METER

logger = logging.getLogger(__name__)

TURN_SHARE = 1_000
"""The units of work that all cut work of a node may take in one turn: 1 ms of a slow core. A send goes through several
turns, and waits for such work in each. A smaller share would slow the work down, because each turn itself costs a tenth
of a millisecond."""

WorkSteps = Generator[None, None, None]
PAUSE_S = 0.003
"""Seconds from one share of patient work to the next while other requests come: most of a send's turns fit in."""
Work = WorkSteps | asyncio.Future[None]
"""Steps of a generator, or the future of a coroutine that waits in `breathe`."""
Soon = Callable[[Callable[[], None]], object]
"""Calls a function in the next turn of the loop."""


class Paused:
    """A `Soon` for patient work: calls a function PAUSE_S from now if the node's Raft has taken turns since the last
    call, otherwise in the next turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Callable[[], int]) -> None:
        """`turns` returns the number of turns that the node's Raft has taken so far. Each send takes some on each
        node."""
        self._loop = loop
        self._turns = turns
        self._seen = 0

    def __call__(self, again: Callable[[], None]) -> None:
        turns = self._turns()
        if turns == self._seen:
            self._loop.call_soon(again)
        else:
            self._seen = turns
            self._loop.call_later(PAUSE_S, again)


class Turns:
    """Runs the work of one node that is cut into steps, a share of it in each turn of the loop."""

    def __init__(self, soon: Soon, share: int = TURN_SHARE, *, patient: Soon | None = None) -> None:
        """`soon` schedules the next turn of work. `patient` does the same for patient work, later if the node is busy;
        None: patient work is like all other."""
        self.patient = self if patient is None else Turns(patient, share)
        """Runs patient work (see the module), with a share of its own. It is this object if `patient` was None."""
        self._soon = soon
        self.share = share
        self._began = 0
        """Value of the meter when this turn began."""
        self._marked = False
        """True if the beginning of this turn is recorded and the next turn is scheduled."""
        self._waiting: OrderedDict[Hashable, deque[Work]] = OrderedDict()
        """Each owner's work in order; the owner of the next step comes first. A plain dict would skip all entries that
        were removed at its front, again for each step."""
        self._front: tuple[Hashable, deque[Work]] = (None, deque())
        """The owner whose step is dealt out, and the rest of its work. Meanwhile, this work is not in `_waiting`."""
        self._running: list[Hashable] = []
        """Owners whose steps run, the innermost last, because a step may begin other work."""
        self._dropped: set[Hashable] = set()
        """The owners in `_running` that were dropped while their step ran."""

    def spent(self) -> bool:
        """Returns True if this turn's share is used up, so that the caller must go on in another turn."""
        if not self._marked:
            self._marked = True
            self._began = METER.units
            self._soon(self._next_turn)
        return METER.units - self._began >= self.share

    def begin(self, owner: Hashable, steps: WorkSteps) -> None:
        """Does the work: at once as far as this turn has room and no other owner waits, the rest in later turns.

        An exception that the work raises is logged and ends only that work.
        """
        if not self._waiting:
            while not self.spent():
                if not self._step(owner, steps):
                    return
        self._queue(owner, steps)

    def begin_later(self, owner: Hashable, steps: WorkSteps) -> None:
        """Does the work in later turns only, for a caller whose present turn belongs to other work."""
        self._queue(owner, steps)

    async def breathe(self, owner: Hashable) -> None:
        """Returns when it is the owner's turn: at once while this turn has room and no other owner waits."""
        if not self._waiting and not self.spent():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(owner, turn)
        await turn

    def drop(self, owner: Hashable) -> None:
        """Drops all work of an owner that has disconnected. Its coroutines are cancelled. A running step ends at its
        next `yield`."""
        works = list(self._waiting.pop(owner, ()))
        if owner in self._running:
            self._dropped.add(owner)
        if owner == self._front[0]:
            works += self._front[1]
            self._front[1].clear()
        for work in works:
            if isinstance(work, asyncio.Future):
                work.cancel()
            else:
                work.close()

    def _queue(self, owner: Hashable, work: Work) -> None:
        self.spent()  # schedules the next turn
        self._waiting.setdefault(owner, deque()).append(work)

    def _next_turn(self) -> None:
        self._marked = False
        while self._waiting and not self.spent():
            owner, queue = self._front = self._waiting.popitem(last=False)
            work = queue.popleft()
            # What the owner begins while its step runs comes behind it.
            woken = isinstance(work, asyncio.Future)
            if isinstance(work, asyncio.Future):
                if not work.done():
                    work.set_result(None)
            elif self._step(owner, work):
                queue.appendleft(work)
            queue.extend(self._waiting.pop(owner, ()))
            if queue:
                self._waiting[owner] = queue
            if woken:  # the coroutine goes on behind this callback, and what it does then counts in its own turn
                break
        self._front = (None, deque())

    def _step(self, owner: Hashable, steps: WorkSteps) -> bool:
        """Takes one step. Returns True if there are more."""
        self._running.append(owner)
        try:
            next(steps)
        except StopIteration:
            return False
        except Exception:
            logger.exception("work that was cut into steps failed; what else waits goes on")
            return False
        finally:
            self._running.pop()
            dropped = owner in self._dropped
            if dropped and owner not in self._running:
                self._dropped.discard(owner)
        if dropped:
            steps.close()
        return not dropped
