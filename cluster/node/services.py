"""The node as the handlers of requests see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.config.listening import addresses_behind
from cluster.runtime.standstill import AwakeClock
from statemachine.commands import RAISE_LEVEL

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.members.service import MembersService
    from cluster.repair.consistency import Consistency
    from cluster.repair.repairs import Repairs
    from cluster.replication.outcome import CommitSession, Done
    from cluster.replication.proposals import Proposals
    from cluster.replication.raft_driver import DriverInbox
    from cluster.runtime.context import NodeContext
    from cluster.state.node_storage import NodeStorage
    from raftlog.types import NodeId
    from statemachine.commands import Command

Queues = set[tuple[int, int]]
"""(topic id, queue id)."""


class NodeServices:
    """Implements `cluster.broker.services.Services`, which says what each method is for."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        inbox: DriverInbox,
        proposals: Proposals,
        membership: MembersService,
        consistency: Consistency,
        repairs: Repairs,
    ) -> None:
        self.config = context.config
        self.node_id = context.config.node_id
        self.turns = context.turns
        self.state = storage.state
        self._raw = context.raw
        self._loop = context.loop
        self._clock = context.clock
        self.awake = AwakeClock(context.clock)
        self._directory = storage.directory
        self._inbox = inbox
        self._proposals = proposals
        self._membership = membership
        self._consistency = consistency
        self._repairs = repairs
        self.watchers: list[Callable[[Queues], None]] = []
        """Called with the queues that grew, once per applied run."""

    def reconfigure(self, config: Config) -> None:
        """This is in force from now on."""
        self.config = config

    def writes_open(self) -> bool:
        """See Services."""
        return self._proposals.open

    def leader_id(self) -> NodeId:
        """See Services."""
        return self._raw.leader_id

    def propose(self, commands: list[Command], done: Done, session: CommitSession | None = None) -> None:
        """See Services."""
        self._proposals.submit_commands(commands, done, session)

    def raising(self, level: int) -> list[Command] | NodeId:
        """See Services."""
        if self.state.level >= level:
            return []
        return self._membership.below(level) or [[RAISE_LEVEL, level]]

    def log_time_ms(self) -> int:
        """See Services."""
        return self._raw.log_time_ms()

    def read_index(self, done: Callable[[bool], None]) -> None:
        """See Services."""
        self._inbox.read_index(done)

    def commit_offset_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        """See Services."""
        self._proposals.offsets.commit_later(group, topic_id, queue_id, offset)

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        """See Services."""
        self._proposals.offsets.settle(group, done)

    def knows_group(self, group: str) -> bool:
        """See Services."""
        return self._proposals.offsets.knows_group(group)

    def read_log(self, position: int, size: int) -> bytes:
        """See Services."""
        return self._directory.log.read_at(position, size)

    def fenced(self) -> bool:
        """See Services."""
        return self._consistency.fenced or self._membership.is_removed

    def report_damage(self, position: int, size: int) -> None:
        """See Services."""
        self._repairs.report(position, size)

    def cluster_uuids(self) -> tuple[str, ...]:
        """See Services."""
        identity = self._directory.identity
        return (str(identity.cluster_uuid), *(str(each.cluster_uuid) for each in reversed(identity.origin)))

    def broker_addresses(self, listener: str) -> dict[NodeId, str]:
        """See Services."""
        return addresses_behind(listener, self._membership.broker_addresses)

    def monotonic_ms(self) -> int:
        """See Services."""
        return self._clock.monotonic_ms()

    def awake_ms(self) -> int:
        """See Services."""
        return self.awake.now_ms()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """See Services."""
        return self._loop.call_later(delay_ms / 1000, callback).cancel

    def on_applied(self, callback: Callable[[Queues], None]) -> None:
        """See Services."""
        self.watchers.append(callback)
