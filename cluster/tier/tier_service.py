"""The tier of one node: while the node leads, it uploads every sealed segment to the object store, one after the other.

The log's state is the only record of progress, so there is nothing to hand over: a new leader looks at the rows and
goes on. A failed attempt is repeated after a pause that doubles up to a limit, for as long as the node leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from cluster.runtime.context import NodeContext
from cluster.runtime.findings import Code
from cluster.runtime.service_lifecycle import Part
from cluster.tier.deletions import Deletions, Expiry
from cluster.tier.log_proposals import DeposedError, NotRecordedError, TierSteps
from cluster.tier.published_manifest import ManifestPublisher
from cluster.tier.scrub.scrubber import log_bytes
from cluster.tier.segment_reads import SegmentReads
from cluster.tier.state_copies.state_copier import CheckpointReads, StateCopier
from cluster.tier.store.errors import NotFound, StoreError
from cluster.tier.store.object_store import ObjectStore, probe
from cluster.tier.tier_metrics import TierMetrics
from cluster.tier.uploader import AgeSeals, BadPartError, IndexParts, Uploader
from raftlog.errors import NotLeaderError, RaftLogError
from raftlog.format_versions import BASELINE
from raftlog.types import Entry, EntryId, EntryType, Role
from statemachine.commands import pack
from statemachine.tier import LOG_PREFIX, TierPart, TierSegment, TierState

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.runtime.read_leases import Leases
    from cluster.state.node_storage import NodeStorage


class TierSegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of the log that has a row in the state, because its upload has begun."""

    base: int
    end: int
    state: Literal["uploading", "uploaded", "verified", "deleting"]
    term: int
    """Term of the leader that recorded the state."""
    first_index: int
    last_index: int
    first_ms: int
    last_ms: int
    """`first_ms` and `last_ms`: log times of the segment's first and last entry."""
    parts: list[str]
    """Names of the segment's objects."""
    stored_bytes: int


class TierSegmentsView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/tier/segments`: rows of the node that answers."""

    node: int
    applied_index: int
    segments: list[TierSegmentView]
    """Lowest first."""
    next: int | None
    """`since` of the next page; null if this is the last."""


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/tier`: what the tier holds, by the rows of the node that answers, and what the leader is doing."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    leader: int | None
    applied_index: int
    url: str
    """URL of the tier as configured on this node; "" if tiering is off here."""
    stop_grace_ms: int
    """Milliseconds that `raftmq down` waits until everything is in the tier, unless `--grace` says otherwise."""
    cluster_id: str
    log_begins: int
    sealed_end: int
    """End of this node's last sealed segment."""
    verified_to: int
    """The tier holds the log from `log_begins` up to here."""
    tier_begins: int | None
    """Position of the lowest segment that the tier keeps; null if there is none. Objects below it are being removed."""
    segments: dict[str, int]
    """State -> the number of segments in it."""
    stored_bytes: int
    """Stored bytes of all objects."""
    pending_bytes: int
    """Bytes of sealed segments that are not verified."""
    pending_age_ms: int
    """Log time, in milliseconds, since the oldest sealed segment that is not verified was sealed; 0 if there is
    none."""
    window_ms: int
    """On the leader: age in milliseconds of log time of the oldest message that the tier does not hold, whether its
    segment is sealed or not; 0 if there is none."""
    failing: str
    """On the leader: the reason why the last attempt failed; "" if it succeeded."""
    failing_ms: int
    """Milliseconds since the first of the attempts that failed in a row; 0 if the last attempt succeeded."""
    failures: int
    """Attempts that failed since this node began to lead."""
    manifest_version: int | None
    """The newest version of the manifest that this node has published or seen since it started; null if none."""
    state_copy: int | None
    """Applied index of the newest copy of the state that this node has found or written since it leads; null if
    none."""
    copying_state: bool
    """True if a copy of the state is being written, or will be written because the log was sealed."""
    last: list[TierSegmentView]
    """The newest rows, lowest first."""


class SealView(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/tier/seal`: the segment that was being written is closed."""

    node: int
    term: int
    index: int
    position: int
    """The log below this position lies in sealed segments now. When `verified_to` of GET /v1/tier reaches it, all of
    that log is in the tier."""


logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Seconds between two looks while there is nothing to upload."""
LOOKS_IN_VAIN = 10
"""Looks without work after which the memory of a piece is freed. A busy node closes a segment every other second."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 30.0
"""The first and the largest limit, in seconds, of the pause after a failed attempt. The limit doubles with each failure
in a row; the pause is a random part of it (full jitter)."""
STUCK = Code("tier_stuck", "warning", "raftmq tier status")
LEASE, LEASE_MS = "upload to the tier", 600_000
PUBLISH_EVERY_MS = 10_000
"""Milliseconds between manifests while segments are uploaded one after the other. Another is published when there is
nothing more to upload."""
SHOWN = 16
"""The number of rows in a view."""
FAILURES = (StoreError, RaftLogError, OSError, BadPartError, NotRecordedError)


class Tier:
    """The tier of a node: on the leader, it uploads and removes segments, publishes manifests and copies the state. On
    every node, it shows the tier. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        services: Services,
        leases: Leases,
        store: ObjectStore | None,
        *,
        index: IndexParts | None = None,
        expiry: Expiry | None = None,
    ) -> None:
        """`index` makes the index part of a segment, None for no such parts. `expiry` trims the tier. Without a `store`
        nothing is uploaded, and the tier only shows what the state says."""
        self._context = context
        self._raw = context.raw
        self._state = storage.state
        self._log = storage.directory.log
        self._leases = leases
        self._store = store
        self._metrics = TierMetrics()
        self._points = context.failpoints
        self._cluster_id = str(storage.directory.identity.cluster_uuid)
        self._steps = TierSteps(context, services)
        self._writes_open = services.writes_open
        self._probed = False
        self._index = index
        self._reads = SegmentReads(context, self._log)
        self._ages = AgeSeals(self._state, self._log, self._reads)
        self._storage = storage
        self._checkpoints = CheckpointReads(context, storage)
        self._copier: StateCopier | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failing, self._failing_since_ms = "", 0
        self._failures = 0
        self._stuck_ms = context.config.health.tier_stuck_ms
        self._seal_after_ms = context.config.tier.seal_after_ms
        self._note_due_ms = 0
        self._expiry = expiry
        self._version: int | None = None
        self._published_rows: tuple[TierSegment, ...] | None = None
        self._published_level = BASELINE
        self._publish_due_ms = 0
        if store is not None:
            self._random = context.environment.random()
            self._uploader = Uploader(
                self._reads,
                store,
                self._cluster_id,
                self._steps,
                metrics=self._metrics,
                point=self._point,
                index=index,
            )
            page_bytes = context.environment.page_segments * self._log.segment_size
            self._manifest = ManifestPublisher(store, self._cluster_id, self._cluster_id, page_bytes)

    @property
    def known(self) -> bool:
        """True if this node has found since its start that the store holds objects that its rows name. Until then,
        nothing is evicted."""
        return self._probed

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="tier",
            start=self.start,
            close=self.close,
            tick=self.tick,
            reload=lambda config: self.reload(config.health.tier_stuck_ms, config.tier.seal_after_ms),
            metrics=(self._metrics,),
        )

    def reload(self, stuck_ms: int, seal_after_ms: int) -> None:
        """Sets `health.tier_stuck_ms` and `tier.seal_after_ms`."""
        self._stuck_ms = stuck_ms
        self._seal_after_ms = seal_after_ms

    def start(self) -> None:
        """Starts the lanes. The work begins when this node leads."""
        if self._store is not None:
            self._reads.start()
            self._checkpoints.start()

    async def close(self) -> None:
        """Cancels the work in progress; the next leader repeats it. Does not wait for the store."""
        if self._store is None:
            return
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._reads.close()
        await self._checkpoints.close()
        await self._store.close()

    def tick(self, now_ms: int) -> None:
        """Starts the leader's work if this node leads and no work is running, and updates the metrics once a second.
        The work ends by itself when the node is deposed. Called several times a second."""
        if self._store is None:
            return
        if (self._task is None or self._task.done()) and self._writes_open():
            self._failing, self._failures, self._published_rows = "", 0, None
            self._copier = StateCopier(self._context, self._storage, self._checkpoints, self._store, self._cluster_id)
            self._ages.begin()
            if self._expiry is not None:
                self._expiry.begin()
            work = self._lead(self._raw.term, self._build_deletions(self._store))
            self._task = self._context.loop.create_task(work, name="tier")
        if now_ms >= self._note_due_ms:
            self._note_due_ms = now_ms + 1000
            self._note(now_ms)

    def _build_deletions(self, store: ObjectStore) -> Deletions:
        return Deletions(
            self._context,
            self._state,
            store,
            self._cluster_id,
            self._steps,
            metrics=self._metrics,
            publish=self._publish,
            restored_from=self._restored_from,
            point=self._point,
        )

    # --- the leader --------------------------------------------------------------------------------------------------

    async def _lead(self, term: int, deletions: Deletions) -> None:
        """Does one step after the other until this node no longer leads in `term`."""
        pause_s, idle = PAUSE_FIRST_S, 0
        try:
            while self._steps.leads(term):
                try:
                    busy = await self._step(term, deletions)
                # The next leader finishes what is half done: the rows say how far this one came.
                except DeposedError:
                    return
                except FAILURES as error:
                    self._failed(error)
                    await asyncio.sleep(self._random.uniform(0, pause_s))
                    pause_s = min(PAUSE_MAX_S, 2 * pause_s)
                    continue
                pause_s = PAUSE_FIRST_S
                self._succeeded()
                idle = 0 if busy else idle + 1
                if idle == LOOKS_IN_VAIN:
                    self._reads.give_back()
                if not busy:
                    await self._idle()
        except Exception:
            logger.exception("tier: a defect ended the uploads of term %d; they begin again", term)
            await asyncio.sleep(PAUSE_MAX_S)
        finally:
            self._leases.release(LEASE)
            self._reads.give_back()
            deletions.end()
            self._context.alarms.clear(STUCK)

    async def _idle(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _step(self, term: int, deletions: Deletions) -> bool:
        """Publishes a manifest if one is due, removes objects, and uploads the next segment, or closes a segment by
        age. Copies a part of the state if there is nothing else. Returns False if there was nothing to do."""
        await self._ages.look()
        # Before anything is written or evicted, the store must show that it is this cluster's.
        if not self._probed:
            assert self._store is not None
            await require_own(self._store, self._cluster_id, self._state.tier.rows)
            await probe(self._store, self._cluster_id, self._context.environment.entropy(8).hex())
            self._probed = True
        if self._context.clock.monotonic_ms() >= self._publish_due_ms:
            await self._publish(term)
        # Removals come before uploads. Otherwise a full store, which refuses uploads, would stop both.
        removed = await deletions.step(term)
        if self._expiry is not None:
            removed |= await self._expiry.step()
        if await self._upload_next(term) or removed or self._seal_by_age(term):
            return True
        return await self._publish(term) or await self._copy_state(term)

    async def _upload_next(self, term: int) -> bool:
        """Uploads the next segment; returns False if there is none."""
        tier, begins = self._state.tier, self._state.trim_position
        for row in tier.rows:
            if row.state in (TierState.UPLOADING, TierState.UPLOADED) and row.end > begins:
                return await self._upload(row.base, row, term)
        end = tier.end
        return await self._upload(begins if end is None or end < begins else end, None, term)

    def _seal_by_age(self, term: int) -> bool:
        """Closes the segment that is being written if its oldest message has waited long enough; returns True if it
        did."""
        now_ms = self._raw.log_time_ms()
        if not self._steps.leads(term) or not self._ages.is_due(now_ms, self._seal_after_ms, self._raw.tail):
            return False
        entry = self._propose_roll()
        logger.info(
            "tier: the last segment is closed at %d: its oldest message is %d s old",
            entry.position,
            self._ages.window_ms(now_ms) // 1000,
            extra={"base": self._log.tail.segment_base},
        )
        return True

    async def _copy_state(self, term: int) -> bool:
        """Writes the next file of a copy of the state; returns False if there was nothing to write."""
        rows = self._state.tier.rows
        if self._copier is None or not rows:
            return False
        end = self._state.tier.verified_to(self._state.trim_position)
        return await self._copier.step(self._state.kept.position, end, lambda: self._steps.leads(term))

    def _restored_from(self) -> int | None:
        """Returns the lowest position of the log that a restore from the newest usable copy of the state needs: 0 if
        there is no such copy, None if no copies are made."""
        if not self._context.config.tier.state_every_ms or self._copier is None:
            return None
        end = self._state.tier.verified_to(self._state.trim_position)
        return max((copy.position for copy in self._copier.copies if copy.position <= end), default=0)

    async def _upload(self, base: int, row: TierSegment | None, term: int) -> bool:
        """Uploads the sealed segment at `base`; returns False if this node has no such segment or has not applied all
        of it. `row`: the segment's row; None if its upload has not begun."""
        self._leases.touch(LEASE, base, LEASE_MS)
        if row is not None:
            span = row.span
        else:
            found = await self._reads.sealed(base)
            # A segment is uploaded once the first entry behind it is applied. Then all of it is committed, no conflict
            # can cut it, and its rows no longer change.
            if found is None or self._state.applied_mark.end_position <= found.span.end:
                return False
            span = found.span
        await self._uploader.upload(base, span, row, term)
        return True

    async def _publish(self, term: int) -> bool:
        """Publishes a manifest; returns False if nothing has changed since the last one. Raises DeposedError,
        StoreError."""
        self._publish_due_ms = self._context.clock.monotonic_ms() + PUBLISH_EVERY_MS
        # The index is read before the rows, so that the rows are never older than it.
        index = self._state.applied.index
        rows, level = self._state.tier.rows, self._state.level
        if (rows, level) == (self._published_rows, self._published_level) or not (rows or self._published_rows):
            return False
        await self._point("tier.manifest")
        if not self._steps.leads(term):
            raise DeposedError("the manifest is the next leader's business")
        done = await self._manifest.publish(rows, term, index, level)
        self._published_rows, self._published_level, self._version = rows, level, done.version
        if done.by_this:
            self._metrics.published.inc()
            logger.info("tier: manifest %d is published", done.version, extra={"version": done.version, "index": index})
        return True

    async def content_of(self, row: TierSegment, part: TierPart) -> bytes | None:
        """Returns the content that an object of the segment must have, from this node's log or rows; None if the node
        does not have it."""
        try:
            if part.name.startswith(LOG_PREFIX):
                return await log_bytes(self._piece, row, part)
            if self._index is not None:
                made = await self._index.of_segment(row.base, row.span)
                if (len(made.data), made.crc32c) == (part.size, part.crc32c):
                    return bytes(made.data)
        except RaftLogError:
            pass  # This node's bytes are trimmed, or damaged too.
        return None

    async def _piece(self, base: int, end: int) -> memoryview:
        return (await self._reads.piece(base, end)).data

    def seal(self) -> EntryId:
        """Proposes an entry that begins a new segment, so that everything before it can be uploaded, and asks for a
        copy of the state. Returns the entry's id. Raises NotLeaderError and ProposalDroppedError."""
        if not self._writes_open():
            raise NotLeaderError("this node does not lead, or does not take writes yet")
        entry = self._propose_roll()
        if self._copier is not None:
            self._copier.want()
        self._wake.set()
        return entry.id

    def _propose_roll(self) -> Entry:
        """Proposes the entry that begins the next segment, and returns it. Raises NotLeaderError and
        ProposalDroppedError."""
        entry = self._raw.propose(EntryType.COMMAND, pack([]), self._raw.log_time_ms(), roll=True)
        self._context.wake()
        return entry

    async def _point(self, name: str) -> None:
        """Passes the failpoint. Raises OSError if a test makes it fail."""
        passed: asyncio.Future[None] = self._context.loop.create_future()

        def clear() -> None:
            if not passed.done():  # It is done if the waiting caller was cancelled.
                passed.set_result(None)

        self._points.when_clear(name, self._context.loop, clear)
        await passed

    # --- failures -----------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        now_ms = self._context.clock.monotonic_ms()
        if not self._failing:
            self._failing_since_ms = now_ms
        self._failing = f"{type(error).__name__}: {error}"
        self._failures += 1
        self._metrics.failed.labels(type(error).__name__).inc()
        logger.warning("tier: an upload failed and is tried again: %s", self._failing)
        if now_ms - self._failing_since_ms >= self._stuck_ms:
            self._context.alarms.raise_alarm(
                STUCK,
                f"nothing has reached the tier for {(now_ms - self._failing_since_ms) // 1000} s: {error}. The node "
                f"keeps trying. The log is not trimmed above what is verified, so the disk fills. raftmq tier status",
            )

    def _succeeded(self) -> None:
        self._failing = ""
        self._context.alarms.clear(STUCK)

    # --- views --------------------------------------------------------------------------------------------------------

    def _pending(self) -> tuple[int, int, int]:
        """Returns the end of the sealed segments, the bytes of them that are not VERIFIED, and the age in ms of the
        oldest of these."""
        state, log = self._state, self._log
        verified, sealed_end = state.tier.verified_to(state.trim_position), log.tail.segment_base
        size = max(0, sealed_end - verified)
        age_ms = 0
        if size and log.first_position <= verified:
            try:
                sealed_ms = log.segment_at(log.segment_at(verified).end_position).previous.timestamp_ms
            except RaftLogError:
                return sealed_end, size, 0  # the log was trimmed or cut at this moment
            age_ms = max(0, state.applied_mark.timestamp_ms - sealed_ms)
        return sealed_end, size, age_ms

    def _window_ms(self) -> int:
        """Returns the age in ms of the oldest message that the tier lacks; 0 on a node that does not lead."""
        leads = self._store is not None and self._raw.role is Role.LEADER
        return self._ages.window_ms(self._raw.log_time_ms()) if leads else 0

    def _note(self, now_ms: int) -> None:
        _, size, age_ms = self._pending()
        tier = self._state.tier
        self._metrics.pending(size, age_ms, tier.verified_to(self._state.trim_position))
        self._metrics.window(self._window_ms())
        self._metrics.segments(Counter(row.state for row in tier.rows))
        copies = self._copier.copies if self._copier is not None else []
        self._metrics.state_copy.set(copies[-1].index if copies else -1)

    def segments(self, since: int, count: int) -> TierSegmentsView:
        """Returns at most `count` rows of segments that end above the position `since`, for people."""
        index = self._state.applied.index
        rows = [row for row in self._state.tier.rows if row.end > since][: count + 1]
        more = rows[count].base if len(rows) > count else None
        shown = [_view(row) for row in rows[:count]]
        return TierSegmentsView(node=self._context.config.node.id, applied_index=index, segments=shown, next=more)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the sealed log that the tier does not hold yet; 0 without a tier."""
        return self._pending()[1] if self._store is not None else 0

    def view(self, url: str) -> TierView:
        """Returns the tier as this node knows it, for people."""
        state, tier, kept = self._state, self._state.tier, self._state.kept_segments
        sealed_end, size, age_ms = self._pending() if self._store is not None else (self._log.tail.segment_base, 0, 0)
        rows, copier = tier.rows, self._copier
        failing_ms = self._context.clock.monotonic_ms() - self._failing_since_ms if self._failing else 0
        return TierView(
            node=self._context.config.node.id,
            leader=self._raw.leader_id or None,
            applied_index=state.applied.index,
            url=url,
            stop_grace_ms=self._context.config.tier.stop_grace_ms,
            cluster_id=self._cluster_id,
            log_begins=state.trim_position,
            sealed_end=sealed_end,
            verified_to=tier.verified_to(state.trim_position),
            tier_begins=kept[0].base if kept else None,
            segments={key.name.lower(): count for key, count in sorted(Counter(row.state for row in rows).items())},
            stored_bytes=sum(row.stored_bytes for row in rows),
            pending_bytes=size,
            pending_age_ms=age_ms,
            window_ms=self._window_ms(),
            failing=self._failing,
            failing_ms=failing_ms,
            failures=self._failures,
            manifest_version=self._version,
            state_copy=copier.copies[-1].index if copier is not None and copier.copies else None,
            copying_state=copier is not None and copier.busy,
            last=[_view(row) for row in rows[-SHOWN:]],
        )


def _view(row: TierSegment) -> TierSegmentView:
    span = row.span
    return TierSegmentView(
        base=row.base,
        end=span.end,
        state=row.state.name.lower(),  # type: ignore[arg-type]  # the names are those of the Literal
        term=row.term,
        first_index=span.first_index,
        last_index=span.last_index,
        first_ms=span.first_ms,
        last_ms=span.last_ms,
        parts=[part.name for part in row.parts],
        stored_bytes=row.stored_bytes,
    )


# Checks that a store is the one to which the log's state refers.
#
# The rows of the tier name objects, but not the store that holds them. The URL is configuration and may change, also by
# mistake. A leader that trusted it would remove messages from the nodes that the new store never had.


class WrongStoreError(StoreError):
    """The store holds none of the uploaded objects that were looked for."""


async def require_own(store: ObjectStore, folder: str, rows: Sequence[TierSegment]) -> None:
    """Checks that the store has objects of this cluster: asks it for the first, a middle and the last VERIFIED segment.
    One that exists is enough, because scrubs find single losses. Raises WrongStoreError if none exists, and StoreError
    if the store does not answer."""
    verified = [row for row in rows if row.state is TierState.VERIFIED]
    if not verified:
        return
    for row in (verified[-1], verified[0], verified[len(verified) // 2]):
        try:
            await store.head(f"{folder}/{row.parts[0].name}")
        except NotFound:
            continue
        return
    raise WrongStoreError(
        f"{store.root} has nothing of the {len(verified)} segments that were uploaded, so nothing more is",
        "set tier.url to the store that has them; or copy them there; or have the nodes write what they still have "
        "again: raftmq tier repair",
    )
