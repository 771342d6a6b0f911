"""Compares this node's rows with those of the other nodes continuously, and fences the node if a majority contradicts
it.

- A new leader proposes a DIGEST entry about its no-op and asks the other nodes for their sums. It accepts writes once a
  majority agrees, or after 200 ms. If a node's sums differ, it first finds out which node is wrong.
- While entries flow, the leader proposes a DIGEST every `[consistency] digest_every_ms`: first a marker, and when that
  is applied, a second one with the sums at the marker.
- Each node that applies a DIGEST compares it with its own sums at that index. If they differ, it asks all nodes.
- If a majority holds equal sums that contradict this node's, the node **fences** itself: it serves no messages, does
  not lead, and replaces its state at the next start. As long as it is unknown which node is wrong, no node is fenced,
  and the alarm stays.

Sums prove that the replicas applied the same rows. A scrub (`cluster.state.scrub`) finds rows that a store lost
afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgpack

from cluster.config.local_layout import names_of, node_object
from cluster.repair.fetch import AnswerSource, Fetched, FetchError, FetchRefused, Status
from cluster.repair.repair_service import Repairs
from cluster.runtime.context import NodeContext
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.findings import Code, Condition
from cluster.runtime.service_lifecycle import AppliedRun, Part
from raftlog.core.state.quorum import majority
from raftlog.errors import NotLeaderError, ProposalDroppedError
from raftlog.types import Entry, EntryType, NodeId, Role
from statemachine.rows.running_digest import VERSION, RunningSums, Sums

logger = logging.getLogger(__name__)

SUMS = "sums"
"""Name under which peers fetch a node's sums: [index] -> [version, {family: sum}]."""
OPEN_WAIT_S = 0.2
"""Seconds for which a new leader's writes wait for the others' sums, at most."""
ASK_MS = 2000
TRIES = 14
MISSING_S, MISSING_S_MAX = 0.001, 0.02
"""Pauses in seconds before a peer that has not applied the marker yet is asked again: the first pause, which doubles
each time, and the longest. They are short because a new leader takes no writes meanwhile."""
AGAIN_EVERY_MS = 5000
"""Milliseconds between questions to all nodes, as long as a node's sums differ."""
MISMATCH = Code("digest_mismatch", "critical", "raftmq inspect-consistency", finding="digest_unequal")
DIGEST_NOT_COMPARED: Final = Code("digest_not_compared", "warning", "raftmq inspect-consistency")
DIGESTS_MISSED: Final = 10
DIGEST_MIN_MS: Final = 60_000
FENCED = Code("fenced", "critical", "raftmq restart {n}")


class State(Protocol):
    """The part of BrokerState that Consistency reads."""

    sums: RunningSums


class Consistency:
    """Compares the rows of this node with those of the other nodes. Event loop only."""

    def __init__(
        self, context: NodeContext, state: State, repairs: Repairs, *, mark_suspect: Callable[[str, int], None]
    ) -> None:
        """`mark_suspect(why, index)` marks the state as suspect, so that the next start replaces it with a checkpoint
        of `index` or an earlier one. It blocks on the disk."""
        self.fenced = False
        """True if this node's rows were proved wrong, so that it serves no messages."""
        self._raw = context.raw
        self._state = state
        self._repairs = repairs
        self._alarms = context.alarms
        self._every_ms = context.config.consistency.digest_every_ms
        self._group = context.config.cluster.group
        self._wake = context.wake
        self._mark_suspect = mark_suspect
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._due_ms = 0
        self._proposed_at = -1
        """Applied index when the last marker was proposed. While nothing more is applied, there is nothing to
        compare."""
        self._follow_up = False
        self._undecided = -1
        self._again_due_ms = 0
        self._agreed = -1
        """The newest index at which a leader's sums agreed with those of this node."""
        self._compared = -1
        self._clock = context.clock
        self._uncompared_since_ms: int | None = None
        """The time since when this node has applied entries that no DIGEST entry covers yet; None if there are none."""
        repairs.server.sources[SUMS] = sums_source(state)
        repairs.bad_row.add(self.suspect)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="consistency",
            close=self.close,
            tick=self.tick,
            applied=self.on_applied,
            reload=lambda config: self.reload(config.consistency.digest_every_ms),
            metrics=(DigestMetrics(self),),
            findings=self._conditions,
        )

    def reload(self, every_ms: int) -> None:
        """Sets the milliseconds between two comparisons."""
        self._every_ms = every_ms

    async def close(self) -> None:
        """Cancels the questions in progress."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- a new leader ------------------------------------------------------------------------------------------------

    def before_open(self, index: int, open_writes: Callable[[], None]) -> None:
        """Called when the no-op `index` of this node's term is applied. Calls `open_writes` once a majority agrees, or
        after OPEN_WAIT_S without agreement. If a node's sums differ, decides first which node is wrong, and does not
        call `open_writes` if it is this one."""
        self._propose(index)
        self._start(self._compare_then_open(index, open_writes))

    async def _compare_then_open(self, index: int, open_writes: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._sums_of(peer, index)) for peer in self._repairs.peers()]
        differs, is_late = False, False
        try:
            async with asyncio.timeout(OPEN_WAIT_S):
                differs = await self._differs_from_majority(index, tasks)
        except TimeoutError:
            is_late = True
        finally:
            for task in tasks:
                task.cancel()
        # If sums differ, this node leads and may be the one with wrong rows. That must be found out before it takes a
        # write.
        if differs:
            await self.decide(index)
        # Writes open even if answers are missing: the comparison is only a check, and a node that is down must not stop
        # writes.
        if not self.fenced:
            open_writes()
        # A leader's own DIGEST entries always match its rows, so nothing else would make it ask the other nodes.
        if is_late:
            await self.decide(index)

    async def _differs_from_majority(self, index: int, tasks: list[asyncio.Task[Sums | None]]) -> bool:
        """Returns True once the sums of another node contradict this node's. Returns False as soon as a majority
        agrees, when all questions have ended without a contradiction, or if this node has no sums of `index`."""
        mine = self._state.sums.at(index)
        while mine is not None:
            known = [task.result() for task in tasks if task.done()]
            # One contradiction is enough to ask all nodes. It does not show which node is wrong.
            if any(theirs is not None and differing(mine, theirs) for theirs in known):
                return True
            agreeing = 1 + sum(theirs is not None for theirs in known)
            # Once a majority agrees, the other answers cannot show that this node is wrong.
            if agreeing >= self._quorum or len(known) == len(tasks):
                break
            await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        return False

    # --- as entries are applied --------------------------------------------------------------------------------------

    def on_applied(self, applied: AppliedRun) -> None:
        """Compares each DIGEST entry in a run of applied entries with this node's sums."""
        for entry in applied.entries:
            if entry.type == EntryType.DIGEST:
                self._on_digest(entry)
            elif self._uncompared_since_ms is None:
                self._uncompared_since_ms = self._clock.monotonic_ms()

    def _on_digest(self, entry: Entry) -> None:
        digest = decode(entry.payload)
        mine = self._state.sums.at(digest.index) if digest else None
        if digest and mine is not None and differing(mine, digest.sums):
            logger.error(
                "DIGEST entry %d: families %s differ from the leader's at index %d",
                entry.index,
                ", ".join(differing(mine, digest.sums)),
                digest.index,
            )
            self._start(self.decide(digest.index))
        elif digest and mine is not None:
            self._uncompared_since_ms = None
            self._compared = max(self._compared, digest.index)
            # A leader's own DIGEST entry always matches its own rows, and proves nothing.
            if self._raw.role is not Role.LEADER:
                self._agreed = max(self._agreed, digest.index)
        if self._follow_up and entry.term == self._raw.term and self._raw.role is Role.LEADER:
            self._follow_up = False
            self._propose(entry.index)

    @property
    def compared_index(self) -> int:
        """The newest index at which the sums agreed with a leader's, or at which this node compared as the leader; -1
        before the first."""
        return self._compared

    def _conditions(self) -> Iterator[Condition]:
        return uncompared(self.uncompared_ms(), self._every_ms, node_object(self._group, self._raw.raft.id))

    def uncompared_ms(self) -> int | None:
        """Returns for how many milliseconds this node has had changed rows that were not compared with the leader's;
        None if it has none."""
        since_ms = self._uncompared_since_ms
        return None if since_ms is None else self._clock.monotonic_ms() - since_ms

    def tick(self, now_ms: int) -> None:
        """Asks all nodes again while a mismatch is unresolved, and proposes the next marker when it is due. Called
        several times a second; cheap."""
        raw = self._raw
        if now_ms >= self._again_due_ms and self._alarms.raised(MISMATCH):
            self._again_due_ms = now_ms + AGAIN_EVERY_MS
            self._start(self.decide(self._undecided if self._undecided >= 0 else self._state.sums.newest))
        if raw.role is not Role.LEADER or now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._every_ms
        if raw.applied_index > self._proposed_at + 2:  # more entries than the two markers themselves were applied
            self.mark()

    def mark(self) -> int | None:
        """Proposes a marker, which is followed by its sums. Returns its index; None if this node may not propose
        now."""
        self._proposed_at = self._raw.applied_index
        index = self._propose(self._state.sums.newest)
        self._follow_up = index is not None
        return index

    def _propose(self, index: int) -> int | None:
        sums = self._state.sums.at(index)
        payload = encode(Digest(index, sums or {}))
        try:
            entry = self._raw.propose(EntryType.DIGEST, payload, self._raw.log_time_ms())
        except (NotLeaderError, ProposalDroppedError):
            return None
        self._wake()
        return entry.index

    # --- which node is wrong ----------------------------------------------------------------------------------------

    async def decide(self, index: int) -> None:
        """Asks every other node for its sums at `index` and decides which node is wrong."""
        mine = self._state.sums.at(index)
        # Without its own sums at that index this node has nothing to compare: sums of another index would differ.
        if mine is None or self.fenced:
            self._undecided = -1
            return
        peers = self._repairs.peers()
        answers = await asyncio.gather(*(self._sums_of(peer, index) for peer in peers))
        others = {peer: theirs for peer, theirs in zip(peers, answers, strict=True) if theirs is not None}
        against = {peer: theirs for peer, theirs in others.items() if differing(mine, theirs)}
        if not against:
            self._agreed = max(self._agreed, index if others else -1)
            # The alarm ends only if all nodes have answered and agree, because a node that has not answered may differ.
            if len(others) == len(peers):
                self._undecided = -1
                self._alarms.clear(MISMATCH)
            return
        most = Counter(tuple(sorted(theirs.items())) for theirs in against.values()).most_common(1)[0][1]
        # Only a majority with equal sums proves this node wrong. In a group of two, a difference proves nothing.
        if most >= self._quorum:
            self._undecided = -1
            self.fence(index, mine, against)
        else:
            self._report(index, mine, against, agreeing=len(others) - len(against) + 1)

    def fence(self, index: int, mine: Sums, against: dict[NodeId, Sums]) -> None:
        """Fences this node, because a majority has other rows. `mine`: this node's sums. `against`: node -> its sums,
        for the nodes that contradict them."""
        families = sorted({name for theirs in against.values() for name in differing(mine, theirs)})
        others = names_of(self._group, against)
        self.suspect(f"its rows ({', '.join(families)}) differ at index {index} from those of nodes {others}")

    def suspect(self, why: str) -> None:
        """Stops serving rows until the next start, because this node's rows cannot be trusted. `why` is the reason for
        people."""
        if self.fenced:
            return
        self.fenced = True
        self._alarms.clear(MISMATCH)
        self._alarms.raise_alarm(
            FENCED,
            f"{why}; this node serves no messages and does not lead. Restart it: a sound state then replaces this one",
            stops_service=True,
        )
        # The next start uses a checkpoint of the last index at which the sums agreed, or an older one: newer
        # checkpoints may have the same wrong rows.
        marking = asyncio.get_running_loop().run_in_executor(None, self._mark_suspect, why, self._agreed)
        marking.add_done_callback(_log_failure)
        self._repairs.distrust_state()

    def bad_checkpoint(self, name: str, why: str) -> None:
        """Called when a scrub found that rows of a checkpoint differ from what apply wrote. The state shares its files,
        so its rows are not to be trusted either."""
        logger.error("checkpoint %s: %s", name, why)
        self.suspect(why)

    def _report(self, index: int, mine: Sums, against: dict[NodeId, Sums], agreeing: int) -> None:
        families = sorted({name for theirs in against.values() for name in differing(mine, theirs)})
        if agreeing >= self._quorum:
            self._undecided = -1
            text = f"nodes {names_of(self._group, against)} differ from the majority, to which this node belongs"
        else:
            self._undecided = index
            text = f"this node and {_names(against)} differ; only a third node can show which of them is wrong"
        where = f"at index {index} ({', '.join(families)})"
        self._alarms.raise_alarm(MISMATCH, f"{where}: {text}. See: raftmq inspect-consistency")

    async def _sums_of(self, peer: NodeId, index: int) -> Sums | None:
        pause_s = MISSING_S
        for _ in range(TRIES):
            try:
                version, sums = (await self._repairs.client.fetch(peer, SUMS, [index], ASK_MS)).fields
            except FetchError as error:
                # A missing answer is not a difference: unreachable nodes count neither for nor against this node.
                if error.status not in (Status.MISSING, Status.BUSY):
                    return None
                await asyncio.sleep(self._repairs.client.busy_pause_s if error.status is Status.BUSY else pause_s)
                pause_s = min(2 * pause_s, MISSING_S_MAX)
                continue
            return sums if version == VERSION else None
        return None

    @property
    def _quorum(self) -> int:
        return majority(len(self._raw.raft.members.voters))

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="consistency")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


def sums_source(state: State) -> AnswerSource:
    """Returns the source that answers `sums` [index] with this node's sums at that marker."""

    def read(arguments: list[Any]) -> Fetched:
        (index,) = arguments
        sums = state.sums.at(index) if type(index) is int else None
        if sums is None:
            raise FetchRefused(Status.MISSING, f"no sums are remembered of index {index}")
        return Fetched([VERSION, dict(sums)], b"")

    return read


def _names(nodes: Iterable[NodeId]) -> str:
    return " and ".join(map(str, sorted(nodes)))


def _log_failure(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        logger.error("the state could not be marked as suspect: %s", done.exception())


# The payload of a DIGEST entry: the sums of the leader's rows at an earlier marker entry.
#
# msgpack array [version, index, {family: sum}]; the map is empty if the leader does not remember that marker. The entry
# itself is the next marker (statemachine/rows/running_digest.py).


class Digest(NamedTuple):
    """The sums of all families of rows (kinds of rows in the state) at one index."""

    index: int  # type: ignore[assignment]
    sums: Sums


def encode(digest: Digest) -> bytes:
    """Returns the payload of a DIGEST entry."""
    packed: bytes = msgpack.packb([VERSION, digest.index, dict(digest.sums)])
    return packed


def decode(payload: bytes) -> Digest | None:
    """Returns the sums in the payload; None if it has none that this version can compare."""
    if not payload:
        return None
    version, index, sums = msgpack.unpackb(payload)
    return Digest(index, sums) if version == VERSION and sums else None


def differing(mine: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    """Returns the names of the families whose sums differ. A family that one side lacks counts as empty."""
    return sorted(name for name in {*mine, *theirs} if mine.get(name, 0) != theirs.get(name, 0))


def uncompared(behind_ms: int | None, every_ms: int, node: str) -> Iterator[Condition]:
    """Yields a condition for `raftmq status` if changed rows of `node` have not been compared for a long time,
    `behind_ms` milliseconds. The leader compares every `digest_every_ms` while entries are applied, followers compare
    with each DIGEST entry."""
    if behind_ms is not None and every_ms and behind_ms > max(DIGESTS_MISSED * every_ms, DIGEST_MIN_MS):
        says = (
            f"the rows of {node} were last compared with the leader's {behind_ms // 1000} s ago, although "
            f"entries were applied since (consistency.digest_every_ms = {every_ms})"
        )
        yield Condition(DIGEST_NOT_COMPARED, node, says)


class DigestMetrics(ServiceMetrics):
    """Exports gauges of the comparison of rows."""

    def __init__(self, consistency: Consistency) -> None:
        super().__init__()
        self._consistency = consistency
        self._compared = self.gauge(
            "raftmq_digest_compared_index",
            "Newest index at which this node's rows were compared with the leader's and equal; -1 before the first",
        )
        self._uncompared = self.gauge(
            "raftmq_digest_uncompared_seconds",
            "For how long rows have changed here that were not compared; 0 if there are none",
        )

    def look(self) -> None:
        """Updates the gauges."""
        self._compared.set(self._consistency.compared_index)
        self._uncompared.set((self._consistency.uncompared_ms() or 0) / 1000)
