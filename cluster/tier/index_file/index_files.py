"""Builds an index file for each segment of this node that closes, in the background (docs/adr/0062).

Files are built one at a time, oldest first, in steps that leave the GIL to other threads in between. A file is removed
when the log has removed its segment. Nothing runs unless the tier is on or `index.files` is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from xxhash import xxh3_128

from cluster.runtime.context import NodeContext
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.findings import Code
from cluster.runtime.lanes import LaneRunner
from cluster.runtime.service_lifecycle import Part
from cluster.state.node_storage import NodeStorage
from cluster.tier.index_file.index_worker import (
    Build,
    BuiltFile,
    Damaged,
    Going,
    IndexAnswer,
    IndexDirectory,
    IndexJob,
    IndexLane,
    JobFailed,
    Load,
    Loaded,
    Remove,
    Removed,
    RowsGone,
    Span,
    Sweep,
    Swept,
)
from cluster.tier.object_names import INDEX
from cluster.tier.uploader import PartContent
from raftlog.errors import OutOfRangeError, RaftLogError
from raftmq_wire.checksums import crc32c
from statemachine.tier import SegmentSpan

logger = logging.getLogger(__name__)

EVERY_MS = 1000
"""Milliseconds between two looks for segments that have closed."""
GAP_MS = 10
"""Milliseconds between two jobs of a build."""
AGAIN_MS = 60_000
"""Milliseconds from a failure to the next attempt. A failure is a full disk, or damage in the log that is being
repaired."""
ALARM = Code("index_file_failed", "warning", "raftmq logs {n}")


class IndexFilesView(NamedTuple):
    """The state of the index files, for people."""

    files: int
    bytes: int
    pending_bytes: int
    """Bytes of the log in closed segments that have no index file yet."""
    last: Span | None
    """Span of the newest file; None if there is none."""
    building: Span | None
    error: str
    """The reason for which the last attempt failed; "" if it succeeded."""


class IndexUnavailableError(RaftLogError):
    """There is no index file of the segment now; the text of the error says why."""


class IndexFiles:
    """Has a lane build, check and remove index files. Event loop only, except for the lane."""

    def __init__(self, context: NodeContext, storage: NodeStorage, *, enabled: bool, gap_ms: float = GAP_MS) -> None:
        """`enabled`: False if this node builds no files. `gap_ms`: the milliseconds between two jobs of building a
        file."""
        self._gap_s = gap_ms / 1000
        self._enabled = enabled
        self._context = context
        self._clock, self._loop, self._alarms = context.clock, context.loop, context.alarms
        self._log, self._state = storage.directory.log, storage.state
        self._metrics = IndexMetrics()
        self._lane = IndexLane(IndexDirectory(context.fs, storage.directory.path), self._log, storage.kv)
        self._runner: LaneRunner[IndexJob] | None = None
        self._files: dict[Span, int] = {}
        self._built_to = 0
        """Each closed segment of the log below this position has its file, or can have none."""
        self._building: Span | None = None
        self._busy = True
        """True until the directory is read, and while a file is being built."""
        self._due_ms = 0
        self._again_ms = 0
        self._error = ""
        self._redone: Span | None = None
        """The span of the file that was last found damaged; None if none was."""
        self._waiting: dict[Span, list[asyncio.Future[bytes]]] = {}
        self._closed = False

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="index files",
            start=self.start,
            close=self.close,
            tick=self.tick,
            metrics=(self._metrics,),
        )

    def start(self) -> None:
        """Starts the lane, which first reads the directory. Does nothing if this node builds no files."""
        if self._enabled:
            context = self._context
            self._runner = context.environment.runner("index", self._lane, self._loop, self._on_done, context.fail)
            self._runner.submit(Sweep())

    async def close(self) -> None:
        """Fails the waiting calls of `load`, and returns when the lane has finished its current job. The next start
        removes unfinished files."""
        self._closed = True
        for span in list(self._waiting):
            self._settle(span, IndexUnavailableError("the node is stopping"))
        if self._runner is not None:
            await self._loop.run_in_executor(None, self._runner.close)

    def tick(self, now_ms: int) -> None:
        """Looks for closed segments, and begins the next file when it is due. Called several times a second; cheap."""
        if self._enabled and now_ms >= self._due_ms and not self._busy:
            self._due_ms = now_ms + EVERY_MS
            self._drop()
            self._next(now_ms)

    async def load(self, base: int, end: int) -> bytes:
        """Returns the checked bytes of the closed segment's file, which is built first if it is absent. Raises
        IndexUnavailableError."""
        if self._runner is None or self._closed:
            raise IndexUnavailableError("index files are off")
        span = Span(base, end)
        if why := self._why_none(span):
            raise IndexUnavailableError(why)
        waiter: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.setdefault(span, []).append(waiter)
        if span in self._files:
            self._runner.submit(Load(span))
        else:
            self._built_to = min(self._built_to, base)
            self._due_ms = self._again_ms = 0
        return await waiter

    def view(self) -> IndexFilesView:
        """Returns the present state of the files."""
        return IndexFilesView(
            len(self._files),
            sum(self._files.values()),
            self._pending(),
            max(self._files, default=None),
            self._building,
            self._error,
        )

    # --- what is next ------------------------------------------------------------------------------------------------

    def _next(self, now_ms: int) -> None:
        """Begins to build the oldest missing file."""
        for each in list(self._waiting):
            if why := self._why_none(each):  # the segment was trimmed meanwhile
                self._settle(each, IndexUnavailableError(why))
        span = self._missing() if now_ms >= self._again_ms else None
        self._metrics.now(len(self._files), sum(self._files.values()), self._pending())
        if span is not None:
            self._building, self._busy = span, True
            self._submit(Build(span))

    def _missing(self) -> Span | None:
        at = max(self._built_to, self._log.first_position, self._state.trim_position)
        try:
            while True:
                found = self._log.segment_at(at)
                span = Span(found.previous.end_position, found.end_position)
                if not found.sealed or not self._closed_below(span.end):
                    return None
                if span not in self._files:
                    return span
                at = self._built_to = span.end
        except OutOfRangeError:
            return None

    def _closed_below(self, end: int) -> bool:
        """Returns True if the first entry of the segment that begins at `end` is applied, so that the rows below do not
        change."""
        return self._state.applied_mark.end_position > end

    def _why_none(self, span: Span) -> str:
        """Returns the reason for which the segment can have no file now; "" if it can."""
        if not self._closed_below(span.end):
            return f"the segment at {span.base} is not closed, or not applied yet"
        if span in self._files:
            return ""
        try:
            found = self._log.segment_at(span.base)
        except OutOfRangeError as error:
            return str(error)
        if (found.previous.end_position, found.end_position) != span or span.base < self._state.trim_position:
            return f"{span.base} to {span.end} is no segment of which this node has the rows"
        return ""

    def _pending(self) -> int:
        log = self._log
        try:
            newest = log.segment_at(log.tail.end_position - 1).previous.end_position
        except OutOfRangeError:
            return 0
        return max(0, newest - max(self._built_to, log.first_position, self._state.trim_position))

    def _drop(self) -> None:
        """Removes the files of segments that the log no longer has."""
        gone = tuple(span for span in self._files if span.end <= self._log.first_position)
        if gone:
            for span in gone:
                del self._files[span]
            self._submit(Remove(gone))

    def _submit(self, job: IndexJob) -> None:
        if self._runner is not None and not self._closed:
            self._runner.submit(job)

    # --- what the lane says ------------------------------------------------------------------------------------------

    def _on_done(self, answers: list[IndexAnswer]) -> None:
        for answer in answers:
            if isinstance(answer, Going):
                self._loop.call_later(self._gap_s, self._submit, Build(answer.span))
            elif isinstance(answer, BuiltFile):
                self._on_built(answer)
            elif isinstance(answer, Loaded):
                self._settle(answer.span, answer.data)
            elif isinstance(answer, Damaged):
                self._on_damaged(answer)
            elif isinstance(answer, JobFailed):
                self._on_failed(answer)
            elif isinstance(answer, Swept):
                self._files, self._busy = answer.files, False
                for span in self._waiting.keys() & answer.files.keys():
                    self._submit(Load(span))
            elif isinstance(answer, RowsGone):
                self._built_to = max(self._built_to, answer.span.end)
                self._ended()
                self._settle(
                    answer.span, IndexUnavailableError(f"the rows of the segment at {answer.span.base} are gone")
                )
            else:
                assert isinstance(answer, Removed)

    def _on_built(self, built: BuiltFile) -> None:
        self._files[built.span] = built.size
        self._metrics.built.inc()
        self._error = ""
        self._alarms.clear(ALARM)
        logger.info(
            "index file of the log from %d to %d: %d messages, %d queues, %d keys, %d bytes",
            *built.span,
            built.meta.messages,
            built.meta.queues,
            built.meta.keys,
            built.size,
        )
        self._ended()
        if built.span in self._waiting:
            self._submit(Load(built.span))

    def _on_damaged(self, damaged: Damaged) -> None:
        logger.error("the index file of the log from %d to %d is built again: %s", *damaged.span, damaged.why)
        self._metrics.damaged.inc()
        self._files.pop(damaged.span, None)
        self._built_to = min(self._built_to, damaged.span.base)
        self._due_ms = 0
        if damaged.span == self._redone:  # the disk spoils what is written to it, so the build is not repeated at once
            self._again_ms = self._clock.monotonic_ms() + AGAIN_MS
            self._settle(damaged.span, IndexUnavailableError(damaged.why))
        self._redone = damaged.span

    def _on_failed(self, failed: JobFailed) -> None:
        if isinstance(failed.job, Remove | Sweep):
            logger.warning("DATA/index cannot be cleaned up: %s", failed.why)
            if isinstance(failed.job, Sweep):  # a file may be being built while others are removed
                self._busy = False
            return
        span = failed.job.span
        self._error = failed.why
        self._metrics.failed.inc()
        self._alarms.raise_alarm(
            ALARM,
            f"the index file of the log from {span.base} to {span.end} cannot be made; the node tries again in "
            f"{AGAIN_MS // 1000} s: {failed.why}",
        )
        self._again_ms = self._clock.monotonic_ms() + AGAIN_MS
        if isinstance(failed.job, Build):
            self._ended()
        self._settle(span, IndexUnavailableError(failed.why))

    def _ended(self) -> None:
        """Ends the present build, with or without a file, and makes the next one due at once."""
        self._building, self._busy, self._due_ms = None, False, 0

    def _settle(self, span: Span, value: bytes | IndexUnavailableError) -> None:
        for waiter in self._waiting.pop(span, []):
            if waiter.done():
                continue
            if isinstance(value, bytes):
                waiter.set_result(value)
            else:
                waiter.set_exception(value)


class IndexMetrics(ServiceMetrics):
    """Metrics of index files, set when something happens and at each check."""

    def __init__(self) -> None:
        super().__init__()
        gauge, counter = self.gauge, self.counter
        self._files = gauge("raftmq_index_files", "Index files of closed segments on this node")
        self._bytes = gauge("raftmq_index_files_bytes", "Size of these files in bytes")
        self._pending = gauge(
            "raftmq_index_files_pending_bytes", "Bytes of closed segments that have no index file yet"
        )
        self.built = counter("raftmq_index_files_built", "Index files built")
        self.damaged = counter("raftmq_index_files_damaged", "Index files that were found damaged and removed")
        self.failed = counter("raftmq_index_files_failed", "Attempts to build one that failed")

    def now(self, files: int, size_bytes: int, pending_bytes: int) -> None:
        """Sets the figures to those of the last check: files, their bytes, and bytes of log whose index file is not
        written yet."""
        self._files.set(files)
        self._bytes.set(size_bytes)
        self._pending.set(pending_bytes)


class LocalIndexParts:
    """Implements `cluster.tier.uploader.IndexParts` with this node's own files."""

    def __init__(self, files: IndexFiles) -> None:
        self._files = files

    async def of_segment(self, base: int, span: SegmentSpan) -> PartContent:
        """Returns the part; its file is built first if the node does not have it yet."""
        data = await self._files.load(base, span.end)
        return PartContent(INDEX, base, span.end, data, xxh3_128(data).digest(), crc32c(data))
