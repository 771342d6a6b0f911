"""What a family of rows registers by itself: a line in the list of families is all that a state needs to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.format_versions import BASELINE
from raftlog.types import Entry, EntryType
from statemachine import broker_state
from statemachine.access.access_commands import RemoveUser
from statemachine.access.revocations import Revoke
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import ClusterLevel, Finalize
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.commands import Command, CommandReader, CommandResult, done, pack
from statemachine.consuming.groups import PutGroup
from statemachine.families import FAMILIES, LATER_ROWS
from statemachine.family import Families, Family, LaterRows, applies, takes
from statemachine.levels import DRAINS_LEVEL, GATHERS_LEVEL, GROUPS_LEVEL, LEVEL, LEVELS
from statemachine.removal_slices import DeleteTopic
from statemachine.removals import ATTEMPTS, SESSIONS, STEPS, UNIQUE, RemovalKind
from statemachine.rows import keys, meta_keys
from statemachine.rows.digest import digest
from statemachine.rows.kv import CQ, DEDUP, KV, LOCKS, META, OFFSETS, RESETS, TRANS
from statemachine.rows.kv import FAMILIES as COLUMNS
from statemachine.rows.running_digest import count
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import CreateTopic, Topics
from statemachine.truth import CopyTruth
from tests.statemachine.test_kept_entries import LOGS
from tests.support.command_samples import COMMAND_SAMPLES, about
from tests.support.rows import each_row
from tests.support.truth_kit import ASKED

PAGE = Path(__file__).parents[2] / "docs" / "disk-format-rows.md"
PREFIX = b"mark\0"


class SetMark(Command, tag="set_mark", frozen=True):
    """Sets a mark."""

    name: str
    value: int


class Marks(Family):
    """Numbers with names, and a note of each hook that was called."""

    ROWS = ((META, PREFIX),)

    def __init__(self, kv: KV, level: ClusterLevel) -> None:
        rows = kv.scan(META, PREFIX, PREFIX + b"\xff")
        self.by_name = {key[len(PREFIX) :].decode(): int(value) for key, value in rows}
        self.level = level
        self._staged = dict(self.by_name)
        self.changed = False
        self.grown: set[tuple[int, int]] = set()
        self.called: list[str] = []
        self.published = 0

    @classmethod
    def made(cls, families: Families) -> Marks:
        return cls(families.kv, families[ClusterLevel])

    @applies(SetMark)
    def set(self, stage: Stage, command: SetMark) -> CommandResult:
        self._staged[command.name] = command.value
        self.changed = True
        stage.put(META, PREFIX + command.name.encode(), str(command.value).encode())
        return done(command.value)

    @takes(EntryType.NOOP)
    def begin_term(self, stage: Stage, entry: Entry) -> None:
        self.called.append(f"entry {entry.index}")

    def begin_segment(self, stage: Stage, time_ms: int) -> None:
        self.called.append(f"segment {time_ms}")

    def end_run(self, stage: Stage) -> None:
        self.called.append(f"end {len(stage.rows[META])}")

    def topic_deleted(self, stage: Stage, topic_id: int, queues: int) -> None:
        self.called.append(f"topic {topic_id} of {queues}")
        if self._staged.pop("pin", None):
            stage.delete(META, PREFIX + b"pin")

    def publish(self) -> None:
        self.published += 1
        self.by_name, self.changed, self.grown = dict(self._staged), False, {(7, 8)}

    def pinned_position(self, begin: int, end: int) -> int | None:
        return self.by_name.get("pin")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of families with one more."""
    families: tuple[type[Family], ...] = (Marks, *FAMILIES)
    reader = CommandReader([kind for family in families for kind in family.COMMANDS])
    monkeypatch.setattr(broker_state, "FAMILIES", families)
    monkeypatch.setattr(broker_state, "unpack", reader.unpack)


@pytest.mark.usefixtures("listed")
def test_a_family_in_the_list_has_its_commands_rows_sums_and_reads(new_log: Any) -> None:
    log, kv = new_log(), MemoryKV()
    state, other = BrokerState(kv), MemoryKV()
    entry = log.command(SetMark("pin", 5), CreateTopic({"name": "t"}, if_absent=True))
    run = state.apply([entry])
    assert run.results[0][0].value == 5
    assert run.grown == {(7, 8)}
    assert state[Marks].by_name == {"pin": 5}
    assert state.lowest_pinned_position() == 5
    assert state.sums.totals == count(kv)
    BrokerState(other).apply([new_log().command(SetMark("pin", 6), CreateTopic({"name": "t"}, if_absent=True))])
    assert {name for name, total in digest(kv).items() if total != digest(other)[name]} == {META}
    assert BrokerState(kv)[Marks].by_name == {"pin": 5}, "read from its rows"


@pytest.mark.usefixtures("listed")
def test_a_family_is_called_by_the_hooks_that_it_has(new_log: Any) -> None:
    log, state = new_log(), BrokerState(MemoryKV())
    state.apply([log.add(EntryType.NOOP), log.command(SetMark("a", 1))])
    assert state[Marks].called == ["segment 1000000", "entry 0", "end 2"], "the first entry begins a segment"


@pytest.mark.usefixtures("listed")
def test_a_family_without_a_change_has_nothing_to_publish(new_log: Any) -> None:
    log, state = new_log(), BrokerState(MemoryKV())
    state.apply([log.command(CreateTopic({"name": "t"}, if_absent=True))])
    assert state[Marks].published == 0
    state.apply([log.command(SetMark("a", 1))])
    assert state[Marks].published == 1


@pytest.mark.usefixtures("listed")
def test_a_family_is_told_of_the_end_of_a_topic_within_its_entry(new_log: Any) -> None:
    log, kv = new_log(), MemoryKV()
    state = BrokerState(kv)
    create = CreateTopic({"name": "t", "read_queues": 3, "write_queues": 2}, if_absent=True)
    run = state.apply([log.command(create, SetMark("pin", 5), DeleteTopic("none"), DeleteTopic("t"), SetMark("a", 1))])
    assert [result.ok for result in run.results[0]] == [True, True, False, True, True]
    assert state[Marks].called[1:-1] == ["topic 1 of 3"]
    assert state[Marks].by_name == BrokerState(kv)[Marks].by_name == {"a": 1}


def test_a_family_is_made_once_after_those_that_it_needs() -> None:
    families = Families(MemoryKV(), 11)
    marks = families[Marks]
    assert families[Marks] is marks
    assert families[ClusterLevel] is marks.level
    state = BrokerState(MemoryKV())
    assert state[Topics].by_name is state.topics
    assert state.settings is state.settings


def owners(column: str, key: bytes, families: Sequence[type[Family] | type[BrokerState]]) -> list[str]:
    """Who says that a row is theirs."""
    return [kind.__name__ for kind in families for its, prefix in kind.ROWS if its == column and key.startswith(prefix)]


def shared(families: Sequence[type[Family] | type[BrokerState]]) -> list[tuple[str, ...]]:
    """Pairs of families of which one has keys of the other."""
    rows = [(kind.__name__, column, prefix) for kind in families for column, prefix in kind.ROWS]
    return [
        (one, other)
        for (one, column, prefix), (other, its, longer) in permutations(rows, 2)
        if one != other and column == its and longer.startswith(prefix)
    ]


def test_no_two_families_have_the_same_rows() -> None:
    assert shared((BrokerState, *FAMILIES)) == []
    assert shared((Marks, *FAMILIES)) == []

    class Greedy(Marks):
        """Has rows of the settings."""

        ROWS = ((META, b"setting"),)

    assert set(shared((Greedy, *FAMILIES))) == {("Greedy", "Settings")}


def test_each_step_of_a_removal_is_known_at_every_level() -> None:
    """Nodes of the older version would end the removal one step earlier, and have other rows from there on. A step more
    is for removals that begin at a new level, and stands here with it."""
    assert STEPS == {
        RemovalKind.TOPIC: (CQ, DEDUP, OFFSETS, LOCKS, RESETS),
        RemovalKind.GROUP: (LOCKS, RESETS, OFFSETS),
        RemovalKind.EXPIRE: (SESSIONS, UNIQUE, LOCKS),
        RemovalKind.WRITE: (ATTEMPTS,),
    }


def test_later_rows_are_the_familys_own() -> None:
    for family in FAMILIES:
        for rows in family.LATER_ROWS:
            assert BASELINE < rows.level <= LEVEL
            assert [its for its in family.ROWS if its[0] == rows.column and rows.prefix.startswith(its[1])]
    assert {rows.level for rows in LATER_ROWS} == {level.number for level in LEVELS[1:]}, "a level without rows?"


def on_the_page(column: str, prefix: bytes) -> bool:
    """True if the table of the page has such keys of the column."""
    name, family = prefix.partition(b"\0")[0].decode(), ""
    found = set[str]()
    for line in PAGE.read_text().splitlines():
        cells = line.split("|")
        if line.startswith("| ") and len(cells) > 4:
            family = cells[1].strip(" `") or family
            if family == column:
                found.add(cells[2].strip(" `").split("`")[0])
    return name in found if name else bool(found)


def test_the_page_has_all_rows() -> None:
    """docs/disk-format-rows.md says what is on disk."""
    kinds: tuple[type[Family] | type[BrokerState], ...] = (BrokerState, *FAMILIES)
    rows = [each for kind in kinds for each in kind.ROWS]
    assert [each for each in rows if not on_the_page(*each)] == []
    assert not on_the_page(META, PREFIX)
    assert not on_the_page(TRANS, b"z")
    assert not on_the_page("pop", b"")


@each_row("level", [level.number for level in LEVELS])
def test_no_row_comes_before_its_level(new_log: Any, level: int) -> None:
    """All commands of a level, in a cluster of that level, in drawn orders: some take away what others write."""
    samples = [
        about(each, topic="t", topic_id=1, queue_id=0, group="g")
        for each in COMMAND_SAMPLES
        if level >= each.LEVEL and type(each) is not Finalize
    ]
    samples.append(PutGroup({"name": "g", "consume_broadcast_enable": False}, if_absent=False))
    samples.append(CreateTopic({"name": "placed", "place": [[1, 2, 2], [2, 4, 4]]}, if_absent=False))
    if level >= GROUPS_LEVEL:  # a user that another group has copied, and whose rights are taken away there
        samples.append(CopyTruth(0, 1, [(TruthKind.USER, 9, ["u", False, True, b"s", "k", 0])]))
        samples.append(Revoke(pack([RemoveUser(ASKED, 9)])))
    if level >= DRAINS_LEVEL:  # a group that drains, and closes its log
        samples.append(CopyTruth(0, 1, [(TruthKind.BROKER_GROUP, 2, ["raftmq-g02", 3, 1, 5])]))
    if level >= GATHERS_LEVEL:  # a topic that is only read in a group
        samples.append(CopyTruth(0, 1, [(TruthKind.TOPIC, "t", [6, False, 0, {}, 0, 0, "", [[1, 2, 2], [2, 4, 0]]])]))
    late = {rows for rows in LATER_ROWS if rows.level <= level and rows.prefix != meta_keys.AUDIT_KEPT_PREFIX}
    found, rng = set[LaterRows](), Random(level)
    for drawn in range(200):
        log, kv = new_log(), MemoryKV()
        state = BrokerState(kv, group=1 + drawn % 2)
        state.apply([log.command(Finalize(level)), log.messages(sessions=(log.session(1, 0, [1]),))])
        for sample in rng.sample(samples, len(samples)):
            state.apply([log.command(sample)])
            found |= {rows for rows in LATER_ROWS if rows not in found and rows.found_in(kv) is not None}
        assert state.level == level
        assert {rows for rows in found if rows.level > level} == set()
        if drawn >= 5 and late <= found:
            break
    assert late <= found, "the sample writes none. Those of the audit come with the 100,001st change of users"


@each_row("number", range(0, len(LOGS), 5))
def test_each_row_is_of_one_family(new_log: Any, number: int) -> None:
    log, kv = new_log(), MemoryKV()
    state = BrokerState(kv)
    for kind, payload, log.now_ms, results, _ in LOGS[number]:
        if results is not None:
            state.apply([log.add(kind, payload)])
    rows = [(column, key) for column in COLUMNS for key, _ in kv.scan(column, keys.FIRST, keys.LAST)]
    assert len(rows) > 20
    assert [(column, key) for column, key in rows if len(owners(column, key, (BrokerState, *FAMILIES))) != 1] == []
