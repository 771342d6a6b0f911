"""CPU of the nodes per message: staged, committed and copied, against plain batch sends of the same bodies.

Rounds alternate within one run on one local cluster, so that both meet the same machine. The clients' own CPU is not
counted. `python bench/bench_staged.py [--messages N] [--rounds N] [--body BYTES]`

With `--alone` one node of the simulator does the same, and the parts of a staged write are told apart: what the
simulator's disk and rows cost is in each, what peers cost in none.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

from bench_cluster import cpu_seconds
from hot_path import TOPIC, Driver

import raftmq
from cluster.wire.codec import encode_frame
from cluster.wire.codes import RequestCode
from cluster.wire.message_format import BatchItem, build_batch
from raftmq.client.message import encode_properties
from raftmq.commands.bench_load import request_frame
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

BATCH = 1000
LIMIT_S = 300


def main() -> None:
    """Prints one line per round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--alone", action="store_true")
    asked = parser.parse_args()
    if asked.alone:
        run_alone(Alone(b"x" * asked.body), asked.messages // BATCH, asked.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster(Path(folder) / "data")
        cluster.up(3, free_base_port(12))
        try:
            run(cluster, asked.messages, asked.rounds, b"x" * asked.body)
        finally:
            cluster.down()


def run(cluster: LocalCluster, messages: int, rounds: int, body: bytes) -> None:
    """Alternating rounds; the first one is not counted."""
    pids = [node.pid for node in cluster.nodes if node.pid is not None]
    shares = []
    with raftmq.connect(cluster.servers) as mq:
        mq.admin.create_topic("bench", 4)
        for number in range(rounds + 1):
            costs = []
            for way in (plain, staged):
                before, end = cpu_seconds(pids), stored(mq) + messages
                way(mq, number, messages, body)
                wait_for(mq, end)
                costs.append((cpu_seconds(pids) - before) / messages * 1e6)
            if number:
                shares.append(costs[1] / costs[0])
                print(f"round {number}: plain {costs[0]:.1f} us, staged {costs[1]:.1f} us, {shares[-1]:.2f}x")
    print(f"median: {median(shares):.2f}x")


def plain(mq: raftmq.Client, number: int, messages: int, body: bytes) -> None:
    """Batches that are acknowledged one after the other."""
    for at in range(messages // BATCH):
        mq.send_batch("bench", [body] * BATCH, queue_id=at % 4)


def staged(mq: raftmq.Client, number: int, messages: int, body: bytes) -> None:
    """The same as one attempt at a write."""
    writes = mq.staged_writes()
    attempt = writes.open("bench", number)
    assert attempt is not None
    for at in range(messages // BATCH):
        writes.stage(attempt, at + 1, "bench", at % 4, items_of(attempt, at, body), time.time_ns() // 1_000_000)
    writes.commit("bench", number, [(attempt, messages)])


def items_of(attempt: int, at: int, body: bytes) -> list[tuple[bytes, bytes]]:
    """The messages of a request, (body, properties) each."""
    keys = (f"{attempt:08X}{at:012X}{item:012X}" for item in range(BATCH))
    return [(body, encode_properties(key, None, None, None).encode()) for key in keys]


def stored(mq: raftmq.Client) -> int:
    """Messages of the topic that can be seen."""
    return sum(queue.max_offset for queue in mq.admin.describe_topic("bench").queues)


def wait_for(mq: raftmq.Client, count: int) -> None:
    """Until so many can be seen."""
    end = time.monotonic() + LIMIT_S
    while stored(mq) < count:
        assert time.monotonic() < end, "the copies do not come"
        time.sleep(0.1)


class Alone:
    """A node of the simulator that leads, and its only client."""

    def __init__(self, body: bytes) -> None:
        self._driver = Driver()
        self._driver.send(1, 1, 1)  # makes the topic
        self._body = body
        self._opaque = 0

    def ask(self, code: int, body: bytes = b"", **fields: object) -> dict[str, str]:
        """The fields of the answer. Raises SystemExit if it is a refusal."""
        self._opaque += 1
        ext = {name: str(value) for name, value in fields.items()}
        answer = self._driver.ask(encode_frame(code, self._opaque, 0, ext=ext, body=body), 1)
        header = json.loads(answer[8:])
        if header["code"]:
            raise SystemExit(f"refused: {header}")
        found: dict[str, str] = header["extFields"] or {}
        return found

    def requests(self, attempt: int, count: int) -> list[bytes]:
        """Bodies of so many requests."""
        return [build_batch([BatchItem(0, *item) for item in items_of(attempt, at, self._body)]) for at in range(count)]

    def plain(self, requests: list[bytes]) -> None:
        """As a RocketMQ client sends them, one after the other."""
        for at, body in enumerate(requests):
            self._driver.ask(request_frame(TOPIC, at, at % 4, BATCH, body), 1)

    def stage(self, attempt: int, requests: list[bytes]) -> None:
        """The same for an attempt."""
        for at, body in enumerate(requests):
            fields = {"attempt": attempt, "sequence": at + 1, "topic": TOPIC, "queueId": at % 4, "bornTimestamp": 1}
            self.ask(RequestCode.STAGE_MESSAGES, body, **fields)

    def commit(self, number: int, attempt: int, count: int) -> None:
        """Until all copies are in their queues."""
        winners = json.dumps([[attempt, count * BATCH]]).encode()
        self.ask(RequestCode.COMMIT_WRITE, winners, name=TOPIC, write=number)
        while self._driver.staged_left():
            self._driver.pass_time(0.05)


def run_alone(node: Alone, count: int, rounds: int) -> None:
    """Prints the medians of all rounds but the first, by part."""
    spent: dict[str, list[float]] = {"plain": [], "stage": [], "commit and copy": []}
    for number in range(rounds + 1):
        attempt = int(node.ask(RequestCode.OPEN_ATTEMPT, name=TOPIC, write=number)["attempt"])
        requests = node.requests(attempt, count)
        parts = (
            partial(node.plain, requests),
            partial(node.stage, attempt, requests),
            partial(node.commit, number, attempt, count),
        )
        for part, costs in zip(parts, spent.values(), strict=True):
            before = time.thread_time()
            part()
            costs.append((time.thread_time() - before) / (count * BATCH) * 1e6)
    for name, costs in spent.items():
        print(f"{name}: {median(costs[1:]):.1f} us")


if __name__ == "__main__":
    main()
