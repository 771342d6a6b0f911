"""RaftMQ as a subject: a local cluster whose nodes reach each other only through the proxies."""

from __future__ import annotations

import asyncio
import concurrent.futures
import urllib.error
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from cluster.config.config import Config, dump
from cluster.config.loading import load
from cluster.config.local_layout import ClusterFile, NodeRecord, write_cluster
from cluster.config.node_files import plan_nodes, write_config, write_configs
from jepsen_like.history import HistoryWriter
from jepsen_like.live.subjects.load_user import NAME, LoadUser
from jepsen_like.live.subjects.payload import body_of, id_of
from jepsen_like.live.subjects.processes import Processes
from jepsen_like.live.subjects.proxy import Fabric
from jepsen_like.live.subjects.raftmq_nodes import RaftMQNodes
from jepsen_like.live.subjects.subject import (
    Capability,
    LoadPlan,
    PlacedMessage,
    SendFailed,
    SendUnknown,
    leader_of,
)
from raftmq.client.errors import RaftMQError, Unknown
from raftmq.local.http.credentials import Address, address_of
from raftmq.local.init import create_data_dirs
from raftmq.local.local_users import ClientOptions, client_options, enforce, provide_key
from raftmq.local.process import check_ports, free_base_port
from raftmq.local.tls.local_tls import certify

if TYPE_CHECKING:
    from raftmq.client import SendResult

TOPIC = "chaos"
GROUP = "chaos-consumers"
QUEUES = 4
LOAD = LoadPlan(2000, 512)
SEND_TIMEOUT_S = 20.0
READY_S = 60.0
PATIENCE = 6
_CAPABILITIES = frozenset(
    {
        Capability.FAILPOINTS,
        Capability.TRANSFER,
        Capability.GROUPS,
        Capability.TOPICS,
        Capability.MEMBERS,
        Capability.CLIENTS,
    }
)


class RaftMQSubject(RaftMQNodes):
    """A `Subject` of RaftMQ nodes. `environment(node)` returns the environment variables that a process gets in
    addition, such as the shim's settings.
    """

    name = "raftmq"
    topic = TOPIC
    queues = QUEUES
    emphasis: Mapping[str, int] = {"power-loss-all": 2}

    def __init__(
        self,
        data: Path,
        processes: Processes,
        *,
        count: int = 3,
        seed: int = 0,
        segment_size_bytes: int = 6 << 20,
        environment: Callable[[int], dict[str, str]] = lambda _: {},
        more: frozenset[Capability] = frozenset(),
        load: LoadPlan | None = None,
        files_max: int | None = None,
        is_direct: bool = False,
        is_patient: bool = False,
        is_empty: bool = False,
        has_users: bool = False,
        speaks_tls: bool = False,
    ) -> None:
        """Plans the nodes and opens the proxies; starts nothing. Segments are small, so that the log rolls under
        faults.

        `is_direct`: nodes reach each other without the proxies, for runs that break no link. `files_max`: how many
        files and connections a node's process may have open; None: as many as this process. `is_patient`: nodes wait
        six times as long before an election, so that other load on the machine causes none. `is_empty`: no topic is
        created. `has_users`: access rules are enforced, and a first user of type Super exists. `speaks_tls`: the ports
        for clients, nodes and the HTTP API take TLS alone.
        """
        self.load = LOAD if load is None else load
        secured = has_users or speaks_tls
        self.capabilities = (_CAPABILITIES | more) - ({Capability.CLIENTS} if secured else set())
        self._environment = environment
        self.segment_size_bytes = segment_size_bytes
        self._files_max = files_max
        self._is_direct = is_direct
        self._is_patient = is_patient
        self._is_empty = is_empty
        self.has_users = has_users
        self._load_user = LoadUser() if has_users and not is_empty else None
        self._speaks_tls = speaks_tls
        data.mkdir(parents=True)
        super().__init__(data, processes, plan_nodes(data, count, free_base_port(4 * count)))
        self._ids = {node.id for node in self.nodes}
        """All node ids that were ever used."""
        self.fabric = Fabric({node.id: node.peer_port for node in self.nodes}, seed, owner=processes.owner)

    def start(self) -> None:
        """Makes and starts all nodes, and waits until the leader accepts writes. Then creates the load's topic and
        group, unless the cluster is to stay empty. Raises LocalError.
        """
        check_ports(self.nodes)
        write_configs(self.nodes, failpoints=True)
        for node in self.nodes:
            self._wire(node)
        create_data_dirs([node.config_path for node in self.nodes])
        for node in self.nodes:
            self.certify(node)
        for node in self.nodes:
            self.start_node(node.id)
        self.wait_healthy(READY_S)
        if self.has_users:
            enforce(self.data, self.nodes)
        if not self._is_empty:
            self._make_topic()

    def _wire(self, node: NodeRecord) -> None:
        """Writes the addresses of the node's proxies into its configuration, in place of the other nodes' addresses.
        Other nodes reach a node that joined at its gate (joined_node_proxy.py).
        """
        config, ports = load(node.config_path), self.fabric.ports
        own = self.fabric.gates.get(node.id, node.peer_port)
        peers = tuple(
            replace(peer, port=own if peer.id == node.id else ports[node.id, peer.id]) for peer in config.peers
        )
        peers = config.peers if self._is_direct else peers
        wired = replace(config, peers=peers, log=replace(config.log, segment_size_bytes=self.segment_size_bytes))
        if self._is_patient:
            wired = replace(wired, raft=replace(config.raft, election_ticks=PATIENCE * config.raft.election_ticks))
        node.config_path.write_text(dump(wired), encoding="utf-8")
        if self.has_users:
            provide_key(self.data, [node])

    def configure(self, node: int, change: Callable[[Config], Config]) -> None:
        """Changes the configuration file of a running node, and makes the node read it again. Raises OSError."""
        file = self._node(node).config_path
        file.write_text(dump(change(load(file))), encoding="utf-8")
        self.request(node, "POST", "/v1/config/reload")

    def certify(self, node: NodeRecord) -> None:
        """Gives a node whose directory exists its certificate, if nodes speak TLS."""
        if self._speaks_tls:
            certify(self.data, [node])
            config = load(node.config_path)
            enforcing = replace(config, tls=replace(config.tls, mode="enforcing"))
            node.config_path.write_text(dump(enforcing), encoding="utf-8")

    @property
    def client_options(self) -> ClientOptions:
        """The further arguments with which `raftmq.connect` reaches this cluster, as its first user if it has users."""
        return client_options(self.data)

    @property
    def load_options(self) -> ClientOptions:
        """The further arguments with which clients of the load connect. If the cluster has users, they connect as a
        user that has only the rights that they need.
        """
        options = self.client_options
        if self._load_user is not None:
            options |= {"access_key": NAME, "secret_key": self._load_user.secret}
        return options

    def load_address(self, node: NodeRecord) -> Address:
        """Returns the address of a node's HTTP API, with the proof of the load's user if the cluster has users."""
        return self._load_user.address(node) if self._load_user is not None else address_of(node)

    def plan_joining(self) -> NodeRecord:
        """Plans one more node, with its folder, configuration and edges; its process is not started yet."""
        number = 1 + max(self._ids)
        self._ids.add(number)
        base = free_base_port(4)
        log = str(self.data / f"n{number}" / "node.log")
        node = NodeRecord(number, None, base, base + 1, base + 2, base + 3, log)
        self.nodes = [*self.nodes, node]
        self.fabric.add_node(number, node.peer_port)
        write_config(node, self.nodes, failpoints=True)
        self._wire(node)
        return node

    def drop(self, node: int) -> None:
        """Removes a node for good: ends its process, and no longer asks it anything."""
        self.processes.resume(node)
        self.processes.terminate(node)
        self.processes.forget(node)
        self.nodes = [each for each in self.nodes if each.id != node]
        self.fabric.remove_node(node)

    def _make_topic(self) -> None:
        from raftmq.client import connect

        with connect(self.servers, **self.client_options) as mq:
            mq.admin.create_topic(TOPIC, queues=QUEUES)
            mq.admin.create_group(GROUP)
            if self._load_user is not None:
                leader = leader_of(self.states()) or self.nodes[0].id
                self._load_user.make(mq, self._node(leader), self.nodes, TOPIC, GROUP)

    def stop(self) -> None:
        """Stops all nodes, including paused ones, and the proxies."""
        self.processes.stop_all()
        self.fabric.close()
        self._pool.shutdown()

    def start_node(self, node: int) -> None:
        """Starts a node that does not run, without waiting for it to join."""
        self.run(node, self._environment(node), self._files_max)
        write_cluster(self.data, ClusterFile(self.nodes))

    def disk(self, node: int) -> tuple[int, bool]:
        """Returns (how often its log began to wait for space since the node was opened, whether it waits now). Raises
        OSError.
        """
        view = self.request(node, "GET", "/v1/status")["disk"]
        return int(view["parkings"]), bool(view["parked"])

    def transfer(self, leader: int, to: int) -> bool:
        """Asks for a transfer of leadership; returns True if the answer says that `to` leads, False for another answer
        or a refusal. Raises OSError if there is no answer.
        """
        try:
            return bool(self.request(leader, "POST", "/v1/leader/transfer", {"to": to})["leader"] == to)
        except urllib.error.HTTPError:
            return False

    async def open_client(self) -> RaftMQLogClient:
        """Returns a new client for the running loop."""
        return RaftMQLogClient(self.servers, self.load_options)

    def read_all(self, history: HistoryWriter) -> int:
        """Reads every replica to its end into the history; returns the number of rows."""
        from jepsen_like.read_node import read_node
        from raftmq.client import connect

        with (
            connect(self.servers, **self.client_options) as mq,
            concurrent.futures.ThreadPoolExecutor(len(self.nodes)) as pool,
        ):
            return sum(pool.map(lambda node: read_node(mq, node, TOPIC, range(QUEUES), history, id_of), self.nodes))


class RaftMQLogClient:
    """A LogClient: one producer session with its own connection."""

    def __init__(self, servers: str, options: ClientOptions) -> None:
        from raftmq.client import aconnect

        self._client = aconnect(servers, timeout_s=SEND_TIMEOUT_S, **options)
        self._producer = self._client.producer()
        self._loop = asyncio.get_running_loop()

    async def submit(
        self, message_id: str, topic: str = TOPIC, ordering_key: str | None = None
    ) -> asyncio.Future[PlacedMessage]:
        """Starts a send and returns when the next may start; the future ends with SendFailed or SendUnknown if the send
        is not acknowledged."""
        outcome: asyncio.Future[PlacedMessage] = self._loop.create_future()
        try:
            sending = await self._producer.send_soon(
                topic, body_of(message_id), key=message_id, ordering_key=ordering_key
            )
        except RaftMQError as error:
            _settle(outcome, error, None)
            return outcome
        sending.add_done_callback(lambda done: _settle_as(outcome, done))
        return outcome

    async def close(self) -> None:
        """Closes the connections; open sends end as unknown."""
        await self._client.close()


def _settle_as(outcome: asyncio.Future[PlacedMessage], done: asyncio.Future[SendResult]) -> None:
    error = done.exception()
    _settle(outcome, error, None if error else done.result())


def _settle(outcome: asyncio.Future[PlacedMessage], error: BaseException | None, result: Any) -> None:
    """Sets the outcome of a send: only an error that the client promises to mean "not stored" counts as a failure."""
    if outcome.done():
        return
    if error is None:
        outcome.set_result(PlacedMessage(result.queue_id, result.queue_offset, result.position))
    elif isinstance(error, RaftMQError) and not isinstance(error, Unknown):
        outcome.set_exception(SendFailed(str(error)))
    else:
        outcome.set_exception(SendUnknown(repr(error)))
