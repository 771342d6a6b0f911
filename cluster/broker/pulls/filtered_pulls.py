"""Answers pulls with a filter. Their messages are searched in bounded steps, in turns that all clients share.

Between two steps anything may happen: the topic is deleted, the node stops serving messages, rows are trimmed, the
queue grows, the client disconnects. So a search of several steps returns only the positions of the messages, and the
messages are read when they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from cluster.broker.filters.sql import SqlFilter
from cluster.broker.pulls.filter_search import SEARCH_BOUNDS, ClientGoneError, Search, SearchBounds, Searched, Verdicts
from cluster.broker.reads.pull_bodies import POSITION_SIZE, extent_of, position_of
from cluster.broker.reads.pull_values import Pull
from cluster.broker.reads.row_scan import SCAN_BOUNDS, Chosen, Found, ScanBounds, choosing, read
from cluster.broker.services import Services, begin_steps

if TYPE_CHECKING:
    from cluster.broker.reads.row_scan import RecentBlocks
    from cluster.runtime.turns.work import WorkSteps

LogBounds = tuple[int, int]
"""(first, end) offsets of the queue's messages in this node's log; `end` is not included."""
Conclude = Callable[[Pull, Found, LogBounds], bool]
"""Answers a pull with the messages that were found up to the end of its queue. Returns False if the pull must wait for
more."""
FailPull = Callable[[Pull, Exception], None]


class FilteredPulls:
    """Finds the messages for pulls with a filter. Event loop only."""

    def __init__(
        self,
        services: Services,
        rows: RecentBlocks,
        *,
        settle: Callable[[Pull], None],
        conclude: Conclude,
        hold: Callable[[Pull], None],
        fail: FailPull,
        search: SearchBounds = SEARCH_BOUNDS,
        scan: ScanBounds = SCAN_BOUNDS,
    ) -> None:
        """`settle` answers a pull whose topic or queue has changed. `conclude` answers it with the messages that were
        found. `hold` makes it wait for messages. `fail` tells its client of an error."""
        self._services = services
        self._rows = rows
        self._settle = settle
        self._conclude = conclude
        self._hold = hold
        self._fail = fail
        self._verdicts = Verdicts(search)
        self._scan = scan

    def begin(self, pull: Pull) -> None:
        """Answers the pull or makes it wait, now or in later turns. The caller has seen messages at the pull's
        offset."""
        begin_steps(self._services.turns, pull.puller.client, self._steps(pull))

    def _steps(self, pull: Pull) -> WorkSteps:
        try:
            yield from self._answer(pull)
        except ClientGoneError:
            pass
        except Exception as error:  # noqa: BLE001 - `_fail` logs it, unless the topic was deleted
            self._fail(pull, error)

    def _answer(self, pull: Pull) -> WorkSteps:
        while not pull.puller.client.closed:
            if not self._is_as_it_was(pull):
                self._settle(pull)
                return
            bounds = self._bounds(pull)
            searched = yield from self._search(pull, bounds[1])
            if searched is None:
                return  # another node answers
            if not self._is_as_it_was(pull):
                continue
            if self._deliver(pull, searched, bounds):
                return
            # If the queue has grown since, it is searched again: nothing would wake the pull for the new messages.
            if self._bounds(pull)[1] == bounds[1]:
                self._hold(pull)
                return

    def _bounds(self, pull: Pull) -> LogBounds:
        state = self._services.state
        return state.min_offset(pull.topic_id, pull.queue_id), state.max_offset(pull.topic_id, pull.queue_id)

    def _is_as_it_was(self, pull: Pull) -> bool:
        """Returns True if this node still serves the topic and has messages at the pull's offset."""
        if self._services.fenced() or pull.topic_id not in self._services.state.topics_by_id:
            return False
        low, high = self._bounds(pull)
        return low <= pull.offset < high

    def _search(self, pull: Pull, high: int) -> Generator[None, None, Searched | None]:
        wanted = pull.wanted
        assert wanted is not None
        if isinstance(wanted, SqlFilter):
            first = self._services.state.fetch_packed(pull.topic_id, pull.queue_id, pull.offset, 1)
            if first and pull.puller.elsewhere(position_of(first)):
                return None
            return (yield from Search(self._services, self._verdicts, pull, wanted, high).steps())
        chosen = yield from choosing(self._rows, pull, wanted, high, self._scan)
        if chosen.items and pull.puller.elsewhere(chosen.extent[0]):
            return None
        return Searched(chosen.items, chosen.offsets, chosen.next_offset)

    def _deliver(self, pull: Pull, searched: Searched, bounds: LogBounds) -> bool:
        """Reads the chosen messages and answers with them, once there is memory for them. Returns False if the pull
        must wait for more messages."""
        items, pieces = searched.items, searched.pieces
        if not items:
            found = Found(0, b"", searched.next_offset, unread=searched.unread)
        elif pieces is not None:
            body, last = b"".join(pieces), position_of(items, len(pieces) - 1)
            found = Found(len(pieces), body, searched.next_offset, last, searched.unread)
        else:
            size = sum([size for _, size in POSITION_SIZE.iter_unpack(items)])
            if not pull.puller.room_for(size, lambda: self._deliver_later(pull, searched, bounds)):
                return True
            found = read(self._services, Chosen(items, searched.next_offset, searched.offsets, extent_of(items)))
            if found.unread is None:
                found = found._replace(unread=searched.unread)
        return self._conclude(pull, found, bounds)

    def _deliver_later(self, pull: Pull, searched: Searched, bounds: LogBounds) -> None:
        try:
            if self._is_as_it_was(pull):
                self._deliver(pull, searched, bounds)
            else:
                self._settle(pull)
        except Exception as error:  # noqa: BLE001 - `_fail` logs it, unless the topic was deleted
            self._fail(pull, error)
