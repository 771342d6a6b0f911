"""Makes the services of a node that accept requests, propose their commands, and answer them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.assembly import Broker, SendIntake
from cluster.broker.sends.closed_connections import ClosedConnections
from cluster.broker.sends.send_outcomes import SendOutcomes
from cluster.config.address import split_address
from cluster.config.config import Config
from cluster.config.loading import own_address
from cluster.flow.gate import Gate
from cluster.flow.quota_shares import QuotaShares
from cluster.node.services import NodeServices
from cluster.peer.confirmed_index import ConfirmedIndex
from cluster.peer.group_links import GroupLinks
from cluster.placement.groups_file import GroupsFile
from cluster.placement.known_groups import KnownGroups, own_record
from cluster.placement.quota_exchange import QuotaExchange
from cluster.placement.route_map import BrokerGroup, RouteMap
from cluster.remoting.assembly import AnswerPaths, Remoting, Trust
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.reply_path import pack_host
from cluster.remoting.handlers.broker_stats import NodeFigures
from cluster.remoting.handlers.send_reply import SendReplyWriter
from cluster.replication.acks.degradation import Degradation
from cluster.replication.acks.early_answer_file import Ledger
from cluster.replication.mode_assembly import Modes
from cluster.replication.proposals import Proposals
from cluster.replication.send_identity import RetryMemory
from cluster.retention.assembly import disk_of
from cluster.runtime.listeners import Signal
from cluster.runtime.service_lifecycle import PartList
from cluster.tier.tier_assembly import access_of
from cluster.truth.assembly import truth_of
from raftlog.types import FIRST_GROUP

if TYPE_CHECKING:
    from cluster.broker.reads.entry_reads import EntryReads
    from cluster.node.integrity import Integrity
    from cluster.node.meters import Meters
    from cluster.node.peers import Peers
    from cluster.replication.raft_driver import DriverInbox
    from cluster.runtime.context import NodeContext
    from cluster.state.node_storage import NodeStorage


class Serving:
    """Serves clients and other groups of brokers. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        inbox: DriverInbox,
        peers: Peers,
        integrity: Integrity,
        meters: Meters,
        *,
        entries: EntryReads,
        current_config: Callable[[], Config],
        started_ms: int,
    ) -> None:
        """Makes the services. `current_config` returns the configuration in force. `started_ms` is a time of the
        monotonic clock."""
        self._context, self._storage, self._peers, self._config = context, storage, peers, current_config
        config, state, requests, modes = context.config, storage.state, meters.requests, meters.traffic.modes
        self.parts = parts = PartList()
        incarnation = context.environment.entropy(8)
        store_host = pack_host(*split_address(own_address(config)))
        self.retries = retries = RetryMemory()
        self.group_links = group_links = GroupLinks(peers.transport, lambda group: self.other_groups.leader(group))
        routes = RouteMap(self._own_group(), lambda: self.other_groups.others())
        self.other_groups = parts.of(
            KnownGroups(
                context,
                group_links,
                self._groups_file(),
                lambda: own_record(context.raw, peers.membership, routes.own.name, peers.links.unreached, state.level),
                lambda: state.broker_groups.by_number,
                lambda: context.fail(storage.retired()),
            )
        )
        replies = SendReplyWriter(store_host, routes.own.name, requests)
        closings = ClosedConnections(context.loop.call_soon)
        outcomes = SendOutcomes(context.clock, state, retries, replies, closings)
        self.proposals = proposals = parts.of(
            Proposals(
                context,
                state,
                Gate(config, requests.refused, requests.quota_refused),
                store_host=store_host,
                replies=outcomes,
                before_open=integrity.consistency.before_open,
                metrics=meters.traffic,
                ledger=Ledger(context.fs, storage.directory.path, config.limits.batches_inflight_max),
                sync_ms=lambda: peers.syncs.of_majority(context.raw.membership.voter_ids),
                awaits=lambda topic_id, queue_id: self.broker.pulls.long_polls.waits_for(topic_id, queue_id),
            )
        )
        parts.of(proposals.gate)
        degradation = Degradation(context, proposals, lambda: peers.syncs.own_ms, inbox.read_index, modes)
        self.modes = parts.of(
            Modes(context, proposals.early, storage.directory.log, peers.transport, state, modes, degradation)
        )
        self.services = services = NodeServices(
            context, storage, inbox, proposals, peers.membership, integrity.consistency, integrity.repairs, routes
        )
        self.truth = truth_of(context, state, services, proposals, group_links)
        parts += self.truth.parts
        self.tier_access = access_of(context, storage, services)
        path, others = storage.directory.path, self.other_groups
        self.disk = parts.of(disk_of(context, path, proposals, lambda: others.groups_here))
        arrived = Signal[[Frame]]()
        self.broker = broker = Broker(
            context,
            services,
            proposals,
            retries,
            intake=SendIntake(incarnation, arrived, replies.refuse),
            reads=self.modes.reads,
            evicted=self.tier_access,
            transport=peers.transport,
            unreached=peers.links.unreached,
            keyed=self._keyed,
            denied=lambda enforced: requests.denied(enforced=enforced),
        )
        broker.other_members.serve(group_links)
        self.confirmed = parts.of(
            ConfirmedIndex(
                peers.transport,
                services,
                context.turns,
                leader=routes.own.leader,
                applied=lambda: context.raw.applied_index,
                level=lambda: state.level,
            )
        )
        paced, pulls = proposals.flow.paced, broker.pulls.paced
        shares = QuotaShares((paced.buckets, pulls.buckets))
        paced.buckets.share_with(self._groups_there)
        pulls.buckets.share_with(lambda: self._groups_there() * max(1, len(peers.membership.in_force.voter_ids)))
        shares.count_waiting(paced.waiting)
        shares.count_waiting(pulls.waiting)
        parts.of(
            QuotaExchange(
                shares,
                peers.transport,
                group_links,
                context.turns,
                group=config.cluster.group,
                leader=routes.own.leader,
                leads=services.writes_open,
                monotonic_ms=services.monotonic_ms,
            )
        )
        disk = self.disk
        figures = NodeFigures(services, context.clock, lambda: disk.view().used_percent, meters.rates, started_ms)
        self.remoting = remoting = Remoting(
            context,
            broker,
            proposals,
            peers.transport,
            arrived=arrived,
            answers=AnswerPaths(replies, closings, outcomes),
            figures=figures.by_name,
            read_entries=entries.ask,
            log_begins=integrity.installs.log_begins,
            trust=Trust(self.unheard, self.confirmed, self._keyed),
            security=peers.tls.security,
            metrics=requests,
        )
        parts.of(remoting.listeners)
        parts += remoting.parts()
        parts.of(broker.early_routes)
        parts += broker.delivery_parts()
        peers.membership.removed.add(remoting.router.clients.drop)

    def _groups_file(self) -> GroupsFile:
        identity = self._storage.directory.identity
        directory = self._storage.directory.path
        return GroupsFile(self._context.fs, directory, str(identity.cluster_uuid), identity.group_id)

    def groups_below(self, level: int) -> list[str]:
        """Returns one clause for each other group of brokers that must have the level before this one, and is not known
        to have it. Only the first group waits for others, because they copy its decisions into their logs. So the
        result is [] in another group."""
        if self._config().cluster.group != FIRST_GROUP:
            return []
        return self.other_groups.below(level)

    def _groups_there(self) -> int:
        return 1 + len(self.other_groups.others())

    def _own_group(self) -> BrokerGroup:
        members = self._peers.membership
        return BrokerGroup(
            self._config,
            leader=lambda: self._context.raw.leader_id,
            advertised=members.broker_addresses,
            stand_ins=self._peers.links.stand_ins,
            http=members.http_address,
            slots=self._slots,
        )

    def _slots(self) -> int:
        """Returns the number of aliases of each group, the names under which a route lists a group's nodes. It is fixed
        when a cluster gets its second group. Before that, it returns 0, and each node has one name."""
        rows = self._storage.state.broker_groups.by_number
        return next(iter(rows.values())).aliases if rows else 0

    def confirm_applied(self, done: Callable[[bool], None]) -> None:
        """Calls `done(True)` once this node has applied everything that was acknowledged before, whether it leads or
        not. Calls `done(False)` if no leader confirms that, or if the cluster's level does not have the request for
        it."""
        if self.services.writes_open() or self.confirmed.is_possible:
            self.confirmed.ask(done)
        else:
            done(False)

    def _keyed(self) -> bool:
        return self._peers.transport.keyring.demanded

    def unheard(self) -> str:
        """Returns the reason why this node may have missed changes of users and rules; "" if it has missed none."""
        if self.services.writes_open():
            return self.truth.why_stale()
        heard_ms = self._context.raw.raft.heard_ms
        if heard_ms is None:
            return "no leader was heard since this node started"
        silent_ms = self._context.clock.monotonic_ms() - heard_ms
        if silent_ms <= self._config().auth.stale_ms_max:
            return self.truth.why_stale()
        return f"no leader was heard for {silent_ms} ms, auth.stale_ms_max is {self._config().auth.stale_ms_max}"
