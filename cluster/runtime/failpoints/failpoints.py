"""Failpoints: named places where a test may hold, delay, slow down or fail the node. Off unless `[failpoints] enabled =
true`.

Actions: `off` · `hold` (block until the point is set to something else) · `delay:20ms` (wait first) · `slow:20x` (make
the operation take that many times as long) · `rate:4MB` (let no more bytes pass in a second: a disk at its limit) ·
`error:EIO` or `error:ENOSPC` (fail instead).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from cluster.config.source import did_you_mean
from cluster.runtime.findings import Code, Condition
from cluster.runtime.lanes import Lane
from raftlog.messages import Message

FAILPOINT_SET: Final = Code("failpoint_set", "warning", "raftmq down")
T = TypeVar("T")

POINTS: Final[Mapping[str, str]] = {
    "append.fdatasync": "log frames reach the disk",
    "append.write": "log frames are written to the operating system",
    "hardstate.fdatasync": "term and vote reach the disk",
    "apply.batch": "a run of committed entries is applied",
    "peer.send": "Raft messages leave for the peers",
    "loop.turn": "a turn of the event loop ends",
    "tier.uploading": "the upload of a segment is recorded as begun",
    "tier.put": "a part of a segment is written to the tier",
    "tier.uploaded": "a segment is recorded as uploaded",
    "tier.read_back": "the parts of a segment are read back",
    "tier.verified": "a segment is recorded as verified",
    "tier.manifest": "a manifest is published",
    "tier.deleting": "segments are recorded as about to lose their objects",
    "tier.remove": "an object of a segment that is no longer kept is removed",
    "tier.deleted": "segments are recorded as having no objects any more",
}
"""Name of each failpoint -> the operation at that place."""

LOOP_POINTS: Final = frozenset({"peer.send", "loop.turn", *(name for name in POINTS if name.startswith("tier."))})
"""Failpoints on the event loop. The loop must not block, so the operation is postponed (`when_clear`). The exception is
`loop.turn`, where `delay` does block the loop, once for each time that it is set (`stall`)."""

SIZED_POINTS: Final = frozenset({"append.fdatasync", "append.write", "hardstate.fdatasync"})
"""Failpoints whose operations have a size in bytes. The size of a sync is the number of bytes that were written to the
file since the sync before."""

ACTIONS: Final = ("off", "hold", "delay:20ms", "slow:20x", "rate:4MB", "error:EIO", "error:ENOSPC")
"""One example of each action."""

ERRORS: Final[Mapping[str, int]] = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
DELAY_MS_MAX: Final = 60_000
SLOW_FACTOR_MAX: Final = 10_000
RATE_MAX: Final = 10_000_000_000
"""The greatest rate, in bytes per second."""


class FailpointError(ValueError):
    """The failpoint or the action does not exist, the action does not suit the failpoint, or failpoints are off. `hint`
    says what to type."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}\n{hint}")
        self.message = message
        self.hint = hint


class Action(NamedTuple):
    """A parsed action; `amount` is milliseconds, a factor, bytes per second or an errno."""

    kind: str
    amount: int
    text: str


OFF: Final = Action("off", 0, "off")
_DELAY = re.compile(r"delay:(\d{1,6})(ms|s)")
_SLOW = re.compile(r"slow:(\d{1,6})x")
_RATE = re.compile(r"rate:(\d{1,6})(kB|MB)")


class PointState(msgspec.Struct, frozen=True):
    """One failpoint as shown over HTTP."""

    name: str
    does: str
    """The operation that passes through this failpoint."""
    action: str
    hits: int
    """Number of operations on which an action other than `off` took effect."""
    waiting: int
    """Number of operations that are held now."""


class CallsLater(Protocol):
    """The part of an event loop that `when_clear` needs."""

    def call_soon_threadsafe(self, callback: Callable[[], None], /) -> object:
        """Schedules the callback on the loop, from any thread."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> object:
        """Schedules the callback after `delay` seconds."""


class _Point:
    __slots__ = ("action", "deferred", "free_at", "generation", "hits", "waiting")

    def __init__(self) -> None:
        self.action = OFF
        self.hits = 0
        self.waiting = 0
        self.free_at = 0.0
        """The time, in seconds of the clock, from which on the next operation may pass at the set rate."""
        self.generation = 0
        """Grows with each change of the action. A held thread waits until it grows."""
        self.deferred: list[tuple[CallsLater, Callable[[], None]]] = []


def parse_action(text: str) -> Action:
    """Parses the text of an action, such as "delay:20ms". Raises FailpointError if there is no such action or its
    number is out of range; its `hint` names a valid one."""
    if text in ("off", "hold"):
        return Action(text, 0, text)
    if delay := _DELAY.fullmatch(text):
        milliseconds = int(delay[1]) * (1000 if delay[2] == "s" else 1)
        return Action("delay", _in_range(milliseconds, DELAY_MS_MAX, text, f"delay:{DELAY_MS_MAX}ms"), text)
    if slow := _SLOW.fullmatch(text):
        return Action("slow", _in_range(int(slow[1]), SLOW_FACTOR_MAX, text, f"slow:{SLOW_FACTOR_MAX}x"), text)
    if rate := _RATE.fullmatch(text):
        amount = int(rate[1]) * (1_000_000 if rate[2] == "MB" else 1000)
        return Action("rate", _in_range(amount, RATE_MAX, text, f"rate:{RATE_MAX // 1_000_000}MB"), text)
    kind, _, name = text.partition(":")
    if kind == "error" and name in ERRORS:
        return Action("error", ERRORS[name], text)
    raise FailpointError(f"unknown action {text}", did_you_mean(text, ACTIONS))


class FailpointSet:
    """All failpoints of one node. Thread-safe: lanes pass through points while HTTP sets them."""

    def __init__(
        self,
        enabled: bool,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`enabled`: False if `set` is to refuse every action. The simulator passes its own `sleep` and `clock`, both
        in seconds."""
        self.enabled = enabled
        self._sleep = sleep
        self._clock = clock
        self._changed = threading.Condition()
        self._points = {name: _Point() for name in POINTS}

    def set(self, name: str, action: str) -> None:
        """Sets the action of a failpoint and releases the threads that it held. Raises FailpointError, and changes
        nothing, if failpoints are off, or if the failpoint does not exist or cannot have the action."""
        if not self.enabled:
            raise FailpointError("failpoints are off on this node", "restart it with [failpoints] enabled = true")
        if name not in POINTS:
            raise FailpointError(f"unknown failpoint {name}", did_you_mean(name, POINTS))
        parsed = parse_action(action)
        if parsed.kind == "slow" and name in LOOP_POINTS:
            raise FailpointError(f"{name} cannot be slowed down", "use delay:20ms")
        if parsed.kind == "rate" and name not in SIZED_POINTS:
            known = ", ".join(sorted(SIZED_POINTS))
            raise FailpointError(f"what passes {name} has no size", f"use delay:20ms, or one of: {known}")
        self._change(self._points[name], parsed)

    def clear(self) -> None:
        """Turns all failpoints off and releases all held threads. A node calls this before it joins its threads."""
        for point in self._points.values():
            self._change(point, OFF)

    def states(self) -> list[PointState]:
        """Returns all failpoints, in the order of POINTS."""
        with self._changed:
            return [
                PointState(name, POINTS[name], point.action.text, point.hits, point.waiting + len(point.deferred))
                for name, point in self._points.items()
            ]

    def conditions(self, node: str) -> Iterator[Condition]:
        """Yields a condition for each failpoint that is set. `node`: the name of this node in findings."""
        for point in self.states():
            if point.action != "off":
                says = f"failpoint {point.name} is {point.action}: this node has a fault on purpose"
                yield Condition(FAILPOINT_SET, node, says)

    def run(self, name: str, operation: Callable[[], T], size: int = 0) -> T:
        """Runs a blocking operation with the failpoint's action, on any thread but the event loop's. `size` is the size
        of the operation in bytes, at one of SIZED_POINTS. Raises OSError for `error`."""
        point = self._points[name]
        action = point.action
        if action.kind == "off":
            return operation()
        if action.kind not in ("slow", "rate"):
            self._before(point)
            return operation()
        start = self._clock()
        with self._changed:
            point.hits += 1
            if action.kind == "rate":  # each operation starts where the last one ends; idle time earns no credit
                point.free_at = through = max(start, point.free_at) + size / action.amount
        result = operation()
        if action.kind == "slow":
            self._sleep((self._clock() - start) * (action.amount - 1))
        elif (left := through - self._clock()) > 0:
            self._sleep(left)
        return result

    def when_clear(self, name: str, loop: CallsLater, operation: Callable[[], None]) -> None:
        """Runs an operation of the event loop: now, after the failpoint's delay, or when the failpoint releases it.
        Raises OSError for `error`.

        Held operations are released in order; one that comes right after the release may overtake them, as on any
        network.
        """
        point = self._points[name]
        if point.action.kind == "off":
            operation()
            return
        with self._changed:
            action = point.action
            if action.kind != "off":
                point.hits += 1
            if action.kind == "hold":
                point.deferred.append((loop, operation))
                return
        _fail(action)
        if action.kind == "delay":
            loop.call_later(action.amount / 1000, operation)
        else:
            operation()

    def stall(self, name: str) -> None:
        """If the failpoint's action is `delay`, turns the failpoint off and blocks the calling thread, the event
        loop's, for the delay. Does nothing for other actions."""
        point = self._points[name]
        action = point.action
        if action.kind == "delay":
            with self._changed:
                point.hits += 1
            self._change(point, OFF)
            self._sleep(action.amount / 1000)

    def _before(self, point: _Point) -> None:
        """Holds, delays or fails an operation, as the failpoint's action says."""
        with self._changed:
            if point.action.kind != "off":
                point.hits += 1
            while point.action.kind == "hold":
                self._wait_for_change(point)
            action = point.action
        _fail(action)
        if action.kind == "delay":
            self._sleep(action.amount / 1000)

    def _wait_for_change(self, point: _Point) -> None:
        generation = point.generation
        point.waiting += 1
        try:
            self._changed.wait_for(lambda: point.generation != generation)
        finally:
            point.waiting -= 1

    def _change(self, point: _Point, action: Action) -> None:
        with self._changed:
            point.action = action
            point.free_at = 0.0
            point.generation += 1
            released = [] if action.kind == "hold" else point.deferred
            if released:
                point.deferred = []
            self._changed.notify_all()
        for loop, operation in released:
            loop.call_soon_threadsafe(operation)


def _fail(action: Action) -> None:
    if action.kind == "error":
        raise OSError(action.amount, f"{os.strerror(action.amount)} (failpoint {action.text})")


def _in_range(amount: int, largest: int, text: str, example: str) -> int:
    if not 1 <= amount <= largest:
        raise FailpointError(f"{text} is out of range", f"use a number from 1 up to that of {example}")
    return amount


Job = TypeVar("Job")
Done = TypeVar("Done")

logger = logging.getLogger(__name__)


class SendsMessages(Protocol):
    """An object to which the driver of Raft gives its messages for peers."""

    def send(self, messages: Iterable[Message]) -> None:
        """Queues messages to peers."""


class FailpointLane(Generic[Job, Done]):
    """A Lane whose drains pass through a failpoint, for example the apply lane through `apply.batch`."""

    def __init__(self, inner: Lane[Job, Done], points: FailpointSet, point: str) -> None:
        self._inner = inner
        self._points = points
        self._point = point
        self.idle_after_s: float | None = inner.idle_after_s
        if hasattr(inner, "weigh"):  # see `lanes.room_of`
            self.weigh, self.weight_max = inner.weigh, inner.weight_max  # type: ignore[attr-defined]

    def drain(self, batch: Sequence[Job]) -> Done:
        """Does the batch when the failpoint lets it pass. An `error` is raised, which ends the node."""
        return self._points.run(self._point, lambda: self._inner.drain(batch))

    def idle(self) -> None:
        """Calls `idle` of the inner lane, because no job came for `idle_after_s`."""
        self._inner.idle()


class FailpointTransport:
    """A sender whose messages pass through the failpoint `peer.send`. With `error` they are lost, as on any network."""

    def __init__(self, inner: SendsMessages, points: FailpointSet, loop: CallsLater) -> None:
        self._inner = inner
        self._points = points
        self._loop = loop

    def send(self, messages: Iterable[Message]) -> None:
        """Sends the messages when `peer.send` lets them pass."""
        kept = list(messages)  # the driver may use its list again while these are held
        try:
            self._points.when_clear("peer.send", self._loop, lambda: self._inner.send(kept))
        except OSError:
            logger.debug("%d messages lost at failpoint peer.send", len(kept))
