"""The table of all request handlers but the sends' own: what a node answers by itself, or as the leader."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from cluster.broker.groups.group_admin import Groups
from cluster.remoting.handlers import heartbeat, offsets, route
from cluster.remoting.handlers.assignment import Assignments
from cluster.remoting.handlers.broker_figures import BrokerFigures
from cluster.remoting.handlers.group_stats import GroupStats
from cluster.remoting.handlers.message_requests import EntryRequests, QueryRequests, RecallRequests, SendBackRequests
from cluster.remoting.handlers.queue_locks import QueueLockRequests
from cluster.remoting.handlers.staging import StagedWriteHandlers
from cluster.remoting.handlers.topics_admin import OrderConf, TopicsAdmin

if TYPE_CHECKING:
    from cluster.broker.evicted.evicted_bounds import EvictedBounds
    from cluster.broker.evicted.evicted_keys import EvictedKeys
    from cluster.broker.groups.early_routes import EarlyRoutes
    from cluster.broker.groups.group_members import Members
    from cluster.broker.groups.queue_locks import QueueLocks
    from cluster.broker.reads.entry_reads import ReadEntries
    from cluster.broker.sends.redelivery import SendBacks
    from cluster.broker.services import Services
    from cluster.broker.timers.recalls import Recalls
    from cluster.broker.transactions.staged_writes import StagedWriteRequests
    from cluster.remoting.handlers.broker_figures import Figures
    from cluster.remoting.handlers.consumer_requests import ConsumerRequests
    from cluster.remoting.handlers.pull import PullRequests
    from cluster.remoting.handlers.replies import Replies
    from cluster.remoting.handlers.transactions import TransactionRequests
    from cluster.remoting.request import Handler, NoteChange, RequestFigures
    from raftlog.types import NodeId


def handlers_of(
    services: Services,
    members: Members,
    locks: QueueLocks,
    pulls: PullRequests,
    consumers: ConsumerRequests,
    replies: Replies,
    send_backs: SendBacks,
    recalls: Recalls,
    writes: StagedWriteRequests,
    unreached: Callable[[], Collection[NodeId]],
    early: EarlyRoutes,
    transactions: TransactionRequests,
    figures: Figures,
    read_entries: ReadEntries,
    note: NoteChange,
    metrics: RequestFigures | None = None,
    evicted_keys: EvictedKeys | None = None,
    evicted_bounds: EvictedBounds | None = None,
) -> dict[int, Handler]:
    """Request code -> handler; `unreached`: see `route.Routes`, `note`: see `request`, `evicted_keys`: see
    MessageQueries, `evicted_bounds`: see Offsets."""
    groups = Groups(services, members)
    return {
        **route.handlers(services, unreached, early),
        **TopicsAdmin(services, groups, note).handlers(),
        **heartbeat.handlers(services, members, locks),
        **QueueLockRequests(locks, members).handlers(),
        **offsets.handlers(services, members, evicted_bounds),
        **pulls.handlers(),
        **OrderConf(services).handlers(),
        **BrokerFigures(services, members, figures).handlers(),
        **QueryRequests(services, metrics, evicted_keys).handlers(),
        **Assignments(services, members, pulls.filters).handlers(),
        **GroupStats(services, members, groups).handlers(),
        **SendBackRequests(send_backs).handlers(),
        **RecallRequests(recalls).handlers(),
        **StagedWriteHandlers(writes).handlers(),
        **EntryRequests(services, read_entries).handlers(),
        **consumers.handlers(),
        **transactions.handlers(),
        **replies.handlers(),
    }
