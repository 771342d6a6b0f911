"""Scripted scenarios: what they compare, on pretended answers and on real files; each check must be able to fail."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.history import HistoryWriter, read_history
from jepsen_like.live.harm.bitflip import Flip, FlippedFile, different_bytes, flip, read_byte
from jepsen_like.live.nemeses.scenarios import SCENARIOS
from jepsen_like.live.plan import ONE_BY_ONE, Plan
from jepsen_like.live.probes.expected_metadata import ExpectedMetadata, GroupSpec, TopicSpec
from jepsen_like.live.probes.recovery_probe import QueueEnds, shrunk
from jepsen_like.live.stories import story_bitflip
from jepsen_like.live.stories.story import Scene, StoryEnds, agree
from jepsen_like.live.stories.story_table import STORIES
from jepsen_like.live.subjects.stopped_node_state import read_digest
from jepsen_like.live.subjects.subject import NodeState
from raftlog.storage.files import layout
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from statemachine.rows import meta_keys
from statemachine.rows.kv import CQ, META, Batch
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.rows import each_row

TOPIC = TopicSpec(4, 6, {"dedup": "strict"})


def shown(**topics: TopicSpec) -> dict[str, Any]:
    return {
        "topics": [
            {"name": name, "write_queues": spec.queues, "perm": spec.perm, "attributes": spec.attributes}
            for name, spec in topics.items()
        ]
    }


@each_row(
    ("answer", "said"),
    [
        (shown(r_a=TOPIC, r_b=TOPIC, other=TOPIC), None),
        (shown(r_a=TOPIC), "topic r_b was acknowledged and is not there: node 1"),
        (shown(r_a=TOPIC, r_b=TOPIC, r_c=TOPIC), "topic r_c was deleted and is there: node 1"),
        (shown(r_a=TOPIC, r_b=TOPIC._replace(queues=5)), "topic r_b is TopicSpec(queues=5"),
        (shown(r_a=TOPIC, r_b=TOPIC._replace(attributes={})), "topic r_b is "),
        (shown(r_a=TOPIC, r_b=TOPIC._replace(perm=4)), "topic r_b is "),
    ],
)
def test_topics_are_compared_with_what_was_acknowledged(answer: dict[str, Any], said: str | None) -> None:
    catalogue = ExpectedMetadata("r_")
    catalogue.topics = {"r_a": TOPIC, "r_b": TOPIC}
    differences = list(catalogue.topic_differences(answer, "node 1"))
    assert len(differences) == (said is not None)
    assert said is None or differences[0].startswith(said)


def test_deleted_names_take_their_offsets_along_and_attributes_are_added() -> None:
    catalogue = ExpectedMetadata("r_")
    catalogue.topics = {"r_t": TOPIC, "r_u": TOPIC}
    catalogue.groups = dict.fromkeys(("r_g", "r_h"), GroupSpec(3, True, False, True))
    catalogue.offsets = {("r_g", "r_t", 0): 1, ("r_g", "r_u", 0): 2, ("r_h", "r_u", 0): 3}
    merged = catalogue.merged("r_t", TopicSpec(1, 2, {"message.type": "FIFO"}))
    assert merged == TopicSpec(1, 2, {"dedup": "strict", "message.type": "FIFO"})
    catalogue.forget({"r_t"}, {"r_h"})
    assert catalogue.topics.keys() == {"r_u"}
    assert catalogue.groups.keys() == {"r_g"}
    assert catalogue.offsets == {("r_g", "r_u", 0): 2}


@each_row(
    ("after", "wrong"),
    [
        (QueueEnds(2, 10, 12, (5, 6)), False),
        (QueueEnds(2, 10, 12, (5, 7)), False),
        (QueueEnds(2, 10, 12, (5, 5)), True),
        (QueueEnds(2, 9, 12, (5, 5)), False),
        (QueueEnds(2, 99, 99, (4, 9)), True),
    ],
)
def test_queues_never_shrink_once_the_same_entries_are_applied(after: QueueEnds, wrong: bool) -> None:
    assert (shrunk(QueueEnds(1, 8, 10, (5, 6)), after) is not None) == wrong


def node(folder: Path, name: str, *, segments: int = 2) -> Path:
    data = folder / name
    (data / layout.LOG).mkdir(parents=True)
    (data / layout.STATE).mkdir()
    for number in range(segments):
        header = name.encode() * (LOCAL_HEADER_SIZE // len(name))
        body = bytes(range(256)) * 4096
        (data / layout.LOG / layout.segment_name(number << 20)).write_bytes(header.ljust(LOCAL_HEADER_SIZE) + body)
    return data


@each_row("seed", range(6))
@each_row("kind", [FlippedFile.SEALED, FlippedFile.ACTIVE])
def test_a_flip_hits_frames_of_the_kind_asked_for_and_is_found_by_comparing(
    tmp_path: Path, kind: FlippedFile, seed: int
) -> None:
    one, other = node(tmp_path, "n1"), node(tmp_path, "n2")
    assert different_bytes(one, other) == 0, "local headers are not compared"
    made = flip(1, one, kind, random.Random(seed), end_position=2 << 20)
    assert made is not None
    assert made.is_there
    assert made.before != made.after
    assert made.path.name == layout.segment_name(0 if kind is FlippedFile.SEALED else 1 << 20)
    assert made.offset == LOCAL_HEADER_SIZE + made.position - int(made.path.stem)
    assert different_bytes(one, other) == different_bytes(other, one) == 1
    with made.path.open("r+b") as file:
        file.seek(made.offset)
        file.write(bytes([made.before]))
    assert not made.is_there
    assert different_bytes(one, other) == 0


def test_flips_of_files_that_are_not_there(tmp_path: Path) -> None:
    data = node(tmp_path, "n1", segments=1)
    assert flip(1, data, FlippedFile.TABLE, random.Random(1), 0) is None
    assert flip(1, data, FlippedFile.INDEX, random.Random(1), 0) is None
    assert flip(1, data, FlippedFile.ACTIVE, random.Random(1), 1000) is None, "so near the end nobody may ever read it"
    (data / layout.STATE / "000001.sst").write_bytes(b"table")
    made = flip(1, data, FlippedFile.TABLE, random.Random(1), 0)
    assert made is not None
    assert made.is_there
    assert "000001.sst" in str(made)
    made.path.unlink()
    assert not made.is_there, "a file that was replaced no longer has it"
    with pytest.raises(OSError, match="ends before byte"):
        read_byte(data / layout.LOG / layout.segment_name(0), 1 << 30)


def state_of(data: Path, rows: dict[bytes, bytes], index: int) -> None:
    (data / layout.STATE).mkdir(parents=True)
    kv = RocksKV(str(data / layout.STATE))
    batch = Batch()
    for key, value in rows.items():
        batch.put(CQ, key, value)
    batch.put(META, meta_keys.APPLIED_KEY, meta_keys.APPLIED.pack(3, index, 1000, 5, 7))
    kv.write(batch)
    kv.close()


def test_states_are_summed_up_without_touching_them(tmp_path: Path) -> None:
    state_of(tmp_path / "n1", {b"\0" * 16: b"a"}, 9)
    state_of(tmp_path / "n2", {b"\0" * 16: b"a"}, 9)
    state_of(tmp_path / "n3", {b"\0" * 16: b"b"}, 9)
    files = sorted(path.name for path in (tmp_path / "n1" / layout.STATE).iterdir())
    first, same, other = (read_digest(tmp_path / name) for name in ("n1", "n2", "n3"))
    assert first == same
    assert first.text == same.text != other.text
    assert (first.applied, other.applied) == (9, 9)
    assert sorted(path.name for path in (tmp_path / "n1" / layout.STATE).iterdir()) == files
    assert sorted(path.name for path in (tmp_path / "n1").iterdir()) == [layout.STATE]


class Subject:
    def __init__(self, states: dict[int, NodeState | None]) -> None:
        self.node_ids = [1, 2, 3]
        self._states = states

    def states(self) -> dict[int, NodeState | None]:
        return self._states


def test_two_of_three_may_agree_without_the_third() -> None:
    led = NodeState(4, True, True, 1, 5, 5)
    follows = NodeState(4, False, False, 1, 5, 5)
    subject: Any = Subject({1: led, 2: None, 3: follows})
    assert agree(subject, [1, 3])
    assert not agree(subject, [1, 2, 3])
    subject = Subject({1: led._replace(open=False), 2: None, 3: follows})
    assert not agree(subject, [1, 3]), "it does not take writes"
    subject = Subject({1: led, 2: None, 3: follows._replace(leader=2)})
    assert not agree(subject, [1, 3])


def test_a_scene_writes_down_acts_and_demands(tmp_path: Path) -> None:
    told: list[str] = []
    held: list[bool] = []

    def hold(on: bool) -> bool:
        held.append(on)
        return len(held) < 3

    anything: Any = None
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        scene = Scene(anything, anything, history, tmp_path, 0.1, told.append, hold)
        with scene.act("all stop") as details:
            details.append("in order")
        scene.demand(True, "fine")
        scene.demand(False, "rows are gone")
        scene.gate("kills", 4, 5)
        with scene.quiet():
            assert held == [True]
        with pytest.raises(StoryEnds), scene.quiet():
            pass
    assert held == [True, False, True, False], "the load goes on whatever happened"
    assert scene.broken == ["rows are gone"]
    assert not scene.gates[0].holds
    assert (scene.count(1000), scene.count(3)) == (100, 1)
    assert told[0].endswith(": in order")
    act = read_history(tmp_path / "h.jsonl").ops[1]
    assert (act.f, act.value["kind"], act.value["detail"]) == ("fault", "all stop", "in order")


@pytest.mark.parametrize(("scale", "counts"), [(1.0, True), (0.5, False)])
def test_gates_of_a_rehearsal_do_not_count(scale: float, counts: bool) -> None:
    plan = Plan("raftmq", SCENARIOS["report-002"], (), 60.0, 7, 100, True, scale)
    assert plan.gates_count is counts
    assert plan.command.endswith(f"--scenario report-002 --scale {scale:g}")


def test_every_story_says_what_it_needs() -> None:
    for name, story in STORIES.items():
        assert story.free_gib >= 2
        if name != ONE_BY_ONE:  # which `--beside` chooses, and no scenario
            assert SCENARIOS[name].is_scripted or SCENARIOS[name].nemeses
            assert SCENARIOS[name].subjects == ("raftmq",)
    assert isinstance(Flip(1, FlippedFile.TABLE, Path("x"), 0, 0, 1, -1).is_there, bool)


class StandIn:
    """A scene for a story whose flips are only counted; each takes so many seconds of a clock of its own."""

    def __init__(self, each_s: float) -> None:
        self._each_s = each_s
        self.now_s, self.gates = 0.0, list[tuple[str, float, float]]()
        self.measured: dict[str, Any] = {}
        self.stage = SimpleNamespace(load=SimpleNamespace(factor=1.0, position=1 << 30))
        self.subject, self.rng = SimpleNamespace(node_ids=[1, 2, 3]), random.Random(1)
        self.told = list[str]()

    def flip(self, _: object, victim: int, kind: FlippedFile) -> Flip:
        assert self.stage.load.factor < 1, "the log does not go on growing as fast"
        return Flip(victim, kind, Path("gone"), 0, 0, 1, 0)

    def provoke(self, *_: object) -> str:
        self.now_s += self._each_s
        return story_bitflip.READ

    def count(self, full: int) -> int:
        return full

    def act(self, _: str) -> Any:
        return contextlib.nullcontext([])

    def tell(self, text: str) -> None:
        self.told.append(text)

    def gate(self, name: str, value: float, wanted: float, **_: Any) -> None:
        self.gates.append((name, value, wanted))


@pytest.mark.parametrize(("each_s", "flips"), [(1.0, 50), (60.0, 11)])
def test_flips_that_take_long_end_in_time_and_miss_the_gate(each_s: float, flips: int) -> None:
    scene: Any = StandIn(each_s)
    done = story_bitflip.flip_all(scene, scene.flip, scene.provoke, lambda: scene.now_s)
    story_bitflip.judge(scene, done)
    assert ("flips", flips, 50) in scene.gates
    assert scene.now_s <= story_bitflip.PLAY_S + each_s
    assert len(scene.told) == (flips < 50)
