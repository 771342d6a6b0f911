"""RaftMQ as a subject: a local cluster whose nodes reach each other only through the proxies."""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import io
import json
import os
import sys
import time
import urllib.error
from collections.abc import Callable, Mapping
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from cluster.config.config import Config, dump
from cluster.config.loading import load
from cluster.config.local_layout import ClusterFile, NodeRecord, write_cluster
from cluster.config.node_files import plan_nodes, write_config, write_configs
from jepsen_like.history import READERS_FROM, HistoryWriter
from jepsen_like.live.subjects.load_user import NAME, LoadUser
from jepsen_like.live.subjects.payload import body_of, id_of
from jepsen_like.live.subjects.processes import OfProcesses, Processes
from jepsen_like.live.subjects.proxy import Fabric
from jepsen_like.live.subjects.stopped_node_state import Digest, read_digest
from jepsen_like.live.subjects.subject import (
    Capability,
    LoadPlan,
    NodeState,
    Placed,
    SendFailed,
    SendUnknown,
    is_healthy,
    leader_of,
)
from raftmq.client.errors import RaftMQError, Unknown
from raftmq.local.http.credentials import Address, address_of
from raftmq.local.http.http_exchange import exchange
from raftmq.local.http.list_pages import AFTER, whole_answer, whole_list
from raftmq.local.init import create_data_dirs
from raftmq.local.local_users import ClientOptions, client_options, enforce, provide_key
from raftmq.local.process import NODE_MODULE, check_ports, free_base_port, log_tail
from raftmq.local.status import fetch_status
from raftmq.local.tls.local_tls import certify
from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    from raftmq.client import SendResult

TOPIC = "chaos"
GROUP = "chaos-consumers"
QUEUES = 4
LOAD = LoadPlan(2000, 512)
SEND_TIMEOUT_S = 20.0
READY_S = 60.0
PATIENCE = 6
_STATUS_TIMEOUT_S = 0.5
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


class RaftMQSubject(OfProcesses):
    """A `Subject` of RaftMQ nodes. `environment(node)` returns the environment variables that a process gets in
    addition: the shim's settings."""

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
        files and connections a node's process may have open; None: as many as this one. `is_patient`: nodes wait six
        times as long before an election, so that a machine that is busy with something else is no finding. `is_empty`:
        no topic is created. `has_users`: rules are enforced, and there is a first Super. `speaks_tls`: the ports for
        clients, nodes and the HTTP API take TLS alone.
        """
        self.data = data
        self.processes = processes
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
        base = free_base_port(4 * count)
        self.nodes: list[NodeRecord] = plan_nodes(data, count, base)
        self._ids = {node.id for node in self.nodes}
        """All node ids that were ever used."""
        self.fabric = Fabric({node.id: node.peer_port for node in self.nodes}, seed, owner=processes.owner)
        self._pool = concurrent.futures.ThreadPoolExecutor(count + 2, "raftmq-chaos-status")

    @property
    def node_ids(self) -> list[int]:
        """The ids of all nodes, ascending."""
        return [node.id for node in self.nodes]

    @property
    def servers(self) -> str:
        """The addresses of the cluster for a client."""
        return ";".join(f"127.0.0.1:{node.namesrv_port}" for node in self.nodes)

    def _node(self, node_id: int) -> NodeRecord:
        return next(node for node in self.nodes if node.id == node_id)

    def start(self) -> None:
        """Makes and starts all nodes and waits until the leader accepts writes. Raises LocalError."""
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
        """Gives the node the addresses of its proxies in place of the other nodes' addresses; the others reach a node
        that joins at its gate."""
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
        """Changes the file of a node that runs, and lets it read the file again. Raises OSError."""
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
        """The further arguments with which clients of the load connect: as a user that has the rights they need, and no
        other, if the cluster has users."""
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

    def wait_healthy(self, timeout_s: float) -> None:
        """Waits until all nodes agree on a leader that accepts writes. Raises LocalError."""
        deadline = time.monotonic() + timeout_s
        while not is_healthy(self.states()):
            for node in self.nodes:
                if not self.is_running(node.id):
                    raise LocalError(f"node {node.id} ended", "; ".join(log_tail(node, 4)), f"less {node.log}")
            if time.monotonic() > deadline:
                raise LocalError("the cluster is not ready", f"after {timeout_s:.0f} s", f"less {self.nodes[0].log}")
            time.sleep(0.05)

    def _make_topic(self) -> None:
        from raftmq.client import connect

        with connect(self.servers, **self.client_options) as mq:
            mq.admin.create_topic(TOPIC, queues=QUEUES)
            mq.admin.create_group(GROUP)
            if self._load_user is not None:
                leader = leader_of(self.states()) or self.nodes[0].id
                self._load_user.make(mq, self._node(leader), self.nodes, TOPIC, GROUP)

    def stop(self) -> None:
        """Ends all nodes, including paused ones."""
        self.processes.stop_all()
        self.fabric.close()
        self._pool.shutdown()

    def data_of(self, node: int) -> Path:
        """Returns the node's data directory."""
        return self._node(node).home / "data"

    def stop_in_order(self) -> bool:
        """Stops all nodes in an orderly way, the leader last, so that no node applies more than the others; returns
        True if each ended that way."""
        leader = leader_of(self.states())
        order = sorted(filter(self.is_running, self.node_ids), key=lambda node: node == leader)
        return sum(self.terminate(node) for node in order) == len(order)

    def read_digests(self, history: HistoryWriter) -> dict[int, Digest]:
        """Computes the digests of each stopped node's state and records them in the history (`digest`). Raises
        KVError."""
        found = {}
        for node in self.node_ids:
            asked = {"node": node}
            invoked = history.invoke(READERS_FROM + node, "digest", asked)
            found[node] = read_digest(self.data_of(node))
            history.ok(invoked, asked | {"applied": found[node].applied, "digest": found[node].text})
        return found

    def start_node(self, node: int) -> None:
        """Starts a node that does not run, without waiting for it to join."""
        record = self._node(node)
        environment = dict(os.environ) | self._environment(node)
        command = [sys.executable, "-P", "-m", NODE_MODULE, "--config", str(record.config_path)]
        if self._files_max is not None:
            command = ["sh", "-c", f'ulimit -n {self._files_max}; exec "$@"', "sh", *command]
        pid = self.processes.start(node, command, Path(record.log), environment)
        self.nodes = [replace(each, pid=pid) if each.id == node else each for each in self.nodes]
        write_cluster(self.data, ClusterFile(self.nodes))

    def states(self) -> dict[int, NodeState | None]:
        """Asks all nodes for their states at the same time; None for a node that does not answer. Any thread may call
        it."""
        nodes = self.nodes
        answers = self._pool.map(lambda node: fetch_status(address_of(node), _STATUS_TIMEOUT_S), nodes)
        return {node.id: _state(answer) for node, answer in zip(nodes, answers, strict=True)}

    def set_failpoint(self, node: int, point: str, action: str) -> None:
        """Sets an action at a failpoint of a node. Raises OSError if the node does not answer."""
        self.request(node, "PUT", "/v1/failpoints", {"name": point, "action": action})

    def failpoint_hits(self, node: int) -> dict[str, int]:
        """Returns failpoint -> how often an action took effect there since the node started. Raises OSError."""
        answer = self.request(node, "GET", "/v1/failpoints")
        return {point["name"]: int(point["hits"]) for point in answer["failpoints"]}

    def failpoint_waiting(self, node: int) -> dict[str, int]:
        """Returns failpoint -> the number of operations held there right now. Raises OSError."""
        answer = self.request(node, "GET", "/v1/failpoints")
        return {point["name"]: int(point["waiting"]) for point in answer["failpoints"]}

    def disk(self, node: int) -> tuple[int, bool]:
        """Returns (how often its log began to wait for space since the node was opened, whether it waits now). Raises
        OSError.
        """
        view = self.request(node, "GET", "/v1/status")["disk"]
        return int(view["parkings"]), bool(view["parked"])

    def transfer(self, leader: int, to: int) -> bool:
        """Asks for a transfer of leadership; returns True if `to` leads. Raises OSError if there is no answer."""
        try:
            return bool(self.request(leader, "POST", "/v1/leader/transfer", {"to": to})["leader"] == to)
        except urllib.error.HTTPError:
            return False

    def request(self, node: int, method: str, path: str, body: Any = None, timeout_s: float = 5.0) -> Any:
        """Calls a node's HTTP API once. Raises OSError if there is no answer, HTTPError (a kind of OSError) for a
        refusal, and UnfollowedPageError for one page of a longer list."""
        answer = self._exchange(node, method, path, body, timeout_s)
        return whole_answer(path, answer) if method == "GET" else answer

    def whole(self, node: int, path: str, field: str, *, cursor: str = AFTER, timeout_s: float = 5.0) -> dict[str, Any]:
        """Returns a list of a node with all its pages; `timeout_s` is for each page. Raises OSError."""
        return whole_list(lambda page: self._exchange(node, "GET", page, None, timeout_s), path, field, cursor)

    def _exchange(self, node: int, method: str, path: str, body: Any, timeout_s: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        address = address_of(self._node(node))
        try:
            reply = exchange(address, method, path, data, timeout_s=timeout_s, is_page=True)
        except http.client.HTTPException as error:
            raise OSError(f"{address}: {error!r}") from None
        if reply.status >= 400:
            url, reason = f"http://{address}{path}", http.client.responses.get(reply.status, "")
            raise urllib.error.HTTPError(url, reply.status, reason, Message(), io.BytesIO(reply.body))
        return json.loads(reply.body)

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
            return sum(pool.map(lambda node: read_node(mq, node, TOPIC, QUEUES, history, id_of), self.nodes))

    def evidence(self) -> list[str]:
        """Returns the last log lines of nodes that ended by themselves, and names those that run and answer nothing;
        these write the stacks of their threads into their logs."""
        told = []
        states = self.states() if any(map(self.is_running, self.node_ids)) else {}
        for node in self.nodes:
            if states.get(node.id) is None and self.processes.print_stacks(node.id):
                told.append(f"node {node.id} runs and answers nothing: {node.log} ends with the stacks of its threads")
            if codes := self.processes.exits.get(node.id):
                last = " | ".join(line for line in log_tail(node, 3) if line.strip())
                told.append(f"node {node.id} ended by itself {len(codes)} times, last with code {codes[-1]}: {last}")
        return told


def _state(answer: dict[str, Any] | None) -> NodeState | None:
    if answer is None:
        return None
    return NodeState(
        term=int(answer["term"]),
        leads=answer["role"] == "leader",
        open=bool(answer["writes_open"]),
        leader=answer.get("leader"),
        applied=int(answer["applied_index"]),
        committed=int(answer["commit_index"]),
    )


class RaftMQLogClient:
    """A LogClient: one producer session with a connection of its own."""

    def __init__(self, servers: str, options: ClientOptions) -> None:
        from raftmq.client import aconnect

        self._client = aconnect(servers, timeout_s=SEND_TIMEOUT_S, **options)
        self._producer = self._client.producer()
        self._loop = asyncio.get_running_loop()

    async def submit(self, message_id: str) -> asyncio.Future[Placed]:
        """Starts a send and returns when the next may start; the future ends with SendFailed or SendUnknown if the send
        is not acknowledged."""
        outcome: asyncio.Future[Placed] = self._loop.create_future()
        try:
            sending = await self._producer.send_soon(TOPIC, body_of(message_id), key=message_id)
        except RaftMQError as error:
            _settle(outcome, error, None)
            return outcome
        sending.add_done_callback(lambda done: _settle_as(outcome, done))
        return outcome

    async def close(self) -> None:
        """Ends the connections; open sends end as unknown."""
        await self._client.close()


def _settle_as(outcome: asyncio.Future[Placed], done: asyncio.Future[SendResult]) -> None:
    error = done.exception()
    _settle(outcome, error, None if error else done.result())


def _settle(outcome: asyncio.Future[Placed], error: BaseException | None, result: Any) -> None:
    """Sets the outcome of a send: only an error that the client promises to mean "not stored" counts as a failure."""
    if outcome.done():
        return
    if error is None:
        outcome.set_result(Placed(result.queue_id, result.queue_offset, result.position))
    elif isinstance(error, RaftMQError) and not isinstance(error, Unknown):
        outcome.set_exception(SendFailed(str(error)))
    else:
        outcome.set_exception(SendUnknown(repr(error)))
