"""Scrubs: the helper finds what rots, in log and rows; the node has damage looked at again and tells how it went."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cluster.config.storage_sections import ConsistencySection
from cluster.runtime.host import helper_process
from cluster.state import scrub_worker
from cluster.state.checkpoints import Checkpoints
from cluster.state.scrub import FIRST_AFTER_MS, Scrubber
from cluster.state.suspect_state import give_up
from raftlog.frame import make_entry
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.node_dir import create_node_dir, open_node_dir
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import EntryType, HardState, NodeId
from statemachine.broker_state import BrokerState
from statemachine.commands import pack
from statemachine.rows import keys
from statemachine.rows.kv import TOPICS, Batch
from statemachine.rows.rocksdb_store import RocksKV
from statemachine.topics.topics import CreateTopic
from tests.support.samples import sample
from tests.support.wait_until import PATIENCE_S, until

GROUP = 1
HOUR_MS = 3_600_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A stopped node's directory: a log of ten entries, and a checkpoint of a state that has applied them."""
    fs, directory = OsFileSystem(), tmp_path / "data"
    voter = Voter(NodeId(1), UUID(int=11))
    genesis = Genesis(UUID(int=1), GROUP, 1 << 20, 1_700_000_000_000, (voter,))
    create_node_dir(fs, directory, Identity(UUID(int=1), GROUP, NodeId(1), UUID(int=11), 0), genesis)
    node = open_node_dir(fs, directory)
    node.hard_state_store.save(HardState(1, NodeId(1), 0))
    for number in range(10):
        command = pack([CreateTopic({"name": f"t{number}"}, False)])
        entry = make_entry(
            node.log.tail,
            term=1,
            entry_type=EntryType.COMMAND,
            payload=command,
            timestamp_ms=0,
            group_id=GROUP,
            segment_size=1 << 20,
        )
        node.log.append([entry])
    kv = RocksKV(str(directory / "state"))
    BrokerState(kv).apply(node.log.read_entries(0, 11, 1 << 20))
    Checkpoints(fs, directory, GROUP).make(kv, {}, 0)
    kv.close()
    node.close(clean=True)
    return directory


def run_worker(data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    assert scrub_worker.main([str(data), "1000000000"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_sound_directory(data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (done,) = run_worker(data, capsys, monkeypatch)
    assert done["kind"] == "done"
    assert done["log_bytes"] > 0
    assert done["row_bytes"] > 0


def test_a_rotten_frame_is_named_by_its_place(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = open_node_dir(OsFileSystem(), data)
    position = node.log.position_of(5)
    node.close(clean=True)
    with (data / "log" / f"{0:020d}.seg").open("r+b") as file:
        file.seek(LOCAL_HEADER_SIZE + position + 70)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    found, _ = run_worker(data, capsys, monkeypatch)
    assert (found["kind"], found["base"], found["offset"]) == ("log", 0, LOCAL_HEADER_SIZE + position)


def test_a_checkpoint_that_is_removed_meanwhile_is_no_finding(data: Path) -> None:
    """A node that were told of damage would discard its state."""
    checkpoints = Checkpoints(OsFileSystem(), data, GROUP)
    (listed,) = checkpoints.all()
    assert scrub_worker.scrub_rows(data, listed) is None
    (damaged,) = listed.path.glob("MANIFEST-*")
    damaged.unlink()
    found = scrub_worker.scrub_rows(data, listed)
    assert found is not None
    assert found["checkpoint"] == listed.path.name
    listed.path.rename(data / "removed")
    assert scrub_worker.scrub_rows(data, listed) is None


def test_rows_that_a_store_lost_are_found(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = OsFileSystem()
    kv = RocksKV(str(data / "state"))
    batch = Batch()
    batch.delete(TOPICS, keys.U32.pack(3))
    kv.write(batch)
    checkpoints = Checkpoints(fs, data, GROUP)
    made = checkpoints.make(kv, {}, 0)
    kv.close()
    found, done = run_worker(data, capsys, monkeypatch)
    assert (found["kind"], found["checkpoint"]) == ("rows", made.path.name)
    assert "rows of topics" in found["text"]
    assert done["kind"] == "done"

    class Checkpointer:
        frozen = False

        def freeze(self) -> None:
            self.frozen = True

    checkpointer: Any = Checkpointer()
    checkpointer.checkpoints = checkpoints
    assert give_up(fs, data, checkpointer, "why", made.manifest.mark.index, 7) == []
    assert give_up(fs, data, checkpointer, "why", -1, 7) == [made.path.name]
    assert checkpointer.frozen
    assert checkpoints.names() == []
    assert json.loads((data / "STATE_SUSPECT").read_text())["why"] == "why"
    assert any(made.path.name in path.name for path in (data / "trash").iterdir())


class Watched:
    """A scrubber whose helper prints what the test says."""

    def __init__(
        self, program: str, data: Path = Path("/data"), helper: tuple[str, ...] | None = None, **config: int
    ) -> None:
        self.reported: list[tuple[int, int]] = []
        self.bad_rows: list[tuple[str, str]] = []
        self.scrubber = Scrubber(
            1,
            data,
            config=ConsistencySection(**config),
            wall_ms=lambda: 5,
            report=lambda position, size: self.reported.append((position, size)),
            on_bad_rows=lambda name, text: self.bad_rows.append((name, text)),
            helper=helper or (sys.executable, "-c", program),
        )

    @property
    def ended(self) -> bool:
        """True once a scrub has ended, as the metrics show it."""
        return bool(sample(self.scrubber.part().metrics, "raftmq_scrub_seconds"))


async def test_findings_are_told_and_looked_at_again() -> None:
    lines = [
        {"kind": "log", "base": 4096, "offset": LOCAL_HEADER_SIZE + 100, "size": 7, "text": "a frame"},
        {"kind": "log", "base": 0, "offset": 0, "size": 0, "text": "a header"},
        {"kind": "rows", "checkpoint": "c", "text": "rows"},
        {"kind": "done", "log_bytes": 8, "row_bytes": 9},
    ]
    watched = Watched(f"for line in {[json.dumps(line) for line in lines]!r}: print(line)")
    assert watched.scrubber.start()
    assert not watched.scrubber.start(), "one at a time"
    await until(lambda: watched.ended)
    assert watched.reported == [(4196, 7), (0, 0)]
    assert watched.bad_rows == [("c", "rows")]
    view = watched.scrubber.view
    assert (view.running, view.log_bytes, view.row_bytes) == (False, 8, 9)
    assert view.findings == ["a frame", "a header", "rows"]
    assert view.failure == ""


async def test_a_helper_that_fails_is_told() -> None:
    watched = Watched("raise SystemExit('the disk is gone')")
    watched.scrubber.start()
    await until(lambda: watched.ended)
    assert watched.scrubber.view.failure == "the disk is gone"


async def test_a_helper_that_says_what_nobody_understands_is_told() -> None:
    """The scrub ends, because its caller waits for that."""
    watched = Watched("print('a line of a library')")
    watched.scrubber.start()
    assert watched.scrubber._task is not None
    await asyncio.wait([watched.scrubber._task])
    view = watched.scrubber.view
    assert (view.running, view.finished_ms) == (False, 5)
    assert view.failure.startswith("a defect ended it: JSONDecodeError")


async def test_a_helper_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    watched = Watched("", helper=(str(tmp_path / "no such program"),))
    watched.scrubber.start()
    await until(lambda: bool(watched.scrubber.view.failure))
    view = watched.scrubber.view
    assert (view.running, view.finished_ms) == (False, 5)
    assert "No such file" in view.failure


def test_a_scrub_goes_last() -> None:
    helper = inspect.signature(Scrubber).parameters["helper"].default
    assert helper == helper_process.background("cluster.state.scrub_worker")


async def test_closing_ends_the_helper() -> None:
    watched = Watched('import time; print(\'{"kind": "other", "text": "x"}\', flush=True); time.sleep(600)')
    watched.scrubber.start()
    await until(lambda: watched.scrubber.view.findings)
    await watched.scrubber.close()
    assert not watched.ended


async def test_a_directory_with_a_cluster_py_of_its_own_does_not_run_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's working directory is that of the user who typed `raftmq up`."""
    (tmp_path / "cluster.py").write_text("raise SystemExit('somebody else's')")
    monkeypatch.chdir(tmp_path)
    # At normal priority, which `background` lowers: beside a busy machine it would need minutes.
    watched = Watched("", data=data, helper=helper_process.command("cluster.state.scrub_worker"))
    watched.scrubber.start()
    await until(lambda: watched.ended)
    assert watched.scrubber.view.failure == ""
    assert watched.scrubber.view.log_bytes > 0


def test_a_helper_whose_node_was_killed_ends(data: Path) -> None:
    """The helper would read for hours at that rate."""
    slowly = helper_process.command("cluster.state.scrub_worker", str(data), "1")
    with subprocess.Popen(slowly, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as helper:
        assert helper.stdin is not None
        helper.stdin.close()  # what the end of the node's process does
        try:
            assert helper.wait(PATIENCE_S) == -signal.SIGTERM
        finally:
            helper.kill()


async def test_when_scrubs_run() -> None:
    for clean, first_ms in ((True, 2 * HOUR_MS), (False, FIRST_AFTER_MS)):
        watched = Watched("", scrub_every_hours=2)
        watched.scrubber.plan(0, clean=clean)
        watched.scrubber.tick(first_ms - 1)
        assert watched.scrubber.view.started_ms == 0
        watched.scrubber.tick(first_ms)
        assert watched.scrubber.view.started_ms == 5
        await watched.scrubber.close()
    never = Watched("", scrub_every_hours=0)
    never.scrubber.plan(0, clean=False)
    never.scrubber.tick(1 << 50)
    assert not never.scrubber.view.running
