"""First step of recovery: finds the segment files, missing files and damaged local headers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError, FrameError, LogGoneError, out_of_space
from raftlog.frame import HEADER_SIZE, FrameHeader
from raftlog.storage.files import layout, log_first
from raftlog.storage.files.fs import File, if_readable, read_file, unreadable, write_file
from raftlog.storage.files.trash import TrashReport
from raftlog.storage.recovery.recovery_run import RecoveryRun
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.damage_finder import whole_file
from raftlog.storage.segments.resync import fill
from raftlog.storage.segments.scan import first_frame, has_successor, scan_segment
from raftlog.storage.segments.sealed_index import load_sidecar, rebuild_index, same_end
from raftlog.storage.segments.segment import (
    LOCAL_HEADER_SIZE,
    MARK_OFFSETS,
    Segment,
    SegmentHeader,
    decode_header,
    encode_header,
    header_is_damaged,
)
from raftlog.storage.segments.segment_index import (
    HEAD_READ,
    IndexHead,
    SegmentIndex,
    decode_head,
    decode_index,
    encode_index,
)
from raftlog.types import EMPTY_TAIL, LogTail


class SegmentFile(NamedTuple):
    """A segment file as recovery found it. `header` is None if damaged; `page` is the readable part of its first 4096
    bytes."""

    path: Path
    base: int
    file: File
    page: bytes
    header: SegmentHeader | None


def open_files(run: RecoveryRun) -> tuple[list[Segment], bytes]:
    """Returns all segments, ascending, the last one open, and the local header page of the last.

    A missing file gets a Segment too, whose frames are one damaged range. Raises LogGoneError if there is no file,
    CorruptLogError if the files cannot be one log.
    """
    bases = layout.segment_bases(run.fs.listdir(run.log))
    if not bases:
        raise LogGoneError(
            f"{run.log} holds no segment file: the log of this node is gone, and with it what it acknowledged.\n"
            "Restore it from a backup, or replace the node."
        )
    floor, bases = _trimmed(run, bases)
    segments: list[Segment] = []
    page = b""
    for base in bases:
        found = _read(run, base)
        before = segments[-1] if segments else None
        header = found.header or _heal_header(run, before, found, floor, active=base == bases[-1])
        if before is None and floor is not None and header.base_position > floor.end_position:
            segments.append(_missing(run, None, floor, header))
        elif before is not None and header.previous.segment_base != before.base:
            segments.append(_missing(run, before, _end_of(run, before), header))
        segment = Segment(found.path, header)
        segments.append(segment)
        page = found.page
        if base == bases[-1]:
            segment.file = found.file
        else:
            found.file.close()
    return segments, page


def _read(run: RecoveryRun, base: int) -> SegmentFile:
    path = run.log / layout.segment_name(base)
    file = run.fs.open(path)
    try:
        page = file.pread(LOCAL_HEADER_SIZE, 0)
    except OSError as error:
        if not unreadable(error):
            raise
        page = b""
    if header_is_damaged(page):
        return SegmentFile(path, base, file, page, None)
    header = decode_header(page, path, run.group_id)
    if header.base_position != base:
        raise CorruptLogError(
            f"{path} says its first position is {header.base_position}: the file was renamed. Give it back its name, "
            f"{layout.segment_name(header.base_position)}."
        )
    return SegmentFile(path, base, file, page, header)


# A damaged local header is rebuilt from the files before and after it, which hold the same information.


def _heal_header(
    run: RecoveryRun, before: Segment | None, found: SegmentFile, floor: LogTail | None, *, active: bool
) -> SegmentHeader:
    previous, exact = _previous_of(run, before, found, floor)
    header = encode_header(previous, run.group_id)
    row = "local header of the active segment" if active else "local header of a sealed segment"
    # the term and time of the frame before this file are lost with that frame; its repair brings them back
    if not exact:
        run.note(row, f"the local header of {found.path.name} is damaged: its first frame has the needed contents")
        return decode_header(header, found.path, run.group_id)
    if found.page:
        report = TrashReport("damaged local header, written again from its neighbours", position=found.base)
        run.set_aside_bytes(found.file, 0, len(found.page), report)
    # A header page that cannot be read is written again in full. Its sync marks are lost, so they are zeroed.
    size = MARK_OFFSETS[0] if len(found.page) == LOCAL_HEADER_SIZE else LOCAL_HEADER_SIZE
    found.file.pwritev([header[: MARK_OFFSETS[0]].ljust(size, b"\0")], 0)
    found.file.fdatasync()
    run.note(
        row,
        f"the local header of {found.path.name} was damaged: written again from the end of the file before it and its "
        "own first frame, which say the same",
    )
    return decode_header(header, found.path, run.group_id)


def _previous_of(
    run: RecoveryRun, before: Segment | None, found: SegmentFile, floor: LogTail | None
) -> tuple[LogTail, bool]:
    """Returns the log's tail before the file's first frame, and True if its term and time are exact; otherwise they are
    the highest possible ones. Raises CorruptLogError if neither the file before nor the first frame tells the tail, or
    if they contradict each other."""
    first = first_frame(found.file, found.base, run.group_id)
    if found.base == 0:
        return EMPTY_TAIL, True
    tail = _end_of(run, before) if before is not None else floor
    if tail is not None and tail.end_position == found.base:
        if first is None or (first.parent, first.index) == (tail.header_crc, tail.index + 1):
            return tail, True
    elif first is not None:
        segment_base = before.base if before else 0
        return LogTail(first.term, first.index - 1, found.base, first.parent, segment_base, first.timestamp_ms), False
    raise CorruptLogError(
        f"the local header of {found.path} is damaged, and neither its first frame nor the end of the file before it "
        "tells what it was. Restore this file from a backup, or replace the node."
    )


# Where the log begins


def _trimmed(run: RecoveryRun, bases: list[int]) -> tuple[LogTail | None, list[int]]:
    """Returns the content of FIRST and the base positions of the files that belong to the log. Removes the files that a
    trim left behind. If FIRST is damaged, or all files lie below it, returns None and all of `bases`.

    Files below FIRST count as far as they join the log without a gap: a trim was not finished, or a file had just been
    put in front. Files below a gap are older than the files of the gap, which were trimmed after them.
    """
    floor = log_first.load(run.fs, run.log, run.group_id)
    if floor is None:
        run.note("FIRST damaged", "log/FIRST is damaged: the log begins with its first file")
        return None, bases
    if floor.end_position > 0:
        run.note("trimmed", f"the log was trimmed up to position {floor.end_position}, index {floor.index + 1}")
    kept = [base for base in bases if base >= floor.end_position]
    if not kept:
        return None, bases
    if kept[0] != floor.end_position:  # the first file of the log is lost, so no file is removed
        return floor, kept
    expected = floor.segment_base
    below = [base for base in bases if base < floor.end_position]
    while below and below[-1] == expected and (header := _read(run, below[-1]).header) is not None:
        expected = header.previous.segment_base
        kept.insert(0, below.pop())
    if below:
        _remove_leftovers(run, below)
    return floor, kept


def _remove_leftovers(run: RecoveryRun, bases: list[int]) -> None:
    for base in bases:
        for name in (layout.segment_name(base), layout.index_name(base)):
            if run.fs.exists(run.log / name):
                run.fs.unlink(run.log / name)
    run.fs.fsync_dir(run.log)
    run.note("leftovers of a trim", f"{len(bases)} trimmed files that a crash left were removed")


# A missing file lies between the end of the file before it and the frame that the file after it names as its
# predecessor.


def _missing(run: RecoveryRun, before: Segment | None, tail: LogTail, after: SegmentHeader) -> Segment:
    end = after.previous
    if tail.end_position >= end.end_position or tail.index >= end.index:
        raise CorruptLogError(
            f"{run.log}: the file at position {after.base_position} follows one that began at {end.segment_base}, but "
            f"the file before it began at {before.base if before else 0} and ends at {tail.end_position}: they are not "
            "of one history. Put back the files that belong here, from a backup, or replace the node."
        )
    path = run.log / layout.segment_name(tail.end_position)
    segment = Segment(path, SegmentHeader(run.group_id, tail.end_position, tail.index + 1, tail))
    index = load_sidecar(run.fs, segment, end, run.group_id)
    damaged = whole_file(segment, end, f"{path.name} is missing", located=index is not None)
    if index is None:
        index = SegmentIndex(segment.base, segment.header.base_index)
        fill(index, damaged, tail.term)
        check_terms(run, damaged, index.term(end.index), end.term)
    segment.tell(index)
    run.found_damage("missing first segment" if before is None else "missing middle segment", damaged)
    return segment


def check_terms(run: RecoveryRun, damaged: DamagedRange, low_term: int, high_term: int) -> None:
    """Raises CorruptLogError if lost entries that are not known to be committed may be of any of several terms: a
    leader that asks for their terms must not get a wrong one."""
    if low_term != high_term and damaged.last_index > run.committed_index:
        raise CorruptLogError(
            f"{run.log}: entries {damaged.first_index}..{damaged.last_index} are lost ({damaged.why}), with them where "
            f"terms {low_term} to {high_term} begin, and it is not known that they were committed (up to index "
            f"{run.committed_index} it is). Restore this file from a backup, or replace the node."
        )


def _end_of(run: RecoveryRun, segment: Segment) -> LogTail:
    """Returns the end of a sealed file if the next file does not tell it: from its sidecar, if its last frame agrees,
    else by a scan."""
    file = run.fs.open(segment.path)
    try:
        head, index = decode_index(read_file(run.fs, segment.path.with_suffix(layout.INDEX_SUFFIX)), run.group_id)
        last = FrameHeader(file.pread(HEADER_SIZE, segment.file_offset(index.position(head.tail.index))), run.group_id)
        if last.header_crc == head.tail.header_crc and not has_successor(file, segment, head.tail, run.group_id):
            return head.tail
    except (FrameError, IndexError):
        pass
    except OSError as error:
        if not unreadable(error):
            raise
    scan, _ = scan_segment(file, segment, check_payloads=False)
    run.bytes_scanned += scan.bytes_read
    return scan.tail


# Sealed segments


def check_sealed(run: RecoveryRun, segment: Segment, end: LogTail) -> None:
    """Checks that a sealed file ends exactly where the next one begins. If its sidecar does not show that, reads the
    frames, writes the sidecar again and records damage. Raises CorruptLogError if the frames lead past the next file,
    or may be of other terms than the log says (`check_terms`)."""
    if any(known.first_position == segment.base and known.end_position == end.end_position for known in run.damaged):
        return  # the file is missing, and is already recorded as one damaged range
    path = segment.path.with_suffix(layout.INDEX_SUFFIX)
    if (head := _head_of_sidecar(run, path, segment, end)) is not None:
        segment.tell(head)
        return
    loaded = rebuild_index(run.fs, segment, end, run.group_id)
    run.bytes_scanned += loaded.bytes_read
    run.note("sidecar", f"index of sealed {segment.path.name} was missing or stale: rebuilt from its frames")
    segment.tell(loaded.segment_index)
    for damaged in loaded.damaged:
        after = loaded.segment_index.term(damaged.last_index + 1) if damaged.last_index < end.index else end.term
        check_terms(run, damaged, loaded.segment_index.term(damaged.last_index), after)
        run.found_damage("damaged headers in a sealed segment", damaged)
    if loaded.damaged:
        return
    try:
        write_file(run.fs, path, b"".join(encode_index(loaded.segment_index, end, run.group_id)))
    except OSError as error:
        if not out_of_space(error):
            raise
        run.reasons.append(f"no space to keep the index of {segment.path.name}: rebuilt again next time")


def _head_of_sidecar(run: RecoveryRun, path: Path, segment: Segment, end: LogTail) -> IndexHead | None:
    if not run.fs.exists(path):
        return None
    file = run.fs.open(path)

    def read() -> IndexHead:
        data = file.pread(HEAD_READ, 0)
        return decode_head(data if len(data) < HEAD_READ else file.pread(file.size(), 0), run.group_id)

    try:
        head = if_readable(read, FrameError)
    finally:
        file.close()
    if head is None:
        return None
    return head if same_end(head.tail, end) and head.base == segment.base else None
