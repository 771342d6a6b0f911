"""Builds, checks and removes index files off the event loop, in steps of a few milliseconds.

A build takes many jobs of STEPS_PER_JOB steps each. The service that submits them (`IndexFiles`) decides how densely
they follow each other, and the lane never sleeps. A failure is reported and the build is tried again later: index files
are derived data, and the node works without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cluster.runtime.lanes import NeverIdle
from raftlog.errors import RaftLogError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import File, FileSystem
from raftlog.storage.log.segmented_log import SegmentedLog
from raftmq_wire.checksums import crc32c
from raftmq_wire.kernel import twin
from statemachine.index_file.index_check import check_index
from statemachine.index_file.index_format import IndexFileError, IndexMeta, file_name, parse_file_name
from statemachine.index_file.index_of_rows import sorted_rows, write_index
from statemachine.index_file.index_reader import drive
from statemachine.rows.kv import KV
from statemachine.trim import rows_begin

_sort = twin(sorted_rows)

STEPS_PER_JOB = 8
"""The number of steps of one job. A step is one queue, or some thousand keys. A job takes 1 to 2 ms for a segment of 64
MiB."""


class Sweep(NamedTuple):
    """A job: clean up after the last run, and list the files."""


class Build(NamedTuple):
    """A job: do the next steps of this segment's file. A build of another segment's file is abandoned."""

    span: Span


class Load(NamedTuple):
    """A job: check the segment's file and return its bytes."""

    span: Span


class Remove(NamedTuple):
    """A job: remove the files of these segments."""

    spans: tuple[Span, ...]


IndexJob = Sweep | Build | Load | Remove


class Swept(NamedTuple):
    """The answer to Sweep: the size of each complete file."""

    files: dict[Span, int]


class Going(NamedTuple):
    """The answer to Build: more steps follow."""

    span: Span


class BuiltFile(NamedTuple):
    """The answer to Build: the file is complete and on disk."""

    span: Span
    size: int
    meta: IndexMeta


class Loaded(NamedTuple):
    """The answer to Load: the checked bytes of the file, and its meta."""

    span: Span
    data: bytes
    meta: IndexMeta


class Removed(NamedTuple):
    """The answer to Remove: the files of these segments are gone."""

    spans: tuple[Span, ...]


class Damaged(NamedTuple):
    """The answer to Load: the file was damaged and has been removed."""

    span: Span
    why: str


class JobFailed(NamedTuple):
    """The answer to a job that could not be done now."""

    job: IndexJob
    why: str


class RowsGone(NamedTuple):
    """The answer to Build: the rows of the segment are removed or being removed."""

    span: Span


IndexAnswer = Swept | Going | BuiltFile | Loaded | Removed | Damaged | JobFailed | RowsGone


class IndexLane(NeverIdle):
    """Does the jobs of index files on a lane. It does not report damaged rows: the store of the rows does
    (`KV.watch_corruption`)."""

    def __init__(self, directory: IndexDirectory, log: SegmentedLog, kv: KV) -> None:
        self._directory = directory
        self._log = log
        self._kv = kv
        self._build: _Build | None = None
        self._own: dict[Span, tuple[int, IndexMeta]] = {}
        """CRC-32C and meta of the files that this process has built."""

    def drain(self, batch: Sequence[IndexJob]) -> list[IndexAnswer]:
        """Does the jobs one after the other, and returns one answer for each, in order."""
        return [self._do(job) for job in batch]

    def _do(self, job: IndexJob) -> IndexAnswer:
        try:
            if isinstance(job, Sweep):
                return Swept(self._directory.sweep())
            if isinstance(job, Build):
                return self._step(job.span)
            if isinstance(job, Load):
                return self._load(job.span)
            for span in job.spans:
                self._directory.remove(span)
                self._own.pop(span, None)
            return Removed(job.spans)
        except (OSError, RaftLogError) as error:
            self._give_up()
            return JobFailed(job, str(error))

    def _step(self, span: Span) -> IndexAnswer:
        if rows_begin(self._kv) > span.base:
            self._give_up()
            return RowsGone(span)
        if self._build is None or self._build.span != span:
            self._give_up()
            self._build = _Build(span, meta_of(self._log, span), self._directory.create(span), self._kv)
        meta = self._build.step()
        if meta is None:
            return Going(span)
        file = self._build.file
        if rows_begin(self._kv) > span.base:  # checked again, because rows may have been removed during the read
            self._give_up()
            return RowsGone(span)
        file.commit()
        self._own[span] = file.crc32c, meta
        self._build = None
        return BuiltFile(span, file.size, meta)

    def _give_up(self) -> None:
        if self._build is not None:
            self._build.file.discard()
            self._build = None

    def _load(self, span: Span) -> IndexAnswer:
        wanted = meta_of(self._log, span)
        try:
            file = self._directory.open(span)
            data = file.pread(file.size(), 0)
            meta = self._checked(span, data)
            if meta._replace(messages=0, queues=0, keys=0) != wanted:
                raise IndexFileError(f"it is of another log: {meta}, not {wanted}")
        except (IndexFileError, FileNotFoundError) as error:
            self._directory.remove(span)
            self._own.pop(span, None)
            return Damaged(span, str(error))
        return Loaded(span, data, meta)

    def _checked(self, span: Span, data: bytes) -> IndexMeta:
        """Checks a file and returns its meta. Raises IndexFileError. If the CRC is that of a file that this process
        built, the content is right. In any other file each row is checked, which takes as long as building it."""
        crc, meta = self._own.get(span, (-1, None))
        if meta is not None and crc32c(data) == crc:
            return meta
        return drive(check_index(len(data)), lambda at, length: data[at : at + length]).meta


class _Build:
    """A file under construction."""

    def __init__(self, span: Span, meta: IndexMeta, file: NewIndexFile, kv: KV) -> None:
        self.span = span
        self.file = file
        self._meta: IndexMeta | None = None
        self._steps = self._run(kv, meta)

    def step(self) -> IndexMeta | None:
        """Does up to STEPS_PER_JOB steps. Returns the complete meta if the file is complete; otherwise None."""
        for _ in range(STEPS_PER_JOB):
            if next(self._steps, "end") == "end":
                return self._meta
        return None

    def _run(self, kv: KV, meta: IndexMeta) -> Iterator[None]:
        self._meta = yield from write_index(kv, meta, self.file.write, sort=_sort)


def meta_of(log: SegmentedLog, span: Span) -> IndexMeta:
    """Returns the description of this segment for its file, without the counts. Raises RaftLogError if the log no
    longer has the segment, or cannot read it now."""
    before, last = log.segment_at(span.base).previous, log.segment_at(span.end).previous
    first = log.tail_at(before.index + 1)
    genesis = log.genesis
    return IndexMeta(
        cluster_id=genesis.cluster_uuid,
        base=span.base,
        end=span.end,
        first_index=first.index,
        last_index=last.index,
        last_term=last.term,
        first_ms=first.timestamp_ms,
        last_ms=last.timestamp_ms,
        messages=0,
        queues=0,
        keys=0,
        group_id=genesis.group_id,
        last_crc=last.header_crc,
    )


# The directory DATA/index. Each closed segment has one file there, which is either complete under its name or absent.
# Calls block and belong on a lane.

TEMPORARY = ".tmp"


class Span(NamedTuple):
    """The part of the log that a file covers: positions, `end` exclusive."""

    base: int
    end: int


class IndexDirectory:
    """The directory with the index files. Every method raises OSError."""

    def __init__(self, fs: FileSystem, data: Path) -> None:
        self._fs = fs
        self._path = data / layout.INDEX

    def sweep(self) -> dict[Span, int]:
        """Makes the directory, removes unfinished files that a crash left, and returns the sizes of the others."""
        self._fs.mkdir(self._path)
        found: dict[Span, int] = {}
        for name in self._fs.listdir(self._path):
            span = parse_file_name(name)
            if span is not None:
                found[Span(*span)] = self.open(Span(*span)).size()
            elif name.endswith(TEMPORARY):
                self._fs.unlink(self._path / name)
        return found

    def open(self, span: Span) -> File:
        """Opens the file of a segment."""
        return self._fs.open(self._path / file_name(*span))

    def create(self, span: Span) -> NewIndexFile:
        """Begins a file that gets its name once it is complete."""
        return NewIndexFile(self._fs, self._path / file_name(*span))

    def remove(self, span: Span) -> None:
        """Removes the file if it exists."""
        with suppress(FileNotFoundError):
            self._fs.unlink(self._path / file_name(*span))


class NewIndexFile:
    """A file while it is written, from front to back."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self._fs = fs
        self._path = path
        self._temporary = path.with_name(path.name + TEMPORARY)
        self._file = fs.open(self._temporary, create=True)
        self._file.truncate(0)
        self.size = 0
        self.crc32c = 0
        """CRC-32C of everything that was written."""

    def write(self, data: bytes) -> None:
        """Appends bytes."""
        self._file.pwritev([data], self.size)
        self.size += len(data)
        self.crc32c = crc32c(data, self.crc32c)

    def commit(self) -> None:
        """Gives the file its name; returns when its bytes and its name are on disk."""
        self._file.fdatasync()
        self._file.close()
        self._fs.rename(self._temporary, self._path)
        self._fs.fsync_dir(self._path.parent)

    def discard(self) -> None:
        """Removes the unfinished file."""
        self._file.close()
        with suppress(OSError):  # the next start removes it
            self._fs.unlink(self._temporary)
