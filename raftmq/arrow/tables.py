"""`read_arrow` and `read_pandas`: a range of a topic as one table, and the batches that it is made of."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from raftmq.arrow.columns import COLUMNS, DEFAULT_COLUMNS, arrow_schema, require_arrow
from raftmq.arrow.ranges import EARLIEST, LATEST, QueueRange, bounds_of, plan_topic
from raftmq.client.sync import Client, connect

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

BATCH_ROWS = 8192
FOLLOWER = "follower"
LEADER = "leader"
Position = str | int | datetime.datetime
"""earliest, latest, a queue offset, or a time (aware datetime)."""


class Selection(NamedTuple):
    """The part of a topic that is to be read: `ranges` were fixed when the selection was made."""

    columns: tuple[str, ...]
    ranges: tuple[QueueRange, ...]
    read_from: str

    @property
    def messages(self) -> int:
        """The number of rows that there will be."""
        return sum(planned.end - planned.start for planned in self.ranges)


def read_arrow(
    topic: str,
    start: Position | Mapping[int, Position] = EARLIEST,
    end: Position | Mapping[int, Position] = LATEST,
    *,
    columns: Sequence[str] | None = None,
    servers: str | Iterable[str] | None = None,
    read_from: str = FOLLOWER,
) -> pa.Table:
    """The messages of `topic` as a table: queue by queue, in the order of their offsets.

    `start` is inclusive and `end` exclusive; each is one position for all queues, or a dict by queue id. Both are fixed
    before the first message is read, and everything acknowledged by then is in. `read_from`: "follower" spares the
    leader. Raises ValueError for what is not understood, NotFound for no such topic, Unreadable if an offset is not
    there or not any more, other RaftMQErrors, and LocalError where pyarrow is missing.
    """
    require_arrow()
    import pyarrow as pa

    with connect(servers) as mq:
        selection = select(mq, topic, start, end, columns=columns, read_from=read_from)
        return pa.Table.from_batches(list(read_batches(mq, selection)), arrow_schema(selection.columns))


def read_pandas(
    topic: str,
    start: Position | Mapping[int, Position] = EARLIEST,
    end: Position | Mapping[int, Position] = LATEST,
    *,
    columns: Sequence[str] | None = None,
    servers: str | Iterable[str] | None = None,
    read_from: str = FOLLOWER,
) -> pd.DataFrame:
    """Reads like `read_arrow` and returns a data frame of pandas, which has to be installed."""
    return read_arrow(topic, start, end, columns=columns, servers=servers, read_from=read_from).to_pandas()


def select(
    mq: Client,
    topic: str,
    start: Position | Mapping[int, Position] = EARLIEST,
    end: Position | Mapping[int, Position] = LATEST,
    *,
    columns: Sequence[str] | None = None,
    read_from: str = FOLLOWER,
) -> Selection:
    """Fixes what is read. Raises as `read_arrow`."""
    names = DEFAULT_COLUMNS if columns is None else tuple(columns)
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(COLUMNS)}")
    if read_from not in (FOLLOWER, LEADER):
        raise ValueError(f'read_from={read_from!r} is not "follower" or "leader"')
    starting, ending = bounds_of("start", start, EARLIEST), bounds_of("end", end, LATEST)
    planned = plan_topic(mq.admin, topic, starting, ending, words=("start", "end"))
    return Selection(names, tuple(each for each in planned if each.start < each.end), read_from)


def read_batches(mq: Client, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The selection, queue by queue. Raises Unreadable."""
    from raftmq.arrow.reading import RangeReader

    followers = followers_of(mq) if selection.read_from == FOLLOWER else []
    for planned in selection.ranges:
        node = node_for(planned.queue_id, followers)
        reader = RangeReader(mq, planned, node=node)
        yield from reader.batches(selection.columns, BATCH_ROWS)
        if node is not None and reader.node is None:
            followers.remove(node)  # it failed or lags: the next queues need not find that out again


def followers_of(mq: Client) -> list[str]:
    """Addresses of the nodes that do not lead, in order of their ids."""
    members = mq.admin.members()
    return [members[broker_id] for broker_id in sorted(members, key=int) if broker_id != "0"]


def node_for(queue_id: int, followers: Sequence[str]) -> str | None:
    """Returns the follower from which a queue is read: they share the queues. None: the leader, as there is no
    other."""
    return followers[queue_id % len(followers)] if followers else None
