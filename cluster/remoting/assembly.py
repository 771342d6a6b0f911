"""Puts together the remoting protocol of one node: its ports, the stages of a request, and the parts that serve the
request codes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.groups.group_admin import GroupReads
from cluster.broker.groups.group_offsets import Offsets
from cluster.broker.sends.withdrawn_sends import WithdrawnSends
from cluster.broker.transactions.transaction_end import CheckBack
from cluster.config.loading import own_address
from cluster.flow.minute_rates import MinuteRates
from cluster.flow.quota_limits import CONNECTIONS
from cluster.remoting.admission import Admission
from cluster.remoting.connection.connection_memory import ConnectionMemory
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.open_connections import OpenConnections
from cluster.remoting.forward.forwarder import Forwarder
from cluster.remoting.forward.handover import Handover
from cluster.remoting.forward.pull_forwards import PullForwards
from cluster.remoting.handler_table import HandlerTable
from cluster.remoting.handlers.assignment import Assignments
from cluster.remoting.handlers.broker_stats import BrokerFigures
from cluster.remoting.handlers.consumer_requests import ConsumerRequests
from cluster.remoting.handlers.group_stats import GroupStats
from cluster.remoting.handlers.heartbeat import Heartbeats
from cluster.remoting.handlers.message_requests import EntryRequests, QueryRequests, RecallRequests, SendBackRequests
from cluster.remoting.handlers.offsets import OffsetRequests
from cluster.remoting.handlers.pull import PullRequests
from cluster.remoting.handlers.queue_locks import QueueLockRequests
from cluster.remoting.handlers.request_reply import Replies, RequesterNotes
from cluster.remoting.handlers.route import Routes
from cluster.remoting.handlers.send import SendHandler, make_intake
from cluster.remoting.handlers.staged_writes import StagedWriteHandlers
from cluster.remoting.handlers.topics_admin import OrderConf, TopicsAdmin
from cluster.remoting.handlers.transactions import TransactionRequests, ask_producer
from cluster.remoting.handlers.unsupported_codes import RefusedCodes
from cluster.remoting.handlers.users_admin import UserRequests
from cluster.remoting.router import Listeners, Router
from cluster.requests.judge import Judge
from cluster.requests.request_metrics import RequestMetrics
from cluster.requests.table import by_row
from cluster.runtime.listeners import Signal
from cluster.runtime.service_lifecycle import Part, codes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.broker.assembly import Broker
    from cluster.broker.reads.entry_reads import ReadEntries
    from cluster.broker.sends.closed_connections import ClosedConnections
    from cluster.broker.sends.send_outcomes import SendOutcomes
    from cluster.config.node_sections import TlsMode
    from cluster.peer.confirmed_index import ConfirmedIndex
    from cluster.remoting.handlers.broker_stats import ReadFigures
    from cluster.remoting.handlers.send_reply import SendReplyWriter
    from cluster.replication.proposals import Proposals
    from cluster.runtime.context import NodeContext
    from cluster.runtime.peer_frames import PeerLinks
    from cluster.runtime.tls.port_security import Security


class AnswerPaths(NamedTuple):
    """The objects that answer sends. They are made before the proposals, because the proposals answer through them."""

    replies: SendReplyWriter
    closings: ClosedConnections
    outcomes: SendOutcomes


class Trust(NamedTuple):
    """The conditions under which this node may decide who a client is and what it may do."""

    unheard: Callable[[], str]
    """Returns the reason why this node may have missed changes of users and rules, or "" if it has not missed any."""
    confirms: ConfirmedIndex
    keyed: Callable[[], bool]
    """Returns True if every node has proven the cluster's secret to this node."""


class Remoting:
    """The stages through which every request of a node passes, made in the order in which they depend on each other.
    Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        broker: Broker,
        proposals: Proposals,
        transport: PeerLinks,
        *,
        arrived: Signal[[Frame]],
        answers: AnswerPaths,
        figures: ReadFigures,
        read_entries: ReadEntries,
        log_begins: Callable[[], int],
        trust: Trust,
        security: Callable[[str, TlsMode], Security],
        metrics: RequestMetrics,
    ) -> None:
        """`arrived` is emitted with sends that arrive from clients. `figures` are those that mqadmin shows.
        `log_begins` is explained at Router, `security` at Listeners."""
        self._context, self._broker, self._services = context, broker, broker.services
        services, replies, closings = broker.services, answers.replies, answers.closings
        self._judge = Judge(services.state.access, broker.denials, context.config.cluster.name)
        self._figures, self._read_entries, self._metrics = figures, read_entries, metrics
        config, state, handed = context.config, services.state, Signal[[Frame]]()
        memory = ConnectionMemory(config.limits, context.loop.call_soon, proposals.gate)
        sends = SendHandler(
            broker.sends,
            replies,
            partial(make_intake, proposals, broker.sends, broker.retries),
            config.limits,
            RequesterNotes(broker.reply_notes).note,
        )
        self.forwarder = Forwarder(
            context,
            transport,
            leader=services.routes.own.leader,
            leads=services.writes_open,
            local=handed,
            names=sends,
            room=memory.unsent,
            gate=proposals.gate,
            closings=closings,
            level=lambda: state.level,
            trusted=trust.keyed,
            slow=proposals.figures.slow,
        )
        self._check_back = CheckBack(
            services, broker.transactions, partial(ask_producer, broker.relay, services.routes)
        )
        forwards = PullForwards(self.forwarder, services.writes_open, log_begins)
        pulls = PullRequests(broker.pulls, forwards.elsewhere, forwards.to_leader, broker.deliveries)
        self.serving = self._serving(pulls)
        """The parts that serve all request codes but those of sends."""
        self.admission = Admission(
            state.access,
            broker.secrets,
            self._judge,
            polls=broker.pulls.long_polls,
            stale=trust.unheard,
            refuse=replies.refuse,
            turns=services.turns,
            guesses=broker.guesses,
            confirms=trust.confirms,
        )
        self.clients = OpenConnections(
            config.limits,
            state.access,
            proposals,
            memory=memory,
            members=broker.members,
            parked=broker.pulls.long_polls.has,
            closings=closings,
            outcomes=answers.outcomes,
            rates=MinuteRates(
                proposals.flow.paced.buckets.rules, (CONNECTIONS,), proposals.gate, services.monotonic_ms
            ),
        )
        self.router = Router(
            services,
            proposals,
            clients=self.clients,
            table=HandlerTable(
                by_row(codes_of(self.serving)),
                RefusedCodes(services, metrics).refuse,
                services=services,
                limits=config.limits,
                soon=context.loop.call_soon,
                denied_since=self.admission.denied_since,
            ),
            sends=sends,
            replies=replies,
            forwarder=self.forwarder,
            members=broker.members,
            admission=self.admission,
            log_begins=log_begins,
        )
        withdrawn = WithdrawnSends(proposals, answers.outcomes, broker.rights, services.turns, context.loop.call_soon)
        closings.listen(withdrawn.connections_closed)
        self.forwarder.client_gone.add(withdrawn.client_gone)
        self.admission.rules_changed.add(withdrawn.judge_again)
        arrived.add(self.router.on_request)
        handed.add(self.router.on_handed)
        self.listeners = Listeners(config, self.router, security)

    def _serving(self, pulls: PullRequests) -> tuple[Part, ...]:
        """Returns the parts that serve all request codes but those of sends."""
        broker, services, metrics = self._broker, self._services, self._metrics
        members, note = broker.members, self._context.events.note_change
        groups = GroupReads(services, members)
        handover = Handover(self.forwarder.forward, services.writes_open)
        return (
            Part(name="route requests", codes=Routes(services, broker.early_routes).codes()),
            Part(name="topic requests", codes=TopicsAdmin(services, note).codes()),
            Part(name="heartbeats", codes=Heartbeats(services, members, broker.other_members, broker.locks).codes()),
            Part(name="queue locks", codes=QueueLockRequests(broker.locks, members).codes()),
            Part(name="offsets", codes=OffsetRequests(services, members, Offsets(services, broker.bounds)).codes()),
            Part(name="pull requests", codes=pulls.codes()),
            Part(name="order conf", codes=OrderConf(services).codes()),
            Part(name="figures", codes=BrokerFigures(services, members, self._figures).codes()),
            Part(name="queries", codes=QueryRequests(services, broker.queries, metrics, handover).codes()),
            Part(name="assignments", codes=Assignments(services, members, broker.other_members, pulls.filters).codes()),
            Part(name="group requests", codes=GroupStats(services, members, groups).codes()),
            Part(name="send back requests", codes=SendBackRequests(broker.send_backs).codes()),
            Part(name="recalls", codes=RecallRequests(broker.recalls).codes()),
            Part(name="staged write requests", codes=StagedWriteHandlers(broker.writes, broker.group_writes).codes()),
            Part(name="entries", codes=EntryRequests(services, self._read_entries).codes()),
            Part(
                name="consumers",
                codes=ConsumerRequests(services, broker.resets, broker.relay, broker.rights, note).codes(),
            ),
            Part(
                name="transaction requests",
                codes=TransactionRequests(broker.transactions, handover).codes(),
            ),
            Part(
                name="replies",
                codes=Replies(services, broker.reply_delivery, own_address(self._context.config)).codes(),
            ),
            Part(name="user requests", codes=UserRequests(services, broker.user_admin, self._judge).codes()),
        )

    def parts(self) -> tuple[Part, ...]:
        """Returns the parts through which a request passes, and those that serve it."""
        broker = self._broker
        return (
            self.forwarder.part(),
            broker.relay.part(),
            broker.reply_notes.part(),
            broker.reply_delivery.part(),
            Part(name="check back", tick=self._check_back.tick),
            Part(name="retries", tick=broker.retries.expire),
            self.router.part(),
            self.admission.part(),
            Part(name="secrets of users", tick=broker.resealing.tick),
            Part(name="first user", opened=broker.first_user.writes_opened, tick=broker.first_user.tick),
            *self.serving,
        )
