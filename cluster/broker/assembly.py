"""Makes the services of the package `cluster.broker` for one node, in the order in which they depend on each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cluster.broker.access.denials import Denials
from cluster.broker.access.guesses import Guesses
from cluster.broker.access.secrets import Resealing, Secrets, read_keys
from cluster.broker.access.user_admin import FirstUser, UserAdmin
from cluster.broker.backlog_sizes import BacklogSizes
from cluster.broker.broker_metrics import ConnectionCounts, ConnectionMetrics, DeliveryMetrics
from cluster.broker.gathering import Gathering
from cluster.broker.groups.client_relay import ClientRelay
from cluster.broker.groups.group_lag import LagMetrics
from cluster.broker.groups.group_members import Members
from cluster.broker.groups.offset_resets import OffsetResets
from cluster.broker.groups.other_members import OtherMembers
from cluster.broker.groups.queue_locks import QueueLocks
from cluster.broker.groups.reply_delivery import ReplyDelivery
from cluster.broker.groups.reply_notes import ReplyNotes
from cluster.broker.groups.route_refresh import EarlyRoutes
from cluster.broker.groups.shared_ids import SharedIds
from cluster.broker.hot_topics import Spreading
from cluster.broker.message_queries import MessageQueries
from cluster.broker.pulls.pull_service import Pulls
from cluster.broker.rights import Party, Rights
from cluster.broker.sends.redelivery import SendBacks
from cluster.broker.sends.send_service import Sends
from cluster.broker.timers.recalls import Recalls
from cluster.broker.timers.timer_delivery import MakeDueLane, TimerDelivery
from cluster.broker.topic_sizes import TopicSizeMetrics, TopicSizes
from cluster.broker.transactions.group_writes import GroupWriteRequests
from cluster.broker.transactions.staged_delivery import MakeStagedLane, StagedDelivery
from cluster.broker.transactions.staged_writes import StagedWriteRequests
from cluster.broker.transactions.transaction_end import Transactions
from cluster.broker.watches.group_watch import GroupWatch
from cluster.broker.watches.hidden_watch import HiddenWatch
from cluster.broker.watches.hot_watch import hot_conditions
from cluster.broker.watches.quota_watch import learnt_conditions, quota_conditions
from cluster.config.loading import own_object
from cluster.runtime.service_lifecycle import Part
from raftlog.types import FIRST_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cluster.broker.evicted.evicted_key_search import EvictedKeys
    from cluster.broker.evicted.evicted_pulls import EvictedMessages
    from cluster.broker.evicted.evicted_time_search import EvictedBounds
    from cluster.broker.reads.tier_read_policy import ReadLevels
    from cluster.broker.services import Services
    from cluster.broker.timers.due_reads import DueAsk, DueFound, DueReads
    from cluster.broker.transactions.staged_delivery import StagedAsk, StagedFound, StagedReads
    from cluster.replication.follower_reads import FollowerReads
    from cluster.replication.proposals import Proposals
    from cluster.replication.send_identity import RetryMemory
    from cluster.runtime.context import NodeContext
    from cluster.runtime.lanes import LaneRunner
    from cluster.runtime.peer_frames import PeerLinks
    from raftlog.types import NodeId


class EvictedReads(Protocol):
    """The ways to read messages that were evicted from this node, that is, kept only in the tier (`cluster.tier`)."""

    @property
    def bounds(self) -> EvictedBounds:
        """Searches for offsets by store time among evicted messages."""

    @property
    def keys(self) -> EvictedKeys:
        """Searches for evicted messages by their keys."""

    @property
    def for_pulls(self) -> tuple[EvictedMessages, ReadLevels]:
        """The arguments `evicted` and `levels` of `Pulls`: reads of evicted messages, and the levels that decide when
        the tier is read."""


class SendIntake(NamedTuple):
    """The arguments of `Sends` that describe how sends arrive. The constructor of `Sends` explains them."""

    incarnation: bytes
    route: Callable[[Any], None]
    refuse: Callable[[Any, Any], None]


class Broker:
    """Holds the services that the server of any protocol on the node uses. They are free of protocol types. Event loop
    only."""

    def __init__(
        self,
        context: NodeContext,
        services: Services,
        proposals: Proposals,
        retries: RetryMemory,
        *,
        intake: SendIntake,
        reads: FollowerReads,
        evicted: EvictedReads | None,
        transport: PeerLinks,
        unreached: Callable[[], Collection[NodeId]],
        keyed: Callable[[], bool],
        denied: Callable[[bool], None],
    ) -> None:
        """`reads` is an argument of `Pulls`, and explained there. `evicted` is None if this node has no tier.
        `unreached` returns the nodes that the leader does not reach. `keyed` returns True if every peer has to prove
        the cluster's secret. `denied` is called for each denied request, with True if it was refused, with False if it
        passed."""
        config, environment, clock = context.config, context.environment, context.clock
        self._wall_ms = clock.wall_ms
        self.services, self.retries = services, retries
        self.denials = Denials(clock.wall_ms, denied)
        self.guesses = Guesses(services.monotonic_ms, clock.wall_ms, services.call_later)
        self.rights = Rights(services.state.access, self._note_denied)
        self.sends: Sends[Any] = Sends(
            services,
            clock,
            proposals,
            retries,
            intake.incarnation,
            entropy=environment.entropy,
            route=intake.route,
            refuse=intake.refuse,
        )
        self.staged = StagedDelivery(services, proposals, context.alarms, self._staged_lane(context))
        self.writes = StagedWriteRequests(services, proposals, self.sends.split_batch, self.rights)
        self.group_writes = GroupWriteRequests(services)
        self.secrets = Secrets(
            config.auth.key_file,
            services.state.access,
            clusters=services.cluster_uuids,
            entropy=environment.entropy,
            now_ms=clock.monotonic_ms,
            alarms=context.alarms,
            read=environment.read_key_file or read_keys,
        )
        self.user_admin = UserAdmin(services, self.secrets, keyed)
        self.resealing = Resealing(services, self.secrets)
        first_user_file = config.auth.first_user_file if config.cluster.group == FIRST_GROUP else ""
        self.first_user = FirstUser(first_user_file, services, self.user_admin)
        self.shared_ids = SharedIds(clock.wall_ms)
        self.members = members = Members(services, self.rights, self.shared_ids)
        self.other_members = OtherMembers(services, members)
        self.early_routes = EarlyRoutes(services, members, unreached)
        self.reply_notes = ReplyNotes(services)
        self.relay = ClientRelay(services, members, transport, self.rights, self.reply_notes)
        self.reply_delivery = ReplyDelivery(
            services, members, self.reply_notes, self.relay, transport, self.rights, self.shared_ids
        )
        self.bounds = None if evicted is None else evicted.bounds
        self.queries = MessageQueries(services, self.rights, None if evicted is None else evicted.keys)
        self.resets = OffsetResets(services, self.rights, self.bounds)
        old, levels = (None, None) if evicted is None else evicted.for_pulls
        self.pulls = Pulls(services, members, self.resets, reads, old, levels, proposals.flow.paced.buckets.rules)
        self.locks = QueueLocks(services, environment.lock_ttl_ms)
        self.transactions = Transactions(services, proposals, self.rights)
        self.group_watch = GroupWatch(
            services, member_count=members.member_count, unread=members.unread, wall_ms=clock.wall_ms
        )
        self._proposals = proposals
        self.deliveries = DeliveryMetrics(services.state)
        self.topic_sizes = TopicSizes(services.state, clock.monotonic_ms)
        self.send_backs = SendBacks(services, proposals, self.rights)
        self.timers = TimerDelivery(services, proposals, self._timer_lane(context))
        self.recalls = Recalls(services, proposals, self.timers, self.rights)
        self.backlog_sizes = BacklogSizes(services, proposals.flow.paced.backlogs, context.loop)
        self.spreading = Spreading(services, lambda: proposals.figures.hot.last, context.events)
        self.gathering = Gathering(
            services, proposals.topics, lambda: proposals.figures.hot.last, context.events, environment.route_age_ms
        )

    def _note_denied(self, party: Party, why: str, what: str, enforced: bool) -> None:
        self.denials.note(party.user, party.address, why, what, enforced=enforced)

    @staticmethod
    def _timer_lane(context: NodeContext) -> MakeDueLane:
        def lane(reads: DueReads, answered: Callable[[list[DueFound]], None]) -> LaneRunner[DueAsk]:
            return context.environment.runner("timers", reads, context.loop, answered, context.fail)

        return lane

    @staticmethod
    def _staged_lane(context: NodeContext) -> MakeStagedLane:
        def lane(reads: StagedReads, answered: Callable[[list[StagedFound]], None]) -> LaneRunner[StagedAsk]:
            return context.environment.runner("staged", reads, context.loop, answered, context.fail)

        return lane

    def delivery_parts(self) -> tuple[Part, ...]:
        """Returns the hooks through which the node calls these services. They cover the delivery of waiting messages,
        the measurement and movement of topics, findings, metrics, and the reload of limits."""
        services, proposals, long_polls = self.services, self._proposals, self.pulls.long_polls
        return (
            self.timers.part(),
            self.staged.part(),
            self.transactions.part(),
            self.send_backs.part(),
            self.sends.part(),
            self.backlog_sizes.part(),
            self.spreading.part(),
            self.gathering.part(),
            self.group_watch.part(),
            HiddenWatch(services).part(),
            Part(name="hot spots", findings=lambda: hot_conditions(services, proposals.figures.hot.last)),
            Part(name="quotas", findings=lambda: quota_conditions(services, proposals.flow.paced)),
            Part(name="learnt limits", findings=lambda: learnt_conditions(services, proposals.flow.learnt)),
            Part(
                name="shared client ids",
                findings=lambda: self.shared_ids.conditions(services.state.access.by_id, own_object(services.config)),
            ),
            Part(
                name="broker metrics",
                metrics=(
                    LagMetrics(services.state, services.writes_open, self._wall_ms),
                    ConnectionMetrics(ConnectionCounts(self.members, services.turns)),
                    TopicSizeMetrics(self.topic_sizes, services.state),
                    self.deliveries,
                ),
            ),
            Part(
                name="long polls",
                reload=lambda config: long_polls.reload(config.limits.node_inflight_bytes_max),
            ),
        )
