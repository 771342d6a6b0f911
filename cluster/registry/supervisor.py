"""Keeps a child of a registry process running, asks it for operations, and hands it what is new.

The loop of pysyncobj may hang for hours while its status looks healthy (docs/adr/0112). So the child is asked for an
operation, `beat`, and never for a status; if SILENT_MAX of them in a row get no answer, the child is stopped and
started again. Its records are read when it has started, and once a minute, because other processes may have added some.
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
"""Beats without an answer, in a row, until the child is ended."""
FAILURES_MAX = 12
"""The same of beats that fail in any way: a child that refuses, for want of a leader, at least runs."""
READ_EVERY = 12
"""Beats between two times at which all records of the child are read."""
START_S = 30.0
"""Seconds in which a child has to listen."""
AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 10.0
"""Seconds until the next start after one that failed: they double."""
WRITE_AGAIN_S = 1.0


class AcceptedCount:
    """Counts what the child has accepted."""

    def __init__(self) -> None:
        self.accepted = 0
        self._last_s: float | None = None

    def count(self, reply: RegistryReply) -> None:
        """Counts the answer to an operation."""
        if reply[1] == OK:
            self.accepted += 1
            self._last_s = asyncio.get_running_loop().time()

    def accepted_age_s(self) -> float | None:
        """Returns the seconds since an operation was accepted; None if none was."""
        return None if self._last_s is None else asyncio.get_running_loop().time() - self._last_s


class Supervisor:
    """One child, or the next one. Event loop only."""

    def __init__(self, settings: RegistrySettings, records: Records, log: int, surroundings: Surroundings) -> None:
        """`records`: all that this process knows; what the child holds is merged into it. `log` is the descriptor of
        the file for the child's errors."""
        self._settings = settings
        self._records = records
        self._log = log
        self._surroundings = surroundings
        self._pending: dict[int, GroupRecord] = {}
        """Records of groups that no answer of a child has confirmed yet."""
        self._places: dict[str, TopicPlace] = {}
        """The same of topics."""
        self._news = asyncio.Event()
        self._child: Replica | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = Seldom(logger)
        self.figures = AcceptedCount()
        self.status: RegistryStatus | None = None
        """The state of the child as of the last beat, for whoever looks; None while there is none."""
        self.starts = 0
        """Children that were started."""
        self.has_majority = False
        """True if the last beat was answered: a majority of the processes takes operations."""

    @property
    def pid(self) -> int | None:
        """The process id of the child; None while there is none that listens."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Begins to start children."""
        self._task = asyncio.create_task(self._run(), name="registry child")

    async def close(self) -> None:
        """Stops the child for good."""
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
        """Returns when this child has ended, or was ended."""
        self.starts += 1
        child = await self._surroundings.start_child(self._settings, self._log)
        try:
            await child.ready(START_S)
            held = await self._read(child)
            self._child = child
            view = self._records.view  # the child may have lost its disk
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
        """Asks for an operation; returns the answer."""
        own = self._settings.node
        number = max(self._surroundings.now_ms(), self._records.view.beats.get(own, 0) + 1)
        operation = beat_operation(self._settings.cluster, own, number)
        self._records.apply(operation)  # else, after a clock went back, the operation would be known and not written
        return await child.apply(operation, self._surroundings.waits.limit_s)

    async def _write(self, child: Replica) -> bool:
        """Sends the child what is pending; returns False if some of it must be sent again."""
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
        """Lets the child apply what is pending, `most` items at a time. Removes what it has confirmed, unless a newer
        value has come since. Returns False at the first operation that fails."""
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
        """Returns the state of the child, which decides nothing: it may look well while its loop stands."""
        reply = await child.status(self._surroundings.waits.limit_s)
        return read_status(reply[3]) if reply[1] == OK else None

    async def _read(self, child: Replica) -> View:
        """Merges what the child holds, in another thread: it may be large. Returns it."""
        reply = await child.read(self._surroundings.waits.limit_s)
        if reply[1] != OK:
            return NOTHING
        while True:
            before = self._records.view
            if self._records.replace(before, await asyncio.to_thread(self._records.merged, before, reply[3])):
                return await asyncio.to_thread(self._records.merged, NOTHING, reply[3])


def _why(reply: RegistryReply) -> str:
    return "" if reply[1] == OK else f"{reply[1]}: {reply[2]}"
