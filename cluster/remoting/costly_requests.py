"""Limits requests that each cost much: resets of offsets, lists, statistics, searches by key. The users or addresses
that send them take turns.

One such request is cut into steps and is harmless. Two hundred of them in one read of a connection would all run at
once. So only a few run, and the others wait. Askers take turns, however many requests each has sent. An asker is a
user, or the address of a client without a proven user, so more connections bring no more turns. The requests of a
client that has disconnected end. The exception is a write that has begun: it keeps its place until its rows are
written.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Final

from cluster.broker.refusal import Reason, Refused
from cluster.remoting.answers import refuse
from cluster.requests.table import codes_where
from cluster.requests.verb import Cost

if TYPE_CHECKING:
    from cluster.remoting.request import Connection, Handler, Request

AT_ONCE_MAX: Final = 8
"""The most requests of all askers that run at once. Of requests that write much, only one runs."""
OF_ONE_MAX: Final = 2
"""The most requests of one asker that run at once."""
WAITING_MAX, ALL_WAITING_MAX = 64, 1_024
"""The most requests that wait, of one asker and of all. Further requests are answered "busy"."""
LOST_MS: Final = 60_000
"""Milliseconds after which a request that was never answered gives its place to others."""

_BUSY: Final = f"{WAITING_MAX} requests of this kind wait for their turn already; ask again when they are answered"


class CostlyRequests:
    """The requests of one kind of cost that wait or run on one node. Event loop only."""

    def __init__(self, soon: Callable[[Callable[[], None]], object], cost: Cost) -> None:
        """`soon` calls a function in the next turn of the loop. `cost` is the kind of cost of these requests."""
        self._soon = soon
        self._codes = codes_where(lambda verb: verb.cost is cost)
        self._writes = cost is Cost.WRITES_MUCH
        self._at_once_max = 1 if self._writes else AT_ONCE_MAX
        self._waiting: OrderedDict[Hashable, deque[tuple[Request, Handler]]] = OrderedDict()
        """Asker -> its requests in order; the asker whose turn is next is first."""
        self._running: dict[Request, tuple[Hashable, int]] = {}
        """Request under way -> its asker, and the time at which it began."""
        self._of: Counter[Hashable] = Counter()
        """Asker -> number of its requests under way."""
        self._paths: dict[Connection, int] = {}
        """Connection whose end is reported to this object -> number of its requests that wait or run."""
        self._scheduled = False
        self._now_ms = 0

    def dealt_out(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Returns the handlers by request code. Those of costly requests are wrapped: they wait for their turn
        first."""
        return {code: self._in_turn(handler) if code in self._codes else handler for code, handler in handlers.items()}

    def tick(self, now_ms: int) -> None:
        """Gives up requests that have not been answered within LOST_MS. Called several times a second."""
        self._now_ms = now_ms
        for request, (_, since_ms) in list(self._running.items()):
            if now_ms - since_ms >= LOST_MS:
                self._end(request)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    @property
    def under_way(self) -> int:
        """The number of requests that have begun and are not answered."""
        return len(self._running)

    def _in_turn(self, handler: Handler) -> Handler:
        def handle(request: Request) -> None:
            path = request.connection
            if path.closed:
                return  # the connection has already closed: no event would end this request and release its place
            asker: Hashable = request.user or path.peer_address[0]
            if len(self._waiting.get(asker, ())) >= WAITING_MAX or self.waiting >= ALL_WAITING_MAX:
                refuse(request, Refused(Reason.BUSY, _BUSY))
                return
            self._waiting.setdefault(asker, deque()).append((request, handler))
            if path not in self._paths:
                self._paths[path] = 0
                path.on_close.append(lambda: self._on_close(path))
            self._paths[path] += 1
            self._go_on()

        return handle

    def _go_on(self) -> None:
        """Starts requests as long as there are places: first those of the askers with the fewest running requests."""
        self._scheduled = False
        for under_way in range(OF_ONE_MAX):
            for asker in list(self._waiting):
                if len(self._running) >= self._at_once_max:
                    return
                if self._of[asker] <= under_way and asker in self._waiting:
                    queue = self._waiting[asker]
                    request, handler = queue.popleft()
                    if queue:
                        self._waiting.move_to_end(asker)
                    else:
                        del self._waiting[asker]
                    self._begin(asker, request, handler)

    def _begin(self, asker: Hashable, request: Request, handler: Handler) -> None:
        self._running[request] = asker, self._now_ms
        self._of[asker] += 1
        request.when_answered(self._end)
        handler(request)

    def _end(self, request: Request) -> None:
        """Gives the place of an ended request to the next one, in a later turn of the loop, because starting it may
        take long."""
        asker, _ = self._running.pop(request, (None, 0))
        if asker is None:
            return
        self._of[asker] -= 1
        if not self._of[asker]:
            del self._of[asker]
        if request.connection in self._paths:
            self._paths[request.connection] -= 1
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._soon(self._go_on)

    def _on_close(self, path: Connection) -> None:
        if not self._paths.pop(path, 0):
            return
        for asker, queue in list(self._waiting.items()):
            left = deque([each for each in queue if each[0].connection is not path])
            if left:
                self._waiting[asker] = left
            else:
                del self._waiting[asker]
        if self._writes:
            # A write that has begun keeps its place. Each request from another node has a path of its own: if the ends
            # of 60 paths freed places, each would begin the next write while the ones before still write.
            return
        for request in [each for each in self._running if each.connection is path]:
            self._end(request)
