"""Backups on the node's side: the worker process and its end, the schedule, the age and its alarms."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from cluster.backup.create import BackupOrder
from cluster.backup.remote import STAGING, verify_backup
from cluster.backup.service import Backups, BackupWaits
from cluster.backup.verify import verify
from cluster.config.loading import load
from cluster.runtime.alarms import Alarms
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.storage.files import identity as identities
from raftlog.storage.files.identity import Identity
from raftlog.types import NodeId
from raftmq_wire.errors import LocalError
from statemachine.rows.kv import KVError
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.wait_until import PATIENCE_S


class Clock:
    """Wall time that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


class Node(Backups):
    """`Backups` with its clock and alarms at hand."""

    def __init__(self, data: Path, kv: Any, identity: Identity, *, runs: Any = None, **keys: Any) -> None:
        """`runs`: how it runs a backup."""
        self.clock = Clock()
        self.answers: list[bool] | None = None
        """The answers to the questions of the backup, one after the other, and then False; None: always True."""
        self.asked = 0
        self.alarms = Alarms(self.clock)
        config = load(None, {}, {"node.id": 1, "node.data_dir": str(data)} | keys)
        super().__init__(config, identity, kv, self.alarms, self.clock, confirm=self._answer, **runs or {})

    def _answer(self, done: Callable[[bool], None]) -> None:
        self.asked += 1
        done(True if self.answers is None else bool(self.answers) and self.answers.pop(0))

    @property
    def raised(self) -> list[str]:
        return [alarm.key for alarm in self.alarms.all()]

    async def finished(self) -> Any:
        assert self._task is not None
        await asyncio.wait([self._task])
        return self.attempt


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Node]]:
    """make(**config keys) -> Backups of a node without a log: enough as long as no worker is started."""
    nodes: list[Node] = []

    def build(**keys: Any) -> Node:
        identity = Identity(UUID(int=7), 1, NodeId(1), UUID(int=8), 0)
        nodes.append(Node(tmp_path / "data", MemoryKV(), identity, **keys))
        (tmp_path / "data").mkdir(exist_ok=True)
        return nodes[-1]

    yield build
    for node in nodes:
        await node.close()


async def test_a_backup_by_the_worker(stopped: Any, tmp_path: Path) -> None:
    kv = RocksKV(str(stopped.data / "state"))
    identity = identities.decode((stopped.data / "IDENTITY").read_bytes(), stopped.data)
    node = Node(stopped.data, kv, identity)
    node.begin(str(tmp_path / "missing" / "to"))
    failed = await node.finished()
    assert (failed.state, failed.error[0]) == ("failed", f"{tmp_path}/missing/to cannot be a backup target")
    assert (node.raised, node.age_s) == (["backup_failed"], None)
    began = node.begin(str(tmp_path / "to"))
    with pytest.raises(LocalError, match=r"(?s)a backup is being made.*wait for it"):
        node.begin(str(tmp_path / "to"))
    done = await node.finished()
    assert (done is began, done.state, done.error, done.index) == (True, "done", None, stopped.expected["last_index"])
    assert verify(Path(done.path)).problems == []
    assert not (stopped.data / "checkpoints" / "backup.tmp").exists()
    node.clock.ms += 90_000
    assert (node.age_s, node.raised) == (89.999, [])
    await node.close()
    kv.close()


@pytest.mark.parametrize(("answers", "confirmed"), [([False, True], True), ([], False)])
async def test_a_backup_waits_for_what_was_acknowledged_before(
    stopped: Any, tmp_path: Path, answers: list[bool], confirmed: bool
) -> None:
    """`raftmq backup create` asks a follower: right after a send, that message was not in it."""
    kv = RocksKV(str(stopped.data / "state"))
    identity = identities.decode((stopped.data / "IDENTITY").read_bytes(), stopped.data)
    node = Node(stopped.data, kv, identity, runs={"waits": BackupWaits(confirm_s=0.3)})
    node.answers = list(answers)
    node.begin(str(tmp_path / "to"))
    done = await node.finished()
    assert (done.state, done.confirmed) == ("done", confirmed)
    assert node.asked == 2 if confirmed else node.asked >= 2
    await node.close()
    kv.close()


@pytest.mark.ci
async def test_a_backup_to_a_store_by_the_worker(stopped: Any, tmp_path: Path) -> None:
    kv = RocksKV(str(stopped.data / "state"))
    identity = identities.decode((stopped.data / "IDENTITY").read_bytes(), stopped.data)
    url = (tmp_path / "store").as_uri()
    node = Node(stopped.data, kv, identity, **{"backup.to": url})
    node.start()
    while node.attempt is None:
        await asyncio.sleep(0.005)
    done = await node.finished()
    assert (done.state, done.error, done.index) == ("done", None, stopped.expected["last_index"])
    assert done.path.startswith(f"{url}/")
    assert (await asyncio.to_thread(verify_backup, done.path, tmp_path / "scratch")).problems == []
    assert not (stopped.data / "checkpoints" / STAGING).exists()
    assert await node._newest(url) == node.last_good_ms
    await node.close()
    kv.close()


@pytest.mark.parametrize(
    ("script", "words"), [("import sys; sys.exit(9)", "exit code 9"), ('print(\'{"stage": "log"}\')', "exit code 0")]
)
async def test_a_worker_that_ends_without_a_word(
    make: Callable[..., Node], tmp_path: Path, script: str, words: str
) -> None:
    node = make(runs={"worker": [sys.executable, "-c", script]})
    node._make_checkpoint = lambda: None  # type: ignore[method-assign]
    node.begin(str(tmp_path / "to"))
    failed = await node.finished()
    assert words in failed.error[1]
    assert node.raised == ["backup_failed"]


async def test_a_worker_that_cannot_be_started_is_told(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: Any
) -> None:
    node = make()

    async def none(*command: str, **options: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", none)
    node._make_checkpoint = lambda: None  # type: ignore[method-assign]
    node.begin(str(tmp_path / "to"))
    failed = await node.finished()
    assert "Resource temporarily unavailable" in failed.error[1]
    assert node.raised == ["backup_failed"]


PAUSED = 'print(\'{"stage": "log"}\', flush=True); signal.pause()'
DEAF = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {PAUSED}"


@pytest.mark.parametrize(("script", "killed"), [(PAUSED, False), (DEAF, True)])
async def test_a_node_that_stops_ends_its_worker(
    make: Callable[..., Node], tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str, killed: bool
) -> None:
    """One that does not end in time is killed, and waited for: nothing of it is left."""
    pid = tmp_path / "pid"
    notes = f"import os, signal; open({str(pid)!r}, 'w').write(str(os.getpid()))"
    waits = BackupWaits(worker_end_s=0.1 if killed else PATIENCE_S, killed_s=PATIENCE_S)
    node = make(runs={"worker": [sys.executable, "-c", f"{notes}; {script}"], "waits": waits})
    node._make_checkpoint = lambda: None  # type: ignore[method-assign]
    attempt = node.begin(str(tmp_path / "to"))
    while attempt.stage != "log":
        await asyncio.sleep(0.005)
    await node.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert any("is killed" in record.getMessage() for record in caplog.records) == killed
    assert (attempt.state, attempt.error[1]) == ("failed", "the node is stopping")  # type: ignore[index]


async def test_a_checkpoint_that_cannot_be_made_is_told(make: Callable[..., Node], monkeypatch: Any) -> None:
    node = make()

    def fails(path: str) -> None:
        raise KVError("the disk is full")

    monkeypatch.setattr(node._kv, "checkpoint", fails)
    node.begin("/backups")
    failed = await node.finished()
    assert failed.error == [
        "no checkpoint of the state could be made",
        "the disk is full",
        "the same command with another --node    (and free space on this node's disk)",
    ]


async def test_the_schedule_of_the_configuration(make: Callable[..., Node], monkeypatch: Any, tmp_path: Path) -> None:
    node = make(**{"backup.to": str(tmp_path / "to"), "backup.every_minutes": 10, "backup.keep": 3})
    begun: list[tuple[int, str, Any]] = []
    ticks: asyncio.Queue[None] = asyncio.Queue()
    idle = asyncio.Event()

    async def tick() -> None:
        idle.set()
        await ticks.get()

    monkeypatch.setattr(node, "begin", lambda to, keep: begun.append((node.clock.ms, to, keep)))
    monkeypatch.setattr(node, "_pause", tick)
    start = node.clock.ms
    node.start()

    async def at(minutes: float) -> None:
        await idle.wait()
        idle.clear()
        node.clock.ms = start + int(minutes * 60_000)
        ticks.put_nowait(None)
        await idle.wait()

    await idle.wait()
    assert begun == [(start, str(tmp_path / "to"), 3)]  # none is known, so one is made at once
    await at(9.9)
    assert len(begun) == 1
    await at(10)
    assert [each[0] for each in begun] == [start, start + 600_000]
    assert node.raised == []
    await at(20.1)
    assert node.raised == ["backup_overdue"]
    node.last_good_ms = node.clock.ms
    node._watch()
    assert node.raised == []


async def test_the_newest_backup_of_this_node_is_found_after_a_restart(
    make: Callable[..., Node], backup: Path, stopped: Any, monkeypatch: Any
) -> None:
    identity = identities.decode((stopped.data / "IDENTITY").read_bytes(), stopped.data)
    node = Node(stopped.data, MemoryKV(), identity, **{"backup.to": str(backup.parent)})
    assert node._newest_in(str(backup.parent)) == 1_700_000_000_000
    other = Node(stopped.data, MemoryKV(), identity._replace(node_id=NodeId(2)), **{"backup.to": str(backup.parent)})
    assert other._newest_in(str(backup.parent)) is None
    assert node._newest_in("/no/such/place") is None


async def test_who_asks_every_hour_is_missed_when_nobody_asks(make: Callable[..., Node]) -> None:
    node = make()
    node._make_checkpoint = lambda: (_ for _ in ()).throw(LocalError("x", "y", "z"))  # type: ignore[method-assign]
    node._watch()
    node.begin("/backups", every_s=3600.0)
    await node.finished()
    assert node.raised == ["backup_failed"]
    node.clock.ms += 2 * 3_600_000 + 1
    node._watch()
    assert sorted(node.raised) == ["backup_failed", "backup_overdue"]
    node.begin("/backups")
    await node.finished()
    assert node.raised == ["backup_failed"]


def test_a_relative_target_is_refused_by_the_configuration() -> None:
    from cluster.config.source import ConfigError

    with pytest.raises(ConfigError, match=r"(?s)backup.to backups is not an absolute path.*/var/backups/backups"):
        load(None, {}, {"node.id": 1, "node.data_dir": "/d", "backup.to": "backups"})


def test_a_worker_whose_node_died_removes_what_it_began(tmp_path: Path) -> None:
    script = (
        "import sys, time; import cluster.backup.worker as worker\n"
        "def create(request, on_stage):\n"
        "    try:\n"
        "        on_stage('log')\n"
        "        while True:\n"
        "            time.sleep(0.01)\n"
        "    finally:\n"
        "        print('removed', flush=True)\n"
        "worker.create = create\n"
        "sys.exit(worker.main())\n"
    )
    request = BackupOrder(data="/d", checkpoint="/c", to="/t", made_ms=0, cluster_name="c", broker_name="b")
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(msgspec.json.encode(request) + b"\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == b'{"stage":"log"}\n'
        worker.stdin.close()  # what the end of the node's process does
        assert worker.stdout.read() == b"removed\n"
    assert worker.returncode == 128 + signal.SIGTERM


def test_a_worker_that_fails_says_so_and_ends_in_peace() -> None:
    """Its node still holds the other end of its stdin, at which a thread waits."""
    script = (
        "import sys, time; import cluster.backup.worker as worker\n"
        "from raftmq_wire.errors import LocalError\n"
        "def create(request, on_stage):\n"
        "    time.sleep(0.2)\n"
        "    raise LocalError('no', 'because', 'nothing')\n"
        "worker.create = create\n"
        "sys.exit(worker.main())\n"
    )
    request = BackupOrder(data="/d", checkpoint="/c", to="/t", made_ms=0, cluster_name="c", broker_name="b")
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdin.write(msgspec.json.encode(request) + b"\n")
        worker.stdin.flush()
        assert b"because" in worker.stdout.read()
        assert worker.stderr.read() == b""
        assert worker.wait() == 1
