"""pysyncobj as a system under test: three Python processes with journals, as tests/jepsen_like runs it. pysyncobj_node,
written for this benchmark, makes it a server."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import struct
import sys
import time
from importlib.metadata import version
from pathlib import Path

from bench.peers.loads import Window, body
from bench.peers.system import HOST, NODES, Generator, Load, Node, NoLeader, Traits, Unavailable
from bench.peers.three_processes import Group

READY_S = 30.0
FRAME, ANSWER = struct.Struct(">II"), struct.Struct(">IB")
ASK = 0xFFFFFFFF
_PROGRAM = Path(__file__).with_name("pysyncobj_node.py")


class PySyncObj(Group):
    """A `System` of three pysyncobj processes."""

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("pysyncobj") is None:
            raise Unavailable("pysyncobj is not installed (make setup-dev)")
        durability = "page cache of a majority; never synced"
        self.traits = Traits("pysyncobj", version("pysyncobj"), durability, warm_s=3.0, batches=False)

    def start(self, directory: Path) -> None:
        """Starts the nodes and waits until one leads, READY_S at most. Raises NoLeader."""
        self._start_in_pairs(directory, READY_S)

    def leader(self) -> Node:
        """Returns the node that says that it leads."""
        alive = set(self.processes.pids)
        for node in self._nodes:
            if node.pid in alive and leads(node.port):
                return node
        raise NoLeader("no node of pysyncobj leads")

    def generator(self, load: Load) -> Generator:
        """Returns a generator of messages for pysyncobj_node."""
        return Proposer(load)

    def _start(self, number: int) -> int:
        addresses = [f"{HOST}:{self._base + NODES + each}" for each in range(NODES)]
        own = addresses.pop(number)
        journal = str(self._home / f"n{number}.journal")
        command = [sys.executable, "-P", str(_PROGRAM), str(self._base + number), journal, own, *addresses]
        return self.processes.start(command, self._home / f"n{number}.log")


class Proposer(Window):
    """An asyncio protocol that keeps a window of messages in flight for pysyncobj_node."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.frames = [FRAME.pack(place, load.size) + body(load.size) for place in range(load.in_flight)]
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins at once: the server needs no greeting."""
        super().connection_made(transport)
        self.begin()

    def data_received(self, data: bytes) -> None:
        """Reads answers, all of one size."""
        data = self._pending + data if self._pending else data
        now = time.perf_counter()
        whole = len(data) // ANSWER.size * ANSWER.size
        self._pending = data[whole:]
        answers = list(ANSWER.iter_unpack(data[:whole]))
        self.answered([place for place, _ in answers], sum(not ok for _, ok in answers), now)


def leads(port: int) -> bool:
    """Asks the front of the node at `port` whether it leads; returns False if nothing answers."""
    try:
        with socket.create_connection((HOST, port), 2.0) as connection:
            connection.sendall(FRAME.pack(ASK, 0))
            answer = connection.recv(ANSWER.size, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == ANSWER.size and bool(ANSWER.unpack(answer)[1])
