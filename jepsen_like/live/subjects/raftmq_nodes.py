"""The nodes of one group of brokers, as processes: starts them, sends them requests and stops them.

`RaftMQSubject` has the nodes of the first group, `FurtherGroup` the nodes of a group that joins.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import io
import json
import os
import sys
import time
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from cluster.config.local_layout import NodeRecord
from jepsen_like.history import READERS_FROM, HistoryWriter, node_number
from jepsen_like.live.subjects.processes import OfProcesses, Processes
from jepsen_like.live.subjects.stopped_node_state import Digest, read_digest
from jepsen_like.live.subjects.subject import NodeState, is_healthy, leader_of
from raftlog.types import FIRST_GROUP
from raftmq.local.http.credentials import address_of
from raftmq.local.http.http_exchange import exchange
from raftmq.local.http.list_pages import AFTER, whole_answer, whole_list
from raftmq.local.process import log_tail
from raftmq.local.status import fetch_status
from raftmq.local.waiting import until
from raftmq_wire.errors import LocalError

T = TypeVar("T")

_STATUS_TIMEOUT_S = 0.5


def until_answered(ask: Callable[[], T], timeout_s: float, poll_s: float) -> T | None:
    """Polls as `raftmq.local.waiting.until` does, and goes on after a request that a node did not answer (OSError).
    Returns None if that was the last one."""

    def look() -> T | None:
        try:
            return ask()
        except OSError:
            return None

    return until(look, timeout_s, poll_s)


class RaftMQNodes(OfProcesses):
    """The nodes of one group and their processes, by their ids in the group."""

    def __init__(self, data: Path, processes: Processes, nodes: list[NodeRecord]) -> None:
        self.data = data
        self.processes = processes
        self.nodes = nodes
        self._pool = concurrent.futures.ThreadPoolExecutor(len(nodes) + 2, "raftmq-chaos-status")

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
            asked = self._asked_of(self._node(node))
            invoked = history.invoke(READERS_FROM + asked["node"], "digest", asked)
            found[node] = read_digest(self.data_of(node))
            history.ok(invoked, asked | {"applied": found[node].applied, "digest": found[node].text})
        return found

    @staticmethod
    def _asked_of(node: NodeRecord) -> dict[str, Any]:
        """Returns the fields that name the node in a step of the history: `node` and, in a further group, `group`. Only
        nodes of one group have equal states.
        """
        group = {} if node.group == FIRST_GROUP else {"group": node.group}
        return {"node": node_number(node.id, node.group), **group}

    def run(self, node: int, environment: dict[str, str], files_max: int | None = None) -> None:
        """Starts the process of a node that does not run, with these environment variables in addition. `files_max`:
        how many files and connections it may have open; None: as many as this process.
        """
        record = self._node(node)
        command = [sys.executable, "-P", "-m", record.module, "--config", str(record.config_path)]
        if files_max is not None:
            command = ["sh", "-c", f'ulimit -n {files_max}; exec "$@"', "sh", *command]
        pid = self.processes.start(node, command, Path(record.log), dict(os.environ) | environment)
        self.nodes = [replace(each, pid=pid) if each.id == node else each for each in self.nodes]

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
