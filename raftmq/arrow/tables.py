"""`read_arrow` and `read_pandas`: a range of a topic as one table; and its parts, the selection and the batches."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from raftmq.arrow.columns import COLUMNS, DEFAULT_COLUMNS, arrow_schema, require_arrow
from raftmq.arrow.log_copy import FILES, TIER, CopySource
from raftmq.arrow.ranges import EARLIEST, LATEST, Bounds, QueueRange, Unreadable, bounds_of, plan_topic
from raftmq.arrow.undecodable import RAW, Undecodable
from raftmq.client.errors import RaftMQError
from raftmq.client.sync import Client, connect
from raftmq.client.tls import Tls
from raftmq.server_home import use_formats
from raftmq_wire.local_path import check_local
from raftmq_wire.queue_numbers import FIRST_GROUP, group_of
from raftmq_wire.topic_identity import Position, why_another

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

logger = logging.getLogger(__name__)

BATCH_ROWS = 8192
READERS = 2
"""The number of queues that are read at the same time: while frames of one are on their way, those of another become
columns."""
FOLLOWER = "follower"
LEADER = "leader"
WrittenBound = str | int | datetime.datetime | Position
"""A bound as a user writes it: earliest, latest, a queue offset, a time (aware datetime), or an offset with the topic
in which it counts."""


class Selection(NamedTuple):
    """The part of a topic to be read: `ranges` were fixed when the selection was made."""

    columns: tuple[str, ...]
    ranges: tuple[QueueRange, ...]
    read_from: str

    @property
    def messages(self) -> int:
        """The number of rows that reading the selection gives."""
        return sum(planned.end - planned.start for planned in self.ranges)


def read_arrow(
    topic: str,
    start: WrittenBound | Mapping[int, WrittenBound] = EARLIEST,
    end: WrittenBound | Mapping[int, WrittenBound] = LATEST,
    *,
    columns: Sequence[str] | None = None,
    servers: str | Iterable[str] | None = None,
    access_key: str = "",
    secret_key: str = "",
    tls: Tls | bool | None = None,
    read_from: str = FOLLOWER,
    path: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    on_undecodable: str = RAW,
) -> pa.Table:
    """Reads messages of `topic` into a table: queue by queue, in the order of their offsets.

    `start` is inclusive and `end` exclusive; each is one position for all queues, or a dict by queue id. Both are fixed
    before the first message is read, and everything acknowledged by then is included. `servers`, `access_key`,
    `secret_key` and `tls` are those of `connect`. `read_from`: "follower" spares the leader; "leader"; or a copy of the
    log, without a cluster: "files", where `path` is a backup or the directory of a stopped node, or "tier", where it is
    the store's URL and `cluster` the uuid of its cluster, if several use the store. A copy needs the server's package,
    and this process can import its modules from then on. `on_undecodable` says what becomes of a message whose body
    cannot be decompressed: "raw", the body is as stored, "skip", there is no row, or "fail", the read raises
    Unreadable, which names the message; without the column `body` nothing is decompressed.

    Raises ValueError for arguments that are not understood, NotFound if there is no such topic, Unreadable if an offset
    does not exist, or no longer, other RaftMQErrors, and LocalError if pyarrow is missing.
    """
    require_arrow()
    import pyarrow as pa

    undecodable, names = Undecodable(on_undecodable), _names(columns)
    if read_from in (FILES, TIER):
        of_a_cluster = {"servers": servers, "access_key": access_key, "secret_key": secret_key, "tls": tls}
        source = _source(read_from, path, cluster, of_a_cluster)
        bounds = bounds_of("start", start, EARLIEST), bounds_of("end", end, LATEST)
        table = _copy_table(source, topic, bounds, names, undecodable)
        undecodable.tell(topic)
        return table
    if path is not None or cluster is not None:
        raise ValueError(f'path and cluster are for read_from="files" or "tier", and read_from={read_from!r}')
    with connect(servers, access_key=access_key, secret_key=secret_key, tls=tls) as mq:
        selection = select(mq, topic, start, end, columns=names, read_from=read_from)
        reads = QueueReads(mq, read_from)

        def read(planned: QueueRange) -> list[pa.RecordBatch]:
            return [*reads.batches(planned, selection.columns, BATCH_ROWS, undecodable)]

        with ThreadPoolExecutor(READERS) as pool:
            batches = [batch for queue in pool.map(read, selection.ranges) for batch in queue]
        undecodable.tell(topic)
        return pa.Table.from_batches(batches, arrow_schema(selection.columns))


def read_pandas(
    topic: str,
    start: WrittenBound | Mapping[int, WrittenBound] = EARLIEST,
    end: WrittenBound | Mapping[int, WrittenBound] = LATEST,
    *,
    columns: Sequence[str] | None = None,
    servers: str | Iterable[str] | None = None,
    access_key: str = "",
    secret_key: str = "",
    tls: Tls | bool | None = None,
    read_from: str = FOLLOWER,
    path: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    on_undecodable: str = RAW,
) -> pd.DataFrame:
    """Reads like `read_arrow` and returns a data frame of pandas; pandas must be installed."""
    table = read_arrow(
        topic,
        start,
        end,
        columns=columns,
        servers=servers,
        access_key=access_key,
        secret_key=secret_key,
        tls=tls,
        read_from=read_from,
        path=path,
        cluster=cluster,
        on_undecodable=on_undecodable,
    )
    return table.to_pandas()


def _source(
    kind: str, path: str | os.PathLike[str] | None, cluster: str | None, given: Mapping[str, object]
) -> CopySource:
    """Returns the copy to read. Raises ValueError for arguments that contradict each other."""
    if path is None:
        what = "the folder of a backup or of a stopped node" if kind == FILES else "the URL of the store"
        raise ValueError(f"read_from={kind!r} needs path: {what}")
    if kind == FILES and cluster is not None:
        raise ValueError('cluster is for read_from="tier": files are those of one cluster')
    if kind == FILES:
        check_local(path, "path")
    if named := next((name for name, value in given.items() if value not in (None, "")), ""):
        raise ValueError(f"{named} was given, and read_from={kind!r} asks no cluster")
    return CopySource(kind, os.fspath(path), cluster)


def _copy_table(
    source: CopySource, topic: str, bounds: tuple[Bounds, Bounds], names: tuple[str, ...], undecodable: Undecodable
) -> pa.Table:
    """Returns the messages of a copy. The module that reads copies belongs to the server's package, which the client
    does not depend on, so it is imported by name here. Raises LocalError without that package, CopyError and
    Unreadable."""
    use_formats(f"read_from={source.kind!r}")
    table: pa.Table = import_module("raftmq.copies.copy_tables").copy_table(source, topic, bounds, names, undecodable)
    return table


def _names(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the columns to read. Raises ValueError for an unknown column."""
    names = DEFAULT_COLUMNS if columns is None else tuple(columns)
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(COLUMNS)}")
    return names


def select(
    mq: Client,
    topic: str,
    start: WrittenBound | Mapping[int, WrittenBound] = EARLIEST,
    end: WrittenBound | Mapping[int, WrittenBound] = LATEST,
    *,
    columns: Sequence[str] | None = None,
    read_from: str = FOLLOWER,
) -> Selection:
    """Fixes the part of a topic that is to be read. Raises as `read_arrow` does."""
    names = _names(columns)
    if read_from not in (FOLLOWER, LEADER):
        raise ValueError(f'read_from={read_from!r} is not "follower", "leader", "files" or "tier"')
    starting, ending = bounds_of("start", start, EARLIEST), bounds_of("end", end, LATEST)
    planned = plan_topic(mq.admin, topic, starting, ending, words=("start", "end"))
    return Selection(names, tuple(each for each in planned if each.start < each.end), read_from)


class QueueReads:
    """Reads queues one by one, or some at once in several threads: each from a follower of its group while one answers.
    A follower that failed or lags is not used for further queues."""

    def __init__(self, mq: Client, read_from: str = FOLLOWER) -> None:
        self._mq = mq
        self._read_from = read_from
        self._followers: dict[int, list[str]] = {}
        """Number of a group -> its followers that have not failed."""
        self._lock = threading.Lock()

    def batches(
        self, planned: QueueRange, columns: Sequence[str], batch_rows: int, undecodable: Undecodable | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the batches of one range. All rows belong to the topic for which the range was planned, not to a later
        one of the same name. Raises Unreadable and other RaftMQErrors."""
        from raftmq.arrow.reading import RangeReader

        check_counted(self._mq, planned)
        followers = self._followers_of(group_of(planned.queue_id))
        node = node_for(self._mq, planned, followers)
        reader = RangeReader(self._mq, planned, node=node, undecodable=undecodable)
        yield from reader.batches(columns, batch_rows)
        check_counted(self._mq, planned)
        if node is not None and reader.node is None:
            with self._lock, contextlib.suppress(ValueError):
                self._followers[group_of(planned.queue_id)].remove(node)

    def _followers_of(self, group: int) -> list[str]:
        with self._lock:
            if group not in self._followers:
                self._followers[group] = followers_of(self._mq, group) if self._read_from == FOLLOWER else []
            return [*self._followers[group]]


def read_batches(mq: Client, selection: Selection, undecodable: Undecodable | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the batches of the selection, queue by queue. `undecodable` is that of RangeReader. Raises Unreadable."""
    reads = QueueReads(mq, selection.read_from)
    for planned in selection.ranges:
        yield from reads.batches(planned, selection.columns, BATCH_ROWS, undecodable)


def followers_of(mq: Client, group: int = FIRST_GROUP) -> list[str]:
    """Returns the addresses of the followers in a group of brokers, in order of their ids."""
    members = mq.admin.members(group=group)
    return [members[broker_id] for broker_id in sorted(members, key=int) if broker_id != "0"]


def node_for(mq: Client, planned: QueueRange, followers: Sequence[str]) -> str | None:
    """Returns the follower from which to read a queue; followers share the queues. Returns None, which means the
    leader, if there is no follower, or if the follower lags and still has an earlier topic of this name."""
    node = followers[planned.queue_id % len(followers)] if followers else None
    if node is None or planned.counted_in is None:
        return node
    try:
        return None if why_another(planned.counted_in, mq.admin.identity(planned.topic, node)) else node
    except RaftMQError as error:
        logger.info("%s: %s failed, the leader is asked instead: %s", planned, node, error)
        return None


def why_other_topic(mq: Client, planned: QueueRange) -> str:
    """Returns, in words, why the range does not belong to the present topic of this name; "" if it does."""
    if planned.counted_in is None:
        return ""
    return why_another(planned.counted_in, mq.admin.identity(planned.topic, queue_id=planned.queue_id))


def check_counted(mq: Client, planned: QueueRange) -> None:
    """Raises Unreadable unless the topic is the one in which the range was planned. A deleted topic never comes back.
    So if the check succeeds, everything that was read since the plan is from that topic."""
    if another := why_other_topic(mq, planned):
        raise Unreadable(
            f"{planned} cannot be read: it was planned in another topic of this name", another, "plan the read again"
        )
