"""Backups on the node's side: the worker process and its end, the schedule, the age and its alarms."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from cluster.backup import manifest as manifests
from cluster.backup.create import BackupOrder, MadeBackup
from cluster.backup.remote import STAGING, verify_backup
from cluster.backup.service import CHECKPOINT, Backups, BackupWaits
from cluster.backup.verify import verify
from cluster.backup.worker import WorkerLine
from cluster.config.loading import load
from cluster.runtime.alarms import Alarms
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.identity import Identity
from raftlog.types import NodeId
from raftmq_wire.errors import LocalError
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.wait_until import PATIENCE_S, until


class Clock:
    """Wall time that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return self.ms

    async def seen(self) -> None:
        """Waits until a whole look at the schedule, which asks for the time at most three times, began after now."""
        asked = self.asked
        await until(lambda: self.asked > asked + 6)


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

    def build(kv: MemoryKV | None = None, **keys: Any) -> Node:
        identity = Identity(UUID(int=7), 1, NodeId(1), UUID(int=8), 0)
        nodes.append(Node(tmp_path / "data", kv or MemoryKV(fs=OsFileSystem()), identity, **keys))
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
    await node.close()
    again = Node(stopped.data, kv, identity, **{"backup.to": url})
    again.start()
    await until(lambda: again.last_good_ms == node.last_good_ms)
    await again.close()
    kv.close()


@pytest.mark.parametrize(
    ("script", "words"), [("import sys; sys.exit(9)", "exit code 9"), ('print(\'{"stage": "log"}\')', "exit code 0")]
)
async def test_a_worker_that_ends_without_a_word(
    make: Callable[..., Node], tmp_path: Path, script: str, words: str
) -> None:
    node = make(runs={"worker": [sys.executable, "-c", script]})
    node.begin(str(tmp_path / "to"))
    failed = await node.finished()
    assert words in failed.error[1]
    assert node.raised == ["backup_failed"]


async def test_a_worker_that_says_what_nobody_understands(make: Callable[..., Node], tmp_path: Path) -> None:
    """The attempt ends, because its caller waits for that."""
    node = make(runs={"worker": [sys.executable, "-c", "print('a line of a library')"]})
    node.begin(str(tmp_path / "to"))
    failed = await node.finished()
    assert (failed.state, failed.error[0]) == ("failed", "a defect ended the backup")
    assert "malformed" in failed.error[1]
    assert node.raised == ["backup_failed"]


async def test_a_worker_that_cannot_be_started_is_told(make: Callable[..., Node], tmp_path: Path) -> None:
    node = make(runs={"worker": [str(tmp_path / "none")]})
    node.begin(str(tmp_path / "to"))
    failed = await node.finished()
    assert "could not be started" in failed.error[0]
    assert "No such file or directory" in failed.error[1]
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
    attempt = node.begin(str(tmp_path / "to"))
    while attempt.stage != "log":
        await asyncio.sleep(0.005)
    await node.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert any("is killed" in record.getMessage() for record in caplog.records) == killed
    assert (attempt.state, attempt.error[1]) == ("failed", "the node is stopping")  # type: ignore[index]


async def test_a_checkpoint_that_cannot_be_made_is_told(make: Callable[..., Node], tmp_path: Path) -> None:
    kv = MemoryKV()
    place = str(tmp_path / "data" / "checkpoints" / CHECKPOINT)
    kv.checkpoint(place)
    node = make(kv=kv)
    node.begin("/backups")
    failed = await node.finished()
    assert failed.error == [
        "no checkpoint of the state could be made",
        f"a checkpoint named {place} exists already",
        "the same command with another --node    (and free space on this node's disk)",
    ]


async def test_the_schedule_of_the_configuration(make: Callable[..., Node], backup: Path, tmp_path: Path) -> None:
    """Its worker notes each order, and gives the answer of a file, once there is one."""
    orders, answer = tmp_path / "orders", tmp_path / "answer"
    script = f"head -n 1 >> {orders}; cat {answer} 2> /dev/null; exit 9"
    runs = {"worker": ["sh", "-c", script], "waits": BackupWaits(watch_s=0.001)}
    node = make(runs=runs, **{"backup.to": str(tmp_path / "to"), "backup.every_minutes": 10, "backup.keep": 3})
    start = node.clock.ms

    def begun() -> list[BackupOrder]:
        return [msgspec.json.decode(line, type=BackupOrder) for line in orders.read_bytes().splitlines()]

    async def at(minutes: float) -> None:
        node.clock.ms = start + int(minutes * 60_000)
        await node.clock.seen()
        await node.finished()

    node.start()
    await until(lambda: node.attempt is not None)
    await at(0)
    (first,) = begun()  # none is known, so one is made at once
    assert (first.made_ms, first.to, first.keep) == (start, str(tmp_path / "to"), 3)
    await at(9.9)
    assert len(begun()) == 1
    await at(10)
    assert [each.made_ms for each in begun()] == [start, start + 600_000]
    assert node.raised == ["backup_failed"]
    await at(20.1)
    assert sorted(node.raised) == ["backup_failed", "backup_overdue"]
    made = MadeBackup(path=str(backup), manifest=manifests.load(backup), removed=[])
    answer.write_bytes(msgspec.json.encode(WorkerLine(made=made)) + b"\n")
    await at(30.2)
    assert node.raised == []


async def test_the_newest_backup_of_this_node_is_found_after_a_restart(backup: Path, stopped: Any) -> None:
    """Who finds none makes one at once."""
    mine = identities.decode((stopped.data / "IDENTITY").read_bytes(), stopped.data)
    other = mine._replace(node_id=NodeId(2))
    place = str(backup.parent)
    for identity, to, known_ms in ((mine, place, 1_700_000_000_000), (other, place, None), (mine, "/no/such", None)):
        runs = {"worker": ["false"], "waits": BackupWaits(watch_s=0.001)}
        node = Node(stopped.data, MemoryKV(), identity, runs=runs, **{"backup.to": to})
        node.start()
        await node.clock.seen()
        assert (node.last_good_ms, node.attempt is None) == (known_ms, known_ms is not None)
        await node.close()


class Held(ThreadPoolExecutor):
    """Threads for blocking work, of which the piece with one number waits until it may go on."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.begun = 0
        self.ended = 0
        self.side_by_side = 0
        """The number of pieces that began while another one was under way."""
        self._number = number

    def submit(self, work: Any, /, *args: Any, **more: Any) -> Any:
        self.side_by_side += self.begun > self.ended
        number = self.begun = self.begun + 1
        found = super().submit(self._do, number, work, *args, **more)
        found.add_done_callback(self._done)
        return found

    def _do(self, number: int, work: Any, *args: Any, **more: Any) -> Any:
        if number == self._number:
            self.go_on.wait(PATIENCE_S)
        return work(*args, **more)

    def _done(self, _: object) -> None:
        self.ended += 1


@pytest.fixture
def held() -> Iterator[Callable[[int], Held]]:
    """held(number) -> the threads of the present loop."""
    made: list[Held] = []

    def build(number: int) -> Held:
        made.append(Held(number))
        asyncio.get_running_loop().set_default_executor(made[-1])
        return made[-1]

    yield build
    for each in made:
        each.go_on.set()


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_an_earlier_run_left_is_removed_before_a_backup_is_made(
    make: Callable[..., Node], held: Callable[[int], Held]
) -> None:
    """A backup that is asked for at the node's start would lose its checkpoint."""
    threads, node = held(1), make(runs={"worker": ["false"]})
    node.start()
    attempt = node.begin("/backups")
    await until(lambda: attempt.stage == "checkpoint")
    await some_turns()
    threads.go_on.set()
    await node.finished()
    assert (threads.begun, threads.side_by_side) == (3, 0)


async def test_a_checkpoint_that_is_being_made_is_waited_for_at_the_end(
    make: Callable[..., Node], held: Callable[[int], Held], tmp_path: Path
) -> None:
    """What is made after its removal would be in the way of the next run."""
    threads, node = held(1), make(runs={"worker": ["false"]})
    node.begin("/backups")
    await until(lambda: threads.begun == 1)
    closing = asyncio.create_task(node.close())
    await some_turns()
    threads.go_on.set()
    await closing
    assert (threads.begun, threads.side_by_side) == (2, 0)
    assert not (tmp_path / "data" / "checkpoints" / CHECKPOINT).exists()


async def test_a_backup_that_is_made_while_older_ones_are_looked_for_counts(
    make: Callable[..., Node], held: Callable[[int], Held], backup: Path, tmp_path: Path
) -> None:
    made = MadeBackup(path=str(backup), manifest=manifests.load(backup), removed=[])
    (tmp_path / "answer").write_bytes(msgspec.json.encode(WorkerLine(made=made)) + b"\n")
    threads = held(2)
    node = make(runs={"worker": ["cat", str(tmp_path / "answer")]}, **{"backup.to": str(tmp_path / "none")})
    node.start()
    await until(lambda: threads.begun == 2)
    attempt = node.begin("/backups")
    await node.finished()
    assert (attempt.state, node.last_good_ms) == ("done", attempt.started_ms)
    threads.go_on.set()
    await until(lambda: node.attempt is not attempt)  # the first one of the schedule
    assert node.last_good_ms == attempt.started_ms


async def test_who_asks_every_hour_is_missed_when_nobody_asks(make: Callable[..., Node]) -> None:
    node = make(runs={"worker": ["false"], "waits": BackupWaits(watch_s=0.001)})
    node.start()
    node.begin("/backups", every_s=3600.0)
    await node.finished()
    assert node.raised == ["backup_failed"]
    node.clock.ms += 2 * 3_600_000 + 1
    await until(lambda: "backup_overdue" in node.raised)
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
