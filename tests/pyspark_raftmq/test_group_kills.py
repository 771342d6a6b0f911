"""A query that writes to two groups of brokers, whose driver and whose leaders are killed at any moment between the
staging of a batch and the last of its commits: each row once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError
from raftmq_wire.queue_numbers import number_of
from tests.support import group_sink_job
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.topic_rows import rows_of
from tests.support.wait_until import wait

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(1800)]

QUEUES = [number_of(group, queue) for group in (1, 2) for queue in (0, 1)]
DRIVER, FIRST, SECOND = "the driver", "the first group's leader", "the second group's leader"
THOUGHT_DEAD = "all of the driver but its commit"
WINDOW_S = 3.5 * group_sink_job.PAUSE_S
"""From the beginning of a commit: its steps take two thirds of it on average, and then the other group follows."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("groups") / "data")
    with small_segments():
        made.up(3, free_base_port(32), groups=2, timeout_s=at_most(60))
    yield made
    made.down()


class Driver:
    """The driver of the query: a process group of its own, which is started again wherever it ended."""

    def __init__(self, servers: str, source: str, target: str, folder: Path, seed: int) -> None:
        self._arguments = [servers, source, target, str(folder), str(seed)]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def run(self) -> None:
        """Starts it, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()  # what it left of Java
        self.starts += 1
        command = [sys.executable, "-m", "tests.support.group_sink_job", *self._arguments]
        root = Path(__file__).parents[2]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills all its processes."""
        self._end(whole=True)

    def leave(self) -> None:
        """Kills all but the process that runs the commit, which goes on: whoever starts the query again takes it for
        dead."""
        self._end(whole=False)

    def _end(self, *, whole: bool) -> None:
        if self._process is None:
            return
        workers = []
        with suppress(psutil.NoSuchProcess):
            workers = psutil.Process(self._process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        for worker in workers if whole else []:  # Spark's Python workers have a process group of their own
            with suppress(psutil.NoSuchProcess):
                worker.kill()

    def steps(self) -> list[str]:
        path = self._folder / group_sink_job.STEPS
        return path.read_text().splitlines() if path.exists() else []

    def log(self) -> str:
        return (self._folder / "log").read_text()[-3000:]


@pytest.fixture
def driver(cluster: LocalCluster, tmp_path: Path, seed: int) -> Iterator[Driver]:
    servers = ";".join(f"127.0.0.1:{node.namesrv_port}" for node in cluster.nodes)
    made = Driver(servers, f"from-{seed}", f"to-{seed}", tmp_path, seed)
    yield made
    made.kill()


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("KILLS_SEED", time.time_ns() % 1_000_000))


def victims_of(chance: random.Random, rounds: int) -> list[list[str]]:
    """Who is killed in each round: all in turn, in some rounds with another one."""
    every = [DRIVER, FIRST, SECOND]
    found = [[every[number % 3]] for number in range(rounds)]
    for number, victims in enumerate(found[3:]):
        if number % 3 == 0:
            victims.append(chance.choice([FIRST, SECOND]))
            victims[0] = chance.choice([DRIVER, THOUGHT_DEAD])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, 20])
def test_kills_between_staging_and_the_commits(cluster: LocalCluster, driver: Driver, seed: int, rounds: int) -> None:
    print(f"KILLS_SEED={seed}", flush=True)  # noqa: T201 - shown when it fails
    chance, wanted = random.Random(seed), Counter[str]()
    source, target = f"from-{seed}", f"to-{seed}"
    with raftmq.connect(cluster.servers) as mq:
        for topic in (source, target):
            mq.admin.create_topic(topic, 2)
        for number, victims in enumerate(victims_of(chance, rounds)):
            driver.run()
            for group in (1, 2):
                cluster.wait_ready(at_most(60), group)
            before = len(driver.steps())
            for queue in QUEUES:
                bodies = [f"{number}-{queue}-{row}" for row in range(chance.randrange(1, 30))]
                mq.send_batch(source, [body.encode() for body in bodies], queue_id=queue)
                wanted.update(bodies)
            killed = strike(cluster, driver, victims, chance, before)
            assert copied(mq, target, driver, wanted) == wanted, "a row is there twice"
            for name in killed:
                cluster.restart(name, at_most(60))
        driver.kill()
        wait(lambda: nothing_waits(cluster), "a write stays prepared")
        rows = rows_of(mq, target)
    assert Counter(bytes(row.body).decode() for row in rows) == wanted
    assert all(row.queue_id == int(row.body.split(b"-")[1]) for row in rows)
    print(f"{rounds} rounds, {len(rows)} rows once each, {driver.starts} starts of the driver")  # noqa: T201 - the figures


def strike(
    cluster: LocalCluster, driver: Driver, victims: list[str], chance: random.Random, before: int
) -> list[int | str]:
    """Kills the victims at random moments once a commit begins. Returns the names of the nodes that were killed."""
    killed: list[int | str] = []
    blows: list[tuple[float, str, Callable[[], object]]] = []
    for victim in victims:
        blow: Callable[[], object] = driver.kill
        if victim == THOUGHT_DEAD:
            blow = driver.leave
        elif victim != DRIVER:
            leader = cluster.view(1 if victim == FIRST else 2).leader_name
            assert leader is not None
            killed.append(leader)
            blow = partial(cluster.kill, leader)
        blows.append((chance.uniform(0, WINDOW_S), victim, blow))

    def begins() -> bool:
        driver.run()
        return len(driver.steps()) > before

    wait(begins, driver.log, progress=lambda: driver.starts, patience_s=at_most(120), every_s=0.005)
    begun_s = time.monotonic()
    for at_s, victim, blow in sorted(blows, key=lambda each: each[:2]):
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        print(f"{victim} after {at_s:.3f} s, at {driver.steps()[-1]}", flush=True)  # noqa: T201 - shown when it fails
        blow()
    return killed


def copied(mq: raftmq.Client, target: str, driver: Driver, wanted: Counter[str]) -> Counter[str]:
    """Waits until all wanted rows are there, and starts a driver whose query failed, as whoever watches it does.
    Returns the rows that are there."""
    found = Counter[str]()

    def all_there() -> bool:
        driver.run()
        found.clear()
        found.update(bytes(row.body).decode() for row in rows_of(mq, target))
        return found.keys() >= wanted.keys()

    far = lambda: (len(found), driver.starts, len(driver.steps()))  # noqa: E731
    wait(all_there, driver.log, progress=far, patience_s=at_most(120), every_s=0.3)
    return found


def nothing_waits(cluster: LocalCluster) -> bool:
    """True if no group has a write of both that is not settled."""
    for group in (1, 2):
        try:
            told = AdminApi([address_of(node) for node in cluster.of_group(group)]).get("/v1/writes")
        except LocalError:  # it elects a leader
            return False
        if told["prepared"] or told["decisions"]:
            return False
    return True
