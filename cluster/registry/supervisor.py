"""Keeps the child process with pysyncobj running, passes new records to it, and reads those that it has.

The loop of pysyncobj may hang for hours while its status looks healthy (docs/adr/0112). So the supervisor judges the
child by an operation, `beat`, which must go through the log, and never by its status. If SILENT_MAX beats in a row get
no answer, the child is stopped and started again. The supervisor reads the child's records after its start and about
once a minute, because other registry processes may have added some.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TypeVar

from cluster.placement.group_map import GroupRecord, rank
from cluster.registry.frames import OK, UNKNOWN, RegistryReply, RegistrySettings, RegistryStatus, read_status
from cluster.registry.records import (
    NOTHING,
    PLACES_PER_OPERATION,
    RECORDS_PER_OPERATION,
    Records,
    TopicPlace,
    View,
    beat_operation,
    groups_operation,
    topics_operation,
)
from cluster.registry.surroundings import Replica, Surroundings
from cluster.runtime.logs import Seldom
from cluster.runtime.peer_frames import WireError
from raftmq_wire.errors import LocalError

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

SILENT_MAX = 3
"""Beats without an answer, in a row, after which the child is stopped."""
FAILURES_MAX = 12
"""Beats in a row that fail in any way, after which the child is stopped. It is larger than SILENT_MAX: a child that
refuses because there is no leader at least runs."""
READ_EVERY = 12
"""All records of the child are read once in this many beats."""
START_S = 30.0
"""Seconds within which a child must listen."""
AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 10.0
"""Least and most seconds until the next start after a failed one. The wait doubles each time."""
WRITE_AGAIN_S = 1.0


class AcceptedCount:
    """Counts the operations that the child has accepted."""

    def __init__(self) -> None:
        self.accepted = 0
        self._last_s: float | None = None

    def count(self, reply: RegistryReply) -> None:
        """Counts the answer to an operation if its outcome is ok."""
        if reply[1] == OK:
            self.accepted += 1
            self._last_s = asyncio.get_running_loop().time()

    def accepted_age_s(self) -> float | None:
        """Returns the seconds since an operation was accepted; None if none was."""
        return None if self._last_s is None else asyncio.get_running_loop().time() - self._last_s


class Supervisor:
    """Runs one child at a time, and starts the next one when it has ended. Event loop only."""

    def __init__(self, settings: RegistrySettings, records: Records, log: int, surroundings: Surroundings) -> None:
        """`records`: all that this process knows; the records of the child are merged into them. `log` is the
        descriptor of the file for the child's errors."""
        self._settings = settings
        self._records = records
        self._log = log
        self._surroundings = surroundings
        self._pending: dict[int, GroupRecord] = {}
        """Records of groups that no answer of a child has confirmed yet."""
        self._places: dict[str, TopicPlace] = {}
        """Places of topics that no answer of a child has confirmed yet."""
        self._news = asyncio.Event()
        self._child: Replica | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = Seldom(logger)
        self.figures = AcceptedCount()
        self.status: RegistryStatus | None = None
        """The state of the child as of the last beat, for people only; None while no child has answered."""
        self.starts = 0
        """The number of children that were started."""
        self.has_majority = False
        """True if the last beat was applied, so a majority of the processes accepts operations."""

    @property
    def pid(self) -> int | None:
        """The process id of the child; None while no child listens."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Starts the child in the background, and starts it again whenever it ends."""
        self._task = asyncio.create_task(self._run(), name="registry child")

    async def close(self) -> None:
        """Stops the child, and starts no other until `start` is called."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def use(self, settings: RegistrySettings) -> None:
        """Restarts the child with other settings, if they differ."""
        if settings != self._settings:
            self._settings = settings
            await self.close()
            self.start()

    def hand(self, records: Iterable[GroupRecord]) -> None:
        """Queues records of groups, which the child applies when it can. For each group the newest record counts."""
        for record in records:
            known = self._pending.get(record.group)
            if known is None or rank(record) > rank(known):
                self._pending[record.group] = record
        self._news.set()

    def hand_places(self, places: Mapping[str, TopicPlace]) -> None:
        """Queues the places of topics, which the child applies when it can. For each topic the newest place counts."""
        for name, place in places.items():
            self._places[name] = max(place, self._places.get(name, place))
        self._news.set()

    async def _run(self) -> None:
        loop, wait_s = asyncio.get_running_loop(), AGAIN_MIN_S
        while True:
            began_s = loop.time()
            try:
                await self._live()
            except (LocalError, OSError, WireError) as error:
                self._told.warn("the registry's child has ended, and is started again", str(error))
            except Exception:
                logger.exception("the registry's child could not be kept, and is started again")
            wait_s = AGAIN_MIN_S if loop.time() - began_s > START_S else min(AGAIN_MAX_S, wait_s * 2)
            await asyncio.sleep(wait_s)

    async def _live(self) -> None:
        """Starts a child and watches it. Returns, or raises, when this child has ended or was stopped."""
        self.starts += 1
        child = await self._surroundings.start_child(self._settings, self._log)
        try:
            await child.ready(START_S)
            held = await self._read(child)
            self._child = child
            view = self._records.view  # what the child lacks is sent to it again: it may have lost its disk
            self.hand(record for group, record in view.groups.items() if held.groups.get(group) != record)
            self.hand_places({name: place for name, place in view.topics.items() if held.topics.get(name) != place})
            await self._watch(child)
        finally:
            self._child = None
            self.status = None
            self.has_majority = False
            await child.close(self._surroundings.waits.close_s)

    async def _watch(self, child: Replica) -> None:
        loop = asyncio.get_running_loop()
        silent, failures, beats, due_s = 0, 0, 0, loop.time()
        child.when_over(self._news.set)
        while silent < SILENT_MAX and failures < FAILURES_MAX:
            if child.is_over:
                raise LocalError("the process has ended", f"exit code {child.exit_code}", "Read its log.")
            if loop.time() >= due_s:
                due_s = loop.time() + self._surroundings.waits.beat_s
                beats += 1
                reply = await self._beat(child)
                self.figures.count(reply)
                if reply[1] != UNKNOWN:
                    self.status = await self._status(child)
                self.has_majority = reply[1] == OK
                failures = 0 if self.has_majority else failures + 1
                silent = silent + 1 if reply[1] == UNKNOWN else 0
                if not self.has_majority:
                    self._told.warn("the registry takes no operation", _why(reply))
                elif beats % READ_EVERY == 0:
                    await self._read(child)
            wrote = await self._write(child)
            wait_s = max(0.0, due_s - loop.time())
            if wrote:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), wait_s)
            else:
                await asyncio.sleep(min(WRITE_AGAIN_S, wait_s))
        logger.warning("the last %d beats failed, %d without an answer: the child is started again", failures, silent)

    async def _beat(self, child: Replica) -> RegistryReply:
        """Asks the child to apply a beat; returns the answer."""
        own = self._settings.node
        number = max(self._surroundings.now_ms(), self._records.view.beats.get(own, 0) + 1)
        operation = beat_operation(self._settings.cluster, own, number)
        # Applied here first, so the number rises even after the clock was set back; an old number would not be written.
        self._records.apply(operation)
        return await child.apply(operation, self._surroundings.waits.limit_s)

    async def _write(self, child: Replica) -> bool:
        """Sends the child the pending records and places. Returns False if some of them must be sent again."""
        self._news.clear()
        cluster = self._settings.cluster
        return await self._hand_over(
            child, "groups", self._pending, RECORDS_PER_OPERATION, lambda some: groups_operation(cluster, some.values())
        ) and await self._hand_over(
            child, "topics", self._places, PLACES_PER_OPERATION, lambda some: topics_operation(cluster, some)
        )

    async def _hand_over(
        self, child: Replica, what: str, pending: dict[K, V], most: int, operation: Callable[[dict[K, V]], bytes]
    ) -> bool:
        """Has the child apply the items in `pending`, at most `most` in one operation. Removes each confirmed item,
        unless it was replaced by a newer one meanwhile. `what` names the items in the log. Returns False at the first
        operation that fails."""
        while pending:
            some = dict(islice(pending.items(), most))
            reply = await child.apply(operation(some), self._surroundings.waits.limit_s)
            self.figures.count(reply)
            if why := _why(reply):
                self._told.warn(f"{what} are not in the registry's log yet", why)
                return False
            for name, handed in some.items():
                if pending[name] is handed:
                    del pending[name]
        return True

    async def _status(self, child: Replica) -> RegistryStatus | None:
        """Returns the state of the child; None if it does not answer. No decision depends on it, because it may look
        healthy while the child's loop hangs."""
        reply = await child.status(self._surroundings.waits.limit_s)
        return read_status(reply[3]) if reply[1] == OK else None

    async def _read(self, child: Replica) -> View:
        """Merges the child's records into this process's records, and returns the child's. Uses another thread, because
        they may be large. Returns NOTHING if the child does not answer."""
        reply = await child.read(self._surroundings.waits.limit_s)
        if reply[1] != OK:
            return NOTHING
        while True:
            before = self._records.view
            if self._records.replace(before, await asyncio.to_thread(self._records.merged, before, reply[3])):
                return await asyncio.to_thread(self._records.merged, NOTHING, reply[3])


def _why(reply: RegistryReply) -> str:
    return "" if reply[1] == OK else f"{reply[1]}: {reply[2]}"
