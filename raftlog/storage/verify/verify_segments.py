"""The offline check of log/: every frame against the one before it, every index against the frames."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from raftlog.errors import CorruptLogError, FrameError
from raftlog.frame import HEADER_SIZE
from raftlog.storage.files import layout, log_first
from raftlog.storage.files.fs import ZERO_CHUNK, File, FileSystem, read_file, unreadable
from raftlog.storage.log.genesis_copy import read_copy
from raftlog.storage.segments.resync import find_chain
from raftlog.storage.segments.scan import first_frame, read_around, scan_segment
from raftlog.storage.segments.segment import (
    HEADER_BYTES,
    LOCAL_HEADER_SIZE,
    MARK_OFFSETS,
    MARK_SIZE,
    Segment,
    SegmentHeader,
    SyncMark,
    decode_header,
    decode_mark,
    header_is_damaged,
    mark_of,
    newest_mark,
)
from raftlog.storage.segments.segment_index import SegmentIndex, decode_index
from raftlog.storage.verify.findings import Finding, IrrelevantRange, Severity
from raftlog.storage.verify.verify_files import check_hard_state
from raftlog.types import EMPTY_TAIL, LogTail


def check_log(fs: FileSystem, directory: Path, group_id: int) -> Iterator[Finding]:
    """Checks FIRST, all segment files with their indexes, CLEAN, the copy of GENESIS, and the hard state against the
    last term; yields the findings."""
    log = directory / layout.LOG
    names = fs.listdir(log) if fs.exists(log) else []
    bases = layout.segment_bases(names)
    if not bases:
        yield Finding(
            log, 0, 0, "segment file", Severity.FATAL, "the log of this node is gone: there is no segment file"
        )
        return
    floor = log_first.load(fs, log, group_id)
    if floor is None:
        text = "damaged: the log begins with its first file, and the next trim writes it again"
        yield Finding(log / layout.FIRST, 0, 0, "first", Severity.NOTE, text)
    leftovers, bases = _parted(fs, log, bases, floor, group_id)
    for base in leftovers:
        yield Finding(log / layout.segment_name(base), 0, 0, "segment file", Severity.NOTE, _why_unread(floor, bases))
    pages = [_page(fs, log / layout.segment_name(base)) for base in bases]
    tail = _before(fs, pages[0], bases[0], floor, log, group_id)
    for number, base in enumerate(bases):
        check = _SegmentCheck(fs, log, base, pages[number], group_id, tail)
        yield from check.headers(active=number == len(bases) - 1)
        following = pages[number + 1] if number + 1 < len(bases) else None
        try:
            yield from check.frames(following, bases[number + 1] if following is not None else None)
        except FileNotFoundError:  # a running node may have trimmed the file during this check
            floor = log_first.load(fs, log, group_id)
            if floor is None or base >= floor.end_position:
                raise
        tail = check.tail
    yield from _check_genesis_copy(fs, directory, log / layout.segment_name(bases[0]), group_id)
    yield from check_hard_state(fs, directory, group_id, tail.term if tail else 0)


def _why_unread(floor: LogTail | None, bases: list[int]) -> str:
    """Returns why a start does not read the files below FIRST that `_parted` put aside. `bases`: the other files."""
    if floor is not None and bases[0] > floor.end_position:
        return "below the first file of the log, which is missing: a start neither reads nor removes it"
    return "left by a trim: the next start removes it"


def _parted(
    fs: FileSystem, log: Path, bases: list[int], floor: LogTail | None, group_id: int
) -> tuple[list[int], list[int]]:
    """Returns the base positions of the files that a start does not read, and those of all other files. A file below
    FIRST is not read if a gap lies between it and FIRST: a trim left it behind. If the log's first file is missing, the
    one that begins at FIRST, no file below FIRST is read."""
    kept = [base for base in bases if floor is None or base >= floor.end_position]
    if floor is None or not kept:
        return [], bases
    if kept[0] != floor.end_position:
        return bases[: -len(kept)], kept
    below, expected = bases[: -len(kept)], floor.segment_base
    while below and below[-1] == expected:
        page = _page(fs, log / layout.segment_name(below[-1]))
        if header_is_damaged(page):
            break
        expected = decode_header(page, log / layout.segment_name(below[-1]), group_id).previous.segment_base
        kept.insert(0, below.pop())
    return below, kept


def _before(fs: FileSystem, page: bytes, base: int, floor: LogTail | None, log: Path, group_id: int) -> LogTail | None:
    """Returns the log's tail before the first file, from log/FIRST. If the file begins below FIRST, or FIRST is
    damaged, the file's local header or its first frame tells the tail. Returns None if these are damaged too."""
    if floor is not None and base >= floor.end_position:
        return floor
    path = log / layout.segment_name(base)
    if not header_is_damaged(page):
        return decode_header(page, path, group_id).previous
    if base == 0:
        return EMPTY_TAIL
    first = first_frame(fs.open(path), base, group_id)
    return LogTail(first.term, first.index - 1, base, first.parent, 0, first.timestamp_ms) if first else None


def _page(fs: FileSystem, path: Path) -> bytes:
    try:
        return fs.open(path).pread(LOCAL_HEADER_SIZE, 0)
    except OSError as error:
        if not unreadable(error):
            raise
        return b""


class _SegmentCheck:
    """The check of one segment file. `tail` becomes the log's tail after it; None where that is unknown."""

    def __init__(
        self, fs: FileSystem, log: Path, base: int, page: bytes, group_id: int, previous: LogTail | None
    ) -> None:
        self._fs = fs
        self._log = log
        self._path = log / layout.segment_name(base)
        self._base = base
        self._page = page
        self._group_id = group_id
        self._previous = previous
        self.tail: LogTail | None = None

    def headers(self, *, active: bool) -> Iterator[Finding]:
        """Checks the local header and both sync marks; yields the findings."""
        if header_is_damaged(self._page):
            text = "the local header is damaged: written again at the next start from what its neighbours say"
            yield self._finding(0, HEADER_BYTES, "local header", Severity.NOTE, text)
        else:
            try:
                header = decode_header(self._page, self._path, self._group_id)
            except CorruptLogError as error:
                yield self._finding(0, HEADER_BYTES, "local header", Severity.FATAL, str(error))
                return
            if header.base_position != self._base:
                text = f"it was renamed: its first position is {header.base_position}"
                yield self._finding(0, HEADER_BYTES, "local header", Severity.FATAL, text)
            yield from self._gap(header.previous)
            self._previous = header.previous
        marks = [decode_mark(self._page[offset : offset + MARK_SIZE]) for offset in MARK_OFFSETS]
        for offset, mark in zip(MARK_OFFSETS, marks, strict=True):
            if mark is None:
                needed = active and not any(marks) and _mark_in(self._fs, self._log / layout.CLEAN) is None
                text = "a sync mark is damaged" + (", and its contents are unknown: the vote is withheld" * needed)
                severity = Severity.REPAIRABLE if needed else Severity.NOTE
                yield self._finding(offset, MARK_SIZE, "sync mark", severity, text)

    def _gap(self, previous: LogTail) -> Iterator[Finding]:
        before = self._previous
        if before is None or (before.end_position, before.header_crc) == (previous.end_position, previous.header_crc):
            return
        missing = self._log / layout.segment_name(before.end_position)
        text = f"missing: entries {before.index + 1}..{previous.index} are not here"
        if before.end_position >= previous.end_position:
            text = f"it ends with entry {before.index}, but {self._path.name} follows entry {previous.index}"
        yield Finding(missing, 0, 0, "segment file", Severity.REPAIRABLE, text)

    def frames(self, following: bytes | None, following_base: int | None) -> Iterator[Finding]:
        """Checks all frames, the bytes after them, and the index of the file; yields the findings."""
        if self._previous is None:
            yield self._finding(0, 0, "segment file", Severity.FATAL, "not checked: what comes before it is not known")
            return
        previous = self._previous
        header = SegmentHeader(self._group_id, previous.end_position, previous.index + 1, previous)
        segment = Segment(self._path, header)
        goal = self._sealed_end(following, following_base)
        mark = newest_mark(self._page) if following is None else None
        if following is None and mark is None:
            mark = _mark_in(self._fs, self._log / layout.CLEAN)
        if mark is not None:
            goal = LogTail(mark.term, mark.next_index - 1, mark.end_position, mark.header_crc, self._base, 0)
        file = self._fs.open(self._path)
        index = SegmentIndex(segment.base, segment.header.base_index)
        try:
            yield from self._walk(file, segment, index, goal, sealed=following is not None)
        except CorruptLogError as error:
            yield self._finding(0, 0, "segment file", Severity.FATAL, str(error))
            return
        if following is None:
            yield from self._behind(file, segment)
            yield from self._check_clean(mark, index)
            yield from self._check_kept(index)
        else:
            yield from self._check_sealed_end(file, segment, index, goal, following_base or 0)

    def _check_sealed_end(
        self, file: File, segment: Segment, index: SegmentIndex, goal: LogTail | None, following_base: int
    ) -> Iterator[Finding]:
        assert self.tail is not None
        if goal is None and self.tail.end_position < following_base:
            offset = segment.file_offset(self.tail.end_position)
            if read_around(file, HEADER_SIZE, offset) not in (b"", bytes(HEADER_SIZE)):
                yield self._frame(segment, self.tail.end_position, following_base, "not a frame that follows")
                self.tail = None
                return
            # Otherwise the file ends at `tail`, and a file that begins there is missing. The check of the next file
            # reports that.
        self.tail = goal._replace(segment_base=self._base) if goal else self.tail
        yield from self._check_sidecar(index, self.tail)

    def _sealed_end(self, following: bytes | None, following_base: int | None) -> LogTail | None:
        """Returns the log's tail after this sealed file, according to the next file, or to the sidecar if the next
        file's local header is damaged. Returns None for the active file, and if that one does not tell."""
        if following is None:
            return None
        if not header_is_damaged(following):
            previous = decode_header(following, self._path, self._group_id).previous
            if previous.segment_base == self._base and previous.end_position == following_base:
                return previous
            return None
        try:
            head, _ = decode_index(read_file(self._fs, self._path.with_suffix(layout.INDEX_SUFFIX)), self._group_id)
        except (FrameError, OSError):
            return None
        return head.tail if head.tail.end_position == following_base else None

    def _walk(
        self, file: File, segment: Segment, index: SegmentIndex, goal: LogTail | None, *, sealed: bool
    ) -> Iterator[Finding]:
        """Checks the frames up to the goal and beyond, and yields the findings; then `self.tail` is the log's tail
        after the last one."""
        end = goal.end_position if goal else -1
        begin = (segment.header.previous, index)
        while True:
            scan, _ = scan_segment(file, segment, check_payloads=True, mark_end=end, begin=begin)
            for rotten in scan.rotten:
                yield self._frame(segment, rotten.first_position, rotten.end_position, rotten.why)
            self.tail = scan.tail
            if goal is None or scan.tail.end_position >= end:
                break
            chain = find_chain(file, segment, scan.tail, goal)
            stop = chain.first.position if chain else end
            why = scan.damage or "zeroes, or the end of the file"
            yield self._frame(segment, scan.tail.end_position, stop, f"from entry {scan.tail.index + 1} on: {why}")
            if chain is None:
                return
            for _ in range(scan.tail.index + 1, chain.first.index):
                index.add(scan.tail.end_position, scan.tail.term)
            first = chain.first
            begin = (
                LogTail(
                    scan.tail.term, first.index - 1, first.position, first.parent, segment.base, scan.tail.timestamp_ms
                ),
                index,
            )
        if goal is not None and not sealed and scan.at_mark is None:
            text = f"the sync mark at position {end} names no frame"
            yield self._finding(MARK_OFFSETS[0], 0, "sync mark", Severity.FATAL, text)
        elif goal is not None and scan.at_mark is not None and scan.at_mark.header_crc != goal.header_crc:
            text = f"frame {scan.at_mark.header_crc:08x} ends at position {end}, but {goal.header_crc:08x} should"
            yield self._finding(0, 0, "segment file", Severity.FATAL, text)
        if not sealed and scan.damage:
            text = (
                f"torn tail at entry {scan.tail.index + 1}, above the sync mark: cut at the next start ({scan.damage})"
            )
            yield self._finding(segment.file_offset(scan.tail.end_position), 0, "tail", Severity.NOTE, text)

    def _behind(self, file: File, segment: Segment) -> Iterator[Finding]:
        assert self.tail is not None
        at, size = segment.file_offset(self.tail.end_position), file.size()
        for offset in range(at, size, len(ZERO_CHUNK)):
            chunk = read_around(file, min(len(ZERO_CHUNK), size - offset), offset)
            if chunk != ZERO_CHUNK[: len(chunk)]:
                text = "bytes behind the last frame: cut at the next start, kept in trash/"
                yield self._finding(offset, len(chunk), "tail", Severity.NOTE, text)
                return

    def _check_sidecar(self, index: SegmentIndex, end: LogTail) -> Iterator[Finding]:
        path = self._path.with_suffix(layout.INDEX_SUFFIX)
        text = _index_fault(self._fs, path, self._group_id, index, end)
        if text:
            yield Finding(path, 0, 0, "sidecar", Severity.NOTE, f"{text}: made again from the frames")

    def _check_clean(self, mark: SyncMark | None, index: SegmentIndex) -> Iterator[Finding]:
        path = self._log / layout.CLEAN
        if not self._fs.exists(path):
            return
        if mark is None or _mark_in(self._fs, path) != mark:
            yield Finding(
                path, 0, 0, "clean marker", Severity.NOTE, "damaged, or not of the newest sync mark: not believed"
            )
        if self.tail is not None:
            yield from self._check_sidecar(index, self.tail)

    def _check_kept(self, index: SegmentIndex) -> Iterator[Finding]:
        path = self._log / layout.ACTIVE_INDEX
        if not self._fs.exists(path):
            return
        try:
            head, kept = decode_index(read_file(self._fs, path), self._group_id)
            count = min(len(kept.offsets), len(index.offsets))  # active.idx may list entries of a torn tail
            fits = head.base != self._base or kept.offsets[:count] == index.offsets[:count]
            text = "" if fits else "it does not fit the frames"
        except FrameError as error:
            text = str(error)
        if text:
            yield Finding(
                path, 0, 0, "kept index", Severity.NOTE, f"{text}: the active segment is scanned from its base"
            )

    def _frame(self, segment: Segment, start: int, stop: int, why: str) -> Finding:
        text = f"damaged at positions {start}..{stop}: {why}. Kept back, and fetched from a peer"
        return self._finding(segment.file_offset(start), stop - start, "frame", Severity.REPAIRABLE, text)

    def _finding(self, offset: int, size: int, kind: str, severity: Severity, text: str) -> Finding:
        return Finding(self._path, offset, size, kind, severity, text)


def _mark_in(fs: FileSystem, path: Path) -> SyncMark | None:
    return decode_mark(read_file(fs, path)) if fs.exists(path) else None


def _index_fault(fs: FileSystem, path: Path, group_id: int, index: SegmentIndex, end: LogTail) -> str:
    try:
        head, found = decode_index(read_file(fs, path), group_id)
    except (FrameError, OSError) as error:
        return str(error)
    if mark_of(head.tail, 0) != mark_of(end, 0) or head.base != index.base:
        return f"it ends at position {head.tail.end_position}, the segment at {end.end_position}"
    if found.offsets != index.offsets or found.terms != index.terms:
        return "its entries are not where the frames are"
    if found.members and not {*index.members} <= {*found.members}:
        return "it misses MEMBERSHIP entries"
    return ""


def _check_genesis_copy(fs: FileSystem, directory: Path, first: Path, group_id: int) -> Iterator[Finding]:
    path = directory / layout.GENESIS
    text = ""
    try:
        copy = read_copy(fs, directory, group_id)
        raw = copy.header + copy.payload
        if first.stem == "0" * 20 and read_around(fs.open(first), len(raw), LOCAL_HEADER_SIZE) != raw:
            text = "it is not the frame at index 0"
    except FrameError as error:
        text = str(error)
    if text and first.stem != "0" * 20:
        text = f"{text}; the log begins above GENESIS: put {layout.GENESIS} of any other node here, which is the same"
        yield Finding(path, 0, 0, "genesis copy", Severity.FATAL, text)
    elif text:
        yield Finding(path, 0, 0, "genesis copy", Severity.NOTE, f"{text}: written again from the log")


def irrelevant(fs: FileSystem, directory: Path, group_id: int) -> Iterator[IrrelevantRange]:
    """Yields unused bytes of local headers, the bytes after the last frame of sealed files, and files that are not
    read."""
    log = directory / layout.LOG
    names = fs.listdir(log) if fs.exists(log) else []
    floor = log_first.load(fs, log, group_id)
    leftovers, bases = _parted(fs, log, layout.segment_bases(names), floor, group_id)
    for name in [call(base) for base in leftovers for call in (layout.segment_name, layout.index_name)]:
        if fs.exists(log / name):
            yield IrrelevantRange(log / name, 0, fs.open(log / name).size(), _why_unread(floor, bases))
    for base, following in pairwise([*bases, None]):
        path = log / layout.segment_name(base if base is not None else 0)
        yield from _unused_header(path)
        if following is not None:
            at = LOCAL_HEADER_SIZE + following - int(path.stem)
            size = fs.open(path).size()
            if at < size:
                yield IrrelevantRange(path, at, size - at, "behind the last frame of a sealed file")
    for name in names:
        if name.endswith(".tmp"):
            yield IrrelevantRange(log / name, 0, fs.open(log / name).size(), "a temporary file")
    if bases and not fs.exists(log / layout.CLEAN):
        path = log / layout.index_name(bases[-1])
        if fs.exists(path):
            yield IrrelevantRange(
                path, 0, fs.open(path).size(), "the sidecar of the active segment is read with CLEAN only"
            )


def _unused_header(path: Path) -> Iterator[IrrelevantRange]:
    used = [(0, HEADER_BYTES)] + [(offset, MARK_SIZE) for offset in MARK_OFFSETS] + [(LOCAL_HEADER_SIZE, 0)]
    for (offset, size), (following, _) in pairwise(used):
        yield IrrelevantRange(path, offset + size, following - offset - size, "unused bytes of the local header")
