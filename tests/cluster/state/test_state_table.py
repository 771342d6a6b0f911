"""One test per row of the table in cluster/state/opening_cases.py: what the start finds, does, moves, and says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from cluster.state import suspect_state
from cluster.state.checkpoints import Checkpoint, Checkpoints
from cluster.state.opening_cases import OpeningAction, OpeningFacts, StateCase, classify
from cluster.state.state_opening import StateLostError
from raftlog.errors import CorruptLogError
from raftlog.storage.files import vote_withheld
from raftlog.storage.files.run_file import RunFile
from statemachine.broker_state import AppliedMark
from statemachine.rows.digest import digest
from statemachine.rows.kv import KVCorruptError, KVError
from tests.support.rows import each_row

Place = Any
Replay = Callable[..., None]


def mark(index: int) -> AppliedMark:
    return AppliedMark(1, index, index * 100, 0, 7)


@each_row(
    ("facts", "found"),
    [
        (OpeningFacts(0, 9, mark=mark(10)), StateCase.NEWER),
        (OpeningFacts(0, 9, mark=mark(10), synced=10, suspect=True), StateCase.NEWER),
        (OpeningFacts(0, 0, mark=mark(3)), StateCase.LOG_EMPTY),
        (OpeningFacts(0, 9, synced=12, mark=mark(9)), StateCase.FITS),
        (OpeningFacts(0, 9, synced=12, mark=mark(7)), StateCase.LOST_ROWS),
        (OpeningFacts(0, 9, synced=5, mark=mark(9), suspect=True), StateCase.SUSPECT),
        (OpeningFacts(0, 9, synced=5, damaged=True, suspect=True, wrong_rows=True), StateCase.WRONG_ROWS),
        (OpeningFacts(0, 9, mark=mark(10), suspect=True, wrong_rows=True), StateCase.NEWER),
        (OpeningFacts(0, 9, synced=5, damaged=True), StateCase.CORRUPT),
        (OpeningFacts(0, 9, exists=False), StateCase.MISSING),
        (OpeningFacts(0, 0, exists=False, synced=0), StateCase.NEW),
        (OpeningFacts(0, 0, exists=False), StateCase.NEW),
        (OpeningFacts(50, 90, mark=mark(48)), StateCase.OLDER_THAN_LOG),
        (OpeningFacts(50, 90, mark=mark(48), installed=True), StateCase.INSTALLED),
        (OpeningFacts(50, 90, mark=mark(49), installed=True), StateCase.BEHIND),
        (OpeningFacts(50, 90, mark=mark(49)), StateCase.BEHIND),
        (OpeningFacts(0, 9, mark=mark(5), of_this_log=False), StateCase.OTHER_LOG),
        (OpeningFacts(0, 9, mark=mark(5), synced=6, of_this_log=True), StateCase.LOST_ROWS),
        (OpeningFacts(0, 9, mark=mark(5), synced=5, of_this_log=True), StateCase.BEHIND),
        (OpeningFacts(0, 9), StateCase.BEHIND),
        (OpeningFacts(0, 9, mark=mark(9), synced=9, of_this_log=True), StateCase.FITS),
    ],
)
def test_every_row_is_told_apart(facts: OpeningFacts, found: StateCase) -> None:
    assert classify(facts) is found


def test_the_rows_say_what_is_done_and_why() -> None:
    assert {found.done for found in StateCase} == set(OpeningAction)
    assert all(found.what and found.why for found in StateCase)


def test_the_page_shows_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "disk-format.md").read_text()
    section = page.split("### State\n")[1].split("### ")[0]
    shown = [tuple(row.strip("| ").split(" | ")) for row in section.splitlines() if row.startswith("|")][2:]
    assert shown == [
        (found.name.lower().replace("_", " "), found.what, found.done.value, found.why) for found in StateCase
    ]


def test_new(place: Place) -> None:
    storage = place.open()
    assert storage.recovery.status(storage.checkpointer.run).state_found == "new"
    assert storage.state.applied.index == -1
    storage.close(clean=True)


def test_fits(place: Place) -> None:
    place.run(20)
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert (status.state_found, status.replaying, status.clean) == ("fits", False, True)
    assert status.previous.ended == "orderly"
    assert status.bytes_scanned == 0
    storage.close(clean=False)


def test_behind(place: Place, replay_all: Replay) -> None:
    place.run(20, apply=12, clean=False)
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert (status.state_found, status.replaying, status.replay_target) == ("behind", True, 20)
    assert status.entries_replayed == 0
    replay_all(storage, 17)
    assert storage.recovery.status(storage.checkpointer.run).entries_replayed == 16 - storage.recovery._from
    assert storage.recovery.status(storage.checkpointer.run).replaying
    replay_all(storage)
    status = storage.recovery.status(storage.checkpointer.run)
    assert not status.replaying
    assert "replay" in status.stages_ms
    assert digest(storage.kv) == place.expected(20)
    storage.close(clean=False)


def test_lost_rows_without_a_newer_checkpoint_are_replayed(place: Place, replay_all: Replay, alarms: Any) -> None:
    place.run(10, clean=False)
    before = place.path.with_name("before")
    shutil.copytree(place.path / "state", before)
    place.run(10, clean=False)
    shutil.rmtree(place.path / "state")
    before.rename(place.path / "state")
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert status.state_found == "lost_rows"
    assert status.state_source == "own"
    assert any("drops only a suffix" in reason for reason in status.reasons)
    assert [alarm.key for alarm in alarms.all()] == ["state_lost_rows"]
    assert place.trash() == []
    replay_all(storage)
    assert digest(storage.kv) == place.expected(20)
    storage.close(clean=False)


def test_lost_rows_below_a_checkpoint_are_restored_from_it(place: Place, replay_all: Replay) -> None:
    place.run(10, clean=False)
    shutil.copytree(place.path / "state", place.path.with_name("before"))
    place.run(10, clean=False, checkpoint=True)
    shutil.rmtree(place.path / "state")
    place.path.with_name("before").rename(place.path / "state")
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert (status.state_found, status.state_source, status.replaying) == ("lost_rows", "checkpoint", False)
    assert digest(storage.kv) == place.expected(20)
    storage.close(clean=False)


@pytest.mark.parametrize("damage", ["table", "manifest", "current", "missing", "suspect"])
def test_damage_is_replaced_from_a_checkpoint(place: Place, replay_all: Replay, damage: str) -> None:
    place.run(20, checkpoint=True)
    place.run(5, clean=False)
    state = place.path / "state"
    if damage == "table":
        place.flip("state/*.sst", 0.99)
    elif damage == "manifest":
        place.flip("state/MANIFEST-*", 20)
    elif damage == "current":
        (state / "CURRENT").unlink()
    elif damage == "missing":
        shutil.rmtree(state)
    else:
        suspect_state.mark_suspect(place.fs, place.path, "a block failed its checksum", 5)
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    found = {"suspect": "suspect", "current": "missing", "missing": "missing"}.get(damage, "corrupt")
    assert (status.state_found, status.state_source) == (found, "checkpoint")
    assert status.state_checkpoint.startswith(f"{20:020d}-1-")
    assert status.replay_index == 20
    assert len(status.alarms) == 1
    if damage != "missing":
        ((name, report),) = place.trash()
        assert name == "000001-state"
        assert status.state_set_aside == "trash/000001-state"
        assert report["why"]
    replay_all(storage)
    assert digest(storage.kv) == place.expected(25)
    storage.close(clean=True)
    again = place.open()
    assert again.recovery.status(again.checkpointer.run).state_found == "fits"
    again.close(clean=True)


def test_the_older_checkpoint_counts_where_the_newer_is_rotten(place: Place, replay_all: Replay) -> None:
    place.run(10, checkpoint=True)
    place.run(10, checkpoint=True)
    newest, older = place.checkpoints().names()
    place.flip(f"checkpoints/{newest}/*.sst", 0.3)
    (place.path / "state" / "CURRENT").unlink()
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert status.state_checkpoint == older
    assert any(newest in reason and "is damaged" in reason for reason in status.reasons)
    replay_all(storage)
    assert digest(storage.kv) == place.expected(20)
    storage.close(clean=True)


class WrongRows:
    """A node whose rows others contradicted: they are known to have agreed at entry 20, its checkpoints are at 15, 30
    and, of a peer, at 40."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.run(15, checkpoint=True)
        place.run(15, checkpoint=True)
        place.run(10, checkpoint=False, clean=False)
        self.newer, self.older = place.checkpoints().names()
        suspect_state.mark_suspect(place.fs, place.path, "its rows (cq) differ at index 30", 5, 20)

    def peer(self, tmp_path: Path) -> str:
        """Adopts a checkpoint of a peer as a fetch leaves it; returns its name."""
        other = copy(self.place)
        other.path = tmp_path / "other"
        shutil.copytree(self.place.path, other.path)
        (other.path / "STATE_SUSPECT").unlink()
        other.run(0, checkpoint=True)
        made = other.checkpoints().all()[0]
        fetched = self.place.path / "checkpoints" / "fetched.tmp"
        shutil.copytree(made.path, fetched, ignore=shutil.ignore_patterns("CHECKPOINT"))
        manifest = made.manifest._replace(peer=3, note="fetched from node 3")
        name: str = self.place.checkpoints().adopt(fetched, manifest).path.name
        return name


def test_wrong_rows_are_replaced_by_a_peers(place: Place, tmp_path: Path, replay_all: Replay) -> None:
    wrong = WrongRows(place)
    with pytest.raises(StateLostError, match=f"(?s){wrong.newer} may hold.*{wrong.older} is not used before the peers"):
        place.open()
    assert place.trash() == []
    name = wrong.peer(tmp_path)
    suspect_state.peers_were_asked(place.fs, place.path, name, "")
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert (status.state_found, status.state_source, status.state_checkpoint) == ("wrong_rows", "peer", name)
    assert "fetched from node 3" in status.reasons
    assert [alarm for alarm in status.alarms if "its rows (cq) differ at index 30" in alarm]
    assert [moved for moved, _ in place.trash()] == ["000001-state", f"000002-{wrong.newer}"]
    assert place.checkpoints().names() == [name, wrong.older]
    assert suspect_state.why_suspect(place.fs, place.path) is None
    replay_all(storage)
    assert digest(storage.kv) == place.expected(40)
    storage.close(clean=True)


def test_wrong_rows_are_replaced_by_own_ones_that_others_had_if_no_peer_gives_any(
    place: Place, replay_all: Replay
) -> None:
    wrong = WrongRows(place)
    suspect_state.peers_were_asked(place.fs, place.path, "", "node 2 does not give state: no answer")
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert (status.state_source, status.state_checkpoint) == ("checkpoint", wrong.older)
    assert any("(node 2 does not give state: no answer)" in reason for reason in status.reasons)
    assert place.checkpoints().names() == [wrong.older]
    replay_all(storage)
    assert digest(storage.kv) == place.expected(40)
    storage.close(clean=False)


def test_wrong_rows_that_nobody_agreed_with_are_never_used(place: Place) -> None:
    place.run(15, checkpoint=True)
    suspect_state.mark_suspect(place.fs, place.path, "its rows (cq) differ at index 9", 5, -1)
    suspect_state.peers_were_asked(place.fs, place.path, "", "node 2 does not give state: no answer")
    with pytest.raises(StateLostError, match=r"(?s)may hold the same.*The peers were asked: node 2 .*rebuild"):
        place.open()
    assert place.trash() == []
    assert len(place.checkpoints().names()) == 1


def test_without_a_sound_checkpoint_nothing_is_moved(place: Place) -> None:
    place.run(20, checkpoint=True)
    for name in place.checkpoints().names():
        place.flip(f"checkpoints/{name}/CHECKPOINT", 20)
    (place.path / "state" / "CURRENT").unlink()
    with pytest.raises(StateLostError, match=r"(?s)no sound manifest.*raftmq rebuild .* --plan"):
        place.open()
    assert place.trash() == []
    with pytest.raises(StateLostError):
        place.open()


def test_a_checkpoint_that_does_not_open_is_told_with_the_place_of_the_former_state(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(20, checkpoint=True)
    (place.path / "state" / "CURRENT").write_text("damaged")
    install = Checkpoints.install

    def damaged(checkpoints: Checkpoints, checkpoint: Checkpoint, target: Path) -> None:
        install(checkpoints, checkpoint, target)
        (target / "CURRENT").unlink()
        (target / "CURRENT").write_text("damaged too")

    monkeypatch.setattr(Checkpoints, "install", damaged)
    told = r"(?s)did not open as it was made.*The state was moved to trash/000001-state"
    with pytest.raises(StateLostError, match=told):
        place.open()
    assert "000001-state" in [moved for moved, _ in place.trash()]


def test_a_state_that_is_newer_than_the_log_is_refused(place: Place) -> None:
    place.run(10)
    shutil.copytree(place.path / "log", place.path.with_name("log10"))
    place.run(10)
    shutil.rmtree(place.path / "log")
    place.path.with_name("log10").rename(place.path / "log")
    with pytest.raises(CorruptLogError, match=r"(?s)above the end of the log \(applied 20, log 0..10\).*rebuild"):
        place.open()
    assert place.trash() == []


def test_rows_without_a_log_are_refused(place: Place, tmp_path: Any, new_place: Any) -> None:
    empty = new_place(tmp_path / "empty")
    place.run(10)
    shutil.rmtree(place.path / "log")
    shutil.copytree(empty.path / "log", place.path / "log")
    with pytest.raises(CorruptLogError, match=r"(?s)only GENESIS.*only trace.*rebuild"):
        place.open()
    assert (place.path / "state" / "CURRENT").exists()


def test_a_log_that_lost_what_was_applied_withholds_the_vote(place: Place, alarms: Any) -> None:
    place.run(10, clean=False)
    run_file = RunFile(place.fs, place.path, group_id=1)
    assert run_file.previous is not None
    run_file.write(run_file.previous._replace(synced_index=15))
    run_file.close()
    storage = place.open()
    withheld = vote_withheld.load(place.fs, place.path, 1)
    assert withheld is not None
    assert withheld.index == 15
    assert storage.recovery.status(storage.checkpointer.run).state_found == "fits"
    assert storage.checkpointer.run.synced_index == 10
    storage.close(clean=False)


def test_a_state_of_another_log_is_refused(place: Place, tmp_path: Any, new_place: Any) -> None:
    other = new_place(tmp_path / "other")
    other.run(10, apply=4, clean=False)
    place.run(10, clean=False)
    storage = place.open()
    place_mark = storage.state.applied_mark
    storage.close(clean=False)
    from statemachine.rows import meta_keys
    from statemachine.rows.kv import META, Batch
    from statemachine.rows.rocksdb_store import RocksKV

    kv = RocksKV(str(place.path / "state"))
    batch = Batch()
    batch.put(META, meta_keys.APPLIED_KEY, meta_keys.APPLIED.pack(*place_mark._replace(header_crc=1)))
    kv.write(batch)
    kv.close()
    with pytest.raises(CorruptLogError, match="at that index"):
        place.open()


def test_a_state_in_use_or_of_a_newer_version_is_no_damage(place: Place) -> None:
    place.run(10, checkpoint=True)
    from statemachine.rows.rocksdb_store import RocksKV

    kv = RocksKV(str(place.path / "state"))
    with pytest.raises(KVError, match="stop that one"):
        place.open()
    kv.close()
    assert place.trash() == []


def test_damage_met_while_running_stops_the_node_and_the_next_start_replaces_the_state(
    place: Place, replay_all: Replay, alarms: Any
) -> None:
    place.run(20, checkpoint=True)
    place.flip("state/*.sst", 0.2)
    storage = place.open()
    told: list[KVCorruptError] = []
    storage.corrupted.add(told.append)
    assert storage.recovery.status(storage.checkpointer.run).state_found == "fits", "a start reads no consume queue"
    with pytest.raises(KVCorruptError):
        digest(storage.kv)
    assert len(told) == 1
    assert "checksum" in str(suspect_state.why_suspect(place.fs, place.path))
    storage.close(clean=False)
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert (status.state_found, status.state_source) == ("suspect", "checkpoint")
    assert suspect_state.why_suspect(place.fs, place.path) is None
    assert digest(storage.kv) == place.expected(20)
    storage.close(clean=True)
