"""A node for handlers to run in: the real state machine over memory, everything else in the test's hands."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import google_crc32c
import msgspec
import pytest

from cluster.broker.groups.client_relay import ClientRelay
from cluster.broker.groups.group_admin import GroupReads
from cluster.broker.groups.group_members import MEMBER_BOUNDS, MemberBounds, Members
from cluster.broker.groups.group_offsets import Offsets
from cluster.broker.groups.offset_resets import OffsetResets
from cluster.broker.groups.other_members import OtherMembers
from cluster.broker.groups.queue_locks import QueueLocks
from cluster.broker.groups.reply_delivery import ReplyDelivery
from cluster.broker.groups.reply_notes import ReplyNotes
from cluster.broker.groups.route_refresh import EarlyRoutes
from cluster.broker.groups.shared_ids import SharedIds
from cluster.broker.message_queries import MessageQueries
from cluster.broker.pulls.filter_search import SEARCH_BOUNDS, SearchBounds
from cluster.broker.pulls.pull_service import Pulls
from cluster.broker.reads.entry_reads import runs_of
from cluster.broker.reads.row_scan import SCAN_BOUNDS, ScanBounds
from cluster.broker.rights import Rights
from cluster.broker.services import ClientAnswer, ClientRequest
from cluster.config.config import Config
from cluster.config.loading import load
from cluster.flow.gate import Gate
from cluster.flow.minute_rates import MinuteRates
from cluster.flow.quota_limits import NEW_GROUPS, NEW_TOPICS
from cluster.flow.quota_rules import QuotaRules
from cluster.peer.reachability import stand_ins
from cluster.placement.group_map import GroupRecord
from cluster.placement.known_groups import added
from cluster.placement.route_map import BrokerGroup, RouteMap
from cluster.remoting.handler_table import once_confirmed
from cluster.remoting.handlers.assignment import Assignments
from cluster.remoting.handlers.broker_stats import BrokerFigures
from cluster.remoting.handlers.consumer_requests import ConsumerRequests
from cluster.remoting.handlers.group_stats import GroupStats
from cluster.remoting.handlers.heartbeat import Heartbeats
from cluster.remoting.handlers.message_requests import EntryRequests, QueryRequests, RecallRequests
from cluster.remoting.handlers.offsets import OffsetRequests
from cluster.remoting.handlers.pull import PullRequests
from cluster.remoting.handlers.queue_locks import QueueLockRequests
from cluster.remoting.handlers.request_reply import Replies
from cluster.remoting.handlers.route import Routes
from cluster.remoting.handlers.staged_writes import StagedWriteHandlers
from cluster.remoting.handlers.topics_admin import OrderConf, TopicsAdmin
from cluster.remoting.request import Handlers, SharedAnswer
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.turns.work import Turns
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import OutOfRangeError, RaftLogError, StorageError
from raftlog.frame import decode_entries, make_entry
from raftlog.storage.log.log_reader import EntrySpan
from raftlog.types import EMPTY_TAIL, Entry, EntryId, EntryType, LogTail, NodeId
from raftlog.work import METER
from raftmq_wire.codec import FLAG_ONEWAY
from raftmq_wire.message_format import Message, encode_message, java_hash
from raftmq_wire.topic_identity import IDENTITY_FIELD, TopicIdentity
from statemachine import commands, payload
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.levels import GROUPS_LEVEL
from statemachine.message_index import RECORD, key_hash
from statemachine.topics.topics import CreateTopic
from tests.support.message_bytes import build_properties
from tests.support.truth_kit import SECOND

CLUSTER = "11111111-2222-4333-8444-555555555555"


class Reply(NamedTuple):
    """The answer of a handler."""

    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes


class FakeConnection:
    """A client's connection that records what the node sends on its own account."""

    def __init__(self, listener: str = "broker") -> None:
        self.closed = False
        self.forwarded = False
        self.peer_address = ("10.9.9.9", 40000)
        self.listener = listener
        self.on_close: list[Callable[[], None]] = []
        self.groups: list[str] = []
        self.calls: list[tuple[ClientRequest, Callable[[ClientAnswer | None], None]]] = []
        self.has_room = True
        self.works = 0
        """Pieces of its work that wait for their turns."""
        self.waiting: list[Callable[[], None]] = []
        """Answers that wait for room."""
        self.owner: Hashable = self
        self.age_s = 0.0

    def write(self, data: bytes) -> None:
        raise AssertionError("handlers answer through the request")

    def call_oneway(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        raise AssertionError("handlers tell a client what they have to tell by name")

    def consumers_changed(self, group: str) -> None:
        self.groups.append(group)

    def call(self, request: ClientRequest, ended: Callable[[ClientAnswer | None], None]) -> Callable[[], None]:
        self.calls.append((request, ended))
        return lambda: ended(None)

    def close(self) -> None:
        self.closed = True
        for callback in self.on_close:
            callback()

    def work_waits(self, count: int) -> None:
        self.works += count

    def notified(self) -> list[str]:
        """Groups that it was told to divide anew so far; forgets them."""
        groups, self.groups = self.groups, []
        return groups


class FakeRequest:
    """A request that keeps its replies; more than one is a defect."""

    def __init__(self, connection: FakeConnection, code: int, ext: dict[str, str], body: bytes, oneway: bool) -> None:
        self.connection = connection
        self.code = code
        self.opaque = 7
        self.flag = FLAG_ONEWAY if oneway else 0
        self.version = 401
        self.language = "JAVA"
        self.ext = ext
        self.user = self.judged = 0
        self.body = body
        self.raw = b""
        self.replies: list[Reply] = []
        self.sizes_asked: list[int] = []
        self.promised = 0

    def reply(self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.replies.append(Reply(int(code), remark, ext or {}, body))
        assert len(self.replies) == 1, "answered twice"
        assert all(type(value) is str for value in self.replies[0].ext.values())

    def reply_shared(self, answer: SharedAnswer) -> None:
        self.reply(answer.code, answer.remark, answer.ext, answer.body)

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        self.sizes_asked.append(size)
        if self.connection.has_room:
            return True
        self.connection.waiting.append(again)
        return False

    def when_answered(self, ended: Callable[[Any], None]) -> None:
        self.ended = ended

    def hold(self) -> None:
        self.held = True

    @property
    def ext_json(self) -> bytes:
        return msgspec.json.encode(self.ext)

    def drop(self) -> None:
        self.ext, self.body = {}, b""

    def promise(self, size: int) -> None:
        self.promised = size

    @property
    def answer(self) -> Reply:
        assert self.replies, "not answered yet"
        return self.replies[0]


class Alone:
    """Connections to other nodes: none."""

    def send_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> bool:
        raise AssertionError("nobody was named")

    def connected(self, peer: NodeId) -> bool:
        return False

    def connected_members(self) -> list[NodeId]:
        return []

    def reaches_all(self) -> bool:
        return True

    def request_ids(self) -> Iterator[int]:
        return itertools.count(1)


SHARE = 5_000
"""The share of a turn in tests, unless they say otherwise: most requests are answered in the turn they come in."""


def advertised(listener: str) -> dict[NodeId, str]:
    base = {"broker": 10911, "outside": 20911}[listener]
    return {NodeId(i): f"10.0.0.{i}:{base}" for i in (1, 2, 3)}


class FakeGroupLinks:
    """The connections to other groups of brokers: what is sent is kept."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[Any, list[Any], bytes], None]] = {}
        self.sent: list[tuple[int, int, list[Any], bytes]] = []
        self.is_open = True

    def takes(self, kind: int, handler: Callable[[Any, list[Any], bytes], None]) -> None:
        self.handlers[kind] = handler

    def send(self, group: int, kind: int, header: list[Any], payload: bytes = b"") -> bool:
        if self.is_open:
            self.sent.append((group, kind, header, payload))
        return self.is_open


class FakeNode:
    """`Services` whose leadership, clock, log and proposals the test decides."""

    def __init__(
        self,
        config: Config,
        share: int = SHARE,
        *,
        members: MemberBounds = MEMBER_BOUNDS,
        search: SearchBounds = SEARCH_BOUNDS,
        scan: ScanBounds = SCAN_BOUNDS,
    ) -> None:
        self.config = config
        self.search, self.scan = search, scan
        self.node_id = NodeId(2)
        self.state = BrokerState(MemoryKV(), group=config.cluster.group)
        rules = QuotaRules(self.state.quotas, self.state.access)
        self.creations = MinuteRates(rules, (NEW_TOPICS, NEW_GROUPS), Gate(config), lambda: self.now_ms)
        self.leader = NodeId(2)
        self.unreached: set[NodeId] = set()
        self.routes = RouteMap(
            BrokerGroup(
                lambda: self.config,
                leader=lambda: self.leader,
                advertised=advertised,
                stand_ins=lambda nodes: stand_ins(nodes, self.unreached),
                http=lambda node: "",
                slots=lambda: 3 if self.state.broker_groups.by_number else 0,
            ),
            lambda: added(self.other_groups, self.state.broker_groups.by_number),
        )
        self.other_groups: dict[int, GroupRecord] = {}
        self.figures: dict[str, str] = {}
        self.changes: list[tuple[str, str]] = []
        """Names that were deleted or reset, and what is said of each."""
        self.confirms = True
        self.propose_outcome = Outcome.OK
        self.proposed: list[commands.Command] = []
        self.later: list[tuple[str, int, int, int]] = []
        self.reads: list[tuple[int, int]] = []
        self.rotten: set[int] = set()
        """Log positions that read back wrong."""
        self.is_fenced = False
        self.reported: list[tuple[int, int]] = []
        self.unreadable: set[int] = set()
        """Sizes of reads that fail."""
        self.read_error: RaftLogError | None = None
        """With what all reads fail."""
        self.now_ms = 1_000_000
        self.turns = Turns(lambda again: self.call_later(0, again), share)
        self.longest = 0
        """Units of the longest callback, or of taking a request, so far."""
        self.log_begins_at = 0
        self._tail: LogTail = EMPTY_TAIL
        self._log = bytearray()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._ids = itertools.count()
        self._cancelled: set[int] = set()
        self._on_applied: list[Callable[[set[tuple[int, int]]], None]] = []
        self.tells_applied = True
        """False if those who wait are not told of what is applied."""
        self.reply_notes, self.shared_ids = ReplyNotes(self), SharedIds(lambda: self.now_ms)
        rights = Rights(self.state.access)
        self.group_links = FakeGroupLinks()
        self.members = Members(self, rights, self.shared_ids, members)
        others = OtherMembers(self, self.members)
        others.serve(self.group_links)  # type: ignore[arg-type]
        locks, groups = QueueLocks(self), GroupReads(self, self.members)
        relay = ClientRelay(self, self.members, Alone(), rights=rights, notes=self.reply_notes)
        delivery = ReplyDelivery(self, self.members, self.reply_notes, relay, Alone(), rights, self.shared_ids)
        self.early_routes = EarlyRoutes(self, self.members, lambda: self.unreached)
        no_writes: Any = None  # tests/cluster/sim asks whole nodes
        no_recalls: Any = None  # tests/cluster/sim/test_sim_recall.py asks a whole node
        self.table: Handlers = {
            **Routes(self, self.early_routes).codes(),
            **TopicsAdmin(self, self.note_change).codes(),
            **Heartbeats(self, self.members, others, locks).codes(),
            **QueueLockRequests(locks, self.members).codes(),
            **ConsumerRequests(self, OffsetResets(self, rights), relay, rights, self.note_change).codes(),
            **Replies(self, delivery, "10.0.0.2:10911").codes(),
            **OffsetRequests(self, self.members, Offsets(self, None)).codes(),
            **self.pull_codes(),
            **QueryRequests(self, MessageQueries(self, rights)).codes(),
            **Assignments(self, self.members, others, self.pulls.filters).codes(),
            **GroupStats(self, self.members, groups).codes(),
            **BrokerFigures(self, self.members, lambda: self.figures).codes(),
            **OrderConf(self).codes(),
            **RecallRequests(no_recalls).codes(),
            **StagedWriteHandlers(no_writes, no_writes).codes(),
            **EntryRequests(self, self.read_entries).codes(),
        }
        self.table = once_confirmed(self, self.table)

    def pull_codes(self) -> Handlers:
        """The codes of pulls, of a node that has just started, and whose log is complete."""
        self.pulls = Pulls(
            self,
            self.members,
            OffsetResets(self, Rights(self.state.access)),
            search=self.search,
            scan=self.scan,
        )
        return PullRequests(self.pulls, lambda request, position: False, lambda request: False).codes()

    def note_change(self, about: str, says: str) -> None:
        self.changes.append((about, says))

    # --- Services ---

    def writes_open(self) -> bool:
        return self.leader == self.node_id

    def propose(
        self,
        run: list[commands.Command],
        done: Callable[[ProposeResult], None],
        session: object = None,
        author: str = "",
    ) -> None:
        self.proposed += run
        if self.propose_outcome is not Outcome.OK:
            done(ProposeResult(self.propose_outcome, [], None, "as the test wants"))
            return
        results = self.append_entry(EntryType.COMMAND, commands.pack(run))
        done(ProposeResult(Outcome.OK, results, EntryId(1, self._tail.index), ""))

    def read_index(self, done: Callable[[bool], None]) -> None:
        done(self.confirms)

    def log_time_ms(self) -> int:
        return self.now_ms

    def catch_up(self) -> None:
        """Nothing is held back here."""

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        rows = [row for row in self.later if row[0] == group]
        self.later = [row for row in self.later if row[0] != group]
        if rows:
            self.append_entry(EntryType.COMMAND, commands.pack([CommitOffsets(rows)]))
        done()

    def commit_offset_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        self.later.append((group, topic_id, queue_id, offset))

    def knows_group(self, group: str) -> bool:
        return group in self.state.groups

    def read_log(self, position: int, size: int) -> bytes:
        self.reads.append((position, size))
        if size in self.unreadable:
            raise StorageError("as the test wants")
        if self.read_error is not None:
            raise self.read_error
        if position < self.log_begins_at:
            raise OutOfRangeError(f"position {position} was trimmed")
        data = bytearray(self._log[position : position + size])
        for at in self.rotten:
            if position <= at < position + size:
                data[at - position] ^= 1
        return bytes(data)

    def fenced(self) -> bool:
        return self.is_fenced

    def report_damage(self, position: int, size: int) -> None:
        self.reported.append((position, size))

    def cluster_uuids(self) -> tuple[str, ...]:
        return ("cluster-uuid", "older-uuid")

    def topic_identity(self, topic: str) -> dict[str, str]:
        config = self.state.topics.get(topic)
        return {} if config is None else {IDENTITY_FIELD: str(TopicIdentity(CLUSTER, 0, config.id))}

    def monotonic_ms(self) -> int:
        return self.now_ms

    def awake_ms(self) -> int:
        return self.now_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        number = next(self._ids)
        heapq.heappush(self._timers, (self.now_ms + delay_ms, number, callback))
        return lambda: self._cancelled.add(number)

    def on_applied(self, callback: Callable[[set[tuple[int, int]]], None]) -> None:
        self._on_applied.append(callback)

    # --- the log ---

    def read_entries(self, positions: Sequence[int], told: Callable[[bytes | RaftLogError], None]) -> None:
        """Reads as EntryReads does, but at once."""
        try:
            told(runs_of(positions, self.entry_at))
        except RaftLogError as error:
            told(error)

    def entry_at(self, position: int) -> EntrySpan:
        """Returns the entry's place, as StoredLog does."""
        if position < self.log_begins_at:
            raise OutOfRangeError(f"position {position} was trimmed")
        for entry in decode_entries(bytes(self._log)):
            if entry.position <= position < entry.end_position:
                return EntrySpan(entry.index, entry.term, entry.position, entry.end_position)
        raise StorageError("as the test wants")

    # --- the test's hands ---

    @property
    def timers(self) -> int:
        return len(self._timers)

    def advance(self, ms: int) -> None:
        """Lets time pass and timers fire, in order."""
        end = self.now_ms + ms
        while self._timers and self._timers[0][0] <= end:
            self.next_turn()
        self.now_ms = end

    def next_turn(self) -> None:
        """Lets the next timer fire."""
        self.now_ms, number, callback = heapq.heappop(self._timers)
        if number not in self._cancelled:
            before = METER.units
            callback()
            self.longest = max(self.longest, METER.units - before)

    def append_entry(self, entry_type: EntryType, data: bytes) -> list[Any]:
        """Applies one entry; returns the results of its commands."""
        entry = make_entry(
            self._tail,
            term=1,
            entry_type=entry_type,
            payload=data,
            timestamp_ms=self.now_ms,
            group_id=0,
            segment_size=1 << 30,
        )
        self._log += entry.header + entry.payload
        self._tail = LogTail(1, entry.index, entry.end_position, entry.header_crc, 0, entry.timestamp_ms)
        return self.apply(entry)

    @property
    def entries(self) -> list[Entry]:
        """The entries of the log."""
        return list(decode_entries(bytes(self._log)))

    def take_log(self, other: FakeNode) -> None:
        """Has the log of the other one from now on, and has applied nothing of it."""
        self._log[:] = other._log

    def apply(self, entry: Entry) -> list[Any]:
        """Applies an entry of the log; returns the results of its commands."""
        run = self.state.apply([entry])
        for callback in self._on_applied if self.tells_applied else ():
            callback(run.grown)
        return run.results[0]

    def create_topic(self, name: str, queues: int = 4, **fields: Any) -> None:
        config = {"name": name, "read_queues": queues, "write_queues": queues, **fields}
        assert self.append_entry(EntryType.COMMAND, commands.pack([CreateTopic(config, False)]))[0].ok

    def command(self, command: commands.Command) -> None:
        assert self.append_entry(EntryType.COMMAND, commands.pack([command]))[0].ok

    def store(
        self,
        topic: str,
        *bodies: bytes,
        queue_id: int = 0,
        tag: str = "",
        keys: str = "",
        unique: str = "",
        indexed: str = "",
        user: Mapping[str, str] | None = None,
    ) -> list[bytes]:
        """Appends messages to a queue, in one entry; returns their stored form. All have the same keys and other
        properties; `indexed`: as if the keys were these; `user`: properties without a parameter of their own."""
        config = self.state.topics[topic]
        base = self.state.max_offset(config.id, queue_id)
        position = self._tail.end_position + payload.MESSAGES_AT
        stored, items, records = [], [], []
        named = {"UNIQ_KEY": unique, "KEYS": keys, "TAGS": tag}
        properties = build_properties({name: value for name, value in named.items() if value} | dict(user or {}))
        words = [word.encode() for word in (indexed or f"{unique} {keys}").split()]
        for at, body in enumerate(bodies):
            message = encode_message(
                Message(
                    topic,
                    body,
                    properties,
                    queue_id=queue_id,
                    queue_offset=base + at,
                    position=position,
                    store_ms=self.now_ms,
                )
            )
            crc = google_crc32c.value(message)
            items.append(payload.ITEM.pack(position, len(message), crc, java_hash(tag) if tag else 0, self.now_ms))
            stored.append(message)
            records += [RECORD.pack(key_hash(config.id, word), position & 0xFFFFFFFF) for word in words]
            position += len(message)
        run = payload.Run(config.id, queue_id, base, len(items), 0, b"".join(items))
        self.append_entry(EntryType.MESSAGES, payload.encode(stored, len(stored), [run], keys=b"".join(records)))
        return stored

    def client(self, age_s: float = 0.0) -> FakeConnection:
        """A client connects; so long ago."""
        made = FakeConnection()
        made.age_s = age_s
        return made

    def join(self, client_id: str, connection: FakeConnection, group: str = "g", topic: str = "T") -> None:
        """A heartbeat over that connection names the client for the group."""
        subscription = {"topic": topic, "subString": "*", "subVersion": 1}
        consumers = [{"groupName": group, "subscriptionDataSet": [subscription]}]
        beat = {"clientID": client_id, "consumerDataSet": consumers}
        assert self.ask(34, msgspec.json.encode(beat), connection=connection).answer.code == 0

    def ask(
        self,
        code: int,
        body: bytes = b"",
        connection: FakeConnection | None = None,
        oneway: bool = False,
        language: str = "JAVA",
        version: int = 401,
        **ext: Any,
    ) -> FakeRequest:
        """Hands a request to its handler; ext values become text."""
        fields = {name: str(value) for name, value in ext.items() if value is not None}
        request = FakeRequest(connection or FakeConnection(), code, fields, body, oneway)
        request.language, request.version = language, version
        before = METER.units
        self.table[code](request)
        self.longest = max(self.longest, METER.units - before)
        return request


@pytest.fixture
def config() -> Config:
    return load(None, None, {"node.id": 2, "node.data_dir": "unused"})


@pytest.fixture
def node(config: Config) -> FakeNode:
    """A leader with an empty log."""
    return FakeNode(config)


@pytest.fixture
def node_with() -> Callable[..., FakeNode]:
    """Makes a node with other limits: node_with(**{"limits.long_polls_max": 2}); `bounds`: those of its parts."""
    return lambda share=SHARE, bounds=None, **keys: FakeNode(
        load(None, None, {"node.id": 2, "node.data_dir": "unused", **keys}), share, **bounds or {}
    )


@pytest.fixture
def connect() -> Callable[..., FakeConnection]:
    """Makes a client connection."""
    return FakeConnection


@pytest.fixture
def two(node: Any) -> Any:
    """A node of the first group, of a cluster that has two; and two topics."""
    node.command(Finalize(GROUPS_LEVEL))
    node.command(SECOND)
    node.command(CreateTopic({"name": "both", "place": [[1, 4, 4], [2, 4, 4]]}, False))
    node.command(CreateTopic({"name": "here", "place": [[1, 4, 4]]}, False))
    return node
