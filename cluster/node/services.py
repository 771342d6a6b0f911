"""Implements the interface through which handlers of requests use the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.turns.stalled_loop import AwakeClock
from raftmq_wire.topic_identity import IDENTITY_FIELD, TopicIdentity
from statemachine.commands import level_of, name_of
from statemachine.levels import CHANGES_LEVEL

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.members.service import MembersService
    from cluster.placement.route_map import RouteMap
    from cluster.repair.consistency import Consistency
    from cluster.repair.repair_service import Repairs
    from cluster.replication.outcome import CommitSession, Done
    from cluster.replication.proposals import Proposals
    from cluster.replication.raft_driver import DriverInbox
    from cluster.runtime.context import NodeContext
    from cluster.state.node_storage import NodeStorage
    from statemachine.commands import Command

QueueSet = set[tuple[int, int]]
"""A set of queues, each as (topic id, queue id)."""


class NodeServices:
    """Implements `cluster.broker.services.Services`, which documents each method."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        inbox: DriverInbox,
        proposals: Proposals,
        membership: MembersService,
        consistency: Consistency,
        repairs: Repairs,
        routes: RouteMap,
    ) -> None:
        self.config = context.config
        self.node_id = context.config.node_id
        self.turns = context.turns
        self.routes = routes
        self.state = storage.state
        self._raw = context.raw
        self._loop = context.loop
        self._clock = context.clock
        self.awake = AwakeClock(context.clock)
        self._directory = storage.directory
        self._inbox = inbox
        self._proposals = proposals
        self.creations = proposals.flow.creations
        self._membership = membership
        self._consistency = consistency
        self._repairs = repairs
        self.watchers: list[Callable[[QueueSet], None]] = []
        """Functions that are called once for each applied run, with the queues that got messages in it."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls these services."""
        return Part(name="services", tick=self.awake.tick, reload=self.reconfigure)

    def reconfigure(self, config: Config) -> None:
        """Uses the new configuration `config` from now on."""
        self.config = config

    def writes_open(self) -> bool:
        """Returns True if this node leads and has applied the no-op of its term."""
        return self._proposals.open

    def propose(
        self, commands: list[Command], done: Done, session: CommitSession | None = None, author: str = ""
    ) -> None:
        """Proposes one COMMAND or CHANGE entry, and calls `done` when it is applied, has failed, or is still undecided
        at the deadline. Refuses commands of a higher level than the cluster's. Leaves the author out below level
        CHANGES_LEVEL, and if there is a `session` (docs/adr/0094)."""
        level, has = level_of(commands), self.state.level
        if level > has:
            newest = next(type(command) for command in commands if level == command.LEVEL)
            remark = f"{name_of(newest)} needs level {level}, and the cluster has level {has}: raftmq upgrade finalize"
            done(ProposeResult(Outcome.FAIL, [], None, remark))
            return
        names = author if has >= CHANGES_LEVEL and session is None else ""
        self._proposals.submit_commands(commands, done, session, names)

    def log_time_ms(self) -> int:
        """Returns the log time now, in milliseconds."""
        return self._raw.log_time_ms()

    def read_index(self, done: Callable[[bool], None]) -> None:
        """Begins a ReadIndex round, or joins the one of this turn. Calls `done` with True if the applied state can
        answer linearizably, else with False."""
        self._inbox.read_index(done)

    def catch_up(self) -> None:
        """Applies at once the committed entries that are held back (`cluster.replication.apply_lane.HeldRuns`)."""
        self._inbox.catch_up()

    def commit_offset_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        """Adds a commit of an offset to the next log entry with commits of several clients."""
        self._proposals.offsets.commit_later(group, topic_id, queue_id, offset)

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        """Calls `done` when every earlier offset commit of the group is applied or lost."""
        self._proposals.offsets.settle(group, done)

    def knows_group(self, group: str) -> bool:
        """Returns True if the group exists and no deletion of it is in progress."""
        return self._proposals.offsets.knows_group(group)

    def read_log(self, position: int, size: int) -> bytes:
        """Returns `size` bytes of the commit log from a logical position on."""
        return self._directory.log.read_at(position, size)

    def fenced(self) -> bool:
        """Returns True if this node must not serve messages, because its rows are known to be wrong or because it was
        removed."""
        return self._consistency.fenced or self._membership.is_removed

    def report_damage(self, position: int, size: int) -> None:
        """Makes the repair service check bytes of the log that do not match their CRC."""
        self._repairs.report(position, size)

    def cluster_uuids(self) -> tuple[str, ...]:
        """Returns the cluster's uuid, then those of the former clusters that it continues, newest first."""
        identity = self._directory.identity
        return (str(identity.cluster_uuid), *(str(each.cluster_uuid) for each in reversed(identity.origin)))

    def topic_identity(self, topic: str) -> dict[str, str]:
        """Returns the header fields with the identity of the topic, as this node has applied it; {} if this node has no
        such topic."""
        config, identity = self.state.topics.get(topic), self._directory.identity
        if config is None:
            return {}
        return {IDENTITY_FIELD: str(TopicIdentity(str(identity.cluster_uuid), identity.group_id, config.id))}

    def monotonic_ms(self) -> int:
        """Returns the milliseconds of the node's monotonic clock."""
        return self._clock.monotonic_ms()

    def awake_ms(self) -> int:
        """Returns the milliseconds of the node's monotonic clock, without the time in which this node was suspended or
        stalled."""
        return self.awake.now_ms()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Schedules the callback on the loop; returns a function that cancels it."""
        return self._loop.call_later(delay_ms / 1000, callback).cancel

    def on_applied(self, callback: Callable[[QueueSet], None]) -> None:
        """Registers a callback that is called once per applied run with the queues that got messages in it, if there
        are any."""
        self.watchers.append(callback)
