"""Retention over a real directory, lane and state, with a core that always leads: what it proposes, what it lets go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cluster.broker.reads.log_reads import read_intact
from cluster.config.config import Config
from cluster.config.node_sections import NodeSection, PeerNode
from cluster.config.storage_sections import RetentionSection
from cluster.retention import policy
from cluster.retention.file_removal import AGAIN_MS, FILES
from cluster.retention.metrics import RetentionMetrics
from cluster.retention.service import OLDER, UNREAD, Retention
from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import Environment
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.runtime.read_leases import Leases
from cluster.state.node_storage import NodeStorage
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from jepsen_like.fakes.memory_kv import ROWS_FILE, MemoryKV
from raftlog.errors import NotLeaderError, StorageError
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files import layout
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.node_dir import create_node_dir
from raftlog.types import Entry, EntryType, HardState, LogTail, NodeId, Role
from statemachine import commands, payload
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from statemachine.trim import CUT, SLICE, WHOLE, RemoveRows, Slice, Trim, decode, encode
from tests.support.contexts import context_of, run_of
from tests.support.lanes_in_line import InLine
from tests.support.node_kit import START_MS, Clock
from tests.support.pace import at_most
from tests.support.samples import samples

DATA = Path("/data")
SEGMENT = 64 << 10


class Core:
    """The part of RawNode that is asked: what is proposed is committed and applied at once."""

    role = Role.LEADER
    term = 1
    leader_id = NodeId(1)

    def __init__(self, node: Node) -> None:
        self._node = node
        self.trims = 0
        self.refuses = False

    @property
    def applied_index(self) -> int:
        return self._node.storage.state.applied.index

    def log_time_ms(self) -> int:
        return self._node.log_ms

    def propose(self, kind: int, data: bytes, now_ms: int) -> Entry:
        if self.refuses:
            raise NotLeaderError("as the test wants")
        return self._node.add(kind, data)

    def trimmed(self) -> None:
        self.trims += 1


class FillingDisk(MemoryFileSystem):
    """A disk of 100 segments, of which others use `used` in a thousand; removed files of the log become free."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.files = 500, 0

    def total_bytes(self, path: Path) -> int:
        return 100 * SEGMENT

    def free_bytes(self, path: Path) -> int:
        left = len([name for name in self.listdir(DATA / "log") if name.endswith(".seg")])
        return (1000 - self.used) * SEGMENT // 10 + (self.files - left) * SEGMENT


class Node:
    """One node's storage and its retention; a message of 1000 bytes per entry."""

    def __init__(self, fs: MemoryFileSystem | None = None, **rules: Any) -> None:
        self.fs, self.clock, self.log_ms = fs or MemoryFileSystem(), Clock(), START_MS
        self.kv: MemoryKV | None = None
        voter = Voter(NodeId(1), UUID(int=1))
        genesis = Genesis(UUID(int=7), 1, SEGMENT, START_MS, (voter,))
        create_node_dir(self.fs, DATA, Identity(UUID(int=7), 1, NodeId(1), voter.uuid, START_MS), genesis)
        given: dict[str, Any] = {"ms": 1000, "delete_when": "", "every_ms": 100, "delete_gap_ms": 10} | rules
        self.rules = RetentionSection(**given)
        self.open()
        self.storage.directory.hard_state_store.save(HardState(1, NodeId(1), 0))
        self.add(EntryType.COMMAND, commands.pack([CreateTopic({"name": "t", "read_queues": 1}, False)]))

    def open(self) -> None:
        config = Config(
            node=NodeSection(id=1, data_dir=str(DATA)),
            peers=(PeerNode(id=1, port=1, listeners={}),),
            retention=self.rules,
        )
        environment = Environment(
            fs=self.fs,
            clock=self.clock,
            runner=InLine,
            serves_admin=False,
            open_kv=self._open_kv,
            boot_id=lambda: bytes(16),
            pid=lambda: 1,
            checkpoint_every_ms=10**9,
        )
        self.alarms, self.leases = Alarms(self.clock.wall_ms), Leases(self.clock.monotonic_ms)
        self.storage = NodeStorage(config, FailpointSet(False), environment, self.alarms)
        self.core: Any = Core(self)
        self.opened = True
        """True while the node takes writes if it leads."""
        context = context_of(self.core, self.alarms, config=config, environment=environment)
        metrics = RetentionMetrics(self.storage.state)
        self.retention = Retention(
            context,
            self.storage,
            self.leases,
            metrics=metrics,
            writes_open=lambda: self.opened,
            read_intact=read_intact,
        )
        self.retention.start()

    def _open_kv(self, path: str) -> MemoryKV:
        """Opens the state, with all that was written before."""
        if self.kv is None:
            self.fs.mkdir(Path(path))
            self.kv = MemoryKV(model_crash=True, fs=self.fs)
        else:
            self.kv = self.kv.crash(self.kv.unsynced)
        return self.kv

    @property
    def log(self) -> Any:
        return self.storage.directory.log

    def add(self, kind: int, data: bytes) -> Entry:
        tail: LogTail = self.log.tail
        entry = make_entry(
            tail, term=1, entry_type=kind, payload=data, timestamp_ms=self.log_ms, group_id=1, segment_size=SEGMENT
        )
        assert tail_after(tail, entry).index == tail.index + 1
        self.log.append([entry])
        state = self.storage.state
        applied: Sequence[Entry] = self.log.read_entries(state.applied.index + 1, entry.index + 1, 1 << 30)
        state.apply(applied)
        self.retention.on_applied(run_of(*applied))
        return entry

    def store(self, count: int, topic_id: int = 1) -> None:
        for _ in range(count):
            at, base = self.log.tail.end_position + payload.MESSAGES_AT, self.storage.state.max_offset(topic_id, 0)
            run = payload.Run(topic_id, 0, base, 1, 0, payload.ITEM.pack(at, 1000, 0, 0, self.log_ms))
            self.add(EntryType.MESSAGES, payload.encode([bytes(1000)], 1, [run]))

    def checkpoint(self) -> None:
        self.storage.checkpointer.checkpoint()
        self.storage.checkpointer.wanted = False

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.clock.now_ms += 50
            self.log_ms += 50
            self.retention.tick(self.clock.now_ms)

    def files(self) -> list[int]:
        return sorted(int(name[:-4]) for name in self.fs.listdir(DATA / "log") if name.endswith(".seg"))

    def count(self, name: str) -> float:
        return sum(value for found, _, value in samples(*self.retention.part().metrics) if found == name)


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def build(fs: MemoryFileSystem | None = None, **rules: Any) -> Node:
        nodes.append(Node(fs, **rules))
        return nodes[-1]

    yield build
    for node in nodes:
        await node.retention.close()


async def test_what_expires_goes_from_the_queue_at_once_and_from_the_disk_when_both_checkpoints_know(
    make: Callable[..., Node],
) -> None:
    node = make()
    node.store(300)
    node.checkpoint()
    node.pass_ms(500)
    assert node.storage.state.trim_position == 0, "nothing is a second old"
    node.store(10)
    node.checkpoint()
    node.pass_ms(800)
    state = node.storage.state
    assert state.trim_position == node.files()[-1] > 0, "everything but the newest segment"
    assert state.min_offset(1, 0) > 250
    assert state.fetch(1, 0, state.min_offset(1, 0), 1)[0].position >= state.trim_position
    view = node.retention.view(1)
    assert (view.trim_position, view.first_position, view.files_held_by) == (state.trim_position, 0, OLDER)
    assert view.files_left == len(node.files()) - 1 >= 4
    assert node.storage.checkpointer.wanted, "files wait for a checkpoint"
    node.checkpoint()
    node.pass_ms(200)
    assert len(node.files()) > 1, "the older one does not know of it yet"
    node.store(1)
    node.checkpoint()
    node.pass_ms(400)
    assert node.files() == [state.trim_position]
    assert node.log.first_position == state.trim_position
    assert node.core.trims >= 1, "the core is told that the log begins elsewhere"
    assert node.count("raftmq_segments_removed_total") == view.files_left
    assert node.count("raftmq_trims_total") == 1
    assert node.retention.view(1).files_left == 0


async def test_topics_with_a_time_of_their_own_take_turns(make: Callable[..., Node]) -> None:
    """After a look that ended early, the next one goes on with the next topic."""
    node = make(ms=10**9)
    own: dict[str, Any] = {"write_queues": 1, "attributes": {"retention.ms": "1000"}}
    widths = {"s": policy.LOOKS_MAX, "u": 1}
    made = [CreateTopic({"name": name, "read_queues": width} | own, False) for name, width in widths.items()]
    node.add(EntryType.COMMAND, commands.pack(made))
    topics = node.storage.state.topics
    node.store(3, topics["u"].id)
    for _ in range(40):
        node.store(1)
        node.pass_ms(100)
    assert node.storage.state.min_offset(topics["u"].id, 0) == 3


async def test_topics_that_keep_longer_are_asked_only_where_age_takes_something(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(policy.KeptLonger, "floor", lambda self, *window: asked.append(window[-1]))
    node = make()
    node.store(300)
    node.checkpoint()
    node.pass_ms(500)
    assert not asked, "nothing is a second old"
    node.store(10)
    node.checkpoint()
    node.pass_ms(800)
    assert node.storage.state.trim_position in asked


def trims_of(node: Node) -> list[int]:
    """Returns the formats of the TRIMs that are proposed from now on."""
    kinds: list[int] = []
    propose = node.core.propose

    def noting(kind: int, data: bytes, now_ms: int) -> Entry:
        if kind == EntryType.TRIM:
            said = decode(data)
            assert not isinstance(said, RemoveRows)
            kinds.append(SLICE if isinstance(said, Slice) else CUT if said.sliced else WHOLE)
        entry: Entry = propose(kind, data, now_ms)
        return entry

    node.core.propose = noting
    return kinds


async def test_a_trim_goes_in_slices_and_files_go_when_it_is_over(make: Callable[..., Node]) -> None:
    node = make()
    kinds = trims_of(node)
    node.store(300)
    node.checkpoint()
    node.store(10)
    node.checkpoint()
    node.pass_ms(1500)
    state = node.storage.state
    assert kinds[:2] == [CUT, SLICE]
    assert set(kinds[1:]) == {SLICE}, "nothing else is decided meanwhile"
    assert not node.retention.view(1).sweeping
    assert state.trim_position == node.files()[-1] > 0
    assert state.trim_mark.index > node.storage.checkpointer.checkpoints.all()[0].manifest.mark.index
    for _ in range(2):
        node.store(1)
        node.checkpoint()
    node.pass_ms(500)
    assert node.files() == [state.trim_position]


async def test_a_leader_goes_on_with_a_sweep_that_it_finds_and_does_not_trim_meanwhile(
    make: Callable[..., Node],
) -> None:
    node = make(ms=0, bytes_max=1)
    kinds = trims_of(node)
    node.opened = False
    node.store(200)
    node.checkpoint()
    position = node.files()[1]
    first_index = node.log.segment_at(position).previous.index + 1
    node.core.propose(EntryType.TRIM, encode(Trim(position, first_index, "size", sliced=True)), 0)
    node.pass_ms(300)
    assert kinds == [CUT], "who does not lead leaves it alone"
    assert node.retention.view(1).sweeping
    asked = node.retention.run()
    node.pass_ms(300)
    node.core.refuses = True
    node.opened = True
    node.pass_ms(300)
    assert node.storage.state.sweep is not None
    assert asked.result() is None, "it did not lead when it looked"
    asked = node.retention.run()
    node.core.refuses = False
    node.pass_ms(100)
    assert node.storage.state.sweep is None
    assert node.storage.state.trim_position >= position
    assert kinds[:2] == [CUT, SLICE]
    node.pass_ms(300)
    assert asked.result() is not None, "answered once it could be decided"


async def test_a_leader_goes_on_with_a_removal_that_it_finds(make: Callable[..., Node]) -> None:
    node = make()
    node.opened = False
    node.store(300)
    state = node.storage.state
    name = next(iter(state.topics))
    run: list[commands.Command] = [DeleteTopic(name)]
    node.core.propose(EntryType.COMMAND, commands.pack(run), 0)
    node.pass_ms(300)
    assert state.removing == 1, "who does not lead leaves it alone"
    node.core.refuses = True
    node.opened = True
    node.pass_ms(300)
    assert state.removing == 1
    node.core.refuses = False
    node.pass_ms(300)
    assert state.removing == 0
    index = state.applied.index
    node.pass_ms(300)
    assert state.applied.index == index, "nothing is proposed when nothing is left"


async def test_after_a_restart_files_that_were_let_go_are_let_go_again(make: Callable[..., Node]) -> None:
    node = make(delete_gap_ms=60_000)
    node.store(300)
    node.checkpoint()
    node.store(1)
    node.checkpoint()
    node.pass_ms(1500)
    for _ in range(2):
        node.store(1)
        node.checkpoint()
    node.pass_ms(200)
    before = node.files()
    assert node.log.first_position == before[-1] > before[0]
    assert len(before) > 2, "one file a minute"
    await node.retention.close()
    node.storage.close(clean=True)
    node.rules = RetentionSection(ms=1000, delete_when="", every_ms=100, delete_gap_ms=0)
    node.open()
    node.pass_ms(1000)
    assert node.files() == [node.storage.state.trim_position]


def trimmed(node: Node) -> None:
    """Everything but the last segment is given up, and could go."""
    node.store(300)
    node.checkpoint()
    node.store(1)
    node.checkpoint()
    node.pass_ms(1200)
    for _ in range(2):
        node.store(1)
        node.checkpoint()


async def test_a_lease_holds_files_but_no_messages(make: Callable[..., Node]) -> None:
    node = make()
    held = 2 * SEGMENT
    node.leases.touch("a peer", held, 5000)
    trimmed(node)
    node.pass_ms(400)
    assert node.storage.state.trim_position > held
    assert node.files()[0] <= held < node.files()[1]
    view = node.retention.view(1)
    assert view.files_held_by == "the lease of a peer"
    assert [(lease.holder, lease.position) for lease in view.leases] == [("a peer", held)]
    node.pass_ms(5000)
    assert node.files()[0] == node.storage.state.trim_position


async def test_without_two_checkpoints_the_leader_gives_up_nothing_and_asks_for_them(make: Callable[..., Node]) -> None:
    node = make()
    node.store(300)
    node.pass_ms(2000)
    assert node.storage.state.trim_position == 0
    assert node.storage.checkpointer.wanted
    assert node.retention.view(1).log_held_by == "the older checkpoint of the leader"
    node.checkpoint()
    node.pass_ms(200)
    assert not node.storage.checkpointer.wanted, "another one would be the same"


async def test_on_a_disk_that_is_nearly_full_the_newest_checkpoint_counts_if_it_is_sound(
    make: Callable[..., Node],
) -> None:
    disk = FillingDisk()
    node = make(disk, ms=10**9)
    node.store(300)
    node.checkpoint()
    disk.files = len(node.files())
    node.pass_ms(200)
    assert node.storage.state.trim_position == 0
    disk.used = 878
    (name,) = node.storage.checkpointer.checkpoints.names()
    row = node.storage.checkpointer.checkpoints.path / name / ROWS_FILE
    node.fs.damage(row, 9, b"\xff")
    node.pass_ms(300)
    assert node.storage.state.trim_position == 0, "nobody would bring it back"
    node.store(1)
    node.checkpoint()
    node.pass_ms(150)
    assert node.storage.state.trim_position == node.log.segment_at(2 * SEGMENT + 100).end_position, (
        "with three files less it is below 85 %"
    )
    node.checkpoint()
    node.pass_ms(300)
    assert node.files()[0] == node.storage.state.trim_position


async def test_what_a_group_has_not_read_is_protected_or_told(make: Callable[..., Node]) -> None:
    for protect in (True, False):
        node = make(protect_unconsumed=protect)
        node.add(
            EntryType.COMMAND,
            commands.pack([PutGroup({"name": "g"}, True), CommitOffsets([("g", 1, 0, 100)])]),
        )
        trimmed(node)
        node.pass_ms(400)
        first = node.storage.state.min_offset(1, 0)
        if protect:
            assert 0 < first <= 100
            assert "group g has not consumed t queue 0 offset 100" in node.retention.view(1).log_held_by
            assert not node.alarms.raised(UNREAD)
        else:
            assert first > 250
            assert node.count("raftmq_trimmed_unconsumed_total") == first - 100
            assert node.alarms.raised(UNREAD)
            node.core.role = Role.FOLLOWER
            node.pass_ms(200)
            assert not node.alarms.raised(UNREAD), "whoever leads now raises it"


async def test_a_file_that_cannot_be_removed_is_tried_again(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    trimmed(node)
    log, tries, left = type(node.log), Counter[str](), node.files()[:-1]
    assert len(left) > 2

    def refused(log: Any, paths: Any) -> int:
        tries.update(path.name for path in paths)
        raise StorageError("text file busy")

    with monkeypatch.context() as patch:
        patch.setattr(log, "remove_files", refused)
        node.pass_ms(1000)
        assert node.alarms.raised(FILES)
        assert list(tries.values()) == [1] * len(left)
        node.pass_ms(AGAIN_MS)
        assert list(tries.values()) == [2] * len(left)
    node.pass_ms(AGAIN_MS + 1000)
    assert not node.alarms.raised(FILES)
    assert node.files() == [node.storage.state.trim_position]


async def test_a_file_that_cannot_be_removed_keeps_no_other(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    trimmed(node)
    log, first, remove = type(node.log), node.files()[0], node.log.remove_files

    def one_refused(log: Any, paths: Any) -> int:
        if any(layout.segment_name(first) == path.name for path in paths):
            raise StorageError("text file busy")
        return int(remove(paths))

    with monkeypatch.context() as patch:
        patch.setattr(log, "remove_files", one_refused)
        node.pass_ms(1000)
        assert node.files() == [first, node.storage.state.trim_position]
        assert node.alarms.raised(FILES)
    node.pass_ms(AGAIN_MS + 1000)
    assert not node.alarms.raised(FILES)
    assert node.files() == [node.storage.state.trim_position]


def another_hour() -> str:
    """An hour of the day that is not that of a node's clock, nor soon."""
    now = datetime.fromtimestamp(Clock().wall_ms() / 1000)  # noqa: DTZ006 - the operator's day, as the node's
    return f"{(now.hour + 12) % 24:02}"


async def test_a_person_asks(make: Callable[..., Node]) -> None:
    node = make(delete_when=another_hour())
    node.store(300)
    node.checkpoint()
    node.store(1)
    node.checkpoint()
    node.pass_ms(1500)
    assert node.storage.state.trim_position == 0, "not its hour"
    for refuses in (True, False):
        node.core.refuses = refuses
        ran = node.retention.run()
        node.retention.tick(node.clock.now_ms)
        done = await asyncio.wait_for(ran, at_most(1))
        assert done is not None
        assert (done.decision.reason, done.entry is None) == ("age", refuses)
    assert node.storage.state.trim_position > 0
    node.core.role = Role.FOLLOWER
    ran = node.retention.run()
    node.retention.tick(node.clock.now_ms)
    assert await asyncio.wait_for(ran, at_most(1)) is None


async def test_a_dry_run_finds_the_same_and_does_nothing(make: Callable[..., Node]) -> None:
    node = make(delete_when=another_hour())
    node.store(300)
    node.checkpoint()
    node.store(1)
    node.checkpoint()
    node.pass_ms(1500)
    dry = node.retention.run(dry=True)
    node.pass_ms(300)
    found = await asyncio.wait_for(dry, at_most(1))
    assert found is not None
    assert found.decision.count > 0
    node.pass_ms(1500)
    assert (node.storage.state.trim_position, node.count("raftmq_trims_total")) == (0, 0)
    ran = node.retention.run()
    node.retention.tick(node.clock.now_ms)
    done = await asyncio.wait_for(ran, at_most(1))
    assert done is not None
    assert done.decision == found.decision
    assert node.storage.state.trim_position == found.decision.position
    node.core.role = Role.FOLLOWER
    dry = node.retention.run(dry=True)
    node.pass_ms(300)
    assert await asyncio.wait_for(dry, at_most(1)) is None


async def test_queues_that_a_run_found_and_did_not_cut_are_found_by_the_next_one(make: Callable[..., Node]) -> None:
    node = make(ms=10**9, every_ms=10**8)
    own: dict[str, Any] = {"write_queues": 1, "attributes": {"retention.ms": "1000"}}
    widths = {"s": policy.LOOKS_MAX, "u": 1}
    made = [CreateTopic({"name": name, "read_queues": width} | own, False) for name, width in widths.items()]
    node.add(EntryType.COMMAND, commands.pack(made))
    topics, state = node.storage.state.topics, node.storage.state
    node.store(3, topics["s"].id)
    node.pass_ms(1500)
    for dry, refuses in ((True, False), (False, True), (False, False)):
        assert state.min_offset(topics["s"].id, 0) == 0
        node.core.refuses = refuses
        ran = node.retention.run(dry=dry)
        node.retention.tick(node.clock.now_ms)
        done = await asyncio.wait_for(ran, at_most(1))
        assert done is not None
        assert done.queues == 1
    assert state.min_offset(topics["s"].id, 0) == 3


async def test_a_large_log_is_given_up_in_pieces(make: Callable[..., Node]) -> None:
    node = make(delete_batch_files=2)
    node.store(300)
    node.checkpoint()
    node.store(1)
    node.checkpoint()
    node.pass_ms(1500)
    assert node.count("raftmq_trims_total") >= 2
    assert node.storage.state.trim_position == node.files()[-1]
