"""Drives messages through one node alone: request, log entry, apply, answer; then pulls. Then it sends to a leader with
two peers, which includes the work of all three nodes for a message, with frames and hooks, and at last it sends with a
quota.

Real nodes run on the simulator's loop: disks and rows are in memory, and time is virtual, so two runs of the same code
execute the same instructions. `bench_instructions.py` counts the instructions of each stage.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent))

from msgspec.structs import replace
from pull_load import heartbeat_frame, pull_frame

from cluster.config.config import Config
from cluster.node.node import Node
from cluster.replication.raft_driver import APPLY_GATHER_MS
from jepsen_like.sim.machines.lone_node import ELECTED_S, LoneNode, Unwatched, lone_options
from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.machine import BROKER_PORT, Machine, config_of
from jepsen_like.sim.machines.network import EdgeConditions, Endpoint, Network
from jepsen_like.sim.options import Options, stream
from raftlog.types import NodeId, Role
from raftmq.commands.bench_load import PREFIX, batch_body, request_frame
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command
from statemachine.levels import LEVEL

STAGES = {
    "send, 1 in flight": (1, 1, 100),
    "send, 64": (64, 1, 24),
    "send, 512": (512, 1, 4),
    "batch of 100 x 1 KiB": (4, 100, 4),
}
"""The stages of sends: name -> requests in flight, messages per request, rounds."""
NAMED = {"named send, 64": (64, 1, 24)}
"""Like STAGES, for sends in a session that the client names, as RaftMQ's client does."""
UNDER_QUOTA = {
    "send, 1 in flight, under a quota": (1, 1, 100),
    "send, 64, under a quota": (64, 1, 24),
}
"""Like STAGES, for sends that have a quota of messages and one of bytes, which they do not reach. They come last,
because setting a quota changes the node for all later stages."""
WITH_PEERS = {
    "send, 1 in flight, two peers": (1, 1, 60),
    "send, 64, two peers": (64, 1, 16),
}
"""The stages of sends to the leader of three nodes: name -> requests in flight, messages per request, rounds."""
MANY = {
    "send, 512 on one connection, two peers": (1, 512, 4),
    "send, 1 on each of 500, two peers": (500, 1, 4),
}
"""The stages of sends through few and many connections to the leader of three nodes: name -> connections, requests in
flight on each, rounds."""
PULLS = {
    "pull 32 hot": (32, 8),
    "pull 256 hot": (256, 8),
}
"""The stages of pulls: name -> messages per pull, rounds; each round pulls all messages of PULLED at once."""
TOPIC, PULLED = "bench", "pulled"
QUEUES, QUEUE_MESSAGES = 4, 256
"""The number of queues of PULLED, and of messages in each. Messages of its queues lie in the log in turns, as single
sends store them."""
PULL_BYTES = 1 << 20
BODY_BYTES = 1024


class Client(asyncio.Protocol):
    """A client that waits for answers and then stops the loop. It counts answers until all have come, or bytes if their
    total number is known."""

    def __init__(self) -> None:
        self.missing = self.missing_bytes = 0
        self.seen = b""
        """Bytes of the answers that were counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self.transport = cast(Endpoint, transport)

    def data_received(self, data: bytes) -> None:
        """Counts bytes or answers, and stops the loop once none is missing."""
        if self.missing_bytes:
            self.missing_bytes -= len(data)
        else:
            self.seen += data
            self.missing -= data.count(b'"opaque":')
        if self.missing_bytes <= 0 and self.missing <= 0:
            asyncio.get_running_loop().stop()


def _takes_writes(node: Node) -> bool:
    """Returns True if the node leads and has applied an entry of its term. It reads only attributes that older commits
    have too, because this file also runs in their trees."""
    return node.raw.role is Role.LEADER and node.state.applied.term == node.raw.term


class Three:
    """Three simulated nodes. Raises SystemExit if one fails, or none leads."""

    def __init__(self) -> None:
        options = quiet_options()._replace(nodes=3)
        self.loop = SimLoop(options.event_budget)
        asyncio.set_event_loop(self.loop)
        self._network = Network(self.loop, EdgeConditions(stream(0, "network"), options.latency_s, options.split))
        watcher = cast(Any, Unwatched())
        self._machines = [
            Machine(node, options, self.loop, self._network, watcher, long_messages(config_of(node, options)))
            for node in map(NodeId, (1, 2, 3))
        ]
        for machine in self._machines:
            machine.start()
        self.client = Process("client", "10.0.1.1")
        self.pass_time(ELECTED_S)
        propose(self._leader(), Finalize(LEVEL))
        self.pass_time(1.0)

    def pass_time(self, seconds: float) -> None:
        """Runs the event loop for this many seconds of virtual time."""
        self.loop.call_outside(seconds, self.loop.stop)
        self.loop.run_forever()

    def connect(self, make: Callable[[], Client], seconds: float) -> tuple[Endpoint, Client]:
        """Connects a client, made by `make`, to the leader; lets `seconds` of virtual time pass for that."""
        task = self._connecting(make)
        self.pass_time(seconds)
        return cast("tuple[Endpoint, Client]", task.result())

    def connect_all(self, make: Callable[[], Client], count: int) -> tuple[Client, list[Endpoint]]:
        """Connects one client to the leader, `count` times."""
        client = make()
        tasks = [self._connecting(lambda: client) for _ in range(count)]
        self.pass_time(1.0)
        return client, [task.result()[0] for task in tasks]

    def _connecting(self, make: Callable[[], Client]) -> Any:
        connecting = self._network.connect(make, self._leader().host, BROKER_PORT)
        return self.client.run(self.loop.create_task, connecting)

    def _leader(self) -> Machine:
        leads = [each for each in self._machines if each.node is not None and _takes_writes(each.node)]
        if not leads:
            raise SystemExit("none of the three nodes leads")
        return leads[0]


class Driver:
    """A leading node and a client that is connected to it."""

    def __init__(self, nodes: LoneNode | Three) -> None:
        self._lone = nodes
        self._client = self._lone.connect(Client, 0.1)[1]
        self._sequence = 100_000_000  # a number of nine digits, so that all requests have the same length

    def ask(self, requests: bytes, count: int) -> bytes:
        """Sends `count` requests and returns the answers."""
        self._client.seen, self._client.missing = b"", count
        self._run(requests)
        return self._client.seen

    def ask_again(self, requests: bytes, answered: int) -> None:
        """Sends requests whose answers together have `answered` bytes; the answers are not examined."""
        self._client.missing_bytes = answered
        self._run(requests)

    def _run(self, requests: bytes) -> None:
        self._lone.client.run(self._client.transport.write, requests)
        self._lone.loop.run_forever()
        if self._lone.loop.errors:
            raise SystemExit(f"the node raised: {self._lone.loop.errors}")

    def send(self, in_flight: int, batch: int, rounds: int, *, named: bool = False) -> None:
        """Sends `in_flight` requests at a time, in all rounds. Raises SystemExit if one is refused."""
        body = batch_body(BODY_BYTES, batch) if batch > 1 else bytes(BODY_BYTES)
        requests = [request_frame(TOPIC, opaque, opaque % 4, batch, body) for opaque in range(in_flight)]
        sent = b"".join(requests)
        for _ in range(rounds):
            if named:
                sent = b"".join([self._named(request) for request in requests])
            if self.ask(sent, in_flight).count(b'"code":0,') != in_flight:
                raise SystemExit(f"refused: {self._client.seen[:500]!r}")

    def _named(self, request: bytes) -> bytes:
        """Returns the request with a session's fields and its next sequence added."""
        self._sequence += 1
        field = b'"raftmqPid":"%s","raftmqSeq":"%d","raftmqLow":"%d",' % (
            b"5a" * 16,
            self._sequence,
            self._sequence,
        )
        sizes = [int.from_bytes(request[at : at + 4]) + len(field) for at in (0, 4)]
        return PREFIX.pack(*sizes) + request[8:].replace(b'"k":"false",', field + b'"k":"false",')

    def fill(self) -> None:
        """Stores the messages that are pulled later."""
        self.ask(request_frame(PULLED, 0, 0, 1, b"makes the topic"), 1)
        self.ask(heartbeat_frame(PULLED), 1)
        body = bytes(BODY_BYTES)
        count = QUEUES * QUEUE_MESSAGES
        self.ask(b"".join(request_frame(PULLED, place, place % QUEUES, 1, body) for place in range(count)), count)

    def pulls_of(self, size: int) -> bytes:
        """Returns pull requests for all stored messages, `size` messages each."""
        offsets = range(0, QUEUE_MESSAGES, size)
        asked = [(queue, offset) for offset in offsets for queue in range(QUEUES)]
        return b"".join(
            pull_frame(PULLED, at, queue, offset, size, PULL_BYTES) for at, (queue, offset) in enumerate(asked)
        )


class Crowd:
    """Connections to the leader of three nodes that send at the same time."""

    def __init__(self, nodes: Three, connections: int) -> None:
        self._nodes = nodes
        self._client, self._transports = nodes.connect_all(Client, connections)

    def send(self, in_flight: int, rounds: int) -> None:
        """Sends `in_flight` requests on each connection at a time, in all rounds. Raises SystemExit if one is
        refused."""
        body, count = bytes(BODY_BYTES), in_flight * len(self._transports)
        sent = b"".join([request_frame(TOPIC, opaque, opaque % 4, 1, body) for opaque in range(in_flight)])
        for _ in range(rounds):
            self._client.seen, self._client.missing = b"", count
            for transport in self._transports:
                self._nodes.client.run(transport.write, sent)
            self._nodes.loop.run_forever()
            self._nodes.pass_time(2 * APPLY_GATHER_MS / 1000)  # lets the followers apply the entries too
            if self._client.seen.count(b'"code":0,') != count:
                raise SystemExit("a send was refused")


def quiet_options() -> Options:
    """Returns simulator options with entries as large as a node makes them by default, and with a fast disk."""
    return lone_options(
        segment_size=16 << 20,
        append_inline=1.0,
        append_bytes_max=1 << 20,
        batch_bytes_max=1 << 20,
        batch_messages_max=4096,
        batches_inflight_max=4,
        node_inflight_bytes_max=128 << 20,
    )


def long_messages(config: Config) -> Config:
    """Returns the configuration with a limit of 1 MiB per message, which limits a batch, too."""
    return replace(config, limits=replace(config.limits, message_bytes_max=1 << 20))


def sends(
    driver: Driver, stages: Mapping[str, tuple[int, int, int]], warm_up: str, *, named: bool = False
) -> Iterator[tuple[str, int]]:
    """Runs each stage, after a warm-up round of it. Yields (name, number of messages) after each part; `warm_up` names
    the part before the first stage. `named`: True if the client names its session."""
    driver.send(1, 1, 1)  # creates the topic
    for in_flight, batch, _ in stages.values():
        driver.send(in_flight, batch, 1, named=named)
    gc.collect()
    yield warm_up, 0
    for name, (in_flight, batch, rounds) in stages.items():
        driver.send(in_flight, batch, rounds, named=named)
        yield name, in_flight * batch * rounds


def of_many() -> Iterator[tuple[str, int]]:
    """Runs the stages of one connection and of many."""
    nodes = Three()
    Driver(nodes).send(1, 1, 1)  # creates the topic
    for name, (connections, in_flight, rounds) in MANY.items():
        crowd = Crowd(nodes, connections)
        crowd.send(in_flight, 1)
        gc.collect()
        yield f"before {name}", 0
        crowd.send(in_flight, rounds)
        yield name, connections * in_flight * rounds


def under_quota() -> Iterator[tuple[str, int]]:
    """Runs the stages of sends that have a quota."""
    node = leading()
    limits = {"send_messages": 10**9, "send_bytes": 10**12}
    change = SetQuotas([("address=*", limits)], 1, "bench")
    propose(node.machine, change)
    node.pass_time(1.0)
    yield from sends(Driver(node), UNDER_QUOTA, "before sends under a quota")


def propose(machine: Machine, command: Command) -> None:
    """Makes the node propose a command. Older commits have `services` in another place, so both places are tried."""
    process, made = machine.process, machine.nodes[-1]
    assert process is not None
    process.run(getattr(made, "serving", made).services.propose, [command], lambda _: None)


def leading() -> LoneNode:
    """Returns a node that leads and is raised to the newest level of this tree."""
    node = LoneNode(quiet_options(), long_messages)
    propose(node.machine, Finalize(LEVEL))
    node.pass_time(1.0)
    return node


def stages() -> Iterator[tuple[str, int]]:
    """Runs one stage after the other; after each, yields its name and its number of messages."""
    driver = Driver(leading())
    yield from sends(driver, STAGES, "warm-up")
    yield from sends(driver, NAMED, "before named sends", named=True)
    driver.fill()
    for name, (size, rounds) in PULLS.items():
        requests, messages = driver.pulls_of(size), QUEUES * QUEUE_MESSAGES
        answers = driver.ask(requests, messages // size)
        if answers.count(b'"remark":"FOUND"') * size != messages or len(answers) < messages * BODY_BYTES:
            raise SystemExit("a pull was refused, or cut short")
        gc.collect()
        yield f"before {name}", 0
        for _ in range(rounds):
            driver.ask_again(requests, len(answers))
        yield name, messages * rounds
    yield from sends(Driver(Three()), WITH_PEERS, "before three nodes")
    yield from of_many()
    yield from under_quota()


if __name__ == "__main__":
    for stage, messages in stages():
        os.getppid()  # tells callgrind where one stage ends and the next begins
        print(stage, messages, sep="\t", flush=True)
