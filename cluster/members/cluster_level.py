"""Keeps the level of the cluster: the version up to which the log may contain newer commands, rows and entries
(docs/adr/0094).

Every node announces the highest level that it knows, and writes at the level of the cluster. Once every voter and
learner has announced a higher level, `finalize` raises the cluster to it with a log entry. From then on, a node that
does not know this level is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from cluster.config.local_layout import node_object
from cluster.runtime.byte_sizes import span_of
from cluster.runtime.findings import CLUSTER, Code, Condition
from cluster.runtime.host.versions import versions
from cluster.runtime.listeners import Signal
from cluster.runtime.service_lifecycle import Part
from raftlog.types import FIRST_GROUP, NodeId
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.config.config import Config
    from cluster.members.service import MembersService
    from cluster.peer.transport import PeerTransport
    from cluster.runtime.context import NodeContext
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 1_000


class MemberLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A member, and the highest level that it announces."""

    id: int
    role: Literal["voter", "learner"]
    connected: bool
    level: int | None
    """The highest level that the member knows; null if it is not connected, or has announced none."""


class UpgradeView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/upgrade`."""

    node: int
    consistency: Literal["local"] = "local"
    level: int
    """The level of the cluster, as of the last entry that this node has applied."""
    newest: int
    """The highest level that a member announces."""
    version: str
    """Version of the node that answers."""
    members: list[MemberLevel]
    mixed_ms: int | None
    """Milliseconds for which some member has announced a higher level than the cluster's, as far as this process has
    seen; null if none does."""
    finalizes: bool
    """True if `finalize` would be accepted now."""
    reasons: list[str]
    """The reasons why `finalize` would be refused, with the names of the members; [] if it would be accepted."""
    waits_for: list[str] = []
    """The groups of brokers for which the first group waits: `upgrade.finalize_after_ms` has passed, but the first
    group is only raised after all others. [] if it does not wait."""


UPGRADE_UNFINISHED: Final = Code("upgrade_unfinished", "warning", "raftmq upgrade plan")
MIXED_MS: Final = 86_400_000
"""Milliseconds for which members may know different levels before this is reported as a finding."""
WAITS_HOLD_MS: Final = 60_000
"""Milliseconds for which the first group may wait for other groups before this is reported as a finding."""


class Levels:
    """Tracks the levels that members announce, and decides when the cluster can be raised. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        state: BrokerState,
        members: MembersService,
        transport: PeerTransport,
        below: Callable[[int], list[str]],
    ) -> None:
        """`below` returns one clause for each other group of brokers that must be raised to the given level before this
        one; [] if there are none."""
        self._context = context
        self.known = context.environment.level
        """The highest level that this node knows."""
        self._state = state
        self._members = members
        self._transport = transport
        self._level = state.level
        self._mixed_since_ms: int | None = None
        self.due = Signal[[int]]()
        """Emitted with the level to which the cluster is to be raised, because `upgrade.finalize_after_ms` has passed.
        Every node emits it; the one that leads acts on it."""
        self._finalize_after_ms = context.config.upgrade.finalize_after_ms
        self._announced_since_ms: int | None = None
        self._below = below
        self._waits_for: list[str] = []
        self._look_at_ms = float("-inf")

    def part(self) -> Part:
        """Returns the functions through which the node starts, informs and closes this service."""
        return Part(name="levels", tick=self.tick, reload=self._reload, findings=self._conditions)

    def _conditions(self) -> Iterator[Condition]:
        return unfinished_upgrade(self.view(self._context.clock.monotonic_ms()))

    def _reload(self, config: Config) -> None:
        self._finalize_after_ms = config.upgrade.finalize_after_ms

    def tick(self, now_ms: int) -> None:
        """Reports a change of the cluster's level. Once a second, it also records since when some member has announced
        a higher level than the cluster's, and since when all members have; emits `due` when the latter has lasted for
        `upgrade.finalize_after_ms`. Called several times a second."""
        if self._state.level != self._level:
            before, self._level = self._level, self._state.level
            says = f"the cluster has level {self._level} now, it had {before}: older versions are refused"
            logger.info("%s", says)
            self._context.events.note("configuration", "cluster", says)
            self._transport.keep_to(self._level)

        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + LOOK_EVERY_MS
        self._waits_for = []
        # If no member announces a higher level than the cluster has, the times start anew with the next upgrade.
        if not self.is_mixed:
            self._mixed_since_ms = self._announced_since_ms = None
            return
        if self._mixed_since_ms is None:
            self._mixed_since_ms = now_ms
        if self._finalize_after_ms:
            self._finalize_in_time(now_ms)
        else:
            self._announced_since_ms = None

    def _finalize_in_time(self, now_ms: int) -> None:
        # While a member is down or older, no wait runs: that member might not read entries of the newest level.
        if self.why_not():
            self._announced_since_ms = None
        elif self._announced_since_ms is None:
            self._announced_since_ms = now_ms
        elif now_ms - self._announced_since_ms >= self._finalize_after_ms:
            newest = self.newest
            self._waits_for = self._below(newest)
            # Groups that copy from this one are raised first, because they write its changes to their own logs.
            if not self._waits_for:
                self._announced_since_ms = now_ms  # if this attempt is lost, the next one comes after the same time
                self.due(newest)

    def of_new_cluster(self) -> int:
        """Returns the level for a new cluster: the highest that this node and all connected members know."""
        return min([self.known, *(each.level for each in self.members() if each.level is not None)])

    def members(self) -> list[MemberLevel]:
        """Returns voters and learners, sorted by id."""
        in_force, own = self._members.in_force, self._members.own_id
        return [
            MemberLevel(
                id=node,
                role="learner" if node in in_force.learner_ids else "voter",
                connected=node == own or self._transport.connected(NodeId(node)),
                level=self.known if node == own else self._members.announced(NodeId(node)),
            )
            for node in sorted(in_force.node_uuids)
        ]

    @property
    def newest(self) -> int:
        """The highest level that a member announces."""
        return max([self.known, *(each.level or 0 for each in self.members())])

    @property
    def is_mixed(self) -> bool:
        """True if some member announces a higher level than the cluster has."""
        return self.newest > self._state.level

    def why_not(self) -> list[str]:
        """Returns the reasons why the cluster cannot be raised to the newest level now; [] if it can."""
        newest, reasons = self.newest, []
        for each in self.members():
            node = node_object(self._members.identity.group_id, each.id)
            # A member whose level is unknown counts as too old: a raised cluster might refuse it when it returns.
            if each.level is None:
                reasons.append(f"{node} ({each.role}) is down, or not connected: what it knows is not known")
            elif each.level < newest:
                reasons.append(f"{node} ({each.role}) knows levels up to {each.level}")
        return reasons

    def require(self) -> int:
        """Returns the level to which the cluster can be raised now, which may be the level that it has. Raises
        LocalError if a member is down or too old."""
        newest, level = self.newest, self._state.level
        reasons = self.why_not()
        # A level cannot be lowered again: what is written at a new level stays in the log.
        if reasons:
            raise LocalError(
                f"the cluster stays at level {level}",
                f"{'; '.join(reasons)}; every voter and learner must know level {newest}",
                "start or upgrade it, or remove it: raftmq upgrade plan",
                ExitCode.REFUSED,
            )
        return newest

    def view(self, now_ms: int) -> UpgradeView:
        """Returns the answer to `GET /v1/upgrade`. `now_ms` is the node's monotonic clock."""
        reasons = self.why_not()
        return UpgradeView(
            node=self._members.own_id,
            level=self._state.level,
            newest=self.newest,
            version=versions()["raftmq"],
            members=self.members(),
            mixed_ms=None if self._mixed_since_ms is None else now_ms - self._mixed_since_ms,
            finalizes=not reasons and self.newest > self._state.level,
            reasons=reasons,
            waits_for=self._waits_for,
        )


def unfinished_upgrade(view: UpgradeView) -> Iterator[Condition]:
    """Yields a condition if an upgrade was begun and is not finished. A downgrade is still possible then, and new
    functions are not available yet."""
    if view.waits_for:
        says = (
            f"every member knows level {view.newest} for upgrade.finalize_after_ms, and group {FIRST_GROUP} keeps "
            f"level {view.level} until all other groups are raised: {'; '.join(view.waits_for)}"
        )
        yield Condition(UPGRADE_UNFINISHED, CLUSTER, says, hold_ms=WAITS_HOLD_MS)
    elif view.mixed_ms is not None and view.mixed_ms >= MIXED_MS:
        why = "; ".join(view.reasons) or "every member knows it: finalize"
        says = (
            f"for {span_of(view.mixed_ms // 1000)}, members have known level {view.newest}, and the cluster has level"
        )
        yield Condition(UPGRADE_UNFINISHED, CLUSTER, f"{says} {view.level}: {why}")
