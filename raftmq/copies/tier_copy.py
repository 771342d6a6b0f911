"""The tier as a copy of the log: its manifest, index files and segments, which can be read while every node is down.

The manifest lists only verified segments, so the newest messages of the log are missing. The tier has no list of topic
names: a topic's name is read from its first message. A deleted topic can be read until its segments are removed. Of two
topics with the same name, the younger one is read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import msgspec

from cluster.broker.name_rules import SYSTEM_TOPICS
from cluster.config.local_layout import group_at
from cluster.tier.manifest_format import HEAD_BYTES_MAX, TierManifest, all_segments, decode, decode_head
from cluster.tier.manifest_format import Segment as Listed
from cluster.tier.object_names import HEAD
from cluster.tier.store.errors import NotFound as NoObject
from cluster.tier.store.errors import StoreError
from cluster.tier.store.object_store import Data, ObjectStore
from cluster.tier.store.retrying_store import RequestCounts, RetryingStore, RetryPolicy
from cluster.tier.store.store_by_url import open_store
from raftmq.arrow.log_copy import CopyError, CopyPart, Place, Segment, Span, place_of
from raftmq.arrow.ranges import QueueRange
from raftmq.client.admin import QueueInfo
from raftmq.client.errors import NotFound
from raftmq.copies.shared_objects import SharedObjects, clusters_of
from raftmq_wire.errors import LocalError
from raftmq_wire.message_format import MessageFormatError, decode_message
from raftmq_wire.queue_numbers import number_of, queue_in_group
from raftmq_wire.topic_identity import TopicIdentity
from statemachine.index_file.index_format import QUEUE_FORM, QUEUES, IndexFileError, QueueRun
from statemachine.index_file.index_reader import IndexFile, Steps, open_index
from statemachine.payload import ITEM

T = TypeVar("T")
MANIFEST_BYTES_MAX = 1 << 30
TOTAL_S = 60.0
"""Seconds for which a failing request is repeated, counted from its first attempt."""
_AT_ONCE = 16
"""The number of index files that are read at the same time."""


class _Described(NamedTuple):
    """A topic of the tier, in the form that `Catalog` returns."""

    queues: list[QueueInfo]
    identity: TopicIdentity
    """The identity of the topic that is read; the topic may have been deleted since."""


class _Run(NamedTuple):
    """Consecutive messages of one queue in one segment."""

    segment: Segment
    run: QueueRun


class _Listing(NamedTuple):
    """The runs of all topics, by (topic id, queue id), lowest segment first; `ids` maps a topic's name to its id."""

    cluster: str
    runs: dict[tuple[int, int], list[_Run]]
    ids: dict[str, int]


class TierCopy:
    """A LogCopy of a tier. A Spark task only calls `items`, `read` and `close`, which need no manifest."""

    read_bytes = 8 << 20

    def __init__(self, url: str, cluster: str | None = None, store: ObjectStore | None = None) -> None:
        """`cluster`: the cluster's uuid, needed if a store has several. `store`: the object store to use instead of the
        one at the URL. Raises CopyError."""
        self.name = url
        self._cluster = cluster
        self._group = group_at(url)
        self._indexes: dict[str, IndexFile] = {}
        self._found: _Listing | None = None
        with self._told():
            opened = open_store(url) if store is None else store
            self._store = RetryingStore(opened, RetryPolicy(total_s=TOTAL_S), random.Random(), RequestCounts())
        self._shared = SharedObjects(self._store)
        self._loop = asyncio.new_event_loop()

    # -- the plan

    def topics(self) -> list[str]:
        return sorted(self._listing().ids.keys() - SYSTEM_TOPICS)

    def describe_topic(self, name: str) -> _Described:
        """Implements `LogCopy.describe_topic`. The range of a queue begins after its last gap, because retention
        removed messages there."""
        topic_id = self._topic_id(name)
        known = {queue: _kept(runs) for (topic, queue), runs in self._listing().runs.items() if topic == topic_id}
        queues = [
            QueueInfo(number_of(self._group, queue), *known.get(queue, (0, 0))) for queue in range(max(known) + 1)
        ]
        return _Described(queues, TopicIdentity(self._listing().cluster, self._group, topic_id))

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        runs = self._listing().runs.get((self._topic_id(topic), queue_in_group(queue_id)), [])
        first, end = _kept(runs)
        for segment, run in runs:
            if run.first_offset >= first:
                found = self._steps(segment, partial(_by_time, run, timestamp_ms))
                if found < run.first_offset + run.count:
                    return found
        return end

    def segments(self, ranges: Sequence[QueueRange]) -> list[CopyPart]:
        spans: dict[Segment, list[Span]] = {}
        for planned in ranges:
            topic_id, queue_id = self._topic_id(planned.topic), queue_in_group(planned.queue_id)
            for segment, run in self._listing().runs.get((topic_id, queue_id), []):
                start, end = max(planned.start, run.first_offset), min(planned.end, run.first_offset + run.count)
                if start < end:
                    span = Span(planned.topic, topic_id, queue_id, start, end, run.first_offset, self._group)
                    spans.setdefault(segment, []).append(span)
        return [CopyPart(segment, tuple(spans[segment])) for segment in sorted(spans)]

    def log(self) -> list[Segment]:

        async def read() -> list[Segment]:
            folder = self._cluster or await self._only_cluster()
            return [_segment(folder, each) for each in await self._listed(folder)]

        with self._told():
            return self._run(read())

    def _topic_id(self, name: str) -> int:
        ids = self._listing().ids
        if name not in ids:
            raise NotFound(f"{self.name} has no topic {name}", hint="the newest messages are not in the tier yet")
        return ids[name]

    def _listing(self) -> _Listing:
        if self._found is None:
            with self._told():
                self._found = self._run(self._list())
        return self._found

    async def _list(self) -> _Listing:
        folder = self._cluster or await self._only_cluster()
        segments = [_segment(folder, each) for each in await self._listed(folder)]
        room = asyncio.Semaphore(_AT_ONCE)

        async def read(segment: Segment) -> list[QueueRun]:
            async with room:
                return await self._queues(segment)

        found = await asyncio.gather(*map(read, segments))
        runs: dict[tuple[int, int], list[_Run]] = {}
        for segment, queues in zip(segments, found, strict=True):
            for run in queues:
                runs.setdefault((run.topic_id, run.queue_id), []).append(_Run(segment, run))
        first = {topic_id: of_queue[0] for (topic_id, _), of_queue in sorted(runs.items(), reverse=True)}
        return _Listing(
            folder, runs, {await self._topic_name(*first[topic_id]): topic_id for topic_id in sorted(first)}
        )

    async def _only_cluster(self) -> str:
        """Returns the folder of the cluster that the store belongs to. Raises CopyError unless there is exactly one."""
        found = await clusters_of(self._store)
        if len(found) != 1:
            raise CopyError(
                f"{self.name} holds the tiers of {len(found)} clusters",
                ", ".join(found) or "nothing was uploaded there yet",
                "name one by its uuid: the option cluster" if found else "is this the value of tier.url?",
            )
        return found[0]

    async def _listed(self, folder: str) -> list[Listed]:
        """Returns every segment that the manifest lists."""

        async def get(name: str, size: int) -> Data:
            return (await self._store.get(f"{folder}/{name}", size)).data

        return await all_segments(await self._manifest(folder), get)

    async def _manifest(self, folder: str) -> TierManifest:
        stored = await self._store.get(f"{folder}/{HEAD}", HEAD_BYTES_MAX)
        head = decode_head(stored.data)
        body = (await self._store.get(f"{folder}/{head.key}", MANIFEST_BYTES_MAX)).data
        if sha256(body).hexdigest() != head.sha256:
            raise CopyError(
                f"{self.name}/{folder}/{head.key} is damaged", f"{HEAD} has another SHA-256", "raftmq tier repair"
            )
        return decode(body, TierManifest)

    async def _queues(self, segment: Segment) -> list[QueueRun]:
        """Returns every queue of the segment, from its index file."""
        index = await self._index(segment)
        found: list[QueueRun] = []
        for steps in index.blocks(QUEUES):
            found += [QueueRun(*row) for row in QUEUE_FORM.iter_unpack(await self._drive(segment, steps))]
        return found

    async def _topic_name(self, segment: Segment, run: QueueRun) -> str:
        item = await self._drive(segment, (await self._index(segment)).items(run, run.first_offset, 1))
        position, size, *_ = ITEM.unpack(item)
        place = place_of(segment.places, position)
        data = await self._shared.get_range(place.name, position - place.base, position + size - place.base)
        try:
            return decode_message(data, hosts=False)[0].topic
        except MessageFormatError as error:
            raise CopyError(
                f"{self.found(place).name} is damaged at position {position} of the log",
                str(error),
                "raftmq tier repair",
            ) from error

    # -- the tasks

    def items(self, segment: Segment, span: Span) -> bytes:

        async def read() -> bytes:
            index = await self._index(segment)
            run = await self._drive(segment, index.queue(span.topic_id, span.queue_id))
            if run is None:
                return b""
            return await self._drive(segment, index.items(run, span.start, span.end - span.start))

        with self._told():
            return self._run(read())

    def read(self, place: Place, start: int, stop: int) -> bytes:
        with self._told():
            return self._run(self._shared.get_range(place.name, start - place.base, stop - place.base))

    def found(self, place: Place) -> Place:
        return place._replace(name=self._shared.where(place.name))

    def close(self) -> None:
        try:
            self._run(self._store.close())
        finally:
            self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end. asyncio.Runner is not used: it sets a signal handler each time, for which
        CPython formats the task with its result, and formatting the megabytes of log in that result takes long."""
        return self._loop.run_until_complete(coroutine)

    def _steps(self, segment: Segment, steps: Callable[[IndexFile], Steps[T]]) -> T:
        async def read() -> T:
            return await self._drive(segment, steps(await self._index(segment)))

        with self._told():
            return self._run(read())

    async def _index(self, segment: Segment) -> IndexFile:
        name, size = _index_of(segment)
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = await self._drive(segment, open_index(size))
        return index

    async def _drive(self, segment: Segment, steps: Steps[T]) -> T:
        name, _ = _index_of(segment)
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(await self._shared.get_range(name, wanted.at, wanted.at + wanted.length))
        except StopIteration as end:
            found: T = end.value
            return found
        except IndexFileError as error:
            raise CopyError(
                f"{self.name}/{self._shared.where(name)} is damaged",
                f"{error}; it is the index of the log from {segment.base} on",
                _REPAIR,
            ) from error

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except LocalError as error:
            raise CopyError(error.what, error.why, error.fix) from error
        except NoObject as error:
            raise CopyError(
                f"{self.name} lacks an object",
                f"{error.what}; what the tier keeps no longer is removed {REMOVED_AFTER}",
                error.fix or _READ_AGAIN,
            ) from error
        except StoreError as error:
            raise CopyError(f"{self.name} cannot be read", error.what, error.fix or _REPAIR) from error
        except msgspec.MsgspecError as error:
            raise CopyError(f"the manifest in {self.name} cannot be read", str(error), "raftmq tier repair") from error


REMOVED_AFTER = "tier.delete_delay_ms after the manifest has forgotten it"
_READ_AGAIN = (
    "read again, from where the tier begins now; if that fails too: raftmq tier repair; of a cluster that was restored "
    "from a tier, the objects that lie below its ancestor's id must be in this store as well"
)
_REPAIR = "raftmq tier verify, then raftmq tier repair"


def _segment(folder: str, listed: Listed) -> Segment:
    places, at = [], listed.base
    for part in sorted(listed.parts, key=lambda part: part.name):
        places.append(Place(at, at + part.size, f"{folder}/{part.name}"))
        at += part.size
    index = (f"{folder}/{listed.index[0].name}", listed.index[0].size) if listed.index else None
    return Segment(listed.base, listed.end, tuple(places), index)


def _by_time(run: QueueRun, timestamp_ms: int, index: IndexFile) -> Steps[int]:
    return index.offset_by_time(run, timestamp_ms)


def _index_of(segment: Segment) -> tuple[str, int]:
    """Returns (name, size) of the segment's index file. Raises CopyError if it has none: leaving the segment out would
    lose its messages."""
    if segment.index_file is None:
        raise CopyError(f"the segment at position {segment.base} has no index file in the tier", "", _REPAIR)
    return segment.index_file


def _kept(runs: Sequence[_Run]) -> tuple[int, int]:
    """Returns (first, end) of the offsets above the last gap."""
    first = end = 0
    for number, (_, run) in enumerate(runs):
        if not number or run.first_offset != end:
            first = run.first_offset
        end = run.first_offset + run.count
    return first, end
