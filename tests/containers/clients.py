"""The clients of the story: the Go client on the host, ours in a container of the network, and a reader on the host."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from raftmq.client import connect
from tests.containers.engines import Engine

TOPIC = "orders"
HOST = "127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878"
INSIDE = "n1:9876;n2:9876;n3:9876"
SENDER = Path(__file__).with_name("sender.py")


class Sender:
    """A program that sends `count` messages; it prints JSON lines with the number of acknowledged ones."""

    def __init__(self, command: Sequence[str], count: int, environment: dict[str, str], script: str = "") -> None:
        self.count = count
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(script)
        self._process.stdin.close()
        self.acked, self.refused = 0, 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            self.acked = told["count"]
            self.refused = told.get("failed", 0)

    def end(self) -> None:
        """Waits for its end; fails if it failed."""
        assert self._process.wait(600) == 0, "a sender failed"
        self._reader.join(10)


def from_the_host(engine: Engine, name: str, count: int, rate: float, user: dict[str, str]) -> Sender:
    """The Go client with published addresses."""
    words = ["send", HOST, TOPIC, name, str(count), str(rate)]
    return Sender([str(engine.ground.go_client), *words], count, {**user, "HOME": str(engine.ground.folder)})


def from_inside(engine: Engine, name: str, count: int, rate: float, user: dict[str, str]) -> Sender:
    """Our client in the network of the containers."""
    command = engine.client("--entrypoint", "python", "raftmq:0.1.0", "-", environment=user)
    words = [INSIDE, TOPIC, name, str(count), str(rate)]
    return Sender([*command, *words], count, engine.environment, SENDER.read_text())


class Stored:
    """All that a reader on the host got: keys, and a digest of every queue's messages in order."""

    def __init__(self, user: dict[str, str]) -> None:
        self.keys: Counter[str] = Counter()
        digest = hashlib.sha256()
        name, secret = user["RAFTMQ_ACCESS_KEY"], user["RAFTMQ_SECRET_KEY"]
        with connect(HOST, access_key=name, secret_key=secret, timeout_s=60) as client:
            for queue in client.admin.describe_topic(TOPIC).queues:
                offset = queue.min_offset
                while offset < queue.max_offset:
                    pulled = client.pull(TOPIC, queue.queue_id, offset, 1000)
                    for message in pulled.messages:
                        body = message.body
                        self.keys[body.decode()] += 1
                        digest.update(b"%d %d %b\n" % (queue.queue_id, message.queue_offset, body))
                    offset = pulled.next_offset
        self.digest = digest.hexdigest()

    def judge(self, *sent: tuple[str, int]) -> str:
        """Fails if one of the sent messages is missing, or another is there; returns the figures."""
        wanted = {f"{name}-{number}" for name, count in sent for number in range(count)}
        lost = wanted - self.keys.keys()
        assert not lost, f"{len(lost)} of {len(wanted)} lost, as {sorted(lost)[:5]}"
        assert self.keys.keys() == wanted, "messages that nobody sent"
        again = self.keys.total() - len(wanted)
        return f"{len(wanted)} messages sent and acknowledged, 0 lost, {again} stored twice"
