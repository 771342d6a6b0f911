"""What was sent back does not come again at once: a node serves messages of %RETRY% topics HOLD_MS after applying them.

The copy is in the log like any other message; only pulls treat it as if it were not there yet. Each node counts by its
own monotonic clock, from the moment it applied the message: no clock that jumps, no other leader and no lag makes it
come sooner. What was there when the node started may be of that very moment, and waits as long (docs/adr/0047).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.names import RETRY_PREFIX

if TYPE_CHECKING:
    from cluster.broker.services import Services

HOLD_MS = 5_000
STEP_MS = 100
"""Messages applied within one step come out together, so that a queue has few steps waiting however fast it grows."""
OTHERS_MAX = 65_536
"""Topics that are known to be no %RETRY% topics, each of which costs one look at its name."""

Queue = tuple[int, int]
"""(topic id, queue id)."""


class _Held:
    """One queue: everything below `open_end` may be served, the rest in steps of (end, when)."""

    __slots__ = ("open_end", "steps")

    def __init__(self) -> None:
        self.open_end = 0
        self.steps: deque[tuple[int, int]] = deque()


class HoldBack:
    """Where the queues of %RETRY% topics end for pulls. Make it before whatever else looks at applied runs."""

    def __init__(self, services: Services, wake: Callable[[set[Queue]], None]) -> None:
        """`wake` is told the queues of which more may be served now."""
        self._services = services
        self._wake = wake
        self._queues: dict[Queue, _Held] = {}
        self._due: dict[int, set[Queue]] = {}
        self._prune_above = 1024
        self._others: set[int] = set()
        """Ids of topics of which nothing is held back; an id is never given to another topic."""
        state = services.state
        self._note(
            {
                (topic.id, queue_id)
                for topic in state.topics.values()
                if topic.name.startswith(RETRY_PREFIX)
                for queue_id in range(topic.queues)
            }
        )
        services.on_applied(self._note)

    def end(self, topic_id: int, queue_id: int) -> int:
        """The offset behind the last message that may be served."""
        held = self._queues.get((topic_id, queue_id))
        if held is None:
            return 0  # whatever is there was applied this very moment: the run is not told yet
        now = self._services.monotonic_ms()
        while held.steps and held.steps[0][1] <= now:
            held.open_end = held.steps.popleft()[0]
        return held.open_end

    def _note(self, grown: set[Queue]) -> None:
        """Queues that grew: what is new in those of %RETRY% topics waits."""
        state = self._services.state
        for queue in grown:
            topic_id = queue[0]
            if topic_id in self._others:
                continue
            topic = state.topics_by_id.get(topic_id)
            if topic is None:
                continue
            if not topic.name.startswith(RETRY_PREFIX):
                if len(self._others) >= OTHERS_MAX:
                    self._others.clear()
                self._others.add(topic_id)
                continue
            end = state.max_offset(*queue)
            if end:
                self._hold(queue, end)

    def _hold(self, queue: Queue, end: int) -> None:
        held = self._queues.get(queue)
        if held is None:
            self._prune()
            held = self._queues[queue] = _Held()
        now = self._services.monotonic_ms()
        when = -(-(now + HOLD_MS) // STEP_MS) * STEP_MS
        if held.steps and held.steps[-1][1] == when:
            held.steps.pop()
        held.steps.append((end, when))
        waiting = self._due.get(when)
        if waiting is None:
            waiting = self._due[when] = set()
            self._services.call_later(when - now, lambda: self._wake(self._due.pop(when)))
        waiting.add(queue)

    def _prune(self) -> None:
        """Queues of deleted topics go when there are many."""
        if len(self._queues) >= self._prune_above:
            known = self._services.state.topics_by_id
            self._queues = {queue: held for queue, held in self._queues.items() if queue[0] in known}
            self._prune_above = max(1024, 2 * len(self._queues))
