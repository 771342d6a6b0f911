"""pysyncobj as a subject. The harness must find faults in another Raft implementation; only then does it mean something
that it finds none in RaftMQ.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.util
import itertools
import json
import os
import random
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jepsen_like.history import READERS_FROM, HistoryWriter
from jepsen_like.live.subjects.processes import OfProcesses, Processes
from jepsen_like.live.subjects.proxy import HOST, Fabric
from jepsen_like.live.subjects.subject import (
    Capability,
    LoadPlan,
    NodeState,
    PlacedMessage,
    SendFailed,
    SendUnknown,
    is_healthy,
    leader_of,
)
from raftmq.local.process import free_base_port
from raftmq.local.waiting import until
from raftmq_wire.errors import ExitCode, LocalError

TOPIC = "list"
PADDING_CHARS = 4096
SEND_TIMEOUT_S = 15.0
READY_S = 60.0
LEADER_WAIT_S = 0.5
_READ_IDS = 2000
_STATUS_TIMEOUT_S = 0.5
_LINE_MAX = 1 << 22
_TRUNCATED = re.compile(r"truncating|already.applied", re.IGNORECASE)


class _Node(NamedTuple):
    id: int
    peer_port: int
    port: int
    home: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.peer_port}"


class PySyncObjSubject(OfProcesses):
    """A `Subject` of pysyncobj processes."""

    name = "pysyncobj"
    topic = TOPIC
    queues = 1
    load = LoadPlan(6000, 1500)
    emphasis: Mapping[str, int] = {"stutter-kill": 6, "kill-leader": 2}
    """Fault -> how often it comes in each round. pysyncobj's followers drop acknowledged entries when a batch arrives
    twice, so faults at that moment find the most.
    """
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, data: Path, processes: Processes, *, count: int = 3, seed: int = 0) -> None:
        """Plans the nodes and opens the proxies; starts nothing. Raises LocalError without the package."""
        if importlib.util.find_spec("pysyncobj") is None:  # an import would replace socket.inet_ntop
            raise LocalError(
                "pysyncobj is not installed",
                "it is the subject of this run",
                "pip install pysyncobj==0.3.17",
                ExitCode.REFUSED,
            )
        self.processes = processes
        base = free_base_port(2 * count)
        self._nodes = [_Node(i + 1, base + i, base + count + i, data / f"n{i + 1}") for i in range(count)]
        self.fabric = Fabric({node.id: node.peer_port for node in self._nodes}, seed, duplex=True)
        self._pool = concurrent.futures.ThreadPoolExecutor(count, "raftmq-chaos-status")
        rng = random.Random(seed)
        self._paddings = [rng.randbytes(PADDING_CHARS // 2).hex() for _ in range(64)]

    @property
    def node_ids(self) -> list[int]:
        """The ids of all nodes, ascending."""
        return [node.id for node in self._nodes]

    def start(self) -> None:
        """Makes and starts all nodes and waits until writes are accepted. Raises LocalError."""
        for node in self._nodes:
            node.home.mkdir(parents=True)
            peers = {other.address: self.fabric.ports[node.id, other.id] for other in self._nodes if other != node}
            settings = {"address": node.address, "peers": peers, "folder": str(node.home), "port": node.port}
            (node.home / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
            self.start_node(node.id)
        if not until(lambda: is_healthy(self.states()), READY_S, 0.1):
            raise LocalError(
                "the pysyncobj cluster found no leader",
                f"after {READY_S:.0f} s",
                f"less {self._nodes[0].home}/node.log",
            )

    def stop(self) -> None:
        """Stops all nodes, including paused ones."""
        self.processes.stop_all()
        self.fabric.close()
        self._pool.shutdown()

    def start_node(self, node: int) -> None:
        """Starts a node that does not run, without waiting for it to join."""
        home = self._nodes[node - 1].home
        module = "jepsen_like.live.subjects.pysyncobj_node"
        command = [sys.executable, "-P", "-m", module, str(home / "settings.json")]
        self.processes.start(node, command, home / "node.log", dict(os.environ))

    def terminate(self, node: int) -> bool:
        """Ends the node's process with SIGTERM: pysyncobj has no orderly stop of its own. Returns True if the process
        does not run afterwards.
        """
        self.processes.terminate(node)
        return not self.processes.is_running(node)

    def states(self) -> dict[int, NodeState | None]:
        """Asks all nodes for their states at the same time; None for a node that does not answer. Any thread may call
        it."""
        return dict(zip(self.node_ids, self._pool.map(self._state, self._nodes), strict=True))

    def _state(self, node: _Node) -> NodeState | None:
        try:
            words = _ask(node.port, "state 0", _STATUS_TIMEOUT_S).split()
            term, leads, leader, applied, committed = words[2:7]
        except (OSError, ValueError):
            return None
        by_address = {each.address: each.id for each in self._nodes}
        is_leader = leads == "1"
        return NodeState(int(term), is_leader, is_leader, by_address.get(leader), int(applied), int(committed))

    def padding(self, message_id: str) -> str:
        """Returns the padding of an entry; compression reduces it to half."""
        return self._paddings[hash(message_id) % len(self._paddings)]

    async def open_client(self) -> PySyncObjClient:
        """Returns a new client for the running loop."""
        return PySyncObjClient(self)

    async def find_leader(self) -> int | None:
        """Returns the port of the leader; None if no node says that it leads."""
        states = await asyncio.get_running_loop().run_in_executor(None, self.states)
        leader = leader_of(states)
        return None if leader is None else self._nodes[leader - 1].port

    def read_all(self, history: HistoryWriter) -> int:
        """Reads every replica to its end into the history; returns the number of rows."""
        return sum(_read_node(node, history) for node in self._nodes)

    def evidence(self) -> list[str]:
        """Returns a line for each node that printed something about cutting its log: the number of such lines, and the
        last."""
        told = []
        for node in self._nodes:
            lines = (node.home / "node.log").read_text(encoding="utf-8", errors="replace").splitlines()
            found = [line for line in lines if _TRUNCATED.search(line)]
            if found:
                told.append(f"node {node.id} printed {len(found)} times: {found[-1].strip()[:200]}")
        return told


def _read_node(node: _Node, history: HistoryWriter) -> int:
    offset = 0
    while True:
        asked = {"node": node.id, "topic": TOPIC, "queue_id": 0, "offset": offset}
        invoked = history.invoke(READERS_FROM + node.id, "read", asked)
        ids = _ask(node.port, f"read 0 {offset} {_READ_IDS}", 30.0).split()[2:]
        rows = [[offset + i, message_id] for i, message_id in enumerate(ids)]
        history.ok(invoked, {"messages": rows, "end": not rows})
        if not rows:
            return offset
        offset += len(rows)


def _ask(port: int, line: str, timeout_s: float) -> str:
    with socket.create_connection((HOST, port), timeout_s) as connection:
        connection.sendall(line.encode() + b"\n")
        with connection.makefile("r", encoding="ascii") as answers:
            return answers.readline()


class PySyncObjClient:
    """A LogClient with one connection to the leader; a request whose connection was lost has an unknown outcome."""

    def __init__(self, subject: PySyncObjSubject) -> None:
        self._subject = subject
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[PlacedMessage]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def submit(self, message_id: str) -> asyncio.Future[PlacedMessage]:
        """Starts a send and returns when the next may start; the future ends with SendFailed or SendUnknown if the send
        is not acknowledged."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[PlacedMessage] = loop.create_future()
        if self._writer is None and not await self._connect():
            await asyncio.sleep(LEADER_WAIT_S)
            outcome.set_exception(SendFailed("nobody leads"))
            return outcome
        if self._writer is None or self._writer.is_closing():
            outcome.set_exception(SendFailed("the connection ended before the request was written"))
            return outcome
        number = next(self._numbers)
        self._waiting[number] = outcome
        loop.call_later(SEND_TIMEOUT_S, self._expire, number)
        self._writer.write(f"append {number} {message_id} {self._subject.padding(message_id)}\n".encode())
        return outcome

    async def _connect(self) -> bool:
        port = await self._subject.find_leader()
        if port is None:
            return False
        try:
            reader, self._writer = await asyncio.open_connection(HOST, port, limit=_LINE_MAX)
        except OSError:
            return False
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        return True

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                number, verb, word = line.decode("ascii").split()
                self._settle(int(number), verb, word)
                if verb != "ok":
                    break  # this node does not lead any more
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for left in list(self._waiting):
            self._settle(left, "unknown", "the connection ended")

    def _settle(self, number: int, verb: str, word: str) -> None:
        outcome = self._waiting.pop(number, None)
        if outcome is None or outcome.done():
            return
        if verb == "ok":
            outcome.set_result(PlacedMessage(0, int(word)))
        elif verb == "fail":
            outcome.set_exception(SendFailed(word))
        else:
            outcome.set_exception(SendUnknown(word))

    def _expire(self, number: int) -> None:
        self._settle(number, "unknown", f"no answer in {SEND_TIMEOUT_S:.0f} s")

    async def close(self) -> None:
        """Closes the connection; open sends end as unknown."""
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        if self._writer is not None:
            self._writer.close()
        for number in list(self._waiting):
            self._settle(number, "unknown", "the client was closed")
