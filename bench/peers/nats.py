"""NATS JetStream as a system under test: three servers, one stream with three replicas on file storage, otherwise
default settings, or with `sync_interval: always`.

`Publisher` speaks the text protocol of NATS: a publish whose reply subject names its place in the window, and the
acknowledgement of JetStream as a message to that subject.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from itertools import count
from pathlib import Path
from typing import Any

from bench.peers import fetch
from bench.peers.loads import Window, body
from bench.peers.system import HOST, NODES, TOPIC, Generator, Load, Node, NoLeader, Traits
from bench.peers.three_processes import Group
from raftmq.local.process import free_base_port

READY_S = 60.0
_NUMBERS = count(1)
_ACK = re.compile(rb"MSG _INBOX\.bench\d+\.(\d+) 1 ")
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"python","version":"1","protocol":1}\r\n'
_STREAM = {"name": TOPIC, "subjects": [TOPIC], "num_replicas": NODES, "storage": "file", "retention": "limits"}


class Nats(Group):
    """A `System` of three NATS servers with JetStream."""

    def __init__(self, name: str, release: fetch.GoPeer, *, syncs: bool = False, binary: Path | None = None) -> None:
        """`syncs`: a server syncs what it stored before it says so (`sync_interval: always`). `binary`: the server's
        program; None: it is built from the release, unless it is there."""
        super().__init__()
        durability = "disks of a majority" if syncs else "page cache of a majority; fsync every 2 minutes"
        self.traits = Traits(name, f"nats-server {release.version}", durability, warm_s=5.0, batches=False)
        self._sync = ", sync_interval: always" if syncs else ""
        self._binary = binary or fetch.built(release)

    def start(self, directory: Path) -> None:
        """Starts the servers and waits until the stream has a leader, READY_S at most. Raises NoLeader."""
        self._home = directory
        base = free_base_port(2 * NODES)
        for number in range(NODES):
            (directory / f"n{number}.conf").write_text(self.configuration(number, base, directory))
            self._nodes.append(Node(number, base + number, self._start(number)))
        until = time.monotonic() + READY_S
        while True:
            try:
                made = request(self._nodes[0].port, f"$JS.API.STREAM.CREATE.{TOPIC}", _STREAM)
                if "error" not in made:
                    self.leader()
                    return
                why = str(made["error"])
            except (OSError, NoLeader) as error:
                why = str(error)
            if time.monotonic() > until or self.processes.ended():
                raise NoLeader(f"nats did not start: {why}")
            time.sleep(0.5)

    def configuration(self, number: int, base: int, directory: Path) -> str:
        """Returns the configuration of a server. `base`: the first port of all servers."""
        routes = ", ".join(f"nats://{HOST}:{base + NODES + each}" for each in range(NODES))
        return (
            f"server_name: n{number}\nlisten: {HOST}:{base + number}\n"
            f"jetstream {{ store_dir: {directory / f'n{number}'}{self._sync} }}\n"
            f"cluster {{ name: bench, listen: {HOST}:{base + NODES + number}, routes: [{routes}] }}\n"
        )

    def leader(self) -> Node:
        """Returns the leader of the stream's Raft group, as the first server that answers reports it."""
        alive = set(self.processes.pids)
        for asked in self._nodes:
            if asked.pid not in alive:
                continue
            info = request(asked.port, f"$JS.API.STREAM.INFO.{TOPIC}", {})
            name = info.get("cluster", {}).get("leader")
            for node in self._nodes:
                if name == f"n{node.number}" and node.pid in alive:
                    return node
        raise NoLeader("the stream has no leader")

    def generator(self, load: Load) -> Generator:
        """Returns a generator that publishes on one connection."""
        return Publisher(load)

    def _start(self, number: int) -> int:
        conf, log = self._home / f"n{number}.conf", self._home / f"n{number}.log"
        return self.processes.start([str(self._binary), "-c", str(conf)], log)


class Publisher(Window):
    """A window of publishes on one connection."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        content = body(load.size)
        # Each publisher has an inbox of its own, because a server sends an answer to all who listen to its subject.
        self.inbox = b"_INBOX.bench%d." % next(_NUMBERS)
        self.frames = [
            b"PUB %s %s%d %d\r\n%s\r\n" % (TOPIC.encode(), self.inbox, place, len(content), content)
            for place in range(load.in_flight)
        ]
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the greeting; the window is filled when the answer to PING says that the server has read all of it."""
        super().connection_made(transport)
        self.transport.write(_CONNECT + b"SUB %s* 1\r\nPING\r\n" % self.inbox)

    def data_received(self, data: bytes) -> None:
        """Reads acknowledgements, each a line and a line of JSON, and a few other lines."""
        data = self._pending + data if self._pending else data
        now = time.perf_counter()
        stop = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0
        last = data.rfind(b"\r\n", 0, stop - 2) + 2 if data.count(b"\r\n", 0, stop) > 1 else 0
        if data.startswith(b"MSG ", last):
            stop = last  # the JSON of this message has not arrived yet
        self._pending = data[stop:]
        places = [int(place) for place in _ACK.findall(data, 0, stop)]
        if data.count(b"\r\n", 0, stop) != 2 * len(places):
            self._hear(data[:stop].split(b"\r\n"))
        self.answered(places, data.count(b'"error"', 0, stop), now)

    def _hear(self, lines: list[bytes]) -> None:
        for line in lines:
            if line == b"PING":
                self.transport.write(b"PONG\r\n")
            elif line == b"PONG":
                self.begin()
            elif line.startswith(b"-ERR"):
                self.fail(line.decode())


def request(port: int, subject: str, content: dict[str, Any], patience_s: float = 5.0) -> dict[str, Any]:
    """Sends one request of JetStream's API and returns its answer. Raises OSError."""
    payload = json.dumps(content).encode()
    with socket.create_connection((HOST, port), patience_s) as connection, connection.makefile("rb") as answers:
        ask = b"SUB _INBOX.api 1\r\nPUB %s _INBOX.api %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)
        connection.sendall(_CONNECT + ask)
        while line := answers.readline():
            if line.startswith(b"MSG "):
                found: dict[str, Any] = json.loads(answers.read(int(line.split()[-1])))
                return found
            if line.startswith(b"-ERR"):
                raise ConnectionError(line.decode().strip())
    raise ConnectionError(f"no answer to {subject}")
