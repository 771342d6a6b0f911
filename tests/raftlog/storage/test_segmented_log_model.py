"""SegmentedLog against a list: random appends, conflicts, restarts, power cuts, reads."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftlog.errors import OutOfRangeError
from raftlog.frame import make_entry, tail_after
from raftlog.storage.genesis import Genesis, Voter
from raftlog.storage.memory_fs import MemoryFileSystem
from raftlog.storage.segmented_log import SegmentedLog
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
                tail, term=self.term, entry_type=EntryType.MESSAGES, payload=b"%d" % (self.term % 10) * size,
                timestamp_ms=tail.timestamp_ms + 1, group_id=GROUP, segment_size=SEGMENT_SIZE,
            )  # fmt: skip
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
        cut = data.draw(st.integers(1, len(self.model) - 1))
        overlap = data.draw(st.integers(1, cut))
        batch = self.frames(cut, payload_sizes)
        self.log.append(self.model[overlap:cut] + batch)
        self.model[cut:] = batch

    @rule(data=st.data())
    def append_what_is_there(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, len(self.model) - 1))
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
        assert self.log.first_index == 0

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.log.close(clean)
        self.fs.restart()
        self.log = SegmentedLog.open(self.fs, DATA, group_id=GROUP)
        assert self.log.report.clean == clean
        assert self.log.report.torn_bytes_cut == 0

    @rule(seed=st.integers(0, 1 << 32))
    def power_cut(self, seed: int) -> None:
        self.fs.crash(seed)
        self.log = SegmentedLog.open(self.fs, DATA, group_id=GROUP)

    @rule(data=st.data(), bytes_max=st.sampled_from([0, 64, 512, 600, 3000, 10_000, 1 << 30]))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        low = data.draw(st.integers(0, len(self.model) - 1))
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
        position = data.draw(st.integers(0, len(raw)))
        size = data.draw(st.integers(0, min(len(raw) - position, 9000)))
        assert self.log.read_at(position, size) == raw[position : position + size]
        with pytest.raises(OutOfRangeError):
            self.log.read_at(position, len(raw) - position + 1)

    @invariant()
    def matches(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.tail == self.tail_at(len(self.model))
        ranges: list[tuple[int, int]] = []
        for entry in self.model:
            if not ranges or ranges[-1][1] != entry.term:
                ranges.append((entry.index, entry.term))
        assert self.log.term_ranges() == ranges
        bases = [entry.position for entry in self.model if entry.flags]
        assert [segment.base for segment in self.log._segments] == bases


LogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestLogModel = LogMachine.TestCase
