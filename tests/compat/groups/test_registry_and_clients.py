"""Unmodified clients that know nothing but the addresses of the registry send while its processes are killed one by
one, all at once, and with their directories: no send fails, and each message is stored once."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq.local.registry_processes import PORTS, servers_of
from tests.compat.many_groups import QUEUES, patient
from tests.compat.places import stored_in
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

Start = Callable[..., Any]
SECONDS = 75.0
"""RocketMQ's clients ask for routes every 30 s."""
PACE_MS = 25
COUNT = int(SECONDS * 1000 / PACE_MS)
KINDS = ("java-newest", "java-oldest", "cpp", "go")


@pytest.fixture
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("registry") / "data")
    made.up(1, free_base_port(8 + PORTS), groups=2, registry=True, timeout_s=at_most(60))
    yield made
    made.down()


def lose_registry(live: LocalCluster, until_s: float, chance: random.Random) -> int:
    """Kills processes of the registry in rounds, and starts them again. Returns the number of rounds."""
    rounds = 0
    while time.monotonic() < until_s:
        records = live.registry
        struck = records if rounds % 2 else [chance.choice(records)]
        for record in struck:
            live.kill(record.name)
        if rounds % 4 == 3:
            for record in struck:
                shutil.rmtree(record.home / "data")
        time.sleep(chance.uniform(0, 4))
        for record in struck:
            live.restart(record.name)
        time.sleep(chance.uniform(0, 2))
        rounds += 1
    return rounds


def test_losing_the_registry_costs_no_send(live: LocalCluster, start: Start, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("randomly_seed", None) or time.time_ns() % 1_000_000
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    servers = servers_of(live.registry)
    with raftmq.connect(servers) as mq:
        senders = {}
        for kind in KINDS:
            mq.admin.create_topic(kind, QUEUES)
        for kind in KINDS:
            if kind == "go":
                senders[kind] = start(kind, "send", kind, "go", str(COUNT), str(1000 / PACE_MS), servers=servers)
            else:
                arguments = ("--group", f"{kind}-senders", "--count", str(COUNT), "--pace-ms", str(PACE_MS))
                senders[kind] = start(kind, "produce", kind, *arguments, *patient(kind), servers=servers)
        wait(lambda: all(mq.admin.describe_topic(kind).messages > 0 for kind in KINDS), "each of them sends")
        rounds = lose_registry(live, time.monotonic() + SECONDS - 15, random.Random(seed))
        assert rounds >= 6
        for kind, sender in senders.items():
            (done,) = sender.wait("done", timeout_s=at_most(120))
            failed = done["failed"] if kind == "go" else len([line for line in sender.lines("send") if "error" in line])
            assert failed == 0, sender.story()
            stored = Counter(message.body for message in stored_in(mq, kind))
            assert (len(stored), stored.total()) == (COUNT, COUNT), kind
