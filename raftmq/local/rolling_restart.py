"""Restarts the nodes one by one, the leader last, each only when the others can do without it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.config.local_layout import NodeName, name_of, node_object
from raftlog.types import FIRST_GROUP
from raftmq.client.discovery import split_address
from raftmq.local import stop_check
from raftmq.local.http.admin_http import AdminApi, drain_node
from raftmq.local.process import find_process
from raftmq.local.status import fetch_ready, fetch_status
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.local.cluster import LocalCluster

POLL_S = 0.25
TOGETHER_S = 60.0
"""If processes were started within so many seconds of each other, one command has started nodes and registry
together."""

Restart = Callable[[int], object]
"""A function that stops a node and starts it; it may return before the new process runs."""


class Restarted(NamedTuple):
    """One node that is ready again after its restart."""

    node: NodeName
    seconds: float
    """Time from the beginning of the node's stop until it was ready again."""


class RollingRestart:
    """A restart of all nodes of a group, or of some, one after the other. `addresses`: node -> "host:port" of its HTTP
    API. Ids are those of the group."""

    def __init__(
        self,
        addresses: Mapping[int, str],
        restart: Restart,
        *,
        wait_s: float,
        grace_s: float = 0.0,
        tell: Callable[[str], object] = lambda text: None,
        group: int = FIRST_GROUP,
    ) -> None:
        """`wait_s`: seconds to wait until one node may be stopped, and again until it is ready. `grace_s`: time between
        its drain and its stop."""
        self._addresses = dict(addresses)
        self._restart = restart
        self._wait_s = wait_s
        self._grace_s = grace_s
        self._tell = tell
        self._group = group

    def run(self, nodes: Sequence[int]) -> list[Restarted]:
        """Restarts the nodes, followers first. Raises LocalError at the first node that may not be stopped or is not
        ready again; the remaining nodes are left alone."""
        done: list[Restarted] = []
        left = list(nodes)
        while left:
            leader = self._leader()
            node = next((each for each in left if each != leader), left[0])
            left.remove(node)
            done.append(self._one(node, leads=node == leader))
        return done

    def _one(self, node: int, *, leads: bool) -> Restarted:
        name = name_of(self._group, node)
        self._tell(f"node {name}: may it be stopped?")
        everybody = list(self._addresses.values())
        if stop_check.require(everybody, name, self._wait_s, lambda text: self._tell(f"node {name}: {text}")) is None:
            why = "no leader answers, and who has complete copies is not known"
            raise LocalError(f"node {name} is not restarted", why, "raftmq status", ExitCode.REFUSED)
        before = self._status(node)
        if before is not None and (leads or self._grace_s):
            self._tell(f"node {name}: drains")
            drain_node(node, everybody)
            time.sleep(self._grace_s)
        self._tell(f"node {name}: restarts")
        began_s = time.monotonic()
        self._restart(node)
        self._wait_back(node, began_s)
        return Restarted(name, round(time.monotonic() - began_s, 3))

    def _wait_back(self, node: int, began_s: float) -> None:
        """Waits until another process than before answers for the node and is ready for clients."""
        name = name_of(self._group, node)
        self._tell(f"node {name}: starts")
        deadline = began_s + self._wait_s
        while True:
            status = self._status(node)
            is_new = status is not None and status["uptime_ms"] < 1000 * (time.monotonic() - began_s) + 500
            if is_new and fetch_ready(self._addresses[node]):
                return
            if time.monotonic() >= deadline:
                why = "it does not answer" if status is None else "its old process still answers"
                if is_new:
                    why = "it answers and is not ready: raftmq status says why"
                what = f"node {name} is not back after {self._wait_s:.0f} s"
                raise LocalError(what, f"{why}; the nodes after it were left alone", f"raftmq logs {name}")
            time.sleep(POLL_S)

    def _leader(self) -> int | None:
        view = AdminApi(list(self._addresses.values()), "raftmq node list").local("/v1/members")
        leader: int | None = view["leader"]
        return leader

    def _status(self, node: int) -> dict[str, Any] | None:
        return fetch_status(self._addresses[node], 2.0)


def restart_registry(
    cluster: LocalCluster, tell: Callable[[str], object] = lambda text: None, *, older: bool = False
) -> list[Restarted]:
    """Restarts the running processes of a local cluster's registry, one by one, so that two of them always serve.
    `older`: True for only those processes that were started well before all nodes, that is, before an upgrade of the
    nodes. Raises LocalError at the first that does not come back."""
    done: list[Restarted] = []
    oldest_s = min((found.create_time() for node in cluster.nodes if (found := find_process(node))), default=0.0)
    for record in cluster.registry:
        process = find_process(record)
        if process is None or (older and process.create_time() > oldest_s - TOGETHER_S):
            continue
        tell(f"{node_object(*record.key)}: restarts")
        began_s = time.monotonic()
        cluster.restart(record.name)
        done.append(Restarted(record.name, round(time.monotonic() - began_s, 3)))
    return done


def by_command(command: str, addresses: Mapping[int, str]) -> Restart:
    """Returns a function that restarts a node by a shell command, such as `ssh $RAFTMQ_HOST systemctl restart
    raftmq`."""

    def restart(node: int) -> None:
        host, _ = split_address(addresses[node])
        variables = {"RAFTMQ_NODE": str(node), "RAFTMQ_NODE_ADMIN": addresses[node], "RAFTMQ_HOST": host}
        # the operator's own shell command, run with the operator's rights
        ended = subprocess.run(command, shell=True, env={**os.environ, **variables}, check=False)
        if ended.returncode:
            raise LocalError(
                f"the command for node {node} failed",
                f"exit code {ended.returncode}; the nodes after it were left alone",
                "raftmq status",
            )

    return restart
