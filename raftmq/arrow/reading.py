"""Reads one planned range: returns every message of it, in order, as Arrow batches, or raises an error.

Reads go to a follower by default. If a follower lacks messages that the plan includes, or does not answer, the reader
continues at the leader, so a range is read completely even if nodes stop meanwhile.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from raftmq.arrow.batches import to_batches
from raftmq.arrow.columns import ENTRY_COLUMNS
from raftmq.arrow.frames import Frames, are_of_topic, parse_frames
from raftmq.arrow.ranges import QueueRange, Unreadable
from raftmq.arrow.read_rate import ReadRate
from raftmq.arrow.row_filter import RowFilter
from raftmq.arrow.undecodable import Undecodable
from raftmq.client.consuming.pull import MAX_PULL_BYTES, PulledFrames, PullStatus
from raftmq.client.errors import Failed, RaftMQError
from raftmq_wire.message_format import MessageFormatError
from raftmq_wire.queue_numbers import group_of, queue_in_group

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_PULL_MESSAGES = 1024
PULLS = 2
"""Pulls in flight per range: while one reply is on its way, the node works on the next."""
_FILLED = 90
"""Per cent of a reply's room that pulls try to fill, if messages are so large that a reply has room for fewer than
MAX_PULL_MESSAGES. The rest is a reserve, because messages differ in size: if a reply has fewer messages than were asked
for, the pull after it must be begun again."""
_FULL_BYTES = MAX_PULL_BYTES // 2
"""If a reply has fewer messages than were asked for, but at least this many bytes, then it had no room for more."""
POSITIONS_MAX = 1024
"""The most positions of the log that one request for entries may name."""
_RUN = np.dtype([("index", ">u8"), ("term", ">u8"), ("count", ">u4")])
"""A record of the answer to request 700005. There is one for each run of positions that lie in the same log entry."""
MAX_BATCH_BYTES = 8 << 20
"""A batch is closed when its frames reach this many bytes, whatever its number of rows. A batch is in memory twice: as
frames and as columns."""
LAG_PATIENCE_S = 30.0
"""Time in seconds for which the leader may lack messages that the plan includes. A new leader applies the entries that
it has within moments of its election."""
_FOLLOWER_PATIENCE_S = 2.0
_WAIT_S = 1.0


class Puller(Protocol):
    """The part of raftmq.Client that a range reader needs."""

    def pull_frames_soon(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        node: str | None,
        wait_s: float,
        timeout_s: float,
    ) -> concurrent.futures.Future[PulledFrames]:
        """Begins a pull and returns its future, as `raftmq.client.sync.Client.pull_frames_soon` does."""

    def entries_at(self, positions: bytes, *, node: str | None, timeout_s: float, group: int) -> bytes:
        """Returns log entries, as `raftmq.client.sync.Client.entries_at` does."""


class _Pull(NamedTuple):
    """A pull in flight, of messages from offset `first` up to, not including, `end`."""

    first: int
    end: int
    pending: concurrent.futures.Future[PulledFrames]


def _cancel(flight: deque[_Pull]) -> None:
    while flight:
        flight.pop().pending.cancel()


class _PullSize:
    """Learns how many messages fit into a reply, so that the offset after a reply is known before it comes."""

    def __init__(self) -> None:
        self.count = MAX_PULL_MESSAGES
        """The number of messages to ask for in one pull."""
        self._reply_bytes = 0
        """The bytes of the last reply that had no room for more messages; 0 if there was none yet."""

    def got(self, asked: int, came: int, size: int) -> None:
        """Records a reply to a pull that asked for `asked` messages: it had `came` messages, `size` bytes in all."""
        if not size:
            return
        if came < asked and size >= _FULL_BYTES:
            self._reply_bytes = size
        if self._reply_bytes:
            fit = came * self._reply_bytes * _FILLED // (size * 100)
            self.count = max(1, min(MAX_PULL_MESSAGES, fit))


class RangeReader:
    """Reads one range once. `node` ("host:port") is asked first; None: the leader.

    With `skip_lost`, messages that retention removed are skipped with a warning, instead of raising Unreadable.
    `undecodable` decides about bodies that cannot be decompressed; without it, they raise Unreadable. `rows`: the
    filter that says which messages become rows; None: all.
    """

    def __init__(
        self,
        mq: Puller,
        planned: QueueRange,
        *,
        node: str | None = None,
        skip_lost: bool = False,
        pace: ReadRate | None = None,
        undecodable: Undecodable | None = None,
        rows: RowFilter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mq = mq
        self._planned = planned
        self._node = node
        self._skip_lost = skip_lost
        self._pace = pace or ReadRate(None)
        self._undecodable = undecodable or Undecodable()
        self._rows = rows
        self._size = _PullSize()
        self._clock = clock

    @property
    def node(self) -> str | None:
        """The node that is asked at present; None means the leader, possibly in place of a follower that failed or
        lags."""
        return self._node

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yields batches of at most `batch_rows` messages in order, together exactly the range without those that
        `rows` and `undecodable` leave out. Raises Unreadable."""
        with_entries = not ENTRY_COLUMNS.isdisjoint(columns)
        for first, next_offset, data in self._runs(batch_rows):
            frames = self._parse(first, next_offset, data)
            if with_entries:
                frames = self._with_entries(first, frames)
            if next_offset > self._planned.end:
                frames = frames.take(slice(0, self._planned.end - first))
            for batch in to_batches(frames, self._planned.topic, columns, self._undecodable, self._rows):
                for at in range(0, batch.num_rows, batch_rows):
                    yield batch.slice(at, batch_rows)

    def _runs(self, batch_rows: int) -> Iterator[tuple[int, int, bytes]]:
        """Yields (first offset, the offset after the last, frames of all between), each about as long as a batch may
        be."""
        parts: list[bytes] = []
        first = following = size = 0
        for offset, pulled in self._pulls():
            if parts and offset != following:
                yield first, following, b"".join(parts)
                parts, size = [], 0
            if not parts:
                first = offset
            parts.append(pulled.frames)
            following = pulled.next_offset
            size += len(pulled.frames)
            if following - first >= batch_rows or size >= MAX_BATCH_BYTES:
                yield first, following, b"".join(parts)
                parts, size = [], 0
        if parts:
            yield first, following, b"".join(parts)

    def _pulls(self) -> Iterator[tuple[int, PulledFrames]]:
        """Yields the result of each pull, with its first offset. The next pulls are in flight while this one is used.

        Invariant: every offset below `offset` was either yielded or left out because of `skip_lost`. The pulls in
        flight continue from there without gaps; a pull that turns out not to continue is begun again.
        """
        offset = self._planned.start
        give_up_at = self._clock() + LAG_PATIENCE_S
        flight: deque[_Pull] = deque()
        try:
            self._begin(flight, offset)
            while flight:
                pull = flight.popleft()
                pulled = self._result(pull.pending, offset)
                after = offset
                if pulled is not None:
                    after = self._after(offset, pulled, too_late=self._clock() >= give_up_at)
                    self._size.got(pull.end - offset, after - offset, len(pulled.frames))
                    self._pace.took(len(pulled.frames))
                if pulled is None or pulled.status is not PullStatus.FOUND or after != pull.end:
                    _cancel(flight)
                self._begin(flight, after)
                if pulled is not None and pulled.status is PullStatus.FOUND:
                    yield offset, pulled
                    give_up_at = self._clock() + LAG_PATIENCE_S
                offset = after
        finally:
            _cancel(flight)

    def _begin(self, flight: deque[_Pull], offset: int) -> None:
        """Begins pulls until PULLS are in flight. They continue after those in flight or, if there are none, at
        `offset`."""
        patience_s = LAG_PATIENCE_S if self._node is None else _FOLLOWER_PATIENCE_S
        first = flight[-1].end if flight else offset
        while len(flight) < PULLS and first < self._planned.end:
            count = min(self._size.count, self._planned.end - first)
            pending = self._mq.pull_frames_soon(
                self._planned.topic,
                self._planned.queue_id,
                first,
                count,
                node=self._node,
                wait_s=_WAIT_S if self._node is None else 0.0,
                timeout_s=patience_s,
            )
            flight.append(_Pull(first, first + count, pending))
            first += count

    def _result(self, pending: concurrent.futures.Future[PulledFrames], offset: int) -> PulledFrames | None:
        """Returns the result of the pull; None if a follower failed, so that the leader is asked from now on."""
        try:
            return pending.result()
        except RaftMQError as error:
            if self._node is not None:
                logger.info("%s: %s failed, the leader is asked instead: %s", self._planned, self._node, error)
                self._node = None
                return None
            raise Unreadable(
                f"reading {self._planned} stopped at offset {offset}",
                str(error),
                error.hint or "run the read again; every reader must reach the brokers",
            ) from error

    def _after(self, offset: int, pulled: PulledFrames, *, too_late: bool) -> int:
        """Returns the offset at which to continue. Raises Unreadable if planned messages are missing."""
        if pulled.status is PullStatus.FOUND:
            if pulled.next_offset <= offset:
                raise self._gap(offset, f"the cluster sent messages, and says to go on at {pulled.next_offset}")
            return pulled.next_offset
        if pulled.status is PullStatus.MOVED and offset < pulled.min_offset:
            return self._lost(offset, pulled.min_offset, "retention removed the rest")
        if self._node is not None:
            self._node = None  # the follower may lag behind the plan; the leader has every planned message
            return offset
        if too_late:
            why = f"the leader has had no more than {pulled.max_offset} for {LAG_PATIENCE_S:g} s"
            return self._lost(offset, self._planned.end, why)
        return offset

    def _lost(self, offset: int, first: int, why: str) -> int:
        if not self._skip_lost:
            raise self._gap(offset, f"the queue now begins at {first}: {why}" if first < self._planned.end else why)
        first = min(first, self._planned.end)
        logger.warning("%s: offsets %d to %d are left out: %s", self._planned, offset, first - 1, why)
        return first

    def _parse(self, first: int, next_offset: int, data: bytes) -> Frames:
        """Parses the frames of the offsets from `first` up to `next_offset`. Raises Unreadable if they are anything
        else."""
        try:
            frames = parse_frames(data)
        except MessageFormatError as error:
            raise self._gap(first, f"a reply holds what is not a stored message: {error}") from error
        head = frames.head
        wanted = np.arange(first, first + len(head))
        stored_in = queue_in_group(self._planned.queue_id)
        fits = (head["queue_offset"] == wanted) & (head["queue_id"] == stored_in)
        fits &= are_of_topic(frames, self._planned.topic)
        if not fits.all():
            at = int(np.argmin(fits))
            named = data[int(frames.topic_at[at]) : int(frames.topic_end[at])].decode(errors="replace")
            sent = f"offset {head['queue_offset'][at]} of {named} queue {head['queue_id'][at]}"
            raise self._gap(first + at, f"the cluster sent {sent}")
        if len(head) != next_offset - first:
            raise self._gap(first + len(head), f"the cluster sent no more before it went on at {next_offset}")
        return frames if stored_in == self._planned.queue_id else frames.of_queue(self._planned.queue_id)

    def _with_entries(self, first: int, frames: Frames) -> Frames:
        """Returns the frames, from offset `first` on, with the index and term of the Raft entries that contain the
        messages."""
        positions = frames.head["position"].astype(">u8")
        pieces = [positions[at : at + POSITIONS_MAX] for at in range(0, len(positions), POSITIONS_MAX)]
        found = [self._entries(first + number * POSITIONS_MAX, piece) for number, piece in enumerate(pieces)]
        index, term = (np.concatenate(columns) for columns in zip(*found, strict=True))
        return frames._replace(index=index, term=term)

    def _entries(self, offset: int, positions: Any) -> tuple[Any, Any]:
        """Returns (index, term) for each position; the first position is that of the message at `offset`. Raises
        Unreadable."""
        packed, group = positions.tobytes(), group_of(self._planned.queue_id)
        if self._node is not None:
            try:
                answer = self._mq.entries_at(packed, node=self._node, timeout_s=_FOLLOWER_PATIENCE_S, group=group)
                return _unpacked(answer, len(positions))
            except RaftMQError as error:
                logger.info("%s: %s failed, the leader is asked instead: %s", self._planned, self._node, error)
                self._node = None
        try:
            answer = self._mq.entries_at(packed, node=None, timeout_s=LAG_PATIENCE_S, group=group)
            return _unpacked(answer, len(positions))
        except RaftMQError as error:
            raise Unreadable(
                f"index and term of the messages of {self._planned} from offset {offset} on are not known",
                str(error),
                "leave these columns out, or read a copy of the log: readFrom=files or tier",
            ) from error

    def _gap(self, offset: int, why: str) -> Unreadable:
        return Unreadable(
            f"offset {offset} of {self._planned} cannot be read",
            why,
            "rows would be missing, so the read fails; read again, beginning with what is still kept",
        )


def _unpacked(answer: bytes, count: int) -> tuple[Any, Any]:
    """Returns (index, term) for each of `count` positions. Raises Failed if the answer covers another number."""
    if len(answer) % _RUN.itemsize == 0:
        runs = np.frombuffer(answer, dtype=_RUN)
        if runs["count"].sum(dtype=np.int64) == count:
            index, term = (np.repeat(runs[name].astype(np.int64), runs["count"]) for name in ("index", "term"))
            return index, term
    raise Failed(f"the answer is not of {count} positions")
