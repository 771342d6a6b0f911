"""Keys stay where they are: when a second group of brokers comes, and while leaders die."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raftmq
from cluster.config.local_layout import groups_of
from raftmq.local.cluster import LocalCluster
from raftmq_wire.queue_numbers import group_of
from tests.compat.conftest import all_servers
from tests.compat.kills import killed, leader_of
from tests.compat.many_groups import QUEUES, make_cluster, patient
from tests.compat.matrix.programs import Program, is_installed
from tests.compat.places import stored_in
from tests.support.compat_judges import number_of
from tests.support.tools import lack
from tests.support.wait_until import wait

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]

Start = Callable[..., Any]
KEYS, ENOUGH = 40, 200
POLL_S = 31.0
"""A client's route poll is 30 s away at most."""
DEAD_S = 8.0


def queues_by_key(mq: raftmq.Client, topic: str, key_of: Callable[[int], int]) -> dict[int, set[int]]:
    """Returns each key -> the queues with its messages. `key_of`: number of a message -> its key."""
    found: dict[int, set[int]] = {}
    for message in stored_in(mq, topic):
        found.setdefault(key_of(number_of(message.key or "")), set()).add(message.queue_id)
    return found


def hashing(start: Start, kind: str, live: LocalCluster, topic: str, prefix: str) -> Any:
    """Starts a producer that leaves the queue of each message to SelectMessageQueueByHash, by its number % KEYS."""
    arguments = ("--group", f"{topic}-senders", "--prefix", prefix, "--hash", "--keys", str(KEYS), "--pace-ms", "20")
    sender = start(kind, "produce", topic, *arguments, *patient(kind), servers=all_servers(live))
    sender.wait("send", ENOUGH)
    return sender


def acknowledged(*senders: Any) -> set[str]:
    return {line["key"] for sender in senders for line in sender.lines("send") if "error" not in line}


class TestASecondGroupComes:
    """It moves no key of a topic that was there before."""

    @pytest.fixture
    def live(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
        """Three nodes of one group, to which the test adds a second one."""
        made = make_cluster(tmp_path_factory, 1, 3)
        yield made
        made.down()

    @pytest.fixture
    def mq(self, live: LocalCluster) -> Iterator[raftmq.Client]:
        with raftmq.connect(all_servers(live)) as client:
            yield client

    def test_no_client_moves_a_key(self, live: LocalCluster, mq: raftmq.Client, start: Start, tmp_path: Path) -> None:
        """Of no client, neither by one that ran meanwhile nor by one that starts afterwards. Programs of the matrix
        choose a queue by the number of a message: Java by its place in the list, C++ by its rest, Go by its hash."""
        clients = ["java-5.5.0", "java-4.9.8", "cpp-0.4.4", "go-2.1.2"]
        if absent := [client for client in clients if not is_installed(client)]:
            lack("go" if absent[0].startswith("go") else "mvn", why="make test-compat builds this client with it")

        def send_with(client: str, name: str) -> None:
            (tmp_path / name).mkdir()
            program = Program(
                client, tmp_path / name, "run", all_servers(live), client.replace(".", "-"), "20", "orderly"
            )
            try:
                program.wait("ready")
                program.tell("go")
                cell = program.cells["orderly"]
                wait(lambda: len(cell.acknowledged) >= KEYS, lambda: cell, progress=lambda: len(cell.acknowledged))
                program.tell("stop")
                program.wait("stopped")
            finally:
                program.finish()

        topics = {client: f"{client.replace('.', '-')}-orderly" for client in clients}
        for name in (*topics.values(), "old"):
            mq.admin.create_topic(name, QUEUES)
        for client in clients:
            send_with(client, f"{client}-before")
        before = {client: queues_by_key(mq, topics[client], int) for client in clients}
        running = hashing(start, "java-newest", live, "old", "running")

        live.up(groups=2)
        wait(lambda: groups_of(live.nodes) == [1, 2], "the second group is there")
        with raftmq.connect(all_servers(live)) as new:
            new.admin.create_topic("new", QUEUES)
            assert {group_of(queue.queue_id) for queue in new.admin.describe_topic("new").queues} == {1, 2}
        time.sleep(POLL_S)
        count = len(acknowledged(running))
        wait(lambda: len(acknowledged(running)) >= count + ENOUGH, running.story)
        fresh = hashing(start, "java-newest", live, "old", "fresh")
        for sender in (running, fresh):
            sender.finish()
            assert [line for line in sender.lines("send") if "error" in line] == []
        found = queues_by_key(mq, "old", lambda number: number % KEYS)
        assert {key: len(queues) for key, queues in found.items()} == dict.fromkeys(range(KEYS), 1)
        assert {queue for queues in found.values() for queue in queues} == {*range(QUEUES)}

        for client in clients:
            send_with(client, f"{client}-after")
            after = queues_by_key(mq, topics[client], int)
            assert {key: after[key] for key in before[client]} == before[client], client
            assert all(len(queues) == 1 for queues in before[client].values()), client


@pytest.mark.parametrize("live", ["2x3"], indirect=True, scope="module")
@pytest.mark.parametrize("kind", ["java-newest", "java-oldest"])
def test_the_leader_of_each_group_dies_while_java_sends_and_reads(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str
) -> None:
    """What was acknowledged is read, and each key stays in its queue."""
    readers = [
        start(kind, "consume", topic, "--group", f"{topic}-readers", *patient(kind), servers=all_servers(live))
        for _ in range(2)
    ]
    for reader in readers:
        reader.wait("ready")
    sender = hashing(start, kind, live, topic, "k")
    for group in groups_of(live.nodes):
        with killed(live, leader_of(live, group)):
            time.sleep(DEAD_S)
        count = len(acknowledged(sender))
        wait(lambda count=count: len(acknowledged(sender)) >= count + ENOUGH, sender.story)  # type: ignore[misc]
    sender.finish()

    def unread() -> set[str]:
        return acknowledged(sender) - {line["key"] for reader in readers for line in reader.lines("message")}

    wait(lambda: not unread(), unread, progress=lambda: len(unread()))
    found = queues_by_key(mq, topic, lambda number: number % KEYS)
    assert {key: len(queues) for key, queues in found.items()} == dict.fromkeys(range(KEYS), 1)
    assert {group_of(queue) for queues in found.values() for queue in queues} == {*groups_of(live.nodes)}
    assert acknowledged(sender) <= {message.key for message in stored_in(mq, topic)}
    for reader in readers:
        reader.finish()
