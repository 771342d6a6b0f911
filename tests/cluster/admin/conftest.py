"""A node reduced to what the HTTP API sees of it: a real state machine, and a log that applies at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from aiohttp.test_utils import TestClient, TestServer
from google_crc32c import value as crc32c

from cluster.admin.access import HttpAccess, digest_of
from cluster.admin.figure_history import Samples
from cluster.admin.node_interface import (
    WAITS,
    AdminPort,
    ClientView,
    Counted,
    KernelView,
    LoadStatus,
    MemberView,
    NodeStatus,
    PeerStatus,
)
from cluster.admin.route import Route
from cluster.admin.routes import ROUTES
from cluster.admin.server import build_app
from cluster.admin.signed_identity import Passes
from cluster.backup.service import Backups
from cluster.broker.access.denials import Denials
from cluster.broker.access.guesses import Guesses
from cluster.broker.access.user_admin import UserAdmin
from cluster.broker.broker_metrics import DeliveryMetrics
from cluster.broker.groups.group_lag import LagMetrics
from cluster.broker.groups.offset_resets import OffsetResets
from cluster.broker.groups.shared_ids import SharedIds
from cluster.broker.message_queries import MessageQueries
from cluster.broker.rights import Rights
from cluster.broker.topic_sizes import TopicSizeMetrics, TopicSizes
from cluster.broker.watches.group_watch import GroupWatch
from cluster.broker.watches.hidden_watch import HiddenWatch
from cluster.broker.watches.hot_watch import hot_conditions
from cluster.broker.watches.quota_watch import learnt_conditions, quota_conditions
from cluster.config.cluster_keys import USUAL
from cluster.config.config import Config
from cluster.config.loading import load
from cluster.config.local_layout import name_of, node_object
from cluster.config.ranges import OutOfRange
from cluster.config.reload import KeyChange
from cluster.flow.backlogs import Backlogs
from cluster.flow.gate import Gate
from cluster.flow.minute_rates import MinuteRates
from cluster.flow.quota_buckets import QuotaBuckets
from cluster.flow.quota_limits import NEW_GROUPS, NEW_TOPICS
from cluster.flow.quota_rules import QuotaRules
from cluster.flow.requests_at_once import RequestsAtOnce
from cluster.members.address_change import CheckUnderWay, MemberPlace, Proof
from cluster.members.changes import MemberChanges
from cluster.members.cluster_level import Levels, unfinished_upgrade
from cluster.members.service import MembersService
from cluster.node.metrics import Exporter
from cluster.node.node_view import counted
from cluster.node.status_metrics import StatusMetrics
from cluster.peer.keyring import Keyring
from cluster.peer.link_state import LinkMetrics
from cluster.placement.registry_state import RegistryProcess
from cluster.placement.route_map import BrokerGroup, RouteMap
from cluster.replication.hot_spots import Window
from cluster.replication.learnt_use import LearntUse
from cluster.replication.metrics import AppendMetrics, HaMetrics
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.replication.paced_sends import PacedSends
from cluster.replication.traffic_metrics import TrafficMetrics
from cluster.requests.request_metrics import RequestMetrics
from cluster.retention.metrics import RetentionMetrics
from cluster.runtime.alarms import Alarms
from cluster.runtime.events import EventLog
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.runtime.findings import Condition
from cluster.runtime.tls.tls_maintenance import TlsMaintenance
from cluster.runtime.turns.work import Turns
from cluster.state.recovery_views import RecoveryStatus
from cluster.tier.tier_metrics import TierMetrics
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import RaftLogError
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.identity import Identity
from raftlog.types import EMPTY_TAIL, FIRST_GROUP, NOBODY, Entry, EntryType, NodeId
from raftlog.work import METER
from raftmq_wire.message_format import Message, encode_message
from raftmq_wire.topic_identity import IDENTITY_FIELD, TopicIdentity
from statemachine.access.access_commands import CreateUser, Origin, PutToken, SetAuthKey, SetAuthMode, SetRules
from statemachine.access.user_rows import User
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.settings import SetConfig
from statemachine.commands import (
    Command,
    pack,
)
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.message_index import RECORD, key_hash
from statemachine.payload import ITEM, RowKind, Run, encode
from tests.support.contexts import context_of, run_of
from tests.support.fake_raw import CLUSTER, FakeRaw
from tests.support.message_bytes import build_properties

TERM = 3


def make_config(node_id: int, **overrides: Any) -> Config:
    peers = [{"id": n, "port": 10900 + n, "admin": f"127.0.0.1:{9600 + n}"} for n in (1, 2, 3)]
    keys = {"node.id": node_id, "node.data_dir": "/data", "peers": peers, "send.deadline_ms": 2000}
    return load(None, {}, keys | {key.replace("__", "."): value for key, value in overrides.items()})


class FakeClients:
    """Nobody is connected, unless a test says so."""

    def __init__(self) -> None:
        self.connected: list[ClientView] = []

    def view(self) -> Generator[None, None, tuple[int, list[ClientView]]]:
        yield
        return len(self.connected), self.connected

    def disconnect(self, address: str) -> bool:
        before = len(self.connected)
        self.connected = [each for each in self.connected if each.address != address]
        return len(self.connected) < before


class FakeMoves:
    """The voters find a member wherever it says it is, unless a test says why they do not."""

    def __init__(self) -> None:
        self.not_by: dict[NodeId, str] = {}
        """Voter -> why not."""
        self.busy = False
        self.checked: list[MemberPlace] = []

    async def check(self, place: MemberPlace) -> Proof:
        self.checked.append(place)
        if self.busy:
            raise CheckUnderWay
        return Proof([node for node in (NodeId(1), NodeId(2), NodeId(3)) if node not in self.not_by], self.not_by, 2)


class FakeSecrets:
    """Secrets that are stored as they are."""

    problem, key_to_use = "", "key"
    key_ids = ("key",)

    def encrypted(self, user_id: int, secret: str) -> bytes:
        return secret.encode()

    def of(self, user: User) -> bytes:
        return user.secret


class InLogTime:
    """A node as the changes of users see it: its log time is that of tokens."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    def log_time_ms(self) -> int:
        return self._node.now_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class CountedTurns(Turns):
    """The turns of a node, with the units that were spent before each breath."""

    def __init__(self) -> None:
        super().__init__(lambda callback: asyncio.get_running_loop().call_soon(callback))
        self.spent_before: list[int] = []
        self.begun: Callable[[], object] = lambda: None
        """Called in the turn in which steps have begun."""

    def begin(self, owner: Any, steps: Any) -> None:
        super().begin(owner, steps)
        self.begun()

    async def breathe(self, owner: Any) -> None:
        self.spent_before.append(METER.units)
        await super().breathe(owner)

    def steps(self) -> list[int]:
        """Returns the units of each step between two breaths."""
        return [after - before for before, after in pairwise(self.spent_before)]


class FakeNode:
    """An AdminPort. `leader`, `fate` and `confirms` decide what happens to requests."""

    evicted_bounds = None
    evicted_pages = None
    log_of = FIRST_GROUP
    """The group of brokers of whose log the state is: that of the first one takes every command."""
    object, object_of, name_of = AdminPort.object, AdminPort.object_of, AdminPort.name_of

    def __init__(self, node_id: int = 1, **overrides: Any) -> None:
        """`overrides`: of its configuration, and `now_ms`, its clock."""
        self.now_ms = overrides.pop("now_ms", 1_700_000_000_000)
        self.config = make_config(node_id, **overrides)
        self.kv = MemoryKV()
        self.state = BrokerState(self.kv, group=self.log_of)
        self.topic_sizes = TopicSizes(self.state, lambda: 0)
        self.failpoints = FailpointSet(self.config.failpoints.enabled)
        self.requests = RequestMetrics()
        self.traffic = TrafficMetrics(self.state, self.requests, HaMetrics(lambda metrics: None))
        self.appends = AppendMetrics()
        self.broker = SimpleNamespace(deliveries=DeliveryMetrics(self.state))
        self.loop_lag = SimpleNamespace(lag_s=0.0)
        self.exporter = Exporter(
            (
                StatusMetrics(self.status, self.state),
                LagMetrics(self.state, self.writes_open, self.wall_ms),
                TopicSizeMetrics(self.topic_sizes, self.state),
                RetentionMetrics(self.state),
                TierMetrics(),
                LinkMetrics(),
                self.requests,
                self.traffic,
                self.broker.deliveries,
            ),
            self.config.cluster.group,
        )
        self.samples = Samples()
        self.alarms = Alarms(lambda: 1_700_000_000_000)
        self.events = EventLog(node_id, self.wall_ms)
        self.clients: Any = FakeClients()
        self.tls = TlsMaintenance(self.config, self.alarms, self.wall_ms)
        self.repairs: Any = None
        self.consistency: Any = None
        self.scrubber: Any = None
        self.tier: Any = SimpleNamespace(pending_bytes=0)
        identity = Identity(CLUSTER, self.config.cluster.group, self.config.node_id, UUID(int=node_id), 0)
        self.backups = Backups(self.config, identity, self.kv, self.alarms, lambda: 1_700_000_000_000)
        self.leader = NodeId(1)
        self.fate = Outcome.OK
        self.is_unacceptable = False
        """True if no entry can hold what is proposed, if the fate is to fail."""
        self.before_apply: Callable[[list[Command]], object] = lambda commands: None
        """Called with commands before they are applied: what others do meanwhile."""
        self.followers: list[FakeNode] = []
        """The nodes that apply what is proposed here."""
        self.closed_looks = 0
        """How many looks of a request find a leader that takes no writes yet."""
        self.waits = WAITS
        self.confirms: bool | None = True
        self.refuses_transfer: RaftLogError | None = None
        self.failure: str | None = None
        self.reads_confirmed = 0
        self.held_timers: list[tuple[int, Callable[[], None]]] | None = None
        """(milliseconds, callback) of timers that the test calls; None: they are the loop's."""
        self.commits: dict[str, list[Any]] = {}
        """Group -> oneway commits that wait."""
        self.proposed: list[Command] = []
        self.consumers: dict[str, list[MemberView]] = {}
        self.broadcasting: set[str] = set()
        """The groups whose members read by broadcasting."""
        self.idle: dict[str, set[str]] = {}
        self.registry_processes: list[RegistryProcess] = []
        self.window = Window(0, 0.0, 0, [], [])
        rules, gate = QuotaRules(self.state.quotas, self.state.access), Gate(self.config)
        self.paced = PacedSends(
            QuotaBuckets(rules),
            RequestsAtOnce(rules, gate.sends),
            Backlogs(rules, lambda _: False),
            gate,
            self.config,
        )
        self.creations = MinuteRates(rules, (NEW_TOPICS, NEW_GROUPS), gate, lambda: self.monotonic_ms())
        self.learnt = LearntUse(self.state.learnt)
        self.grace_ms = 0
        """Topic -> clients that do not want it, of groups that are divided among all."""
        self.contradicted: list[KeyChange] = []
        self.load = LoadStatus(connections=50, long_polls=4, inflight_bytes=300, client_inflight_bytes=200)
        self.turns = CountedTurns()
        self.held_keys: list[OutOfRange] = []
        self._tail = EMPTY_TAIL
        self.log = bytearray()
        self.held_back: list[Command] = []
        """Commands that are committed and not applied yet."""
        self.append_entry(EntryType.NOOP, b"")
        fake = FakeRaw(node_id, lambda: self.leads, lambda: self._tail)
        fake.commits = self._commit_soon
        self.raw: Any = cast("Any", fake)
        context = context_of(self.raw, self.alarms, config=self.config)
        self.succession = context.succession
        self.membership = MembersService(context, identity)
        self.routes = RouteMap(
            BrokerGroup(
                lambda: self.config,
                leader=lambda: self.leader,
                advertised=self.membership.broker_addresses,
                stand_ins=lambda nodes: {node: node for node in nodes},
                http=self.membership.http_address,
            )
        )
        self.levels = Levels(context, self.state, self.membership, cast("Any", self), lambda level: [])
        self.moves: Any = FakeMoves()
        self.changes = MemberChanges(context, self.membership, transfer=lambda to: self.transfer(to))
        self.keyring = Keyring((b"k" * 32,), demanded=True)
        self.stale = ""
        self.denials: list[bool] = []
        denials = Denials(lambda: self.now_ms, self.denials.append)
        self.rights = Rights(
            self.state.access,
            lambda party, why, what, enforced: denials.note(party.user, party.address, why, what, enforced=enforced),
        )
        self.queries = MessageQueries(cast("Any", self), self.rights)
        self.resets = OffsetResets(cast("Any", self), self.rights)
        self.shared_ids = SharedIds(lambda: self.now_ms)
        services: Any = self
        self.group_watch = GroupWatch(
            services, member_count=self.member_count, unread=self.unread, wall_ms=self.wall_ms
        )
        self.hidden = HiddenWatch(services)
        self.findings = (self.found,)
        self.secrets = FakeSecrets()
        self.confirmed: Any = SimpleNamespace(is_possible=False, ask=lambda done: done(True))
        self.access = HttpAccess(
            self.state.access,
            UserAdmin(InLogTime(self), self.secrets, lambda: True),  # type: ignore[arg-type]
            Passes(
                node=name_of(self.config.cluster.group, node_id),
                uuid=lambda: str(CLUSTER),
                keyring=lambda: self.keyring,
                entropy=random.Random(node_id).randbytes,
                wall_ms=lambda: self.now_ms,
            ),
            cluster=self.config.cluster.name,
            uuid=lambda: str(CLUSTER),
            stale=lambda: self.stale,
            entropy=random.Random(node_id).randbytes,
            log_time_ms=lambda: self.now_ms,
            secrets=self.secrets,  # type: ignore[arg-type]
            denials=denials,
            guesses=Guesses(lambda: self.now_ms, lambda: self.now_ms, self.call_later),
            confirms=cast("Any", self.confirmed),
        )

    def _commit_soon(self, entry: Entry) -> None:
        asyncio.get_running_loop().call_soon(self.commit_members, entry)

    def commit_members(self, entry: Entry) -> None:
        """The entry is committed and applied here."""
        self.append_entry(EntryType(entry.type), entry.payload)
        self.raw.committed_membership_index = entry.index
        self.membership.on_members()
        self.changes.on_applied(run_of(entry))

    @property
    def services(self) -> Any:
        """It is all parts of its port."""
        return self

    configuration = nodes = served = storage = limits = observed = meters = serving = services

    @property
    def leads(self) -> bool:
        return self.leader == self.config.node.id

    def topic_identity(self, topic: str) -> dict[str, str]:
        config = self.state.topics.get(topic)
        cluster = "0d5e4a1c-1111-4222-8333-444455556666"
        return {} if config is None else {IDENTITY_FIELD: str(TopicIdentity(cluster, 0, config.id))}

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def status(self) -> NodeStatus:
        applied = self.state.applied.index
        return NodeStatus(
            node=self.config.node.id,
            group=self.config.cluster.group,
            cluster=self.config.cluster.name,
            cluster_id="",
            broker=self.config.cluster.broker_name,
            role="leader" if self.leads else "follower",
            term=TERM,
            leader=self.leader or None,
            writes_open=self.writes_open(),
            commit_index=applied,
            applied_index=applied,
            last_index=applied + 7,
            failure=self.failure,
            alarms=self.alarms.all(),
            peers=[PeerStatus(node=2, match_index=applied - 5, lag_entries=12, connected=False)] if self.leads else [],
            load=self.load,
            recovery=RecoveryStatus(
                clean=True, bytes_scanned=0, torn_bytes_cut=0, entries_replayed=0, stages_ms={}, reasons=[]
            ),
            limits={"message_bytes_max": self.config.limits.message_bytes_max},
            versions={"raftmq": "1"},
            kernel=KernelView("native", 1, ""),
            uptime_ms=1500,
        )

    def found(self) -> Iterator[Condition]:
        """Yields what the services of a node report."""
        by_id, me = self.state.access.by_id, node_object(self.config.cluster.group, self.config.node.id)
        services: Any = self
        yield from self.group_watch.look(self.monotonic_ms())
        yield from self.hidden.look()
        yield from hot_conditions(services, self.window)
        yield from quota_conditions(services, self.paced)
        yield from learnt_conditions(services, self.learnt)
        yield from self.shared_ids.conditions(by_id, me)
        yield from unfinished_upgrade(self.levels.view(self.monotonic_ms()))
        yield from self.failpoints.conditions(me)

    def counted(self) -> Counted:
        meters: Any = self.meters
        return counted(meters, self.serving.broker.deliveries)

    def overruled(self) -> list[KeyChange]:
        return self.contradicted

    def held(self) -> list[OutOfRange]:
        return self.held_keys

    def writes_open(self) -> bool:
        self.closed_looks -= 1
        return self.leads and self.closed_looks < 0

    def log_time_ms(self) -> int:
        return 0

    def knows_group(self, group: str) -> bool:
        return group in self.state.groups

    def propose(
        self, commands: list[Command], done: Callable[[ProposeResult], None], session: Any = None, author: str = ""
    ) -> None:
        if self.fate is not Outcome.OK:
            done(ProposeResult(self.fate, [], None, "as the test wants it", unacceptable=self.is_unacceptable))
            return
        self.proposed += commands
        done(ProposeResult(Outcome.OK, self.apply(commands), self.state.applied, ""))
        for node in self.followers:
            node.apply(commands)

    def catch_up(self) -> None:
        held, self.held_back = self.held_back, []
        if held:
            self.apply(held)

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        """Commits that wait are in the log then."""
        waiting = self.commits.pop(group, [])
        if waiting:
            self.apply([CommitOffsets(waiting)])
        done()

    def read_index(self, done: Callable[[bool], None]) -> None:
        if self.confirms is not None:
            self.reads_confirmed += 1
            done(self.confirms)

    def read_log(self, position: int, size: int) -> bytes:
        return bytes(self.log[position : position + size])

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        if self.held_timers is not None:
            self.held_timers.append((delay_ms, callback))
            return lambda: None
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback).cancel

    def monotonic_ms(self) -> int:
        return self.now_ms

    def transfer(self, to: NodeId) -> None:
        if self.refuses_transfer is not None:
            raise self.refuses_transfer
        self.leader = to

    def connected(self, node: NodeId) -> bool:
        return node in self.raw.lag

    def genesis_payload(self) -> bytes:
        return b"genesis"

    def members(self, group: str) -> list[MemberView]:
        return self.consumers.get(group, [])

    def member_count(self, group: str) -> int:
        return len(self.members(group))

    def broadcasts(self, group: str) -> bool:
        return group in self.broadcasting

    def sharers(self, group: str, topic: str) -> list[str | None]:
        clients = sorted({member.client_id for member in self.members(group)})
        return [None if client in self.idle.get(topic, ()) else client for client in clients]

    def registry(self) -> list[RegistryProcess]:
        return self.registry_processes

    def hot(self) -> Window:
        return self.window

    def grace_left_ms(self) -> int:
        return self.grace_ms

    def unread(self, group: str) -> dict[str, list[str]]:
        return {topic: sorted(clients) for topic, clients in self.idle.items()} if self.members(group) else {}

    def apply(self, commands: list[Command]) -> list[Any]:
        """Applies the commands; returns apply's answer to each."""
        self.before_apply(commands)
        results = self.append_entry(EntryType.COMMAND, pack(commands))
        assert all(result is not None for result in results)
        return results

    def add_messages(self, topic: str, queue_id: int, count: int) -> None:
        """Lets a queue grow."""
        topic_id = self.state.topics[topic].id
        base = self.state.max_offset(topic_id, queue_id)
        items = b"".join(ITEM.pack(self._tail.end_position + 104, 1, 0, 0, 0) for _ in range(count))
        self.append_entry(EntryType.MESSAGES, encode([b"x"], count, [Run(topic_id, queue_id, base, count, 0, items)]))

    def add_message(self, topic: str, body: bytes, keys: str) -> int:
        """Stores a message in queue 0; returns its position."""
        config = self.state.topics[topic]
        position, offset = self._tail.end_position + 104, self.state.max_offset(config.id, 0)
        properties = build_properties({"KEYS": keys})
        data = encode_message(Message(topic, body, properties, queue_offset=offset, position=position, store_ms=7))
        run = Run(config.id, 0, offset, 1, 0, ITEM.pack(position, len(data), crc32c(data), 0, 7))
        records = b"".join(RECORD.pack(key_hash(config.id, word.encode()), position) for word in keys.split())
        self.append_entry(EntryType.MESSAGES, encode([data], 1, [run], keys=records))
        return position

    def add_half(self, topic: str, body: bytes, properties: dict[str, str], check_ms: int = 6007) -> int:
        """Stores a half message for queue 0; returns its position."""
        config, position = self.state.topics[topic], self._tail.end_position + 104
        message = Message("H", body, build_properties(properties), queue_offset=position, position=position, store_ms=7)
        data = encode_message(message)
        run = Run(config.id, 0, check_ms, 1, RowKind.HALF, ITEM.pack(position, len(data), crc32c(data), 0, 7))
        self.append_entry(EntryType.MESSAGES, encode([data], 1, [run]))
        return position

    def add_user(self, name: str, *rules: tuple[str, list[str]], is_super: bool = False) -> str:
        """Makes a user with a token; `rules`: (resource, actions). Returns the token."""
        asked, user_id = Origin(self.now_ms, "", ""), self.state.access.next_id
        create = CreateUser(asked, user_id, name, is_super, True, f"secret of {name}".encode(), "key")
        token = f"token-of-{name}-{user_id:08}"
        put = PutToken(asked, user_id, digest_of(token), self.now_ms + 3_600_000, "for a test")
        self.apply([SetAuthKey(asked, "key"), create, put])
        if rules:
            rows = [(1, resource, actions, (), True) for resource, actions in rules]
            self.apply([SetRules(asked, user_id, rows)])
        return token

    def set_mode(self, mode: str) -> None:
        """Sets `auth.mode`."""
        self.apply([SetAuthMode(Origin(self.now_ms, "", ""), mode)])

    def add_group(self, name: str, *topics: str) -> None:
        self.apply([PutGroup({"name": name}, True), Subscribe(name, [(t, "TAG", "*", 1) for t in topics])])

    def append_entry(self, kind: EntryType, payload: bytes) -> list[Any]:
        entry: Entry = make_entry(
            self._tail, term=TERM, entry_type=kind, payload=payload, timestamp_ms=0, group_id=0, segment_size=1 << 26
        )
        self._tail = tail_after(self._tail, entry)
        self.log += entry.header + entry.payload
        return list(self.state.apply([entry]).results[0])


Serve = Callable[..., Awaitable[TestClient[Any, Any]]]


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def seeded(node: FakeNode) -> FakeNode:
    """Returns the node after the cluster got its first configuration."""
    node.apply([SetConfig(0, 5, "node 1", "the first", dict(USUAL))])
    return node


@pytest.fixture
def make_node() -> type[FakeNode]:
    return FakeNode


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    clients: list[TestClient[Any, Any]] = []

    async def start(node: FakeNode, routes: Sequence[Route] = ROUTES) -> TestClient[Any, Any]:
        client = TestClient(TestServer(build_app(node, routes=routes)))  # type: ignore[arg-type]
        await client.start_server()
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()


@pytest.fixture
async def client(node: FakeNode, serve: Serve) -> TestClient[Any, Any]:
    return await serve(node)


@pytest.fixture
def nobody() -> NodeId:
    return NOBODY
