"""Second step of recovery: finds the end of the log, by reading the active segment from the newest point known as
durable.

A frame below the sync mark was durable and may be acknowledged; an incomplete frame above it cannot be. Damage above
the mark is therefore cut, and damage below it is kept and repaired from peers. If the mark itself, or every frame up to
it, cannot be read, the node no longer knows what it acknowledged, and its vote is withheld before any byte is cut.
"""

from __future__ import annotations

from raftlog.errors import CorruptLogError, FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader
from raftlog.storage.files import layout
from raftlog.storage.files.fs import ZERO_CHUNK, File, read_file, zero_fill
from raftlog.storage.files.trash import TrashReport
from raftlog.storage.recovery.recovery_run import RecoveryRun
from raftlog.storage.segments import active_index
from raftlog.storage.segments.resync import Rejoined, rejoin
from raftlog.storage.segments.scan import Scan, has_successor, scan_segment
from raftlog.storage.segments.segment import (
    MARK_OFFSETS,
    Segment,
    SyncMark,
    decode_mark,
    encode_mark,
    mark_of,
    newest_mark,
    newest_seq,
)
from raftlog.storage.segments.segment_index import SegmentIndex, decode_index
from raftlog.types import LogTail

ZEROES_ENOUGH = 16 * 1024 * 1024
"""The bytes of zeroes after the last frame at which the search ends. Bytes after them were never acknowledged and
cannot become part of the log, because a frame names the one before it as its parent."""


def recover_active(run: RecoveryRun, active: Segment, page: bytes) -> tuple[LogTail, bool]:
    """Finds the end of the log in the active segment. Returns the log's tail, and True if the last stop was orderly;
    gives `active` its index. Changes only bytes above the sync mark, unless the vote is withheld first, and writes both
    sync marks anew from CLEAN if both are damaged."""
    file = active.file
    assert file is not None
    mark, kept = newest_mark(page), clean_mark(run)
    if mark is not None and (tail := _clean_tail(run, active, file, mark, kept)) is not None:
        return tail, True
    if mark is None and kept is not None and kept.end_position >= active.base:
        mark = kept
        run.note("both marks damaged, CLEAN is there", "both sync marks are damaged: CLEAN is a copy of the newest")
        _write_marks(run, active, file, mark)
    if mark is None:
        return _without_mark(run, active, file), False
    return _scan(run, active, file, mark), False


# After an orderly stop


def clean_mark(run: RecoveryRun) -> SyncMark | None:
    """Returns the newest sync mark, as an orderly stop copied it to CLEAN; None if there is no intact copy."""
    path = run.log / layout.CLEAN
    return decode_mark(read_file(run.fs, path)) if run.fs.exists(path) else None


def _clean_tail(run: RecoveryRun, active: Segment, file: File, mark: SyncMark, kept: SyncMark | None) -> LogTail | None:
    """Returns the log's tail if the last stop was orderly, else None. CLEAN is a copy of the last sync mark, so any
    append makes it invalid."""
    if not run.fs.exists(run.log / layout.CLEAN):
        run.note("unclean stop", "the last stop was not orderly: what came after the last kept index is scanned")
        return None
    sidecar = run.log / layout.index_name(active.base)
    if kept != mark or not run.fs.exists(sidecar):
        run.note("unclean stop", "CLEAN does not fit the active segment: it is scanned")
        return None
    try:
        head, index = decode_index(read_file(run.fs, sidecar), run.group_id)
        tail = head.tail
        if mark_of(tail, mark.seq) != mark or head.base != active.base or not index.offsets:
            raise FrameError("index sidecar does not fit the mark")
        last = index.position(tail.index)
        data = file.pread(tail.end_position - last, active.file_offset(last))
        frame = FrameHeader(data[:HEADER_SIZE], run.group_id)
        frame.entry(data[HEADER_SIZE:])
        if frame.header_crc != tail.header_crc:
            raise FrameError("last frame does not fit the mark")
    except (FrameError, IndexError) as error:
        run.note("unclean stop", f"orderly stop, but {error}: the active segment is scanned")
        return None
    active.index = index
    active.tell(index)
    run.scanned_from = tail.end_position
    run.note("clean stop", "the last stop was orderly: the newest sync mark covers the whole log")
    return tail


# After a stop that was not orderly


def _scan(run: RecoveryRun, active: Segment, file: File, mark: SyncMark) -> LogTail:
    point = active_index.load(run.fs, run.log, active, mark, run.group_id)
    run.scanned_from = point.tail.end_position if point else active.base
    scan, index = scan_segment(file, active, check_payloads=True, mark_end=mark.end_position, begin=point)
    run.bytes_scanned += scan.bytes_read
    active.index = index
    active.tell(index)
    for damaged in scan.rotten:
        run.found_damage("damage below the mark", damaged)
    if scan.tail.end_position < mark.end_position:
        behind = _behind_damage(run, active, file, scan, index, mark)
        if behind is None:
            return _cut_below_mark(run, active, file, scan, mark)
        scan = behind
    elif scan.at_mark is None or mark_of(scan.at_mark, mark.seq) != mark:
        raise CorruptLogError(
            f"{active.path}: the sync mark names index {mark.next_index - 1} (term {mark.term}, header_crc "
            f"{mark.header_crc:08x}) ending at {mark.end_position}, the frames say otherwise: file and mark are "
            "not of one history. Restore this file from a backup, or replace the node."
        )
    _cut_torn_tail(run, active, file, scan)
    _write_again(run, active, file, mark.end_position, scan.tail.end_position)
    if scan.tail.end_position > mark.end_position:
        # Without this mark, the node would acknowledge these frames as soon as a leader asks for them. If one were
        # damaged later, the next start would then cut it as a torn tail (seed 130786946).
        mark_end(file, scan.tail)
    return scan.tail


def _behind_damage(
    run: RecoveryRun, active: Segment, file: File, scan: Scan, index: SegmentIndex, mark: SyncMark
) -> Scan | None:
    """Continues a scan after damaged headers. Returns None if no frame from there on leads to the sync mark or follows
    it, or if the terms of the entries in between are not known (`_terms_known`)."""
    goal = LogTail(mark.term, mark.next_index - 1, mark.end_position, mark.header_crc, active.base, 0)
    count = len(index.offsets)
    joined = rejoin(file, active, scan, index, goal)
    run.bytes_scanned += joined.bytes_read
    known = joined.reached or has_successor(file, active, goal, run.group_id)
    if not known or not _terms_known(run, scan.tail.term, joined):
        index.cut(index.base_index + count)
        return None
    run.found_damage("damage below the mark", joined.hole)
    begin = (goal._replace(timestamp_ms=joined.timestamp_ms), index)
    more, _ = scan_segment(file, active, check_payloads=True, mark_end=mark.end_position, begin=begin)
    run.bytes_scanned += more.bytes_read
    return more


def _terms_known(run: RecoveryRun, low: int, joined: Rejoined) -> bool:
    """Returns True if the terms of the entries in a hole (entries whose headers were lost) are known, or do not matter.

    They do not matter if all of the hole was committed. They are known if the hole has one term (`low` is the term in
    front of it) or is a single entry. Otherwise the beginnings of terms were lost with the headers.
    """
    hole, last = joined.hole, joined.last_term
    one_term = last is not None and (last == low or hole.first_index == hole.last_index)
    return one_term or hole.last_index <= run.committed_index


def _cut_torn_tail(run: RecoveryRun, active: Segment, file: File, scan: Scan) -> None:
    """Copies the bytes above the last good frame to trash/ and zeroes them, so that they can never be mistaken for a
    frame later."""
    start = active.file_offset(scan.tail.end_position)
    stop = _last_byte(run, file, start)
    if stop == start:
        return
    why = (
        f"torn tail of {stop - start} bytes cut from {active.path.name} at position {scan.tail.end_position}, index "
        f"{scan.tail.index + 1} ({scan.damage or 'zeroes before other bytes'}): above the sync mark"
    )
    report = TrashReport(why, position=scan.tail.end_position, index=scan.tail.index + 1, length=stop - start)
    run.set_aside_bytes(file, start, stop - start, report)
    zero_fill(file, start, stop)
    file.fdatasync()
    run.torn = stop - start
    run.note("torn tail", why)


def _last_byte(run: RecoveryRun, file: File, start: int) -> int:
    """Returns the file offset after the last byte, from `start` on, that is not zero; `start` if all are zero. The
    search ends after ZEROES_ENOUGH zeroes."""
    size, at, last = file.size(), start, start
    while at < min(size, last + ZEROES_ENOUGH):
        chunk = file.pread(min(len(ZERO_CHUNK), size - at), at)
        run.bytes_scanned += len(chunk)
        if chunk != ZERO_CHUNK[: len(chunk)]:
            last = at + len(chunk.rstrip(b"\0"))
        at += len(ZERO_CHUNK)
    run.bytes_zeroed += min(at, size) - last
    return last


def _write_again(run: RecoveryRun, active: Segment, file: File, start: int, stop: int) -> None:
    for at in range(start, stop, len(ZERO_CHUNK)):
        offset = active.file_offset(at)
        file.pwritev([file.pread(min(len(ZERO_CHUNK), stop - at), offset)], offset)
    if stop > start:
        run.note(
            "complete above the mark",
            f"{stop - start} bytes above the sync mark are complete: written again and synced",
        )
    file.fdatasync()


def mark_end(file: File, tail: LogTail) -> None:
    """Writes the mark that everything up to `tail` is on disk, with a sync. The mark that was the newest stays in its
    slot: if a crash tears the new mark, the one before it counts."""
    _write_mark(file, mark_of(tail, newest_seq(file) + 1))


def _write_mark(file: File, mark: SyncMark) -> None:
    file.pwritev([encode_mark(mark)], MARK_OFFSETS[mark.seq % 2])
    file.fdatasync()


# When the end of the durable log is not known any more


def _cut_below_mark(run: RecoveryRun, active: Segment, file: File, scan: Scan, mark: SyncMark) -> LogTail:
    why = (
        f"{active.path.name} cannot be read from position {scan.tail.end_position}, index {scan.tail.index + 1} on "
        f"({scan.damage or 'zeroes, or the end of the file'}), below the sync mark at position {mark.end_position}, "
        f"index {mark.next_index - 1}, and no intact frame beyond leads to it"
    )
    run.withhold_vote(why, mark.next_index - 1, mark.term)
    _cut_with_vote_withheld(run, active, file, scan.tail, why, "unreadable tail below the mark")
    return scan.tail


def _without_mark(run: RecoveryRun, active: Segment, file: File) -> LogTail:
    scan, index = scan_segment(file, active, check_payloads=True)
    run.bytes_scanned += scan.bytes_read
    run.scanned_from = active.base
    active.index = index
    active.tell(index)
    why = (
        f"both sync marks of {active.path.name} are damaged: how far the log was durable is not known; the frames can "
        f"be read up to position {scan.tail.end_position}, index {scan.tail.index}"
    )
    run.withhold_vote(why, scan.tail.index, scan.tail.term)
    _cut_with_vote_withheld(run, active, file, scan.tail, why, "both marks damaged")
    _write_again(run, active, file, active.base, scan.tail.end_position)
    return scan.tail


def _cut_with_vote_withheld(run: RecoveryRun, active: Segment, file: File, tail: LogTail, why: str, row: str) -> None:
    """Copies the bytes above `tail` to trash/, lowers the marks, then zeroes the bytes. After a crash in between, the
    next start repeats all of it."""
    start = active.file_offset(tail.end_position)
    stop = _last_byte(run, file, start)
    if stop > start:
        report = TrashReport(why, position=tail.end_position, index=tail.index + 1, length=stop - start)
        run.set_aside_bytes(file, start, stop - start, report, must=True)
    _write_marks(run, active, file, mark_of(tail, 0))
    zero_fill(file, start, stop)
    file.fdatasync()
    run.note(row, f"{why}. Set aside in trash/: {stop - start} bytes. This node does not vote until it has caught up")


def _write_marks(run: RecoveryRun, active: Segment, file: File, mark: SyncMark) -> None:
    """Writes both sync marks, with a sync after each. If only one were lowered, the other would still promise more than
    the log contains."""
    seq = max(newest_seq(file), mark.seq)
    for number in (seq + 1, seq + 2):
        _write_mark(file, mark._replace(seq=number))
