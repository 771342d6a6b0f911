"""Clients of the simulator: ours, which retries under one identity, and a foreign one, which sends once."""

from __future__ import annotations

import json
import random

from tests.support.sim_cluster import SimCluster, send_frame
from tests.support.sim_node import ClientPath, SimNode

ATTEMPT_S = 4.0


class Sent:
    """One message, from its first attempt to its acknowledgement."""

    def __init__(self, sequence: int, body: bytes, queue_id: int) -> None:
        self.sequence = sequence
        self.body = body
        self.queue_id = queue_id
        self.codes: list[int] = []
        self.acked: tuple[int, int] | None = None
        """(queue id, queue offset) of the first acknowledgement."""


class OwnClient:
    """Keeps `window` messages on their way; whatever is not acknowledged is sent again, under its sequence."""

    def __init__(self, sim: SimCluster, name: str, topic: str, rng: random.Random, window: int = 6) -> None:
        self.sim, self.name, self.topic, self.rng, self.window = sim, name, topic, rng, window
        self.pid = rng.randbytes(16)
        self.sent: list[Sent] = []
        self.open: dict[int, Sent] = {}
        self.stopped = False
        self._opaque = 0
        self._attempts: dict[int, int] = {}
        self._paths: dict[int, ClientPath] = {}
        self._tick()

    def _tick(self) -> None:
        while not self.stopped and len(self.open) < self.window:
            sequence = len(self.sent) + 1
            message = Sent(sequence, f"{self.name}-{sequence}".encode(), self.rng.randrange(2))
            self.sent.append(message)
            self.open[sequence] = message
            self._attempt(message)
        self.sim.loop.call_later(self.rng.uniform(0.02, 0.2), self._tick)

    def _attempt(self, message: Sent) -> None:
        path = self._path(self.rng.choice(list(self.sim.nodes.values())))
        self._opaque += 1
        opaque = self._opaque
        self._attempts[message.sequence] = opaque
        self.sim.loop.call_later(ATTEMPT_S, self._again, message, opaque)
        low = min(self.open)
        path.ask(
            send_frame(
                opaque,
                self.topic,
                message.body,
                queue_id=message.queue_id,
                key=f"{self.name}{message.sequence}",
                pid=self.pid,
                seq=message.sequence,
                low=low,
                serialize_type=opaque % 2,
            )
        )
        if path.closed:
            self.sim.loop.call_later(self.rng.uniform(0.05, 0.3), self._again, message, opaque)

    def _path(self, node: SimNode) -> ClientPath:
        path = self._paths.get(node.node_id)
        if path is None or path.closed:
            path = self._paths[node.node_id] = node.connect()
            path.on_reply = lambda opaque, code, remark, path=path: self._on_reply(path, opaque, code)
        return path

    def _again(self, message: Sent, opaque: int) -> None:
        if message.acked is None and self._attempts[message.sequence] == opaque:
            self._attempt(message)

    def _on_reply(self, path: ClientPath, opaque: int, code: int) -> None:
        assert len(path.replies[opaque]) == 1, f"answered twice: {path.replies[opaque]}"
        for message in self.open.values():
            if self._attempts[message.sequence] == opaque:
                break
        else:
            return
        message.codes.append(code)
        if code == 0:
            ext = json.loads(path.replies[opaque][0][2])
            message.acked = int(ext["queueId"]), int(ext["queueOffset"])
            del self.open[message.sequence]
        else:
            self.sim.loop.call_later(self.rng.uniform(0.05, 0.4), self._again, message, opaque)


class OnceClient:
    """A foreign client that never retries: every message is stored at most once, an acknowledged one exactly once."""

    def __init__(self, sim: SimCluster, name: str, topic: str, rng: random.Random) -> None:
        self.sim, self.name, self.topic, self.rng = sim, name, topic, rng
        self.sent: list[Sent] = []
        self.stopped = False
        self._tick()

    def _tick(self) -> None:
        if self.stopped:
            return
        path = self.rng.choice(list(self.sim.nodes.values())).connect()
        message = Sent(len(self.sent) + 1, f"{self.name}-{len(self.sent) + 1}".encode(), self.rng.randrange(2))
        self.sent.append(message)

        def on_reply(opaque: int, code: int, remark: str) -> None:
            assert len(path.replies[opaque]) == 1, "answered twice"
            message.codes.append(code)
            if code == 0:
                ext = json.loads(path.replies[opaque][0][2])
                message.acked = int(ext["queueId"]), int(ext["queueOffset"])

        path.on_reply = on_reply
        path.ask(send_frame(1, self.topic, message.body, queue_id=message.queue_id, key="ONE KEY FOR ALL"))
        if self.rng.random() < 0.1:
            path.close()
        self.sim.loop.call_later(self.rng.uniform(0.01, 0.15), self._tick)
