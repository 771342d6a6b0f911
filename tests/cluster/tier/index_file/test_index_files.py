"""Index files of a node: over a real directory, log, state and lane, with a disk in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection, PeerNode
from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import Environment
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.state.node_storage import NodeStorage
from cluster.tier.index_file import index_worker
from cluster.tier.index_file.index_files import AGAIN_MS, ALARM, IndexFiles, IndexUnavailableError
from cluster.tier.index_file.index_worker import IndexDirectory, Span, Swept, meta_of
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.node_dir import create_node_dir
from raftlog.types import Entry, EntryType, HardState, NodeId
from statemachine import commands, payload
from statemachine.index_file.index_check import check_index
from statemachine.index_file.index_format import file_name
from statemachine.index_file.index_of_log import write_index_of_log
from statemachine.index_file.index_reader import drive
from statemachine.message_index import RECORD, key_hash
from statemachine.topics.topics import CreateTopic
from statemachine.trim import Slice, Trim, encode
from tests.support.contexts import context_of
from tests.support.lanes_in_line import InLine
from tests.support.node_kit import START_MS, Clock
from tests.support.samples import sample

DATA = Path("/data")
SEGMENT = 64 << 10


class OneByOne(InLine):
    """A lane that does a job when the test says so, in the order in which they came."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.jobs: list[Any] = []

    def submit(self, job: Any) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        """Does the first job."""
        super().submit(self.jobs.pop(0))


class Node:
    """One node's storage and its index files; a message of 1000 bytes and its key per entry, in two queues."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, enabled: bool = True) -> None:
        self.fs, self.clock, self.loop = MemoryFileSystem(), Clock(), loop
        voter = Voter(NodeId(1), UUID(int=1))
        genesis = Genesis(UUID(int=7), 1, SEGMENT, START_MS, (voter,))
        create_node_dir(self.fs, DATA, Identity(UUID(int=7), 1, NodeId(1), voter.uuid, START_MS), genesis)
        self.config = Config(node=NodeSection(id=1, data_dir=str(DATA)), peers=(PeerNode(id=1, port=1, listeners={}),))
        self.environment = Environment(
            fs=self.fs,
            clock=self.clock,
            runner=InLine,
            serves_admin=False,
            open_kv=self._open_kv,
            boot_id=lambda: bytes(16),
            pid=lambda: 1,
            checkpoint_every_ms=10**9,
        )
        self.alarms = Alarms(self.clock.wall_ms)
        self.storage = NodeStorage(self.config, FailpointSet(False), self.environment, self.alarms)
        self.storage.directory.hard_state_store.save(HardState(1, NodeId(1), 0))
        self.begin(enabled=enabled)
        self.add(EntryType.COMMAND, commands.pack([CreateTopic({"name": "t", "read_queues": 2}, False)]))

    def begin(self, *, enabled: bool = True, runner: type[InLine] = InLine) -> None:
        """Begins as a start does."""
        environment = replace(self.environment, runner=runner)
        context = context_of(None, self.alarms, config=self.config, environment=environment, loop=self.loop)
        self.files = IndexFiles(context, self.storage, enabled=enabled, gap_ms=0)
        self.files.start()

    def _open_kv(self, path: str) -> MemoryKV:
        self.fs.mkdir(Path(path))
        return MemoryKV(fs=self.fs)

    @property
    def log(self) -> Any:
        return self.storage.directory.log

    def add(self, kind: int, data: bytes) -> Entry:
        entry = make_entry(
            self.log.tail,
            term=1,
            entry_type=kind,
            payload=data,
            timestamp_ms=START_MS + self.log.tail.index,
            group_id=1,
            segment_size=SEGMENT,
        )
        self.log.append([entry])
        state = self.storage.state
        state.apply(self.log.read_entries(state.applied.index + 1, entry.index + 1, 1 << 30))
        return entry

    def store(self, count: int) -> None:
        for number in range(count):
            at, queue_id = self.log.tail.end_position + payload.MESSAGES_AT, number % 2
            base = self.storage.state.max_offset(1, queue_id)
            run = payload.Run(1, queue_id, base, 1, 0, payload.ITEM.pack(at, 1000, 0, 0, START_MS))
            keys = RECORD.pack(key_hash(1, b"k%d" % base), at)
            self.add(EntryType.MESSAGES, payload.encode([bytes(1000)], 1, [run], keys=keys))

    async def pass_ms(self, ms: int) -> None:
        """The files' time goes on, and that of the loop as far as their steps need."""
        for _ in range(max(1, ms // 1000)):
            self.clock.now_ms += 1000
            self.files.tick(self.clock.now_ms)
            while self.files.view().building is not None:
                await asyncio.sleep(0)

    def segments(self) -> list[Span]:
        """The closed ones."""
        found, at = [], self.log.first_position
        while (span := self.log.segment_at(at)).sealed:
            found.append(Span(span.previous.end_position, span.end_position))
            at = span.end_position
        return found

    def names(self) -> list[str]:
        return list(self.fs.listdir(DATA / "index"))

    def of_log(self, span: Span) -> bytes:
        """The file as the other builder makes it."""
        meta = meta_of(self.log, span)
        out = bytearray()
        write_index_of_log(self.log.read_entries(meta.first_index, meta.last_index + 1, 1 << 30), meta, out.extend)
        return bytes(out)

    def stored(self, span: Span) -> bytes:
        file = self.fs.open(DATA / "index" / file_name(*span))
        return bytes(file.pread(file.size(), 0))

    def trim(self, begin: Span) -> None:
        self.add(EntryType.TRIM, encode(Trim(begin.base, self.log.segment_at(begin.base).previous.index + 1, "age")))

    def value(self, name: str) -> float:
        return sample(self.files.part().metrics, name) or 0


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Steps follow one another without a gap."""
    made = Node(asyncio.get_running_loop())
    yield made
    await made.files.close()


async def test_h2_each_closed_segment_gets_its_file(node: Node) -> None:
    node.store(400)
    await node.pass_ms(20_000)
    spans = node.segments()
    assert len(spans) >= 5
    assert node.names() == [file_name(*span) for span in spans]
    for span in spans:
        assert node.stored(span) == node.of_log(span)
    view = node.files.view()
    assert (view.files, view.last, view.pending_bytes, view.building) == (len(spans), spans[-1], 0, None)
    assert node.value("raftmq_index_files_built_total") == len(spans)
    assert node.value("raftmq_index_files_bytes") == sum(len(node.stored(span)) for span in spans)


async def test_the_open_segment_has_none_until_the_next_one_is_applied(node: Node) -> None:
    while len(node.segments()) < 1:
        node.store(1)
    applied = node.storage.state.applied_mark
    (span,) = node.segments()
    node.storage.state._mark = applied._replace(end_position=span.end)  # written, and its last entry applied
    await node.pass_ms(3000)
    assert node.names() == []
    with pytest.raises(IndexUnavailableError, match="not applied yet"):
        await node.files.load(*span)
    node.storage.state._mark = applied
    await node.pass_ms(1000)
    assert node.names() == [file_name(*span)]


async def test_h10_a_start_removes_what_is_unfinished_and_goes_on(node: Node) -> None:
    node.store(200)
    await node.pass_ms(20_000)
    spans = node.segments()
    directory = IndexDirectory(node.fs, DATA)
    directory.create(Span(1, 2)).write(b"half")
    directory.remove(spans[0])
    assert any(name.endswith(".tmp") for name in node.names())
    node.begin()
    await node.pass_ms(3000)
    assert node.names() == [file_name(*span) for span in spans]
    assert node.value("raftmq_index_files_built_total") == 1


async def test_a_file_that_a_former_run_built_is_handed_over(node: Node) -> None:
    """Also if it is asked for before the directory is read."""
    node.store(100)
    await node.pass_ms(9000)
    span = node.segments()[0]
    node.begin()
    swept = node.files._files
    node.files._files, node.files._busy = {}, True
    asked = asyncio.ensure_future(node.files.load(*span))
    await asyncio.sleep(0)
    node.files._on_done([Swept(swept)])
    assert await asked == node.of_log(span)
    assert node.value("raftmq_index_files_built_total") == 0


async def test_who_waits_is_told_when_the_segment_is_trimmed(node: Node) -> None:
    node.store(300)
    spans = node.segments()
    asked = asyncio.ensure_future(node.files.load(*spans[0]))
    await asyncio.sleep(0)
    node.trim(spans[2])
    await node.pass_ms(1000)
    with pytest.raises(IndexUnavailableError, match="has the rows"):
        await asked


async def test_a_file_goes_when_the_log_lets_its_segment_go(node: Node) -> None:
    node.store(400)
    await node.pass_ms(20_000)
    spans = node.segments()
    node.trim(spans[3])
    await node.pass_ms(2000)
    assert len(node.names()) == len(spans), "a reader may hold the segment"
    node.log.trim(spans[3].base)
    await node.pass_ms(2000)
    assert node.names() == [file_name(*span) for span in spans[3:]]


async def test_no_file_is_built_of_rows_that_are_going(node: Node) -> None:
    """A sweep removes rows slice by slice while the file is being built."""
    node.store(300)
    spans = node.segments()
    first = spans[0]
    asked = asyncio.ensure_future(node.files.load(*first))
    await asyncio.sleep(0)
    begin = node.log.segment_at(spans[2].base).previous
    cut = node.add(EntryType.TRIM, encode(Trim(spans[2].base, begin.index + 1, "age", sliced=True)))
    node.add(EntryType.TRIM, encode(Slice(cut.index, 4)))
    await node.pass_ms(9000)
    with pytest.raises(IndexUnavailableError, match="gone"):
        await asked
    assert node.names() == [file_name(*span) for span in spans[2:]]
    for span in spans[2:]:
        assert node.stored(span) == node.of_log(span)


@pytest.mark.parametrize("restarted", [False, True])
async def test_h6_a_damaged_file_is_never_handed_over_and_built_again(node: Node, restarted: bool) -> None:
    """The file may have been built by this process, which knows its checksum, or by the one before."""
    node.store(100)
    await node.pass_ms(9000)
    span = node.segments()[0]
    whole = node.stored(span)
    if restarted:
        node.begin()
    node.fs.open(DATA / "index" / file_name(*span)).pwritev([b"\xff"], 700)
    asked = asyncio.ensure_future(node.files.load(*span))
    await asyncio.sleep(0)
    await node.pass_ms(2000)
    assert await asked == whole == node.stored(span)
    assert node.value("raftmq_index_files_damaged_total") == 1


async def test_a_file_that_reads_as_it_was_written_is_not_parsed_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.store(100)
    await node.pass_ms(9000)
    span = node.segments()[0]
    checked: list[int] = []

    def check(size: int) -> Any:
        checked.append(size)
        return check_index(size)

    monkeypatch.setattr(index_worker, "check_index", check)
    for begun in (False, True):
        if begun:
            node.begin()  # another process: it knows nothing of the file
        asked = asyncio.ensure_future(node.files.load(*span))
        await asyncio.sleep(0)
        await node.pass_ms(2000)
        assert await asked == node.stored(span)
        assert len(checked) == begun


async def test_a_file_of_another_log_is_not_handed_over(node: Node) -> None:
    node.store(100)
    await node.pass_ms(9000)
    span = node.segments()[0]
    whole, strange = node.stored(span), bytearray()
    meta = meta_of(node.log, span)._replace(last_crc=1)
    write_index_of_log(node.log.read_entries(meta.first_index, meta.last_index + 1, 1 << 30), meta, strange.extend)
    file = IndexDirectory(node.fs, DATA).create(span)
    file.write(bytes(strange))
    file.commit()
    asked = asyncio.ensure_future(node.files.load(*span))
    await asyncio.sleep(0)
    await node.pass_ms(2000)
    assert await asked == whole


async def test_load_builds_what_is_missing(node: Node) -> None:
    node.store(100)
    span = node.segments()[0]
    asked = asyncio.ensure_future(node.files.load(*span))
    await asyncio.sleep(0)
    await node.pass_ms(2000)
    data = await asked
    assert data == node.of_log(span)
    assert drive(check_index(len(data)), lambda at, length: data[at : at + length]).meta.base == span.base


@pytest.mark.parametrize("span", [(5, 9), (0, 9), (1 << 40, 1 << 41)])
async def test_load_of_what_is_no_segment(node: Node, span: tuple[int, int]) -> None:
    node.store(100)
    with pytest.raises(IndexUnavailableError):
        await node.files.load(*span)


async def test_a_full_disk_is_told_and_tried_again(node: Node) -> None:
    node.store(100)
    node.fs.space_left = 0
    await node.pass_ms(3000)
    assert node.names() == []
    assert node.alarms.raised(ALARM)
    assert "No space left" in node.files.view().error
    assert node.value("raftmq_index_files_failed_total") == 1, "not again at once"
    node.fs.space_left = 1 << 40
    await node.pass_ms(AGAIN_MS + 2000)
    assert node.names() == [file_name(*span) for span in node.segments()]
    assert not node.alarms.raised(ALARM)


async def test_a_file_is_built_once_while_others_cannot_be_removed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_worker, "STEPS_PER_JOB", 1)
    node.store(200)
    await node.pass_ms(9000)
    before = node.segments()
    kept = before[-1]
    node.begin(runner=OneByOne)
    lane: Any = node.files._runner
    lane.work()  # it reads the directory
    while node.segments()[-1] == kept:
        node.store(2)
    built = node.segments()[-1]
    node.trim(kept)
    node.log.trim(kept.base)
    node.clock.now_ms += 1000
    node.files.tick(node.clock.now_ms)
    assert lane.jobs == [index_worker.Remove(tuple(before[:-1])), index_worker.Build(built)]
    node.fs.fail_call(node.fs.calls + 1)
    lane.work()
    assert len(node.names()) == len(before), "the first of them could not be removed"
    while node.files.view().building is not None:
        node.clock.now_ms += 1000
        node.files.tick(node.clock.now_ms)
        await asyncio.sleep(0)
        assert len(lane.jobs) <= 1
        if lane.jobs:
            lane.work()
    assert not lane.jobs
    assert node.stored(built) == node.of_log(built)


async def test_off_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Node(asyncio.get_running_loop(), enabled=False)
    made.store(100)
    await made.pass_ms(5000)
    assert not made.fs.exists(DATA / "index")
    with pytest.raises(IndexUnavailableError, match="off"):
        await made.files.load(*made.segments()[0])
    await made.files.close()
