"""SegmentedLog against a list: random appends, conflicts, trims, files put in front, restarts, power cuts, reads."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import OutOfRangeError
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.log_build import SegmentBuild
from raftlog.types import EMPTY_TAIL, Entry, EntryType, LogTail, NodeId

DATA = Path("/data")
GROUP = 3
SEGMENT_SIZE = 4096
GENESIS = Genesis(UUID(int=5), GROUP, SEGMENT_SIZE, 10, (Voter(NodeId(1), UUID(int=6)),))

sizes = st.lists(st.sampled_from([0, 1, 200, 447, 448, 449, 1500, 3968, 4032, 5000]), min_size=1, max_size=6)


class LogMachine(RuleBasedStateMachine):
    """`model` is what the log must hold; every append that returned is durable."""

    @initialize()
    def create(self) -> None:
        self.fs = MemoryFileSystem()
        self.fs.mkdir(DATA)
        self.term = 1
        self.first = 0
        """Index of the log's first entry."""
        self.given_up: list[Path] = []
        """Files that were trimmed, and are not removed yet."""
        self.model = [GENESIS.entry()]
        self.log = SegmentedLog.create(self.fs, DATA, genesis=self.model[0], segment_size=SEGMENT_SIZE)

    def tail_at(self, count: int) -> LogTail:
        tail = EMPTY_TAIL
        for entry in self.model[:count]:
            tail = tail_after(tail, entry)
        return tail

    def frames(self, count: int, payload_sizes: list[int]) -> list[Entry]:
        tail = self.tail_at(count)
        entries = []
        for size in payload_sizes:
            entry = make_entry(
                tail,
                term=self.term,
                entry_type=EntryType.MESSAGES,
                payload=b"%d" % (self.term % 10) * size,
                timestamp_ms=tail.timestamp_ms + 1,
                group_id=GROUP,
                segment_size=SEGMENT_SIZE,
            )
            entries.append(entry)
            tail = tail_after(tail, entry)
        return entries

    @rule(payload_sizes=sizes)
    def append(self, payload_sizes: list[int]) -> None:
        batch = self.frames(len(self.model), payload_sizes)
        self.log.append(batch)
        self.model += batch

    @rule(payload_sizes=sizes, data=st.data())
    @precondition(lambda self: len(self.model) > 1)
    def conflict(self, payload_sizes: list[int], data: st.DataObject) -> None:
        self.term += 1
        low = self.first + 1
        cut = data.draw(st.integers(low, max(low, len(self.model) - 1)))
        overlap = data.draw(st.integers(low, cut))
        batch = self.frames(cut, payload_sizes)
        self.log.append(self.model[overlap:cut] + batch)
        self.model[cut:] = batch

    @rule(data=st.data())
    def append_what_is_there(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(self.first, len(self.model) - 1))
        high = data.draw(st.integers(low + 1, len(self.model)))
        self.log.append(self.model[low:high])

    @rule()
    def new_term(self) -> None:
        self.term += 1

    @rule()
    def idle(self) -> None:
        self.log.write_idle_mark()

    @rule()
    def prepare(self) -> None:
        if self.log.needs_next():
            self.log.prepare_next()

    @rule(data=st.data(), remove=st.booleans())
    def trim(self, data: st.DataObject, remove: bool) -> None:
        bases = [entry.position for entry in self.model if entry.flags]
        position = data.draw(st.integers(0, self.log.tail.end_position))
        self.given_up += self.log.trim(position)
        limit = max(base for base in bases if base <= position)
        self.first = max(self.first, next(entry.index for entry in self.model if entry.position == limit))
        if remove:
            self.log.remove_files(self.given_up)
            self.given_up = []

    @rule()
    @precondition(lambda self: self.first > 0)
    def prepend(self) -> None:
        end = self.log.previous
        inside = [entry for entry in self.model[: self.first] if entry.position >= end.segment_base]
        build = SegmentBuild(self.fs, DATA / "install" / "backfill.tmp", GROUP, self.tail_at(inside[0].index))
        build.append_raw(b"".join(entry.header + entry.payload for entry in inside))
        self.log.prepend(build.finish())
        self.first = inside[0].index

    def found_again(self) -> None:
        """Checks a start: files that were trimmed and not removed are there again, removed ones are not."""
        assert self.log.first_index <= self.first
        if self.given_up:
            assert self.log.first_position <= int(self.given_up[0].stem)
        self.first = self.log.first_index
        self.given_up = []

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.log.close(clean)
        self.fs.restart()
        self.log = SegmentedLog.open(self.fs, DATA, group_id=GROUP)
        assert self.log.report.clean == clean
        assert self.log.report.torn_bytes_cut == 0
        self.found_again()

    @rule(seed=st.integers(0, 1 << 32))
    def power_cut(self, seed: int) -> None:
        self.fs.crash(seed)
        self.log = SegmentedLog.open(self.fs, DATA, group_id=GROUP)
        self.found_again()

    @rule(data=st.data(), bytes_max=st.sampled_from([0, 64, 512, 600, 3000, 10_000, 1 << 30]))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        low = data.draw(st.integers(self.first, len(self.model) - 1))
        high = data.draw(st.integers(low + 1, len(self.model)))
        expected = [self.model[low]]
        budget = bytes_max - self.model[low].size
        for entry in self.model[low + 1 : high]:
            budget -= entry.size
            if budget < 0:
                break
            expected.append(entry)
        assert self.log.read_entries(low, high, bytes_max) == expected

    @rule(data=st.data())
    def read_bytes(self, data: st.DataObject) -> None:
        raw = b"".join(entry.header + entry.payload for entry in self.model)
        begin = self.model[self.first].position
        position = data.draw(st.integers(begin, len(raw)))
        size = data.draw(st.integers(0, min(len(raw) - position, 9000)))
        assert self.log.read_at(position, size) == raw[position : position + size]
        with pytest.raises(OutOfRangeError):
            self.log.read_at(position, len(raw) - position + 1)
        if self.first:
            with pytest.raises(OutOfRangeError):
                self.log.read_at(begin - 1, 2)
            with pytest.raises(OutOfRangeError):
                self.log.read_entries(self.first - 1, len(self.model), 1 << 30)

    @invariant()
    def matches(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.tail == self.tail_at(len(self.model))
        ranges: list[tuple[int, int]] = []
        for entry in self.model[self.first :]:
            if not ranges or ranges[-1][1] != entry.term:
                ranges.append((entry.index, entry.term))
        assert self.log.term_ranges() == ranges
        bases = [entry.position for entry in self.model[self.first :] if entry.flags]
        assert (self.log.first_index, self.log.previous) == (self.first, self.tail_at(self.first))
        assert not self.log.damage.ranges
        assert [segment.base for segment in self.log.state.segments] == bases


class LongLogMachine(LogMachine):
    """The same, more often."""


LogMachine.TestCase.settings = settings(max_examples=75, stateful_step_count=40, deadline=None, derandomize=True)
LongLogMachine.TestCase.settings = settings(LogMachine.TestCase.settings, max_examples=300)
TestLogModel = LogMachine.TestCase
TestLongLogModel = pytest.mark.slow(LongLogMachine.TestCase)
