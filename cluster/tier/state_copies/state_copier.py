"""Copies the leader's state into the tier: one copy at a time, file by file between the uploads of segments. Removes
old copies.

A copy is made from a checkpoint that the node made for itself. A copy whose position lies above the end of the tier
cannot be used before the segments below it are uploaded. While there is such a copy, no other is written.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from cluster.runtime.context import NodeContext
from cluster.runtime.host.versions import versions
from cluster.state.checkpoints import Checkpoint
from cluster.state.manifest import CheckpointFile
from cluster.state.node_storage import NodeStorage
from cluster.tier.segment_reads import LaneCalls
from cluster.tier.store.errors import AlreadyExists, BadAnswer, NotFound
from cluster.tier.store.object_store import ObjectStore
from cluster.tier.stored_files import (
    DESCRIPTION_BYTES_MAX,
    BadDescriptionError,
    Chunk,
    FileSource,
    SetWriter,
    StoredFile,
    check_files,
    chunk_of,
    decode,
    encode,
)
from raftlog.errors import RaftLogError
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.log.genesis_copy import read_copy as read_genesis
from raftlog.types import LogTail
from raftmq_wire.checksums import crc32c
from statemachine.trim import load_mark

if TYPE_CHECKING:
    from statemachine.rows.kv import KV


class DamagedCheckpointError(OSError):
    """A file of a checkpoint does not have the size or the CRC that its manifest says. It must not be copied to the
    store."""


class CheckpointReads:
    """Reads checkpoints for the copies of the state in the tier. Event loop only, except for its lane."""

    def __init__(self, context: NodeContext, storage: NodeStorage) -> None:
        self._context = context
        self._fs: FileSystem = context.environment.fs
        self._checkpointer = storage.checkpointer
        self._log = storage.directory.log
        self._data = storage.directory.path
        self._group_id = storage.directory.identity.group_id
        self._lane = LaneCalls(context, "tier-state", OSError)

    def start(self) -> None:
        """Starts the lane; called before the first call."""
        self._lane.start()

    async def close(self) -> None:
        """Stops the lane; returns when it has finished its current work."""
        await self._lane.close()

    async def all(self) -> list[Checkpoint]:
        """Returns all checkpoints, newest first. Raises OSError."""
        return await self._lane.ask(self._checkpointer.checkpoints.all)

    async def log_begins(self, checkpoint: Checkpoint) -> LogTail:
        """Returns the log's tail before the first segment to which the rows of the checkpoint refer. Raises OSError."""
        return await self._lane.ask(lambda: self._log_begins(checkpoint))

    def _log_begins(self, checkpoint: Checkpoint) -> LogTail:
        try:
            with self._context.environment.open_rows(checkpoint.path) as rows:
                position = load_mark(cast("KV", rows)).position  # only `get` is called on it
            return self._log.segment_at(position).previous
        except RaftLogError as error:
            raise OSError(errno.EIO, str(error)) from error

    async def genesis(self) -> bytes:
        """Returns the frame of the log's first entry, at index 0. Raises OSError."""
        return await self._lane.ask(self._genesis)

    def _genesis(self) -> bytes:
        try:
            entry = read_genesis(self._fs, self._data, self._group_id)
        except RaftLogError as error:
            raise OSError(errno.EIO, str(error)) from error
        return entry.header + entry.payload

    def sources(self, checkpoint: Checkpoint) -> list[FileSource]:
        """Returns a source for each file of the checkpoint. Each must be read from front to back. A read raises
        DamagedCheckpointError if the file is too short; the read of the last bytes also raises it if the CRC of the
        file is not the manifest's."""
        return [self._source(checkpoint, file) for file in checkpoint.manifest.files]

    def _source(self, checkpoint: Checkpoint, file: CheckpointFile) -> FileSource:
        path, crc = checkpoint.path / file.name, 0

        def take(start: int, size: int) -> Chunk:
            """Reads one chunk, on the lane. Chunks come in order, so `crc` is that of all bytes so far."""
            nonlocal crc
            opened = self._fs.open(path)
            try:
                data = opened.pread(size, start)
            finally:
                opened.close()
            crc = crc32c(data, crc if start else 0)
            if len(data) != size or (start + size == file.size and crc != file.crc32c):
                raise DamagedCheckpointError(f"{path} is not what its manifest says")
            return chunk_of(data)

        async def read(start: int, size: int) -> Chunk:
            self._checkpointer.hold(checkpoint.path.name)
            return await self._lane.ask(lambda: take(start, size))

        return FileSource(file.name, file.size, read)


logger = logging.getLogger(__name__)

SETTLED_MS = 300_000
"""Milliseconds for which a node must have led before it makes a copy, or `tier.state_every_ms` if that is less."""
LOOK_EVERY_MS = 10_000
"""Milliseconds between two looks at the node's own checkpoints, while none of them can be copied."""


class _WantedLog(NamedTuple):
    """The bytes [tier_begins, tier_end) of the log, which the tier holds when a copy is begun."""

    tier_begins: int
    tier_end: int


class StateCopier:
    """Copies the state. Each term of leadership has its own instance, which reads the store first. Event loop only."""

    def __init__(
        self, context: NodeContext, storage: NodeStorage, reads: CheckpointReads, store: ObjectStore, folder: str
    ) -> None:
        """`folder`: the cluster's folder in the store."""
        self._context = context
        self._storage = storage
        self._reads = reads
        self._store = store
        self._folder = folder
        self._began_ms = context.clock.wall_ms()
        self._next_look_ms = 0
        self._copies: dict[str, StateCopy] | None = None
        self._seen: set[str] = set()
        """Names of all descriptions that were found in the store or written, including those that cannot be read."""
        self._work: AsyncGenerator[None, None] | None = None
        self.wanted = False
        """True from a call of `want` until a checkpoint for the copy was looked for."""

    def want(self) -> None:
        """Asks for a copy although none is due."""
        self.wanted = True

    @property
    def busy(self) -> bool:
        """True while a copy is wanted or being written."""
        return self.wanted or self._work is not None

    @property
    def copies(self) -> list[StateCopy]:
        """The known copies, oldest first."""
        return sorted((self._copies or {}).values(), key=lambda copy: copy.index)

    async def step(self, tier_begins: int, tier_end: int, leads: Callable[[], bool]) -> bool:
        """Writes the next file of a copy if one is due or wanted. Returns False if there was nothing to do, or if the
        copy has just ended. The tier holds the log's bytes [tier_begins, tier_end). Raises StoreError, OSError; the
        caller may always call again."""
        if not self._context.config.tier.state_every_ms:
            self.wanted = False
            return False
        if self._work is None:
            if not self.wanted and not self._is_time(tier_begins):
                return False
            self._work = self._copy(_WantedLog(tier_begins, tier_end), leads)
        try:
            await anext(self._work)
        except StopAsyncIteration:
            self._work = None
            return False
        except BaseException:
            # A generator that raised is over. The next one finds the parts that are written already by their names.
            self._work = None
            raise
        return True

    def _is_time(self, tier_begins: int) -> bool:
        """Returns True if a copy is due. Cheap: called whenever there is nothing to upload."""
        now_ms, every_ms = self._context.clock.wall_ms(), self._context.config.tier.state_every_ms
        led_ms = now_ms - self._began_ms
        if led_ms < min(every_ms, SETTLED_MS) or now_ms < self._next_look_ms:
            return False
        if self._copies is None:
            return True
        newest = self.copies[-1:]
        if newest:
            return now_ms - newest[0].made_ms >= every_ms
        # Without a copy, a restore begins with GENESIS; and only a copy names the ancestors of this cluster.
        return tier_begins > 0 or bool(self._storage.directory.identity.origin) or led_ms >= every_ms

    async def _copy(self, wanted: _WantedLog, leads: Callable[[], bool]) -> AsyncGenerator[None, None]:
        """Writes one copy, then removes old ones. Yields after each file, so that the caller can upload segments in
        between."""
        if self._copies is None:
            self._copies = await self._load()
            if not self.wanted and not self._is_time(wanted.tier_begins):
                return
        checkpoint = await self._choose(wanted.tier_end)
        self.wanted = False
        self._next_look_ms = self._context.clock.wall_ms() + LOOK_EVERY_MS
        if checkpoint is None:
            return
        index = checkpoint.manifest.mark.index
        newest = self.copies[-1:]
        writer = SetWriter(self._store, self._folder, part_prefix(index), newest[0].files if newest else ())
        written: list[StoredFile] = []
        for source in self._reads.sources(checkpoint):
            written.append(await writer.write(source))
            yield
            if not leads():
                return
        begins, genesis = await self._reads.log_begins(checkpoint), await self._reads.genesis()
        copy = self._describe(checkpoint, written, begins, genesis)
        try:
            await writer.write_description(copy.name, encode(copy))
        except AlreadyExists:
            logger.info("tier: %s exists: an earlier leader has written it", copy.name)
            self._copies = None  # The next step lists the copies again.
            return
        self._copies[copy.name] = copy
        self._seen.add(copy.name)
        logger.info(
            "tier: a copy of the state at index %d is written, %d new bytes",
            index,
            writer.bytes_new,
            extra={"index": index, "bytes": writer.bytes_new},
        )
        yield
        if leads():
            await self._remove_old(wanted.tier_end)

    async def _choose(self, tier_end: int) -> Checkpoint | None:
        """Returns the checkpoint to copy, which is newer than all copies; None if there is none. This is the newest one
        that lies below the end of the tier, so that its copy can be used at once. Otherwise it is the newest one,
        unless a copy already waits to become usable."""
        newest = max((copy.index for copy in self.copies), default=-1)
        found = [each for each in await self._reads.all() if each.manifest.mark.index > newest]
        usable = [each for each in found if each.manifest.mark.end_position <= tier_end]
        if usable:
            return usable[0]
        return found[0] if found and not pending(self.copies, tier_end) else None

    def _describe(self, checkpoint: Checkpoint, files: list[StoredFile], begins: LogTail, genesis: bytes) -> StateCopy:
        directory, mark, config = self._storage.directory, checkpoint.manifest.mark, self._context.config
        return StateCopy(
            cluster_id=self._folder,
            checkpoint=checkpoint.path.name,
            index=mark.index,
            term=mark.term,
            position=mark.end_position,
            header_crc=mark.header_crc,
            timestamp_ms=mark.timestamp_ms,
            made_ms=self._context.clock.wall_ms(),
            node=config.node.id,
            group_id=directory.identity.group_id,
            cluster_name=config.cluster.name,
            broker_name=config.cluster.broker_name,
            segment_size=directory.log.segment_size,
            log_begins=list(begins),
            genesis=genesis.hex(),
            origin=[(str(each.cluster_uuid), each.last_index) for each in directory.identity.origin],
            files=files,
            versions=versions(),
        )

    async def _load(self) -> dict[str, StateCopy]:
        """Returns the copies in the store. A copy whose description cannot be read counts as none, and its parts are
        not reused."""
        found: dict[str, StateCopy] = {}
        names = [name for name in await self._names() if is_description(name)]
        self._seen.update(names)
        for name in names:
            try:
                found[name] = await read_copy(self._store, self._folder, name)
            except (NotFound, BadAnswer, BadDescriptionError) as error:
                logger.warning("tier: the state copy %s cannot be read: %s", name, error)
        return found

    async def _names(self) -> list[str]:
        prefix = f"{self._folder}/"
        return [info.name.removeprefix(prefix) async for info in self._store.list(f"{prefix}{STATE}")]

    async def _remove_old(self, tier_end: int) -> None:
        listed = await self._names()
        if any(is_description(name) and name not in self._seen for name in listed):
            self._copies = None  # An earlier listing was not complete, or another leader writes copies.
            return
        stay = kept(self.copies, tier_end)
        self._copies = {copy.name: copy for copy in stay}
        for name in garbage(listed, stay):
            await self._store.delete(f"{self._folder}/{name}")


async def read_copy(store: ObjectStore, folder: str, name: str) -> StateCopy:
    """Returns the copy whose description has this name below the cluster's folder. Raises BadDescriptionError,
    StoreError."""
    copy = decode((await store.get(f"{folder}/{name}", DESCRIPTION_BYTES_MAX)).data, StateCopy)
    check_files(copy.files)
    if copy.name != name or copy.cluster_id != folder:
        raise BadDescriptionError(f"it describes {copy.cluster_id}/{copy.name}")
    return copy


# --- names and descriptions of copies, and which of them stay (no I/O) -----------------------------------------------
#
# A copy is one description and the parts that it names, below the cluster's folder in the tier:
#     <cluster id>/state/<index>-<term>-<crc>.json      its description, named after the checkpoint that was copied
#     <cluster id>/state/<index>-<digest>.part          a part; <index>: the copy that wrote it first, <digest>: the
#                                                       first 32 digits of the part's SHA-256

STATE = "state"
KEPT = 8
"""The number of usable copies that stay."""
_DESCRIPTION = re.compile(r"state/(\d{20})-\d+-[0-9a-f]{8}\.json", re.ASCII)
_PART = re.compile(r"state/(\d{20})-[0-9a-f]{32}(?:-\d+)?\.part", re.ASCII)


class StateCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of the state: the rows as of one applied index."""

    cluster_id: str
    checkpoint: str
    """Name of the checkpoint."""
    index: int
    """Index of the last applied entry. `term`, `position`, `header_crc` and `timestamp_ms` belong to the same entry."""
    term: int
    position: int
    """The position at which the entry ends. The log from here on is not applied."""
    header_crc: int
    timestamp_ms: int
    """Log time of the entry."""
    made_ms: int
    """Milliseconds since the Unix epoch, by the clock of the node, at which the copy was made."""
    node: int
    group_id: int
    cluster_name: str
    broker_name: str
    segment_size: int
    log_begins: list[int]
    """The `LogTail` before the first segment that the rows refer to."""
    genesis: str
    """The frame at index 0 in hexadecimal digits."""
    origin: list[tuple[str, int]]
    """The clusters from which this one was restored, oldest first: (cluster uuid, last index)."""
    files: list[StoredFile]
    versions: dict[str, str]

    @property
    def name(self) -> str:
        """Name of the description, below the cluster's folder."""
        return f"{STATE}/{self.checkpoint}.json"


def part_prefix(index: int) -> str:
    """Returns the beginning of the names of the parts that the copy at `index` writes."""
    return f"{STATE}/{index:020d}"


def is_description(name: str) -> bool:
    """Returns True if a name below the cluster's folder is that of a state copy's description."""
    return _DESCRIPTION.fullmatch(name) is not None


def index_of(name: str) -> int | None:
    """Returns the applied index in the name of a description or a part; None if the name is neither."""
    found = _DESCRIPTION.fullmatch(name) or _PART.fullmatch(name)
    return None if found is None else int(found[1])


def pending(copies: Iterable[StateCopy], tier_end: int) -> list[StateCopy]:
    """Returns the copies that cannot be used yet, because their state refers to bytes of the log above `tier_end`,
    which the tier does not hold."""
    return [copy for copy in copies if copy.position > tier_end]


def kept(copies: Iterable[StateCopy], tier_end: int) -> list[StateCopy]:
    """Returns the copies that stay: the newest KEPT usable ones, oldest first, then those that cannot be used yet."""
    ordered = sorted(copies, key=lambda copy: copy.index)
    usable = [copy for copy in ordered if copy.position <= tier_end]
    return [*usable[-KEPT:], *pending(ordered, tier_end)]


def garbage(listed: Iterable[str], stay: Sequence[StateCopy]) -> list[str]:
    """Returns the names in `listed` that may be removed, descriptions first. They are older than the oldest copy in
    `stay`, and no copy in `stay` names them. Returns none if `stay` is empty.

    Newer objects that no copy names are left alone, because another leader may be about to name them. Leftovers of a
    failed attempt therefore go later, when the oldest copy that stays is newer than they are.
    """
    if not stay:
        return []
    oldest = min(copy.index for copy in stay)
    named = {part.name for copy in stay for file in copy.files for part in file.parts}
    old = [name for name in listed if name not in named and (index := index_of(name)) is not None and index < oldest]
    return sorted(old, key=lambda name: (not is_description(name), name))
