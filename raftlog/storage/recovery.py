"""What the log does on the way up. Only the active (last) segment is scanned, so the work is bounded by its size.

=====================================================  =====================================================
found                                                  done
=====================================================  =====================================================
CLEAN equals the newest mark, sidecar agrees           the last frame is checked, nothing is scanned
frames up to zeroes, at or above the mark              accepted, rewritten above the mark, synced
damage at or above the mark (torn batch)               cut: zero-filled to the last non-zero byte, synced
damage, zeroes or another frame below the mark         CorruptLogError, nothing is touched
both marks damaged                                     CorruptLogError: the durable end is unknown
an intact next frame of a newer format                 CorruptLogError: cutting it would lose it
last file without a frame, mark at its base            set aside to trash/, the file before is active again
a local header damaged, a file missing between two     CorruptLogError
sidecar of a sealed segment missing, damaged or stale  the headers of that one segment are scanned
next.tmp, roll.tmp                                     left; they never hold frames and are filled again when used
=====================================================  =====================================================

Frames above the mark are written again before they count: after a killed process or a failed sync they may be in the
page cache only, and this node is about to tell others that it holds them.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError, FrameError, out_of_space
from raftlog.frame import HEADER_SIZE, FrameHeader
from raftlog.storage import layout
from raftlog.storage.fs import ZERO_CHUNK, File, FileSystem, read_file, write_file, zero_fill
from raftlog.storage.scan import Scan, load_index, rebuild_index, scan_segment
from raftlog.storage.segment import (
    LOCAL_HEADER_SIZE,
    MARK_OFFSETS,
    Segment,
    SyncMark,
    decode_header,
    decode_mark,
    encode_mark,
    mark_of,
    newest_mark,
    newest_seq,
)
from raftlog.storage.segment_index import HEAD_READ, decode_head, decode_index, encode_index
from raftlog.types import LogTail


class RecoveryReport(NamedTuple):
    """What opening did, for people and for metrics. Durations are the caller's to measure."""

    clean: bool
    """The last stop was orderly: nothing was scanned."""
    segments: int
    bytes_scanned: int
    entries: int
    """Entries in the log."""
    torn_bytes_cut: int
    """Bytes of unacknowledged frames that a crash left incomplete."""
    reasons: list[str]
    """One sentence per thing found or done, and why it is safe."""


class Recovered(NamedTuple):
    """A log ready to append to; the last segment is active (open, index in memory)."""

    segments: list[Segment]
    tail: LogTail
    mark_seq: int
    report: RecoveryReport


class Recovery:
    """One run over DATA/log. Raises CorruptLogError or OSError; what it changes is written in the table above."""

    def __init__(self, fs: FileSystem, directory: Path, group_id: int) -> None:
        self._fs = fs
        self._log = directory / layout.LOG
        self._trash = directory / layout.TRASH
        self._group_id = group_id
        self._reasons: list[str] = []
        self._bytes_scanned = 0
        self._torn = 0

    def run(self) -> Recovered:
        """Opens the log for appending."""
        self._fs.fsync_dir(self._log)  # a rename seen after a killed process may not be durable yet
        segments, pages = self._open_headers()
        for segment, following in pairwise(segments):
            self._check_sealed(segment, following.header.previous)
        mark = newest_mark(pages[-1])
        active = segments[-1]
        if mark is None:
            raise CorruptLogError(
                f"both sync marks of {active.path} are damaged: how far the log was durable is unknown, and cutting "
                "might lose acknowledged entries. Restore this file from a backup, or replace the node."
            )
        clean = self._clean_tail(active, mark)
        tail = clean or self._scan_active(active, mark)
        if tail.end_position == active.base:
            tail = self._step_back(segments)
        self._drop_clean_marker()
        entries = tail.index + 1 - segments[0].header.base_index
        report = RecoveryReport(
            clean is not None, len(segments), self._bytes_scanned, entries, self._torn, self._reasons
        )
        file = segments[-1].file
        assert file is not None
        return Recovered(segments, tail, newest_seq(file), report)

    def _open_headers(self) -> tuple[list[Segment], list[bytes]]:
        bases = layout.segment_bases(self._fs.listdir(self._log))
        if not bases:
            raise CorruptLogError(
                f"{self._log} holds no segment file: the log of this node is gone. Restore it from a backup, or "
                "replace the node."
            )
        segments, pages = [], []
        for base in bases:
            path = self._log / layout.segment_name(base)
            file = self._fs.open(path)
            page = file.pread(LOCAL_HEADER_SIZE, 0)
            header = decode_header(page, path, self._group_id)
            if header.base_position != base:
                raise CorruptLogError(f"{path} says its first position is {header.base_position}: the file was renamed")
            segment = Segment(path, header)
            if base == bases[-1]:
                segment.file = file
            else:
                file.close()
            segments.append(segment)
            pages.append(page)
        return segments, pages

    def _check_sealed(self, segment: Segment, end: LogTail) -> None:
        """A sealed file must end exactly where the next one begins."""
        head_path = self._log / layout.index_name(segment.base)
        if self._fs.exists(head_path):
            file = self._fs.open(head_path)
            try:
                data = file.pread(HEAD_READ, 0)
                head = decode_head(data if len(data) < HEAD_READ else file.pread(file.size(), 0), self._group_id)
                if head.tail == end and head.base == segment.base:
                    segment.terms = head.terms
                    return
            except FrameError:
                pass
            finally:
                file.close()
        index = rebuild_index(self._fs, segment, end, self._group_id)
        self._bytes_scanned += end.end_position - segment.base
        self._reasons.append(f"index of sealed {segment.path.name} was missing or stale: rebuilt from its frames")
        segment.terms = index.terms
        try:
            write_file(self._fs, head_path, b"".join(encode_index(index, end, self._group_id)))
        except OSError as error:
            if not out_of_space(error):
                raise
            self._reasons.append(f"no space to keep the index of {segment.path.name}: rebuilt again next time")

    def _clean_tail(self, active: Segment, mark: SyncMark) -> LogTail | None:
        """The tail after an orderly stop, else None. CLEAN is a copy of the last mark, so any append outdates it."""
        path = self._log / layout.CLEAN
        if not self._fs.exists(path):
            self._reasons.append("the last stop was not orderly: the active segment is scanned")
            return None
        sidecar = self._log / layout.index_name(active.base)
        if decode_mark(read_file(self._fs, path)) != mark or not self._fs.exists(sidecar):
            self._reasons.append("CLEAN does not fit the active segment: it is scanned")
            return None
        try:
            head, index = decode_index(read_file(self._fs, sidecar), self._group_id)
            tail = head.tail
            if mark_of(tail, mark.seq) != mark or head.base != active.base or not index.offsets:
                raise FrameError("index sidecar does not fit the mark")
            assert active.file is not None
            last = index.position(tail.index)
            data = active.file.pread(tail.end_position - last, active.file_offset(last))
            frame = FrameHeader(data[:HEADER_SIZE], self._group_id)
            frame.entry(data[HEADER_SIZE:])
            if frame.header_crc != tail.header_crc:
                raise FrameError("last frame does not fit the mark")
        except (FrameError, IndexError) as error:
            self._reasons.append(f"orderly stop, but {error}: the active segment is scanned")
            return None
        active.index = index
        active.terms = index.terms
        self._reasons.append("the last stop was orderly: the newest sync mark covers the whole log")
        return tail

    def _scan_active(self, active: Segment, mark: SyncMark) -> LogTail:
        file = active.file
        assert file is not None
        scan, index = scan_segment(file, active, check_payloads=True, mark_end=mark.end_position)
        self._bytes_scanned += scan.bytes_read
        self._check_mark(active, scan, mark)
        active.index = index
        active.terms = index.terms
        self._cut(active, file, scan)
        self._write_again(active, file, mark.end_position, scan.tail.end_position)
        return scan.tail

    def _check_mark(self, active: Segment, scan: Scan, mark: SyncMark) -> None:
        """Everything below the mark must be there, and be what the mark names."""
        tail = scan.tail
        if tail.end_position < mark.end_position:
            raise CorruptLogError(
                f"{active.path}: damage at position {tail.end_position}, index {tail.index + 1}, below the sync mark "
                f"{mark.end_position}: {scan.damage or 'the frame is gone'}. These entries were durable and may be "
                "acknowledged, so nothing is cut. Restore this file from a peer or a backup, or replace the node."
            )
        if scan.at_mark is None or mark_of(scan.at_mark, mark.seq) != mark:
            raise CorruptLogError(
                f"{active.path}: the sync mark names index {mark.next_index - 1} (term {mark.term}, header_crc "
                f"{mark.header_crc:08x}) ending at {mark.end_position}, the frames say otherwise: file and mark are "
                "not of one history. Restore this file from a backup, or replace the node."
            )

    def _cut(self, active: Segment, file: File, scan: Scan) -> None:
        """Zeroes what lies above the last good frame, so that it can never be taken for a frame later."""
        start = active.file_offset(scan.tail.end_position)
        size = file.size()
        last = start
        for at in range(start, size, len(ZERO_CHUNK)):
            chunk = file.pread(min(len(ZERO_CHUNK), size - at), at)
            self._bytes_scanned += len(chunk)
            if chunk != ZERO_CHUNK[: len(chunk)]:
                last = at + len(chunk.rstrip(b"\0"))
                zero_fill(file, at, last)
        if last == start:
            return
        file.fdatasync()
        self._torn = last - start
        self._reasons.append(
            f"torn tail of {self._torn} bytes cut from {active.path.name} at position {scan.tail.end_position}, index "
            f"{scan.tail.index + 1} ({scan.damage or 'zeroes before other bytes'}): above the sync mark"
        )

    def _write_again(self, active: Segment, file: File, start: int, stop: int) -> None:
        for at in range(start, stop, len(ZERO_CHUNK)):
            offset = active.file_offset(at)
            file.pwritev([file.pread(min(len(ZERO_CHUNK), stop - at), offset)], offset)
        if stop > start:
            self._reasons.append(f"{stop - start} bytes above the sync mark are complete: written again and synced")
        file.fdatasync()

    def _step_back(self, segments: list[Segment]) -> LogTail:
        """The last file holds no frame: the one before, complete and durable before the roll, is active again."""
        empty = segments.pop()
        if not segments:
            raise CorruptLogError(f"{empty.path} holds no frame, not even GENESIS: restore it, or replace the node")
        assert empty.file is not None
        empty.file.close()
        tail = empty.header.previous
        active = segments[-1]
        active.file = self._fs.open(active.path)
        active.index = load_index(self._fs, active, tail, self._group_id)
        active.terms = active.index.terms
        seq = newest_seq(active.file) + 1
        active.file.pwritev([encode_mark(mark_of(tail, seq))], MARK_OFFSETS[seq % 2])
        active.file.fdatasync()
        where = layout.move_to_trash(self._fs, empty.path, self._trash)
        self._reasons.append(f"{empty.path.name} held no complete frame: set aside as {where.name} in {where.parent}")
        return tail

    def _drop_clean_marker(self) -> None:
        path = self._log / layout.CLEAN
        if self._fs.exists(path):
            self._fs.unlink(path)
            self._fs.fsync_dir(self._log)
