"""Serves this node's log and checkpoints to peers that repair theirs (cluster/repair/fetch.py has the frames)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from cluster.config.local_layout import node_object
from cluster.repair.fetch import PAYLOAD_MAX, AnswerSource, Fetched, FetchRefused, Status
from cluster.repair.peer_requests import Fetches, ask
from cluster.state import manifest as manifests
from cluster.state.checkpoints import Checkpoint, Checkpoints
from cluster.state.manifest import CheckpointManifest
from raftlog.errors import DamagedLogError, FrameError, OutOfRangeError
from raftlog.storage.files.fs import FileSystem, read_file
from raftlog.storage.log.log_reader import SegmentSpan
from raftlog.types import LogTail, NodeId


class RawLog(Protocol):
    """The part of SegmentedLog that `log_source` reads."""

    def read_raw(self, position: int, size_max: int) -> bytes:
        """Returns complete frames from `position` on, at most `size_max` bytes, with every CRC checked."""


def log_source(
    log: RawLog,
    commit_index: Callable[[], int],
    hold_log: Callable[[int], object] = lambda position: None,
) -> AnswerSource:
    """Returns the source of `log` [position, skip, size]: frames from the one that begins at `position`, less the first
    `skip` bytes.

    Fields of the answer: [this node's commit index]. The payload may end within a frame, because a frame can be longer
    than a reply. `hold_log(position)` keeps the log from there on for a while, because the peer continues to read.
    """

    def read(arguments: list[Any]) -> Fetched:
        position, skip, size = arguments
        if not all(type(number) is int and number >= 0 for number in arguments):
            raise ValueError(f"position, skip and size are numbers, not {arguments!r:.60}")
        hold_log(position)
        try:
            frames = log.read_raw(position, min(size, PAYLOAD_MAX))
        except (OutOfRangeError, DamagedLogError) as error:
            raise FetchRefused(Status.MISSING, str(error)) from error
        piece = frames[skip : skip + min(size, PAYLOAD_MAX)]
        if not piece:
            raise FetchRefused(Status.MISSING, f"the frame at position {position} has no byte {skip}")
        return Fetched([commit_index()], piece)

    return read


# Serves the bounds of the segment files of this node's log to a peer that builds a log.
#
#     `segment` [position]   fields: [previous term, index, end position, header CRC, segment base, timestamp ms,
#                                     position where the file's last frame ends, 1 if the file is complete]
#
# `previous` is the tail of the log before the file's first frame. The answer itself proves nothing. The frames that are
# fetched afterwards (`log`, see above) prove it, because each names the one before.

SEGMENT = "segment"
TIMEOUT_MS = 5000
_FIELDS = 8


class Spans(Protocol):
    """The part of SegmentedLog that `segment_source` reads."""

    def segment_at(self, position: int) -> SegmentSpan:
        """Returns the bounds of the segment file that contains `position`."""


class SegmentPlace(NamedTuple):
    """The bounds of a segment file of a peer."""

    previous: LogTail
    end_position: int
    sealed: bool


def segment_source(log: Spans) -> AnswerSource:
    """Returns the source that tells peers in which of this node's segment files a position lies."""

    def answer(arguments: list[Any]) -> Fetched:
        (position,) = arguments
        if type(position) is not int or position < 0:
            raise ValueError(f"a position is a number, not {position!r:.40}")
        try:
            span = log.segment_at(position)
        except OutOfRangeError as error:
            raise FetchRefused(Status.MISSING, str(error)) from error
        return Fetched([*span.previous, span.end_position, int(span.sealed)], b"")

    return answer


async def ask_place(client: Fetches, peer: NodeId, position: int) -> SegmentPlace:
    """Returns the segment file in which `peer` has this position. Raises FetchError if the peer does not answer,
    FrameError if its answer is invalid."""
    fields = (await ask(client, peer, SEGMENT, [position], TIMEOUT_MS)).fields
    if len(fields) != _FIELDS or not all(type(field) is int for field in fields):
        raise FrameError(f"{node_object(client.group, peer)} describes its segment as {fields!r:.80}")
    place = SegmentPlace(LogTail(*fields[:6]), fields[6], bool(fields[7]))
    if not place.previous.end_position <= position < place.end_position or place.previous.index < -1:
        raise FrameError(f"{node_object(client.group, peer)} names a segment without position {position}: {place}")
    return place


# Serves this node's checkpoints to a peer that lost its state (initial_checkpoint.py sends the requests).
#
#     ["list"]                               fields: [[name, index, term, header_crc], ...], newest first
#     ["list", least]                        the same; if none is of that index or above, another one is made first
#     ["manifest", name]                     payload: the manifest file
#     ["file", name, file, offset, size]     payload: bytes of one of its files
#
# A manifest is sent only after every file of the checkpoint was compared with its CRC: tables are shared with the
# state, so a corrupt block is corrupt in both. A damaged checkpoint is not offered again; if none is left, the
# checkpointer makes another, and the peer must ask again. A node that knows that its rows are wrong serves none at
# all.
#
# A checkpoint that is being copied, and the log from its last entry on, are kept for a minute after each request
# (`Checkpointer.hold`, `hold_log`), so that the peer's next request can be served.

logger = logging.getLogger(__name__)


class CheckpointSource(Protocol):
    """The part of Checkpointer that `state_source` uses."""

    checkpoints: Checkpoints
    frozen: bool
    wanted: bool

    def want_checkpoint(self) -> None:
        """Asks for another checkpoint."""

    def hold(self, name: str) -> None:
        """Keeps this checkpoint for a while, because a peer reads from it."""


def state_source(
    fs: FileSystem, checkpointer: CheckpointSource, hold_log: Callable[[int], object] = lambda position: None
) -> AnswerSource:
    """Returns the source of the checkpoints of `checkpointer`. `hold_log(position)` keeps the log from there for a
    while, because the peer will need it."""
    return _StateSource(fs, checkpointer, hold_log).answer


class _StateSource:
    """The source of checkpoints. One lane uses it."""

    def __init__(self, fs: FileSystem, checkpointer: CheckpointSource, hold_log: Callable[[int], object]) -> None:
        self._fs = fs
        self._checkpointer = checkpointer
        self._hold_log = hold_log
        self._sound: CheckpointManifest | None = None
        """The manifest of the checkpoint whose files were last checked and all found undamaged; None before."""
        self._damaged: list[CheckpointManifest] = []
        self._asked = False
        """True if the checkpointer was asked for another checkpoint."""

    def answer(self, arguments: list[Any]) -> Fetched:
        """Answers one request for a checkpoint of this node (`fetch.AnswerSource`)."""
        if self._checkpointer.frozen:
            raise FetchRefused(Status.MISSING, "its own rows are not to be trusted")
        match arguments:
            case ["list"]:
                return Fetched(self._list(-1), b"")
            case ["list", int() as least]:
                return Fetched(self._list(least), b"")
            case ["manifest", str() as name]:
                path = self._proved(name).path
                return Fetched([], read_file(self._fs, path / manifests.FILE)[:PAYLOAD_MAX])
            case ["file", str() as name, str() as file, int() as offset, int() as size] if offset >= 0 < size:
                known = self._known(name)
                if file not in {one.name for one in known.manifest.files}:
                    raise FetchRefused(Status.MISSING, f"checkpoint {name} has no file {file[:80]}")
                opened = self._fs.open(known.path / file)
                data = opened.pread(min(size, PAYLOAD_MAX), offset)
                opened.close()
                return Fetched([], data)
        raise ValueError(f"not a request for a checkpoint: {arguments!r:.100}")

    def _list(self, least: int) -> list[Any]:
        there = self._checkpointer.checkpoints.all()
        self._damaged = [one.manifest for one in there if one.manifest in self._damaged]
        marks = [(one.path.name, one.manifest.mark) for one in there if one.manifest not in self._damaged]
        if marks and marks[0][1].index >= least:
            self._asked = False
            return [[name, mark.index, mark.term, mark.header_crc] for name, mark in marks]
        if not self._asked:
            self._asked = True
            self._checkpointer.want_checkpoint()
        elif not self._checkpointer.wanted:
            self._asked = False  # the attempt has failed, so the next request asks for another one
            if marks:
                return [[name, mark.index, mark.term, mark.header_crc] for name, mark in marks]
            raise FetchRefused(Status.MISSING, "it has no sound checkpoint, and could not make one")
        raise FetchRefused(Status.BUSY, "it makes a checkpoint first")

    def _known(self, name: str) -> Checkpoint:
        found = self._checkpointer.checkpoints.load(name) if manifests.is_name(name) else None
        if found is None:
            raise FetchRefused(Status.MISSING, f"there is no checkpoint {name[:80]} any more")
        self._checkpointer.hold(name)
        self._hold_log(max(0, found.manifest.mark.end_position - 1))
        return found

    def _proved(self, name: str) -> Checkpoint:
        known = self._known(name)
        if known.manifest == self._sound:
            return known
        wrong = next(self._checkpointer.checkpoints.problems(known), None)
        if wrong is None:
            self._sound = known.manifest
            return known
        if known.manifest not in self._damaged:
            self._damaged.append(known.manifest)
        what = f"{wrong[0].name} {wrong[1]}"
        logger.error(
            "checkpoint %s is not offered to other nodes: %s. The state may share that file: raftmq scrub", name, what
        )
        raise FetchRefused(Status.MISSING, f"checkpoint {name} is damaged here: {what}")
