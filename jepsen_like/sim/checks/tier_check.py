"""Checks the promises of tiered storage from the rows of every node and from the objects in the store.

- A row is UPLOADED only once every object of it is in the store, VERIFIED only if each of them is whole and right.
- No node's log begins above the end of what is VERIFIED.
- A VERIFIED segment has an index file. This file lists every message in a queue, and every key, that the segment has.
- A segment is DELETING only when the kept log begins above it. An object is deleted only once the segment's row says so
  and the newest manifest does not name it. At the end of a run, segments that are no longer kept have neither rows nor
  objects.
- A manifest names only segments that some node knows to be VERIFIED, and objects that are there. Versions go up,
  terms never down.
- In the end every sealed segment is VERIFIED and in the newest manifest, and its objects are still whole and right.
- In runs that close segments for their age, no segment is closed before its oldest message has that age, or without a
  message. At the end the tier lacks no message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec
from xxhash import xxh3_128

from cluster.node.node import Node
from cluster.tier.manifest_format import Head, Segment, TierManifest, decode_page
from cluster.tier.object_names import HEAD, INDEX, parse
from cluster.tier.store.errors import BadAnswer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.checks.tier_index_check import problem
from jepsen_like.sim.machines.machine import CLUSTER, Machine
from jepsen_like.sim.machines.tier_store import SimStore
from raftlog.errors import RaftLogError
from raftlog.frame import decode_entries
from raftlog.types import Entry, EntryType, NodeId
from statemachine.command_table import unpack
from statemachine.tier import LOG_PREFIX, TierSegment, TierState

FOLDER = str(CLUSTER)
INDEX_PREFIX = f"{INDEX}/"


class TierCheck:
    """Compares the rows that nodes apply with the objects that are written to the store. `report` takes the checker's
    name and what is wrong."""

    def __init__(self, store: SimStore, report: Report, *, copies: bool, seal_ms: int = 0) -> None:
        """`copies`: True if copies of the state are made. Then objects that a restore from a copy needs stay in the
        store. `seal_ms`: the setting `tier.seal_after_ms`; 0 if segments are not closed for their age."""
        self._copies = copies
        self._seal_ms = seal_ms
        self._objects = store.inner.objects
        self._report = report
        self._seen: dict[NodeId, tuple[TierSegment, ...]] = {}
        self._judged: set[TierSegment] = set()
        self._verified: dict[int, int] = {}
        """Byte position at which a segment begins -> at which it ends, for segments that a node knows, or knew, to be
        VERIFIED."""
        self._compared: set[TierSegment] = set()
        """VERIFIED rows that were compared with a node's log."""
        self._going: set[str] = set()
        """Names of the objects of every segment that a node knows, or knew, to be DELETING."""
        self._named: dict[int, set[str]] = {}
        """Byte position at which a segment begins -> names of its objects, once a node knows, or knew, it to be
        VERIFIED."""
        self._removed: set[str] = set()
        """Names of objects that were deleted. A delayed request may have written one of them again, as an orphan."""
        self._head: Head | None = None
        self._listed: Sequence[Segment] = ()
        """Segments that the newest manifest lists."""
        store.on_written = self._written
        store.on_removed = self._was_removed

    def applied(self, machine: Machine) -> None:
        """Checks the rows about the tier of a node that has applied entries, and that the node has not given up more of
        its log than the tier holds."""
        assert machine.node is not None
        state = machine.node.state
        rows = state.tier.rows
        if rows is not self._seen.get(machine.node_id):
            self._seen[machine.node_id] = rows
            for row in rows:
                if row not in self._judged:
                    self._judged.add(row)
                    self._judge(machine.node, row)
                if row.state is TierState.VERIFIED and row not in self._compared:
                    self._compare_with_log(machine.node, row)
        held = self._held_to()
        if state.trim_position > held:
            self._report(
                "tier",
                f"node {machine.node_id} gives up its log below {state.trim_position}, the tier held it to {held}",
            )

    def _held_to(self) -> int:
        """Returns the byte position up to which the tier holds, or held, the log from its first byte on."""
        position = 0
        while position in self._verified:
            position = self._verified[position]
        return position

    def _judge(self, node: Node, row: TierSegment) -> None:
        what = _what(row)
        if row.state is TierState.DELETING:
            kept = node.state.kept.position
            if row.end > kept:
                self._report("tier", f"{what}, and node {node.node_id} keeps the log from {kept} on")
            if row.parts:
                self._verified.setdefault(row.base, row.end)  # this check may have missed earlier states of the row
            self._going |= {part.name for part in row.parts}
            return
        for part in row.parts:
            if part.name in self._removed:
                return  # this node is behind the others
            data = self._objects.get(f"{FOLDER}/{part.name}")
            if data is None:
                self._report("tier", f"{what}, and {part.name} is not in the store")
            elif row.state is TierState.VERIFIED and xxh3_128(data).digest() != part.digest:
                self._report("tier", f"{what}, and {part.name} is not what was written")
        if row.state is TierState.VERIFIED:
            self._verified[row.base] = row.end
            self._named.setdefault(row.base, set()).update(part.name for part in row.parts)

    def _compare_with_log(self, node: Node, row: TierSegment) -> None:
        """Compares the segment with the node's log. If the node has trimmed the segment, or its disk holds other bytes
        than were written, the comparison is left to the next node that knows the row. If the segment has been deleted
        since, the node is behind, and nothing is compared."""
        if any(part.name in self._removed for part in row.parts):
            return
        try:
            log = node.storage.directory.log.read_at(row.base, row.end - row.base)
            entries = list(decode_entries(log))
        except RaftLogError:
            return
        self._compared.add(row)
        whole, index = (b"".join(self._contents(row, folder)) for folder in (LOG_PREFIX, INDEX_PREFIX))
        if whole != log:
            self._report("tier", f"{_what(row)}, and the tier holds other bytes than node {node.node_id}")
        wrong = problem(index, entries, node.state.topics_by_id) if index else "it has no index file"
        if wrong:
            self._report("tier", f"{_what(row)}, and {wrong}")
        self._judge_age(node, row, entries)

    def _judge_age(self, node: Node, row: TierSegment, entries: Sequence[Entry]) -> None:
        """Checks that a segment closed for its age was old enough. Only the tier's own seals are entries without a
        command, and only they close a segment that is not full."""
        log = node.storage.directory.log
        try:
            (closing,) = log.read_entries(row.span.last_index + 1, row.span.last_index + 2, 1)
        except RaftLogError:
            return
        full = row.end + closing.size - row.base > log.segment_size
        if full or closing.type != EntryType.COMMAND or unpack(closing.payload):
            return
        first = next((entry for entry in entries if entry.type == EntryType.MESSAGES), None)
        if first is None:
            self._report("tier", f"{_what(row)}: it was closed for its age, and has no message")
        elif closing.timestamp_ms - first.timestamp_ms < self._seal_ms:
            age_ms = closing.timestamp_ms - first.timestamp_ms
            self._report("tier", f"{_what(row)}: it was closed when its oldest message was {age_ms} ms old")

    def _contents(self, row: TierSegment, prefix: str) -> Iterator[bytes]:
        """Yields the contents of the row's objects whose names begin with `prefix`."""
        for part in row.parts:
            if part.name.startswith(prefix):
                yield self._objects.get(f"{FOLDER}/{part.name}", b"")

    # --- manifests ---------------------------------------------------------------------------------------------------

    def _was_removed(self, name: str) -> None:
        part = name.removeprefix(f"{FOLDER}/")
        if not part.startswith(("log/", "index/")):
            return
        self._removed.add(part)
        if part not in self._going and not self._is_orphan(part):
            self._report("tier", f"{part} was removed, and no row says that it may go")
        if any(part == each.name for segment in self._listed for each in (*segment.parts, *segment.index)):
            self._report("tier", f"{part} was removed, and the newest manifest names it")

    def _is_orphan(self, part: str) -> bool:
        """Returns True if the object's segment is VERIFIED with objects of other names. Then this object was read back
        wrong and replaced by another, and may be deleted.
        """
        name = parse(part)
        return name is not None and part not in self._named.get(name.base, {part})

    def _written(self, name: str, data: bytes) -> None:
        if name != f"{FOLDER}/{HEAD}":
            return
        try:
            head = msgspec.json.decode(data, type=Head)
        except msgspec.DecodeError:
            return  # the store kept only a part of the first HEAD (`SimStore.create`)
        known = self._head
        if known is not None and (head.version <= known.version or head.term < known.term):
            self._report(
                "tier",
                f"manifest {head.version} of term {head.term} replaces {known.version} of term {known.term}",
            )
        self._head, self._listed = head, self._segments(head)
        for segment in self._listed:
            if self._verified.get(segment.base) != segment.end:
                self._report("tier", f"manifest {head.version} names the segment at {segment.base}: nobody verified it")

    def _segments(self, head: Head) -> Sequence[Segment]:
        body = self._objects.get(f"{FOLDER}/{head.key}", b"")
        if sha256(body).hexdigest() != head.sha256:
            self._report("tier", f"HEAD names {head.key}, which is not there or not right")
            return []
        manifest = msgspec.json.decode(body, type=TierManifest)
        found: list[Segment] = []
        for page in manifest.pages:
            try:
                found += decode_page(page, self._objects.get(f"{FOLDER}/{page.name}", b""))
            except BadAnswer as error:
                self._report("tier", f"{head.key}: {error}")
        return found + manifest.segments

    # --- the end -----------------------------------------------------------------------------------------------------

    def is_complete(self, nodes: Sequence[Node]) -> bool:
        """Returns True if the tier has caught up. On each of `nodes` every sealed segment is then verified and, unless
        copies are made, no row of a segment that is no longer kept is left. The newest manifest lists exactly the
        verified segments. In runs that close segments for their age, the tier lacks no message.

        Reports an object that is still in the store although its row is gone."""
        for node in nodes:
            state = node.state
            if state.tier.verified_to(state.trim_position) < node.storage.directory.log.tail.segment_base:
                return False
            if not self._copies and len(state.kept_segments) < len(state.tier.rows):
                return False
        newest = max(nodes, key=lambda node: node.state.applied, default=None)
        if self._seal_ms and newest is not None and self._lacks_messages(newest):
            return False
        rows = newest.state.tier.rows if newest is not None else ()
        named = {part.name for row in rows for part in row.parts}
        left = sorted(name for name in self._going - self._removed - named if f"{FOLDER}/{name}" in self._objects)
        if left:
            self._report("tier", f"{left[0]} is still in the store, and its row is gone")
        return {(each.base, each.end) for each in self._listed} == {
            (row.base, row.end) for row in rows if row.state is TierState.VERIFIED
        }

    @staticmethod
    def _lacks_messages(node: Node) -> bool:
        """Returns True if the log has messages above what is verified, or if that part of the log cannot be read."""
        log, state = node.storage.directory.log, node.state
        begins, end = state.tier.verified_to(state.trim_position), log.tail.end_position
        try:
            return any(entry.type == EntryType.MESSAGES for entry in decode_entries(log.read_at(begins, end - begins)))
        except RaftLogError:
            return True

    def judge_end(self, nodes: Sequence[Node]) -> None:
        """Checks the objects of every VERIFIED segment again at the end, when no upload and no removal is under way."""
        newest = max(nodes, key=lambda node: node.state.applied.index)
        for row in newest.state.tier.rows:
            if row.state is TierState.VERIFIED:
                self._judge(newest, row)


def _what(row: TierSegment) -> str:
    return f"the segment at {row.base} is {row.state.name}"
