"""Compares a table with its topics: how far each queue is, how far behind, and the files of the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from raftmq.client.consuming.pull import PullStatus
from raftmq.client.errors import NotFound
from raftmq.client.sync import Client
from raftmq.tables.day_files import ERROR
from raftmq.tables.delta_log import opened, topics_in
from raftmq.tables.delta_table import positions_in
from raftmq.tables.errors import TableError
from raftmq.tables.keepers import is_kept
from raftmq.tables.missing import Kept, Queue, kept_of
from raftmq.tables.table_folder import TablePlace
from raftmq.tables.upkeep import SMALL_BYTES
from raftmq_wire.topic_identity import Position


class QueueStatus(NamedTuple):
    """The state of one queue: messages that the table lacks, and the age in seconds of the oldest of them. `problem`:
    the reason why the table cannot be continued in this queue; "" if it can."""

    topic: str
    queue_id: int
    offset: int
    behind: int
    behind_s: float
    problem: str


class TableStatus(NamedTuple):
    """The newest version of a table. `small`: the number of its files below 16 MiB. `unfit`: the number of its rows
    with bodies that do not fit the columns of fields. `committed_ms`: the time of the last commit, by the clock of its
    writer. `kept`: True if a run keeps the table now. `behind` and `behind_s`: the sum and the maximum of those of the
    queues. `gone`: topics of the table that no longer exist."""

    version: int
    committed_ms: int
    files: int
    small: int
    bytes: int
    rows: int
    unfit: int
    kept: bool
    behind: int
    behind_s: float
    gone: list[str]
    queues: list[QueueStatus]


class TableFacts(NamedTuple):
    """Facts about the newest version of a table: for example the `sizes` of its files. `positions` is a function that
    takes queues and returns the positions of those that the table has."""

    version: int
    committed_ms: int
    sizes: Sequence[int]
    rows: int
    unfit: int
    topics: Sequence[str]
    positions: Callable[[Iterable[Queue]], dict[Queue, Position]]


def table_status(mq: Client, folder: TablePlace, facts: TableFacts | None = None) -> TableStatus:
    """Compares the table with its topics. `facts`: the facts of an Iceberg table; None for a Delta table. Raises
    TableError if there is no table that a run or an export made, and RaftMQErrors."""
    facts = delta_facts(folder) if facts is None else facts
    kept: dict[Queue, Kept] = {}
    gone: list[str] = []
    for topic in facts.topics:
        try:
            kept |= kept_of(topic, mq.admin.describe_topic(topic))
        except NotFound:
            gone.append(topic)
    reached = facts.positions(kept)
    new = {queue: Position(found.first, found.counted_in) for queue, found in kept.items() if found.first < found.end}
    queues = [_status(mq, queue, position, kept[queue]) for queue, position in sorted((new | reached).items())]
    return TableStatus(
        version=facts.version,
        committed_ms=facts.committed_ms,
        files=len(facts.sizes),
        small=sum(size < SMALL_BYTES for size in facts.sizes),
        bytes=sum(facts.sizes),
        rows=facts.rows,
        unfit=facts.unfit,
        kept=is_kept(folder),
        behind=sum(queue.behind for queue in queues),
        behind_s=max((queue.behind_s for queue in queues), default=0.0),
        gone=gone,
        queues=queues,
    )


def delta_facts(folder: TablePlace) -> TableFacts:
    """Reads a Delta table. Raises TableError if there is none, or if neither a run nor an export made it."""
    table = opened(folder)
    adds = table.get_add_actions(flatten=True)
    topics = topics_in(table)
    if not topics:
        raise TableError(
            f"the table {folder} names no topic", "no run and no export of this version wrote it", "raftmq table --help"
        )
    return TableFacts(
        version=table.version(),
        committed_ms=table.history(1)[0].get("timestamp", 0),
        sizes=[size.as_py() for size in adds.column("size_bytes")],
        rows=sum(count.as_py() or 0 for count in adds.column("num_records")),
        unfit=_unfit(adds),
        topics=topics,
        positions=lambda queues: positions_in(table, queues),
    )


def _unfit(adds: Any) -> int:
    """Returns the number of rows whose error column is set, from the statistics of the files."""
    name = f"null_count.{ERROR}"
    if name not in adds.schema.names:
        return 0
    counts = zip(adds.column("num_records"), adds.column(name), strict=True)
    return sum(count.as_py() - nulls.as_py() for count, nulls in counts if None not in (count.as_py(), nulls.as_py()))


def _status(mq: Client, queue: Queue, position: Position, kept: Kept) -> QueueStatus:
    at = position.offset
    problem = position.why_not_in(kept.counted_in)
    if not problem and not kept.first <= at <= kept.end:
        problem = f"the queue keeps offsets {kept.first} up to, not including, {kept.end}"
    behind = 0 if problem else kept.end - at
    return QueueStatus(*queue, at, behind, _age_s(mq, queue, at) if behind else 0.0, problem)


def _age_s(mq: Client, queue: Queue, offset: int) -> float:
    """Returns the age of the message at this offset in seconds, by its log time; 0 if it has been removed."""
    pulled = mq.pull(*queue, offset, 1)
    if pulled.status is not PullStatus.FOUND or not pulled.messages:
        return 0.0
    return max(0.0, time.time() - pulled.messages[0].store_ms / 1000)
