"""A copy of the log made of files: a backup, or the directory of a node that is stopped.

The rows of a checkpoint say where the messages of each queue lie in the segment files. A database that a node has open
is never read: the newest checkpoint in a node's directory is read instead, with the log up to the point where the
checkpoint was made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

from cluster.backup import manifest as manifests
from cluster.backup.manifest import LOG, MANIFEST, STATE
from cluster.backup.segments import parts_below
from cluster.broker.name_rules import SYSTEM_TOPICS
from cluster.state.checkpoints import Checkpoints
from raftlog.errors import RaftLogError
from raftlog.storage.files import identity as identities
from raftlog.storage.files import layout
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftmq.arrow.log_copy import CopyError, CopyPart, Place, Segment, Span
from raftmq.arrow.ranges import QueueRange
from raftmq.client.admin import QueueInfo
from raftmq.client.errors import NotFound
from raftmq_wire.errors import LocalError
from raftmq_wire.queue_numbers import number_of, queue_in_group
from raftmq_wire.topic_identity import TopicIdentity
from statemachine import queue_reads
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.index_file.index_of_rows import queue_items
from statemachine.rows.keys import INDEX_BUCKET, INDEX_BUCKET_KEY_SIZE, U64, U64_MAX
from statemachine.rows.kv import INDEX, KV
from statemachine.topics.topics import TopicConfig, Topics


class _Files(NamedTuple):
    """The files of a copy: `state` is a checkpoint, `places` are segment files, lowest first. `cluster` and `group`:
    the cluster and the group of brokers whose log it is."""

    state: Path
    places: list[Place]
    cluster: str
    group: int


class _Kept(NamedTuple):
    """A topic of a checkpoint, described in the form that `Catalog` returns."""

    queues: list[QueueInfo]
    identity: TopicIdentity


class FileCopy:
    """A LogCopy of files: a backup, or the data directory of a node."""

    read_bytes = 2 << 20  # reads of more bytes need fresh memory, whose page faults cost more than further calls

    def __init__(self, path: Path) -> None:
        """`path`: the folder of a backup, or a node's data directory. Raises CopyError."""
        self.name = str(path)
        with _told(path):
            self._files = _find(path)
            self._reader = CheckpointReader(self._files.state)
            self._kv = cast("KV", self._reader)  # the database is only read: `get`, `scan` and `seek_last`
            self._topics = Topics(self._kv).by_name
        self._open: dict[str, int] = {}

    def topics(self) -> list[str]:
        return sorted(self._topics.keys() - SYSTEM_TOPICS)

    def describe_topic(self, name: str) -> _Kept:
        topic = self._topic(name)
        with _told(self._files.state):
            queues = [self._queue(topic.id, queue_id) for queue_id in range(topic.queues)]
            return _Kept(queues, TopicIdentity(self._files.cluster, self._files.group, topic.id))

    def _topic(self, name: str) -> TopicConfig:
        found = self._topics.get(name)
        if found is None:
            raise NotFound(f"{self.name} has no topic {name}", hint="topics made later are in no copy made before")
        return found

    def _queue(self, topic_id: int, queue_id: int) -> QueueInfo:
        """Returns the bounds of a queue within the segment files. Rows below the first segment file may still exist,
        because a TRIM removes them in slices."""
        end = queue_reads.end_offset(self._kv, topic_id, queue_id)
        first = min(end, queue_reads.first_offset(self._kv, topic_id, queue_id))
        if first < end and (base := self._files.places[0].base):
            in_files = self._first_at(topic_id, queue_id, base)
            first = end if in_files is None else max(first, in_files)
        return QueueInfo(number_of(self._files.group, queue_id), first, end)

    def _first_at(self, topic_id: int, queue_id: int, position: int) -> int | None:
        """Returns the offset of the queue's first message at or above the position; None if there is none."""
        first, pieces = queue_items(self._kv, topic_id, queue_id, position, U64_MAX)
        return first if next(pieces, b"") else None

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        topic_id, queue_id = self._topic(topic).id, queue_in_group(queue_id)
        with _told(self._files.state):
            kept = self._queue(topic_id, queue_id)
            return queue_reads.offset_by_time(
                self._kv, topic_id, queue_id, timestamp_ms, False, kept.min_offset, kept.max_offset
            )

    def segments(self, ranges: Sequence[QueueRange]) -> list[CopyPart]:
        spans: dict[Place, list[Span]] = {place: [] for place in self._files.places}
        with _told(self._files.state):
            for planned in ranges:
                for place, span in self._spans(planned):
                    spans[place].append(span)
        return [
            CopyPart(Segment(place.base, place.end, (place,)), tuple(found)) for place, found in spans.items() if found
        ]

    def _spans(self, planned: QueueRange) -> Iterator[tuple[Place, Span]]:
        topic_id, queue_id = self._topic(planned.topic).id, queue_in_group(planned.queue_id)
        first = planned.start
        for place in self._files.places:
            if first >= planned.end:
                return
            after = self._first_at(topic_id, queue_id, place.end)
            end = planned.end if after is None else min(after, planned.end)
            if first < end:
                yield place, Span(planned.topic, topic_id, queue_id, first, end, first, self._files.group)
                first = end

    def log(self) -> list[Segment]:
        return [Segment(place.base, place.end, (place,)) for place in self._files.places]

    @property
    def rows(self) -> KV:
        """The checkpoint's rows: `get`, `scan` and `seek_last`."""
        return self._kv

    def closed_ms(self, segment: Segment) -> int | None:
        """Returns the log time at which the index bucket of the segment's keys was closed, according to the checkpoint;
        None if it has no such bucket."""
        row = next(self._kv.scan(INDEX, U64.pack(segment.base), U64.pack(segment.end)), None)
        return None if row is None or len(row[0]) != INDEX_BUCKET_KEY_SIZE else INDEX_BUCKET.unpack(row[1])[1]

    @property
    def end_position(self) -> int:
        """The position of the log's end when the checkpoint was made."""
        return self._reader.mark.end_position

    @property
    def queues(self) -> list[tuple[int, int]]:
        """(topic_id, queue_id) of every queue that a topic has or had."""
        return [
            (topic.id, queue_id) for topic in self._topics.values() for queue_id in range(self._stored_queues(topic))
        ]

    def _stored_queues(self, topic: TopicConfig) -> int:
        """Returns the number of queues that the topic has or had, as `BrokerState.stored_queues` does."""
        return max(topic.queues, queue_reads.queues_with_rows(self._kv, topic.id))

    @property
    def applied_index(self) -> int:
        """The index of the checkpoint's last entry."""
        return self._reader.mark.index

    def digest(self) -> dict[str, int]:
        """Returns family -> the sum of its rows; equal sums mean equal rows. Reads all rows."""
        with _told(self._files.state):
            return self._reader.digest()

    def names(self) -> dict[int, str]:
        """Returns topic id -> name."""
        return {topic.id: topic.name for topic in self._topics.values()}

    def items(self, segment: Segment, span: Span) -> bytes:
        with _told(self._files.state):
            return queue_reads.fetch_packed(self._kv, span.topic_id, span.queue_id, span.start, span.end)

    def read(self, place: Place, start: int, stop: int) -> bytes:
        with _told(Path(place.name)):
            descriptor = self._open.get(place.name)
            if descriptor is None:
                descriptor = self._open[place.name] = os.open(place.name, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(descriptor, stop - start, LOCAL_HEADER_SIZE + start - place.base)

    def found(self, place: Place) -> Place:
        return place

    def close(self) -> None:
        self._reader.close()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def _find(path: Path) -> _Files:
    if (path / MANIFEST).exists():
        manifest = manifests.load(path)
        places = [
            Place(
                record.base_position, record.end_position, str(path / LOG / layout.segment_name(record.base_position))
            )
            for record in manifest.segments
        ]
        return _Files(path / STATE, places, manifest.cluster_uuid, manifest.group_id)
    if not (path / layout.IDENTITY).exists():
        raise CopyError(
            f"{path} is no copy of a log",
            f"it holds neither {MANIFEST}, as a backup does, nor {layout.IDENTITY}, as the directory of a node does",
            "raftmq backup create --to DIR, then name the folder in DIR",
        )
    fs = OsFileSystem()
    identity = identities.load(fs, path)
    group_id = identity.group_id
    newest = next(iter(Checkpoints(fs, path, group_id).all()), None)
    if newest is None:
        raise CopyError(
            f"{path} has no checkpoint yet", "the node makes one from time to time", "make a backup instead"
        )
    mark = newest.manifest.mark
    parts = parts_below(path / layout.LOG, mark.end_position, mark.header_crc, group_id)
    places = [Place(each.header.base_position, each.end_position, str(each.path)) for each in parts]
    return _Files(newest.path, places, str(identity.cluster_uuid), group_id)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except LocalError as error:
        raise CopyError(error.what, error.why, error.fix) from error
    except OSError as error:
        why = "it was removed meanwhile: a node that runs trims its log" if isinstance(error, FileNotFoundError) else ""
        raise CopyError(
            f"{error.filename or path} cannot be read", why or error.strerror or str(error), "read a backup"
        ) from error
    except RaftLogError as error:
        raise CopyError(f"{path} is damaged", str(error), "raftmq backup verify, then use another copy") from error
