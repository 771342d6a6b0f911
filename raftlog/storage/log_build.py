"""Builds log files beside the log from a peer's frames: a whole log in DATA/install, or one older segment file.

A log under construction *is* a log (segmented_log.py over DATA/install, with FIRST and a copy of GENESIS): it recovers
from crashes in the same way, and bytes given to `append_raw` are durable when it returns. It is not used before
`commit` (install.py).
"""

from __future__ import annotations

from pathlib import Path

from raftlog.errors import CorruptLogError, FrameError, RaftLogError
from raftlog.frame import HEADER_SIZE, FrameHeader, check_follows, tail_after
from raftlog.storage.files import install_file, layout, log_first
from raftlog.storage.files.fs import ZERO_CHUNK, File, FileSystem, storage_error, write_file
from raftlog.storage.files.install_file import Install
from raftlog.storage.log.genesis_copy import keep_copy, read_copy
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.scan import scan_segment
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, Segment, decode_header, encode_header
from raftlog.types import FLAG_ROLL, Entry, EntryId, LogTail

SYNC_BYTES = 1 << 20


class FrameStream:
    """Cuts a stream of bytes into entries, each checked by both CRCs, and against the entry before it."""

    __slots__ = ("_group_id", "_rest", "tail")

    def __init__(self, group_id: int, tail: LogTail) -> None:
        self._group_id = group_id
        self._rest = b""
        self.tail = tail
        """The log's tail after the last whole frame."""

    @property
    def next_position(self) -> int:
        """The position in the log of the next byte that the stream needs."""
        return self.tail.end_position + len(self._rest)

    def restart(self, tail: LogTail) -> None:
        """Starts the stream again after `tail`."""
        self.tail, self._rest = tail, b""

    def feed(self, data: bytes) -> list[Entry]:
        """Adds bytes to the stream; returns the entries that are complete now.

        Raises FrameError if one of them is damaged or does not follow. All bytes after `tail` are then dropped, those
        of earlier calls too, and the stream continues at `next_position`.
        """
        data, self._rest = self._rest + data, b""
        entries: list[Entry] = []
        tail, at = self.tail, 0
        while len(data) - at >= HEADER_SIZE:
            header = FrameHeader(data[at : at + HEADER_SIZE], self._group_id)
            stop = at + header.frame_length
            if header.position != tail.end_position:
                raise FrameError(f"a frame of position {header.position} came, {tail.end_position} is next")
            if stop > len(data):
                break
            entry = header.entry(data[at + HEADER_SIZE : stop])
            check_follows(tail, entry)
            entries.append(entry)
            tail, at = tail_after(tail, entry), stop
        self.tail, self._rest = tail, data[at:]
        return entries


class LogBuild:
    """A log under construction in DATA/install. Used by one thread."""

    def __init__(self, fs: FileSystem, data_dir: Path, group_id: int, previous: LogTail, log: SegmentedLog | None):
        """Callers use `begin` or `resume`."""
        self._fs = fs
        self._data_dir = data_dir
        self._directory = data_dir / layout.INSTALL_DIR
        self._group_id = group_id
        self._log = log
        self.previous = previous
        """The log's tail before the first entry of the build."""
        self._stream = FrameStream(group_id, log.tail if log else previous)

    @classmethod
    def begin(cls, fs: FileSystem, data_dir: Path, group_id: int, previous: LogTail) -> LogBuild:
        """Starts a new build, with the segment file whose first frame follows `previous`; removes an earlier build, and
        a decision to install it.

        Raises StorageError, and FrameError if GENESIS cannot be read.
        """
        directory = data_dir / layout.INSTALL_DIR
        first = data_dir / layout.LOG / layout.segment_name(0)
        try:
            if fs.exists(first):
                keep_copy(fs, first, group_id)
            genesis = read_copy(fs, data_dir, group_id)
            _take_back(fs, data_dir)
            if fs.exists(directory):
                fs.remove_tree(directory)
                fs.fsync_dir(data_dir)
            fs.mkdir(directory / layout.LOG)
            write_file(fs, directory / layout.GENESIS, genesis.header + genesis.payload)
            log_first.save(fs, directory / layout.LOG, previous, group_id)
        except OSError as error:
            raise storage_error(fs, "beginning a log in", directory, error) from error
        return cls(fs, data_dir, group_id, previous, None)

    @classmethod
    def resume(cls, fs: FileSystem, data_dir: Path, group_id: int) -> LogBuild | None:
        """Continues a build after a stop or a crash; returns None if there is none that can be continued.

        Raises StorageError.
        """
        directory = data_dir / layout.INSTALL_DIR
        log = directory / layout.LOG
        try:
            if not fs.exists(log) or not fs.exists(log / layout.FIRST):
                return None
            previous = log_first.load(fs, log, group_id)
            if previous is None:
                return None
            if not layout.segment_bases(fs.listdir(log)):
                read_copy(fs, directory, group_id)
                return cls(fs, data_dir, group_id, previous, None)
            opened = SegmentedLog.open(fs, directory, group_id=group_id)
        except (CorruptLogError, FrameError):
            return None
        except OSError as error:
            raise storage_error(fs, "resuming", directory, error) from error
        if opened.damage.ranges or opened.report.vote_withheld is not None or opened.previous != previous:
            opened.close(clean=False)
            return None
        return cls(fs, data_dir, group_id, previous, opened)

    @property
    def tail(self) -> LogTail:
        """The log's tail after the last entry that is durable in the build; `previous` while there is none."""
        return self._log.tail if self._log else self.previous

    @property
    def next_position(self) -> int:
        """The position in the log of the byte that `append_raw` needs next."""
        return self._stream.next_position

    def append_raw(self, data: bytes) -> None:
        """Appends the next bytes of the log, which may end anywhere within a frame. Returns when all complete frames
        are durable.

        Raises FrameError if they are not the frames that follow: nothing of `data` is kept, and `next_position` tells
        from where to continue, perhaps with another peer. Raises OutOfSpaceError in the same way, and any other
        StorageError, after which only `resume` helps.
        """
        try:
            entries = self._stream.feed(data)
            if entries and self._log is None:
                self._log, entries = self._create(entries[0]), entries[1:]
            if self._log is not None:
                self._log.append(entries)
        except RaftLogError:
            self._stream.restart(self.tail)
            raise

    def _create(self, first: Entry) -> SegmentedLog:
        """Makes the first segment file of the build, durably, with its first frame in it. Raises FrameError if `first`
        does not begin a segment file, StorageError if the disk fails."""
        if not first.flags & FLAG_ROLL:
            raise FrameError(f"entry {first.index} does not begin a segment file")
        log = self._directory / layout.LOG
        temporary = log / layout.ROLL_SEGMENT
        try:
            file = self._fs.open(temporary, create=True)
            file.truncate(0)
            file.pwritev([encode_header(self.previous, self._group_id), first.header, first.payload], 0)
            file.fdatasync()
            file.close()
            self._fs.rename(temporary, log / layout.segment_name(first.position))
            self._fs.fsync_dir(log)
        except OSError as error:
            raise storage_error(self._fs, "building", log, error) from error
        return SegmentedLog.open(self._fs, self._directory, group_id=self._group_id)

    def commit(self, checkpoint: str, index: int, header_crc: int, now_ms: int = 0) -> None:
        """Closes the build and writes DATA/INSTALL: the next opening of the directory replaces the log by the build.

        `checkpoint`: name of the checkpoint whose last applied entry is `index` with `header_crc`; the build must
        contain exactly that entry, and none above it, because only up to there all of it is known to be committed.
        Raises FrameError if it does not, StorageError.
        """
        log = self._log
        if log is None or (log.tail.index, log.tail.header_crc) != (index, header_crc):
            found = self.tail
            raise FrameError(
                f"the log built for checkpoint {checkpoint} ends with entry {found.index} ({found.header_crc:08x}), "
                f"the checkpoint was made at entry {index} ({header_crc:08x})"
            )
        self.close()
        last = EntryId(log.tail.term, log.tail.index)
        end = log.tail.end_position
        install = Install(checkpoint, log.first_index, log.first_position, last, end, header_crc, now_ms)
        try:
            write_file(self._fs, self._data_dir / layout.INSTALL, install_file.encode(install, self._group_id))
        except OSError as error:
            raise storage_error(self._fs, "deciding to install", self._directory, error) from error

    def close(self) -> None:
        """Closes the files of the build; `resume` continues it. Raises StorageError."""
        if self._log is not None:
            self._log.close(clean=True)

    def discard(self) -> None:
        """Removes the whole build, and a decision to install it. Raises StorageError."""
        if self._log is not None:
            self._log.close(clean=False)
        abandon(self._fs, self._data_dir)


def abandon(fs: FileSystem, data_dir: Path) -> None:
    """Removes DATA/install, and before it a decision to install what is there. Raises StorageError."""
    try:
        _take_back(fs, data_dir)
    except OSError as error:
        raise storage_error(fs, "removing", data_dir / layout.INSTALL, error) from error
    discard(fs, data_dir)


def _take_back(fs: FileSystem, data_dir: Path) -> None:
    """Removes INSTALL, durably. Even if writing it failed, the file may exist, and the next opening would apply it to a
    later, incomplete build. Raises OSError."""
    path = data_dir / layout.INSTALL
    if fs.exists(path):
        fs.unlink(path)
        fs.fsync_dir(data_dir)


def discard(fs: FileSystem, data_dir: Path) -> None:
    """Removes DATA/install. Raises StorageError."""
    try:
        if fs.exists(data_dir / layout.INSTALL_DIR):
            fs.remove_tree(data_dir / layout.INSTALL_DIR)
            fs.fsync_dir(data_dir)
    except OSError as error:
        raise storage_error(fs, "removing", data_dir / layout.INSTALL_DIR, error) from error


class SegmentBuild:
    """One sealed segment file under construction, for `SegmentedLog.prepend`. Used by one thread. Nothing counts as
    durable before `finish`. The file is synced every SYNC_BYTES all the same, because one large sync would delay the
    syncs of the log.
    """

    def __init__(self, fs: FileSystem, path: Path, group_id: int, previous: LogTail) -> None:
        """Starts with an empty file. `previous`: the log's tail before the file's first frame (SegmentedLog.segment_at
        of the peer that sends the file).

        Raises StorageError.
        """
        try:
            fs.mkdir(path.parent)
            file = fs.open(path, create=True)
            file.truncate(0)
            file.pwritev([encode_header(previous, group_id)], 0)
        except OSError as error:
            raise storage_error(fs, "beginning", path, error) from error
        self._begin(fs, file, previous, FrameStream(group_id, previous))

    def _begin(self, fs: FileSystem, file: File, previous: LogTail, stream: FrameStream) -> None:
        self._fs = fs
        self._file = file
        self._stream = stream
        self._unsynced = 0
        self.previous = previous
        """The log's tail before the file's first frame."""

    @classmethod
    def resume(cls, fs: FileSystem, path: Path, group_id: int) -> SegmentBuild | None:
        """Continues with the file at `path`; returns None if there is none with a local header. Raises StorageError."""
        try:
            if not fs.exists(path):
                return None
            file = fs.open(path)
            header = decode_header(file.pread(LOCAL_HEADER_SIZE, 0), path, group_id)
            scan, _ = scan_segment(file, Segment(path, header), check_payloads=True)
            end = LOCAL_HEADER_SIZE + scan.tail.end_position - header.base_position
            file.truncate(end)
            # the bytes that were read may be in the page cache only, and not on disk
            for at in range(0, end, len(ZERO_CHUNK)):
                file.pwritev([file.pread(min(len(ZERO_CHUNK), end - at), at)], at)
        except CorruptLogError:
            return None
        except OSError as error:
            raise storage_error(fs, "resuming", path, error) from error
        build = cls.__new__(cls)
        build._begin(fs, file, header.previous, FrameStream(group_id, scan.tail))
        return build

    @property
    def tail(self) -> LogTail:
        """The log's tail after the last complete frame."""
        return self._stream.tail

    @property
    def next_position(self) -> int:
        """The position in the log of the byte that `append_raw` needs next."""
        return self._stream.next_position

    def append_raw(self, data: bytes) -> None:
        """Appends the next bytes, which may end anywhere within a frame. Raises FrameError if they are not the frames
        that follow, StorageError if the disk fails. After either, the caller continues from `next_position`."""
        before = self._stream.tail
        try:
            self._write(self._stream.feed(data))
        except RaftLogError:
            self._stream.restart(before)
            raise
        except OSError as error:
            self._stream.restart(before)
            raise storage_error(self._fs, "building", self._file.path, error) from error

    def _write(self, entries: list[Entry]) -> None:
        base = self.previous.end_position
        for entry in entries:
            if bool(entry.flags & FLAG_ROLL) != (entry.position == base):
                raise FrameError(f"entry {entry.index} does not lie in the segment file that begins at {base}")
        if entries:
            parts = [part for entry in entries for part in (entry.header, entry.payload)]
            self._file.pwritev(parts, LOCAL_HEADER_SIZE + entries[0].position - base)
            self._unsynced += sum(map(len, parts))
            if self._unsynced >= SYNC_BYTES:
                self._file.fdatasync()
                self._unsynced = 0

    def finish(self) -> Path:
        """Syncs and closes the file. Returns its path. Raises StorageError: then the caller starts again."""
        try:
            self._file.fdatasync()
            self._file.close()
        except OSError as error:
            raise storage_error(self._fs, "building", self._file.path, error) from error
        return self._file.path
