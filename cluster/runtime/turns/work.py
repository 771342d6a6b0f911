"""Turns: work that grows with input or data is cut into steps, and takes at most a share of each turn of the loop.

Work is a generator. Between two of its steps it yields, and each step charges the meter (`raftlog.work`) before it does
anything. All cut work of a node shares one budget: in each turn, `share` units, dealt out one step at a time to the
owners in turn. An owner is whoever asked, a client above all (`Client.owner`): one with a hundred requests gets no
more than one with a single request, and what one owner asked for is done in order.

    turns.begin(client.owner, self._scan(request))    # a generator; begins in this turn if there is room
    await turns.breathe(client.owner)                 # a coroutine; returns at once while the turn has room

A step is never interrupted, so no step may be long: one message, one row, one term of a filter. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable

from raftlog.work import METER

logger = logging.getLogger(__name__)

TURN_SHARE = 5_000
"""Units that all cut work of a node takes of one turn: 5 ms of a slow core."""

Steps = Generator[None, None, None]
Work = Steps | asyncio.Future[None]
"""A future is a coroutine that waits in `breathe`."""
Soon = Callable[[Callable[[], None]], object]
"""Calls in the next turn of the loop."""


class Turns:
    """The cut work of one node."""

    def __init__(self, soon: Soon, share: int = TURN_SHARE) -> None:
        self._soon = soon
        self._share = share
        self._began = 0
        """The meter when this turn began."""
        self._marked = False
        """This turn's begin is known, and its successor is scheduled."""
        self._waiting: OrderedDict[Hashable, deque[Work]] = OrderedDict()
        """Each owner's work in order; the owner whose step is next comes first. A plain dict would pass all that left
        its front, again for each step."""
        self._front: tuple[Hashable, deque[Work]] = (None, deque())
        """The owner whose step is dealt out, and what else it has: it is not in the table meanwhile."""
        self._running: list[Hashable] = []
        """Owners whose steps run, the innermost last: a step may begin other work."""
        self._dropped: set[Hashable] = set()
        """Those of them that were dropped meanwhile."""

    def spent(self) -> bool:
        """Returns True if this turn's share is used up: the caller goes on in another turn."""
        if not self._marked:
            self._marked = True
            self._began = METER.units
            self._soon(self._next_turn)
        return METER.units - self._began >= self._share

    def begin(self, owner: Hashable, steps: Steps) -> None:
        """Does the work: at once as far as this turn has room and nobody waits, the rest in later turns.

        An exception that the work raises is logged and ends that work alone.
        """
        if not self._waiting:
            while not self.spent():
                if not self._step(owner, steps):
                    return
        self._queue(owner, steps)

    def begin_later(self, owner: Hashable, steps: Steps) -> None:
        """Does the work in later turns alone: this turn is not the owner's."""
        self._queue(owner, steps)

    async def breathe(self, owner: Hashable) -> None:
        """Returns when it is the owner's turn: at once while this turn has room and nobody waits."""
        if not self._waiting and not self.spent():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(owner, turn)
        await turn

    def drop(self, owner: Hashable) -> None:
        """The owner is gone: what it asked for is given up. Its coroutines are cancelled. A step that runs is ended by
        the next `yield`."""
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

    def _step(self, owner: Hashable, steps: Steps) -> bool:
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
