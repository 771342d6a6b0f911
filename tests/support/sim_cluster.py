"""Three whole nodes on the loop of the full-node simulator: the test decides what happens to them, one seed the rest.

A node here is `cluster.node.node.Node` as `jepsen_like.sim.machines.machine` runs it, with its disk, database, network
and clock. Only clients are shorter: a `ClientPath` hands its frames to the node's router, so that a test can look at
what a request does in the turn in which it comes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from cluster.config.config import Config
from cluster.config.loading import load
from cluster.node.node import Node
from cluster.peer.transport import BULK, PeerTransport
from cluster.peer.transport_options import FrameHandlers
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.reply_path import ReplyPath
from cluster.remoting.connection.server import LONG_FRAME_BYTES
from cluster.remoting.forward.forwarder import Forwarder
from cluster.replication.acks.early_answers import EarlyAnswers
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.replication.proposals import Proposals
from cluster.replication.raft_driver import RaftDriver
from cluster.requests.table import too_long
from cluster.runtime.environment import CHECKPOINT_EVERY_MS
from cluster.runtime.lanes import Lane
from jepsen_like.sim.machines.end_of_run import end_run
from jepsen_like.sim.machines.lanes import DiskSpeed, LaneWatcher, SimLane
from jepsen_like.sim.machines.loop import PROCESS, SimLoop
from jepsen_like.sim.machines.machine import DATA, Machine, config_of
from jepsen_like.sim.machines.network import EdgeConditions, Endpoint, Network
from jepsen_like.sim.options import Options, calm, stream
from raftlog.core.raw_node import RawNode
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import FIRST_GROUP, Entry, NodeId, Role
from raftmq_wire.codec import FLAG_ONEWAY, decode_header, encode_frame
from raftmq_wire.message_format import decode_message
from statemachine.broker_state import BrokerState
from statemachine.commands import Command
from statemachine.topics.topics import CreateTopic

T = TypeVar("T")

IDS = (NodeId(1), NodeId(2), NodeId(3))
STEP_S = 0.005
"""The interval at which `run_until` looks, in virtual seconds."""
SELDOM_S = 0.1
"""The same for waits of a minute."""
TURNS_MAX = 200
"""A start takes no time, and fewer turns of the loop."""
EVENTS_MAX = 10_000_000
"""Events of one test: a node that turns round and round is stopped."""


class StepLoop(SimLoop):
    """A SimLoop that a test moves on; what fails in a callback fails the test."""

    tolerant = False
    """True: errors are only collected, in `errors`."""

    def run_for(self, seconds: float) -> None:
        """Lets so much virtual time pass. Raises the first error of a callback."""
        self.call_outside(seconds, self.stop)
        self.run_forever()
        for what, error in self.errors:
            if not self.tolerant:
                raise error or RuntimeError(what)

    def run_until(
        self, reached: Callable[[], object], limit_s: float, what: str = "", *, every_s: float = STEP_S
    ) -> None:
        """Lets time pass until `reached` is true. Fails after `limit_s`, or at the first error of a callback.

        `every_s`: how often it looks; less often where a look costs much, the wait is long and what it waits for stays.
        """
        end = self.now + limit_s
        while not reached():
            assert self.now < end, f"not reached within {limit_s} s of virtual time: {what or reached}"
            self.run_for(every_s)

    def turn_until(self, reached: Callable[[], object]) -> None:
        """Runs what is due now, in as many turns as that takes."""
        for _ in range(TURNS_MAX):
            if reached():
                break
            self.run_for(0.0)


class Failures:
    """Implements `MachineWatcher`: a node that ends by itself is an error of the loop; tells when its machine's node
    has started, when its process has ended, and what it has applied; the rest is not looked at."""

    def __init__(
        self,
        loop: StepLoop,
        started: Callable[[], None],
        ended: Callable[[], None],
        applied: Callable[[list[Entry]], None],
    ) -> None:
        self._loop, self._told_of_start, self._told_of_end, self._told_of_apply = loop, started, ended, applied

    def broken(self, what: str, error: BaseException) -> None:
        """Notes the error, so that the test fails."""
        self._loop.errors.append((what, error))

    def started(self, machine: Machine) -> None:
        self._told_of_start()

    def ended(self, machine: Machine, how: str) -> None:
        self._told_of_end()

    def drained(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        if lane == "apply":
            for entries in batch:
                self._told_of_apply(entries)

    def _ignore(self, *_: object, **__: object) -> None:
        pass

    opened = closed = draining = worked = reported = retired = _ignore


class HeldLane(SimLane):
    """A lane that a test can stop, before its work or before its report."""

    def __init__(
        self,
        name: str,
        lane: Lane[Any, Any],
        loop: SimLoop,
        rng: random.Random,
        speed: DiskSpeed,
        slow: Callable[[], float],
        watcher: LaneWatcher,
        on_done: Callable[[Any], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name, lane, loop, rng, speed, slow, watcher, self._tell, on_failure)
        self._process = PROCESS.get()
        self._heard = on_done
        self._is_held = False
        self.held: list[Any] = []
        """The jobs that wait for `release`."""
        self.silent = False
        """True while nothing that is done is reported, until `speak`: as if a sync took long."""
        self._unsaid: list[Any] = []

    def submit(self, job: Any) -> None:
        """Queues a job; keeps it while the lane is held."""
        if self._is_held:
            self.held.append(job)
        else:
            super().submit(job)

    def hold(self) -> None:
        """Nothing that is submitted is begun until `release`."""
        self._is_held = True

    def release(self, count: int | None = None) -> None:
        """Begins what was held, and no longer holds anything; with `count`, only the first so many jobs of it."""
        self._is_held = count is not None
        begun, self.held = self.held[:count], self.held[len(self.held) if count is None else count :]
        for job in begun:
            self._run(super().submit, job)

    def speak(self) -> None:
        """Reports what was kept back, and from now on at once."""
        self.silent = False
        unsaid, self._unsaid = self._unsaid, []
        for done in unsaid:
            self._run(self._heard, done)

    def close(self) -> None:
        """Does what is held as well, and accepts no more."""
        self.release()
        super().close()

    def _run(self, step: Callable[..., None], *arguments: Any) -> None:
        assert self._process is not None
        self._process.run(step, *arguments)

    def _tell(self, done: Any) -> None:
        if self.silent:
            self._unsaid.append(done)
        else:
            self._heard(done)


class ClientPath(ReplyPath):
    """A client's connection: requests go in as frames, replies come out as (code, remark, ext)."""

    def __init__(self, node: SimNode, port: int = 4000) -> None:
        rooms = node.running.serving.remoting.router.memory
        super().__init__(("10.0.0.9", port), "broker", rooms.unsent, rooms.gate)
        self.node = node
        self.replies: dict[int, list[tuple[int, str, bytes]]] = {}
        self.written: list[bytes] = []
        """All frames that the client has received."""
        self.on_reply: Callable[[int, int, str], None] | None = None

    def ask(self, frame: bytes) -> None:
        """One whole frame. Lost if the node is down."""
        if self.closed:
            return
        end = 8 + int.from_bytes(frame[5:8], "big")
        header = decode_header(frame[4], frame[8:end])
        request = Frame(self, frame[4], header, frame[8:end], frame[end:], len(frame) - 8)
        is_long = len(frame) > LONG_FRAME_BYTES  # as in a connection
        if is_long and (remark := too_long(header.code, len(frame) - end)):
            self.node.run(self.node.running.serving.remoting.router.on_too_long, request, remark)
        else:
            self.node.run(self.node.running.serving.remoting.router.on_request, request)

    def write(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[5:8], "big")
        header = decode_header(data[4], data[8:end])
        assert len(data) == 4 + int.from_bytes(data[:4], "big"), "one frame per reply"
        if self.closed:
            return
        self.written.append(bytes(data))
        self.replies.setdefault(header.opaque, []).append((header.code, header.remark or "", bytes(header.extFields)))
        if self.on_reply is not None:
            self.on_reply(header.opaque, header.code, header.remark or "")

    def leave_now(self) -> None:
        """The node ends the connection."""
        self.node.loop.call_soon(self.close)

    def close(self) -> None:
        """The client goes away."""
        if not self.closed:
            self.closed = True
            if self.node.up:
                self.node.run(self._gone)

    def _gone(self) -> None:
        heard: Callable[[Any], None] = self.node.running.serving.remoting.router.on_close
        heard(self)
        self.tell_closed()


class SimNode(Machine):
    """A machine whose lanes a test can hold."""

    def __init__(
        self,
        node_id: NodeId,
        options: Options,
        loop: StepLoop,
        network: Network,
        overrides: dict[str, Any],
        group: int = FIRST_GROUP,
    ) -> None:
        config = config_of_test(node_id, options, overrides, group)
        self._appliers: list[list[Entry]] = []
        watcher = Failures(loop, self._note_start, self._note_end, self._note_applied)
        super().__init__(node_id, options, loop, network, watcher, config, group)
        self.loop: StepLoop = loop
        self.paths: list[ClientPath] = []
        self.is_started = False
        """It has opened its ports, and its process lives."""

    def start(self) -> None:
        """Recovers from the disk and opens its ports; it joins the group in its own time."""
        super().start()
        if not self.loop.is_running():
            self.loop.turn_until(lambda: self.is_started)

    def _note_start(self) -> None:
        self.is_started = True

    def _note_applied(self, entries: list[Entry]) -> None:
        for each in self._appliers:
            each += entries

    def entries_from_now(self) -> list[Entry]:
        """Returns a list that gets the entries which the node applies from now on."""
        self._appliers.append([])
        return self._appliers[-1]

    def lane_kind(self, name: str) -> type[SimLane]:
        """Returns the machine's kind of lane if appends run inline, else a lane that a test can hold."""
        return super().lane_kind(name) if self.options.append_inline else HeldLane

    def _note_end(self) -> None:
        self.is_started = False
        for path in self.paths:
            path.closed = True
        self.paths.clear()

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls it as the node's process, which is what its timers and tasks then belong to."""
        assert self.process is not None
        return self.process.run(function, *arguments)

    def transfer(self, to: NodeId) -> None:
        """Hands leadership over. Raises NotLeaderError, or ValueError if that node cannot lead."""
        self.run(self.running.driver.transfer, to)

    def connect(self, port: int = 4000) -> ClientPath:
        """A new client connection, from this port of the client's host."""
        path = ClientPath(self, port)
        path.closed = not self.up
        if self.up:
            self.paths.append(path)
        return path

    # --- its parts -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> Node:
        """The node that runs here, or ran here last."""
        return self.nodes[-1]

    @property
    def refused(self) -> dict[str, int]:
        """Label `reason` -> refused requests, as the node's metrics count them."""
        return self.running.meters.requests.refusals

    @property
    def append(self) -> HeldLane:
        """The lane that writes the log."""
        return self._lane_of("append")

    @property
    def apply(self) -> HeldLane:
        """The lane that applies entries."""
        return self._lane_of("apply")

    def _lane_of(self, name: str) -> HeldLane:
        made = [lane for lane in self._lanes if lane.name == name]
        assert isinstance(made[-1], HeldLane)
        return made[-1]

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the node."""
        return self.running.failure

    @property
    def raw(self) -> RawNode:
        """The Raft core."""
        return self.running.raw

    @property
    def driver(self) -> RaftDriver:
        """The driver that turns the node."""
        return self.running.driver

    @property
    def log(self) -> SegmentedLog:
        """Its log."""
        return self.running.storage.directory.log

    @property
    def state(self) -> BrokerState:
        """Its rows."""
        return self.running.state

    @property
    def proposals(self) -> Proposals:
        """The writes that wait for an entry to be decided."""
        return self.running.serving.proposals

    @property
    def early(self) -> EarlyAnswers:
        """The answers that are given before that."""
        return self.proposals.early

    @property
    def forwarder(self) -> Forwarder:
        """The requests that were passed on to the leader."""
        return self.running.serving.remoting.forwarder

    @property
    def forwarded(self) -> dict[int, Any]:
        """Number -> a request that was passed on and is not answered yet."""
        return self.forwarder._held

    @property
    def undecided(self) -> dict[int, Any]:
        """Index -> the requests that wait for that entry."""
        return self.proposals._pending

    @contextmanager
    def mute(self) -> Iterator[None]:
        """What it sends to others is lost meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.transport, "send_frame", lambda *frame: True)
            yield

    def hear(self, **others: Any) -> FrameHandlers:
        """Gives frames of peers to others; returns those that had them before."""
        before = self.transport._handlers
        assert before is not None
        self.transport._handlers = before._replace(**others)
        return before

    @property
    def transport(self) -> PeerTransport:
        """Its connections to the others."""
        return self.running.peers.transport

    # --- what is checked -----------------------------------------------------------------------------------------

    def bodies(self, topic: str) -> list[bytes]:
        """Every message of the topic as this node would serve it, read back from its own log."""
        config = self.state.topics.get(topic)
        found: list[bytes] = []
        if config is None:
            return found
        for queue_id in range(config.queues):
            end = self.state.max_offset(config.id, queue_id)
            items = self.state.fetch(config.id, queue_id, 0, end)
            assert len(items) == end, f"node {self.node_id}: {len(items)} of {end} rows in queue {queue_id}"
            for offset, item in enumerate(items):
                message, _ = decode_message(self.log.read_at(item.position, item.size))
                assert (message.queue_id, message.queue_offset) == (queue_id, offset)
                found.append(message.body)
        return found


def config_of_test(node_id: NodeId, options: Options, overrides: dict[str, Any], group: int = FIRST_GROUP) -> Config:
    """The defaults of a user's configuration with `overrides`, at the addresses of the simulator."""
    known = config_of(node_id, options, group)
    config = load(None, None, {"node.id": int(node_id), "node.data_dir": str(DATA), **overrides})
    cluster = config.cluster if group == FIRST_GROUP else known.cluster
    return replace(config, cluster=cluster, peers=known.peers, listeners=known.listeners, peer=known.peer)


class SimCluster:
    """`with SimCluster(seed) as sim: ...`"""

    def __init__(
        self,
        seed: int,
        *,
        segment_size: int = 1 << 16,
        inline: Any = 0.0,
        config: Any = 0,
        group: Any = FIRST_GROUP,
        latency_s: Any = (0.0002, 0.002),
        **overrides: Any,
    ) -> None:
        """`overrides`: configuration keys, as {"send.deadline_ms": 20_000}. `inline`: how often a lone small append or
        apply is done on the loop, as on a quick disk; above 0 no lane can be held. `config`: 1 if the configuration
        is to become a part of the log, as it does on real nodes. `group`: the number of their group of brokers; of
        others there is no node. `latency_s`: the least and the longest time that bytes are on their way."""
        print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
        self.rng = random.Random(seed)
        options = calm(
            seed=seed,
            segment_size=segment_size,
            latency_s=latency_s,
            disk_s=(0.0005, 0.004),
            apply_s=(0.0001, 0.001),
            append_inline=inline,
            apply_inline=inline,
            config=config,
            skew_ms=200,
            checkpoint_every_ms=CHECKPOINT_EVERY_MS,
        )
        self.loop = StepLoop(EVENTS_MAX)
        self.network = Network(self.loop, EdgeConditions(stream(seed, "network"), options.latency_s, options.split))
        self.nodes = {node_id: SimNode(node_id, options, self.loop, self.network, overrides, group) for node_id in IDS}

    def __enter__(self) -> SimCluster:
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, *exc: object) -> None:
        end_run(self.loop, self.network, self.nodes.values())

    # --- the network -------------------------------------------------------------------------------------------------

    def isolate(self, node: SimNode) -> None:
        """Cuts a node off in both directions: what is sent waits, and connections look alive."""
        for other in self.nodes.values():
            if other is not node:
                self.network.cut([(node.host, other.host), (other.host, node.host)])

    def cut(self, sender: SimNode, receiver: SimNode) -> None:
        """The same in one direction."""
        self.network.cut([(sender.host, receiver.host)])

    def reset(self, a: SimNode, b: SimNode) -> None:
        """Ends the connections between two nodes; what is on the way is lost."""
        self.network.reset({a.host, b.host})

    @contextmanager
    def unlinked(self, dialler: SimNode, other: SimNode) -> Iterator[None]:
        """Ends the connection on which `dialler` sends requests and answers to `other`, and lets it dial again
        afterwards. What it sends meanwhile on its control connection waits; what `other` sends arrives."""
        edge, end = (dialler.host, other.host), dialler.transport.links[other.node_id, BULK].transport
        assert isinstance(end, Endpoint)
        self.network.cut([edge])
        end.peer.reset()
        end.reset()
        self.loop.turn_until(
            lambda: not any(inlet.peer == dialler.node_id and inlet.channel == BULK for inlet in other.transport.inlets)
        )
        yield
        self.network.heal([edge])

    def mend(self) -> None:
        """Every direction carries again. Connections that were cut are reset: what was sent into the cut is lost."""
        cut = {tuple(sorted(edge)) for edge in self.network.links.cuts}
        self.network.heal()
        for pair in sorted(cut):
            self.network.reset(set(pair))

    # --- the test's hands --------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.is_started]

    def find_leader(self) -> SimNode | None:
        """Returns the node that takes writes in the highest term, if any does."""
        leaders = [node for node in self.running if node.proposals.open]
        return max(leaders, key=lambda node: node.raw.term, default=None)

    def leader(self, limit_s: float = 30.0, besides: SimNode | None = None) -> SimNode:
        """Waits until somebody (but `besides`) takes writes."""
        self.loop.run_until(lambda: self.find_leader() not in (None, besides), limit_s, "a leader")
        leader = self.find_leader()
        assert leader is not None
        return leader

    def followers(self) -> list[SimNode]:
        leader = self.leader()
        return [node for node in self.running if node is not leader]

    def propose(self, node: SimNode, *commands: Command) -> list[ProposeResult]:
        """Submits commands; the list fills when they are settled."""
        results: list[ProposeResult] = []
        node.run(node.proposals.submit_commands, list(commands), results.append)
        return results

    def begin_term(self, node: SimNode) -> None:
        """Makes it the leader, which everybody knows. It takes no writes until `node.apply.release`."""
        leader = self.leader()
        if leader is node:
            leader = self.followers()[0]
            node.transfer(leader.node_id)
            self.loop.run_until(lambda: leader.proposals.open, 10, "another leader")
            self.settle()
        node.apply.hold()
        leader.transfer(node.node_id)
        self.loop.run_until(lambda: node.raw.role is Role.LEADER, 10, "it leads")
        self.loop.run_until(lambda: all(each.raw.leader_id == node.node_id for each in self.running), 1, "all know it")

    def create_topic(self, name: str, queues: int = 2, **config: Any) -> None:
        """Creates it and waits until every running node has it."""
        fields = {"name": name, "read_queues": queues, "write_queues": queues, "perm": 6, **config}
        results = self.propose(self.leader(), CreateTopic(fields, False))
        self.loop.run_until(lambda: results, 10, "the topic is created")
        assert results[0].outcome is Outcome.OK, results
        self.loop.run_until(lambda: all(name in node.state.topics for node in self.running), 10, "topic everywhere")

    def heal(self) -> None:
        """No faults any more, everybody up."""
        self.mend()
        for node in self.nodes.values():
            if node.up:
                node.append.release()
                node.apply.release()
            else:
                node.start()

    def settle(self, limit_s: float = 60.0) -> None:
        """Waits until all have applied the same log and nobody waits for an answer."""
        self.leader(limit_s)

        def same() -> bool:
            if len(self.running) < len(self.nodes):
                return False
            marks = {(n.state.applied, n.raw.last_index, n.raw.commit_index) for n in self.running}
            idle = not any(n.proposals.gate.bytes for n in self.running)
            return len(marks) == 1 and idle and all(n.state.applied.index == n.raw.last_index for n in self.running)

        self.loop.run_until(same, limit_s, "equal applied logs")

    def check_equal(self) -> None:
        """Equal rows on every node (call `settle` first)."""
        sums = {node.node_id: node.kv.recount() for node in self.running}
        assert len({tuple(sorted(one.items())) for one in sums.values()}) == 1, sums


def send_frame(
    opaque: int,
    topic: str,
    body: bytes,
    *,
    queue_id: int = 0,
    key: str = "",
    pid: bytes = b"",
    seq: int = 0,
    low: int = 0,
    oneway: bool = False,
    serialize_type: int = 0,
    properties: str = "",
) -> bytes:
    """A send request (code 310) as a client writes it; with `pid` it is our own client's."""
    ext = {
        "a": "g",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": (f"UNIQ_KEY\x01{key}\x02" if key else "") + properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    if pid:
        ext |= {"raftmqPid": pid.hex(), "raftmqSeq": str(seq), "raftmqLow": str(low)}
    flag = FLAG_ONEWAY if oneway else 0
    return encode_frame(310, opaque, flag, ext=ext, body=body, serialize_type=serialize_type, language="JAVA")


def codes(path: ClientPath, opaque: int) -> list[int]:
    """The codes of all answers to a request so far: more than one is a defect."""
    return [code for code, _, _ in path.replies.get(opaque, [])]
