"""Finds the intact frames after damaged headers: a chain of frames that leads to a known frame.

A header contains its position and the frame before it, so a walk can begin anywhere. Its frames count only if the chain
of parents leads to a *goal* known from elsewhere: the frame that the sync mark or the next segment file names. Frames
that do not lead there (a stale copy, bytes of a client that look like a frame) stay part of the damage.
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog.errors import CorruptLogError, FrameError
from raftlog.frame import HEADER_SIZE, MAGIC, FrameHeader
from raftlog.storage.files.fs import File
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.scan import Scan, Window, read_around
from raftlog.storage.segments.segment import Segment
from raftlog.storage.segments.segment_index import SegmentIndex
from raftlog.types import EntryType, LogTail

_MAGIC = MAGIC.to_bytes(4)
_STEP = 1024 * 1024


class Chain(NamedTuple):
    """A chain of intact frames without a gap up to the goal."""

    first: FrameHeader
    segment_index: SegmentIndex
    timestamp_ms: int
    """The log time of the last frame."""
    bytes_read: int


def find_chain(file: File, segment: Segment, low: LogTail, goal: LogTail) -> Chain | None:
    """Returns the longest chain of frames that begins above `low` and whose last frame is the one that `goal`
    describes; None if there is none."""
    window, failed = Window(file), set[int]()
    searched = 0
    for position in _candidates(file, segment, low.end_position + 1, goal.end_position):
        if position in failed:
            continue
        searched = position - low.end_position
        walked = _walk(window, segment, position, low, goal, failed)
        if walked:
            segment_index = SegmentIndex(walked[0].position, walked[0].index)
            for header in walked:
                segment_index.add(header.position, header.term, header.type)
            return Chain(walked[0], segment_index, walked[-1].timestamp_ms, window.bytes_read + searched)
        failed.add(position)
    return None


def _candidates(file: File, segment: Segment, start: int, stop: int) -> list[int]:
    """Returns the positions in [start, stop) at which a frame's magic number lies."""
    found = []
    for at in range(start, stop, _STEP):
        data = read_around(file, min(_STEP, stop - at) + len(_MAGIC) - 1, segment.file_offset(at))
        where = data.find(_MAGIC)
        while where >= 0:
            found.append(at + where)
            where = data.find(_MAGIC, where + 1)
    return found


def _walk(
    window: Window, segment: Segment, position: int, low: LogTail, goal: LogTail, failed: set[int]
) -> list[FrameHeader]:
    """Returns the headers of the frames from `position` to the goal; [] if the frames do not lead there. In that case
    adds the positions of these frames to `failed`, because a walk from any of them would fail too."""
    walked: list[FrameHeader] = []
    while position not in failed:
        try:
            header = FrameHeader(window.get(HEADER_SIZE, segment.file_offset(position)), segment.header.group_id)
        except FrameError:
            break
        last = walked[-1] if walked else None
        follows = header.index == last.index + 1 and header.parent == last.header_crc if last else True
        plausible = low.index + 1 < header.index <= goal.index and low.term <= header.term <= goal.term
        if header.position != position or not follows or not plausible:
            break
        walked.append(header)
        position += header.frame_length
        if position >= goal.end_position:
            if (position, header.index, header.header_crc) == (goal.end_position, goal.index, goal.header_crc):
                return walked
            break
    failed.update(header.position for header in walked)
    return []


class Rejoined(NamedTuple):
    """The hole between the intact frames before and after damage. `timestamp_ms`: log time of the last frame after the
    hole; without such a frame, that of the last frame before it."""

    hole: DamagedRange
    reached: bool
    """True if intact frames after the hole lead to the goal; False if the hole reaches up to the goal."""
    timestamp_ms: int
    bytes_read: int
    last_term: int | None
    """The term of the hole's last entry; None if it is unknown."""


def rejoin(file: File, segment: Segment, scan: Scan, index: SegmentIndex, goal: LogTail) -> Rejoined:
    """Completes the segment's `index`, which `scan` left short of `goal`, with the frames found after the damage.

    Entries in the hole get the position at which it begins: they are not read before it is repaired. Raises
    CorruptLogError if the frames lead past the goal: file and goal are not of one history.
    """
    low = scan.tail
    if low.end_position >= goal.end_position or low.index >= goal.index:
        raise CorruptLogError(
            f"{segment.path}: the frames lead to index {low.index} ({low.header_crc:08x}) ending at "
            f"{low.end_position}, what was durable to index {goal.index} ({goal.header_crc:08x}) ending at "
            f"{goal.end_position}: they are not of one history. Put back the file that belongs here, from a backup, or "
            "replace the node."
        )
    chain = find_chain(file, segment, low, goal)
    end = (goal.end_position, goal.index, goal.header_crc)
    if chain is not None:
        end = (chain.first.position, chain.first.index - 1, chain.first.parent)
    why = f"{segment.path.name}: {scan.damage or 'zeroes, or the end of the file'}"
    hole = DamagedRange(low.end_position, end[0], low.index + 1, end[1], low.header_crc, end[2], why, located=False)
    last_term = _last_term(low, goal, chain)
    fill(index, hole, low.term if last_term is None or hole.first_index < hole.last_index else last_term)
    if chain is None:
        return Rejoined(hole, False, low.timestamp_ms, goal.end_position - low.end_position, last_term)
    for number, offset in enumerate(chain.segment_index.offsets, chain.segment_index.base_index):
        index.add(chain.segment_index.base + offset, chain.segment_index.term(number))
    index.members += chain.segment_index.members
    return Rejoined(hole, True, chain.timestamp_ms, chain.bytes_read, last_term)


def _last_term(low: LogTail, goal: LogTail, chain: Chain | None) -> int | None:
    """Returns the term of the hole's last entry; None if it is not known. If the hole reaches the goal (`chain` is
    None), it is the goal's term. Otherwise the frame after the hole tells it: a leader begins its term with a NOOP, so
    the entry before any other kind of entry has the same term. A NOOP tells it only if no term lies between its own and
    that of `low`."""
    term: int = goal.term if chain is None else chain.first.term
    if chain is None or term == low.term or chain.first.type != EntryType.NOOP:
        return term
    return low.term if term == low.term + 1 else None


def fill(index: SegmentIndex, hole: DamagedRange, term: int) -> None:
    """Adds the entries of `hole` to the index, all with the position at which the hole begins, and with the term
    `term`. Only GENESIS gets term 0."""
    for number in range(hole.first_index, hole.last_index + 1):
        index.add(hole.first_position, max(term, min(number, 1)))
