"""The table of all request handlers but the sends' own: what a node answers by itself, or as the leader."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from cluster.broker.groups import Groups
from cluster.remoting import heartbeat, offsets, route
from cluster.remoting.assignment import Assignments
from cluster.remoting.broker_figures import BrokerFigures
from cluster.remoting.entries import EntryRequests
from cluster.remoting.group_stats import GroupStats
from cluster.remoting.order_conf import OrderConf
from cluster.remoting.query import QueryRequests
from cluster.remoting.queue_locks import QueueLockRequests
from cluster.remoting.recall import RecallRequests
from cluster.remoting.send_back import SendBackRequests
from cluster.remoting.staging import StagedWriteHandlers
from cluster.remoting.topics_admin import TopicsAdmin

if TYPE_CHECKING:
    from cluster.broker.early_routes import EarlyRoutes
    from cluster.broker.entry_reads import ReadEntries
    from cluster.broker.group_members import Members
    from cluster.broker.old_bounds import OldBounds
    from cluster.broker.old_keys import OldKeys
    from cluster.broker.queue_locks import QueueLocks
    from cluster.broker.recalls import Recalls
    from cluster.broker.send_back import SendBacks
    from cluster.broker.services import Services
    from cluster.broker.staged_writes import StagedWriteRequests
    from cluster.remoting.broker_figures import Figures
    from cluster.remoting.changes import NoteChange
    from cluster.remoting.consumer_requests import ConsumerRequests
    from cluster.remoting.pull import PullRequests
    from cluster.remoting.replies import Replies
    from cluster.remoting.request import Handler
    from cluster.remoting.request_figures import RequestFigures
    from cluster.remoting.transactions import TransactionRequests
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
    old_keys: OldKeys | None = None,
    old_bounds: OldBounds | None = None,
) -> dict[int, Handler]:
    """Request code -> handler; `unreached`: see `route.Routes`, `note`: see `changes`, `old_keys`: see MessageQueries,
    `old_bounds`: see Offsets."""
    groups = Groups(services, members)
    return {
        **route.handlers(services, unreached, early),
        **TopicsAdmin(services, groups, note).handlers(),
        **heartbeat.handlers(services, members, locks),
        **QueueLockRequests(locks, members).handlers(),
        **offsets.handlers(services, members, old_bounds),
        **pulls.handlers(),
        **OrderConf(services).handlers(),
        **BrokerFigures(services, members, figures).handlers(),
        **QueryRequests(services, metrics, old_keys).handlers(),
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
