"""Finds the messages for a pull with an SQL92 filter: reads messages and judges them by their properties, in bounded
steps.

Between two steps a search holds a few KiB, however many messages it has found: their bytes are read again when all of
them are known. Equal filters judge a message once, however many pulls wait for it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from cluster.broker.filters.sql import SqlFilter
from cluster.broker.filters.stepwise_evaluation import Judging
from cluster.broker.reads.log_reads import read_intact
from cluster.broker.reads.pull_values import Pull
from cluster.broker.services import Services
from cluster.runtime.turns.work import WorkSteps
from raftlog.work import METER, charge, charge_bytes
from raftmq_wire.message_format import stored_properties
from raftmq_wire.properties import parse_properties
from statemachine.payload import ITEM
from statemachine.queue_reads import QueueItem

SEARCH_MAX = 1024
"""The most messages that one pull judges. RocketMQ judges 800."""
SEARCH_WINDOW = 32
SEARCH_WINDOW_BYTES = 64 << 10
"""The most messages, and the most bytes of messages, that are read together."""
SEARCH_BYTES_MAX = 8 << 20
SEARCH_UNITS_MAX = 20_000
"""The most units of work (`raftlog.work`) that one pull may cost. Above it the pull ends behind the message that is
being judged."""
STEP_UNITS = 250
"""The units of work after which a step ends before the next term of the filter."""
KEPT_BYTES = 8 << 10
"""The most bytes of properties that are kept between two steps. If there are more, the messages are read again."""
MESSAGE_UNITS, PROPERTY_BYTES_PER_UNIT = 4, 32
"""The units of work of judging a message, and the bytes of its properties that cost one more unit to read."""
VERDICTS_MAX = 16_384


class SearchBounds(NamedTuple):
    """The limits of a search: on each step, and on the whole search."""

    window: int = SEARCH_WINDOW
    window_bytes: int = SEARCH_WINDOW_BYTES
    bytes_max: int = SEARCH_BYTES_MAX
    units_max: int = SEARCH_UNITS_MAX
    step_units: int = STEP_UNITS
    kept_bytes: int = KEPT_BYTES
    verdicts_max: int = VERDICTS_MAX


SEARCH_BOUNDS = SearchBounds()


class ClientGoneError(Exception):
    """Raised when the client has disconnected, so that no answer is needed."""


class Searched(NamedTuple):
    """The messages that a search has chosen for a pull."""

    items: bytes
    """The messages' items, packed."""
    offsets: Sequence[int]
    """The offsets of the items."""
    next_offset: int
    """The queue offset at which the next search continues."""
    unread: QueueItem | None = None
    """The message at `next_offset`, if the search ends there because that message cannot be read intact."""
    pieces: list[bytes] | None = None
    """The messages themselves, if they were all found in one step; None otherwise."""


class Verdicts:
    """Remembers recent verdicts of filters about messages. One table per node; event loop only."""

    def __init__(self, bounds: SearchBounds = SEARCH_BOUNDS) -> None:
        self.bounds = bounds
        self._known: OrderedDict[tuple[int, int], bool] = OrderedDict()
        """(number of the filter, position of the message) -> True if the filter selects the message. The filters
        themselves are not kept."""
        self._judging: WeakValueDictionary[tuple[int, int], Judging] = WeakValueDictionary()
        """(number of the filter, position of the message) -> the Judging, while a search works on it."""

    def of(self, wanted: SqlFilter, position: int) -> bool | None:
        """Returns True if the filter selects the message, False if not; None if that is not known."""
        return self._known.get((wanted.number, position))

    def judge(self, wanted: SqlFilter, position: int, properties: bytes) -> bool | Judging:
        """Returns True or False if the message can be judged at once, else a Judging. The caller makes its steps, and
        then passes the verdict to `note`."""
        name = wanted.number, position
        judging = self._judging.get(name)
        if judging is not None:
            return judging
        charge(len(properties) // PROPERTY_BYTES_PER_UNIT)
        parsed = parse_properties(properties)
        units = wanted.units(max(map(len, parsed.values()), default=0))
        if units > self.bounds.step_units:
            self._judging[name] = judging = wanted.judging(parsed)
            return judging
        charge(units)
        verdict = wanted.matches(parsed)
        self.note(wanted, position, verdict)
        return verdict

    def note(self, wanted: SqlFilter, position: int, verdict: bool) -> None:
        """Remembers a verdict for a while."""
        self._known[wanted.number, position] = verdict
        if len(self._known) > self.bounds.verdicts_max:
            self._known.popitem(last=False)


class Search:
    """The search for one pull, from the pull's offset up to `high`."""

    def __init__(self, services: Services, verdicts: Verdicts, pull: Pull, wanted: SqlFilter, high: int) -> None:
        self._services = services
        self._verdicts = verdicts
        self._bounds = verdicts.bounds
        self._pull = pull
        self._wanted = wanted
        self._at = pull.offset
        self._stop = min(high, pull.offset + SEARCH_MAX)
        self._window: deque[tuple[QueueItem, bytes, bytes]] = deque()
        """(item, properties, message) of the messages that were read and are not judged yet, beginning at offset
        `_at`."""
        self._unread: QueueItem | None = None
        """The message behind the window, if it cannot be read intact."""
        self._items: list[QueueItem] = []
        """The items of the messages that were found."""
        self._pieces: list[bytes] | None = []
        """The messages that were found; None once a step has ended."""
        self._bytes = 0
        """Bytes of the messages that were found."""
        self._read = 0
        """Bytes of messages that were read."""
        self._units = 0
        """Units that the earlier steps cost."""
        self._began = METER.units
        """The meter's reading when this step began."""

    def steps(self) -> Generator[None, None, Searched]:
        """Searches in steps and returns the chosen messages. Judges at least one message, if there is one. Only intact
        messages are judged, so that damage never makes a message seem unwanted. Raises ClientGoneError if the client
        disconnects before the search has ended."""
        wanted, verdicts = self._wanted, self._verdicts
        while self._window or (yield from self._fill()):
            item, properties, piece = self._window.popleft()
            charge(MESSAGE_UNITS)
            verdict = verdicts.of(wanted, item.position)
            if verdict is None:
                judged = verdicts.judge(wanted, item.position, properties)
                verdict = judged if isinstance(judged, bool) else (yield from self._judge(item, judged))
            if verdict and not self._take(item, piece):
                break
            self._at = item.queue_offset + 1
            if len(self._items) == self._pull.messages_max or self._spent() >= self._bounds.units_max:
                break
            if METER.units - self._began >= self._bounds.step_units:
                yield from self._pause()
        return self._searched()

    def _judge(self, item: QueueItem, judging: Judging) -> Generator[None, None, bool]:
        while judging.verdict is None:
            if not judging.step(self._bounds.step_units):
                yield from self._pause()
        self._verdicts.note(self._wanted, item.position, judging.verdict)
        return judging.verdict

    def _fill(self) -> Generator[None, None, bool]:
        """Reads the next messages into the window. Returns False if there are no more, if the search may read no more,
        or if the next message cannot be read intact."""
        while self._at < self._stop and self._read < self._bounds.bytes_max and self._unread is None:
            window = self._rows()
            if not window:  # the queue was trimmed meanwhile; the next pull sees it
                return False
            if self._are_unwanted(window):
                self._at = window[-1].queue_offset + 1
                if METER.units - self._began >= self._bounds.step_units:
                    yield from self._pause()
                continue
            size = sum([item.size for item in window])
            charge_bytes(size)
            self._read += size
            intact = read_intact(self._services, window)
            for item, piece in zip(window, intact, strict=False):
                self._window.append((item, stored_properties(piece), piece))
            if len(intact) < len(window):
                self._unread = window[len(intact)]
            return bool(intact)
        return False

    def _rows(self) -> list[QueueItem]:
        """Returns the items of the messages to read next, at least one; [] if the queue was trimmed."""
        pull, count = self._pull, min(self._bounds.window, self._stop - self._at)
        items = self._services.state.fetch(pull.topic_id, pull.queue_id, self._at, count)
        total = 0
        for number, item in enumerate(items):
            total += item.size
            if total > self._bounds.window_bytes and number:
                return items[:number]
        return items

    def _are_unwanted(self, window: list[QueueItem]) -> bool:
        """Returns True if the filter is known to select none of these messages, so that they need not be read."""
        charge(len(window))
        return all(self._verdicts.of(self._wanted, item.position) is False for item in window)

    def _take(self, item: QueueItem, piece: bytes) -> bool:
        """Adds a message to the result. Returns False if the pull has no room for it."""
        if self._items and self._bytes + item.size > self._pull.bytes_max:
            return False
        self._items.append(item)
        self._bytes += item.size
        if self._pieces is not None:
            self._pieces.append(piece)
        return True

    def _spent(self) -> int:
        return self._units + METER.units - self._began

    def _pause(self) -> WorkSteps:
        """Ends the step, and drops data that is not needed until the next one."""
        self._pieces = None
        if sum([len(properties) for _, properties, _ in self._window]) > self._bounds.kept_bytes:
            self._window.clear()
            self._unread = None
        else:
            self._window = deque([(item, properties, b"") for item, properties, _ in self._window])
        self._units = self._spent()
        yield
        self._began = METER.units
        if self._pull.puller.client.closed:
            raise ClientGoneError

    def _searched(self) -> Searched:
        unread = self._unread
        if unread is not None and unread.queue_offset > self._at:
            unread = None
        items = b"".join([ITEM.pack(*item[1:]) for item in self._items])
        return Searched(items, [item.queue_offset for item in self._items], self._at, unread, self._pieces)
