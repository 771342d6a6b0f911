"""RaftMQCluster: a cluster that belongs to this process, driven through `raftmq testbed`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

_INSTALL = "the server is not installed: pip install 'raftmq[server]'"
_END_S = 30.0


class ClusterError(Exception):
    """The cluster did not start, or a request about it cannot be carried out."""


class Node(NamedTuple):
    """The present state of one node. `address` is its port for clients, `admin` the URL of its HTTP API."""

    id: int
    pid: int
    running: bool
    paused: bool
    address: str
    admin: str
    log: Path


class RaftMQCluster:
    """A cluster of real nodes, each a process of the command `raftmq`, on free ports.

    The nodes end when the block ends or `close` is called, and also when this process is killed: the command watches
    for the end of its input. Any thread may call its methods; calls wait for each other.
    """

    def __init__(self, folder: Path, nodes: int = 3, *, secured: bool = False) -> None:
        """Starts the nodes in `folder`, which must not exist, and waits until they accept messages. `secured`: they
        take TLS alone from clients, and enforce users and rules. Raises ClusterError."""
        self.folder = folder
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "raftmq", "testbed", str(folder), "--nodes", str(nodes)]
            + ["--secured"] * secured,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C then reaches only the test, which ends the cluster
            text=True,
        )
        try:
            first = self._answer()
        except BaseException:
            self.close()
            raise
        self.servers: str = first["servers"]
        """The addresses for `raftmq.connect`."""
        self.access_key: str = first.get("access_key", "")
        """The name of the first user of a secured cluster, a Super; "" if no user is asked for."""
        self.secret_key: str = first.get("secret_key", "")
        """The secret of the first user; "" if there is none."""
        self.tls_ca: str = first.get("tls_ca", "")
        """The file with the CA of a secured cluster; "" if the cluster speaks plain text."""
        self.ready_s: float = first["ready_s"]
        """Seconds from the start of the nodes until they accepted messages."""

    # -- looking

    @property
    def nodes(self) -> list[Node]:
        """The nodes, ordered by id."""
        return [Node(**{**row, "log": Path(row["log"])}) for row in self._ask("describe")["nodes"]]

    def leader(self) -> int:
        """Returns the id of the leader that accepts writes; waits until there is one."""
        return int(self._ask("leader")["leader"])

    # -- breaking

    def kill(self, node: int) -> None:
        """Kills a node with kill -9."""
        self._ask("kill", node=node)

    def kill_leader(self) -> int:
        """Kills the leader with kill -9; returns its id."""
        leader = self.leader()
        self.kill(leader)
        return leader

    def stop(self, node: int) -> None:
        """Stops a node in an orderly way."""
        self._ask("stop", node=node)

    def restart(self, node: int) -> None:
        """Starts a node, stopping it first if it runs, and waits until it has joined the others."""
        self._ask("restart", node=node)

    @contextlib.contextmanager
    def pause(self, node: int) -> Iterator[None]:
        """A context in which a node's process is stopped (SIGSTOP), as if its machine hung."""
        self._ask("pause", node=node)
        try:
            yield
        finally:
            self._ask("resume", node=node)

    @contextlib.contextmanager
    def partition(self, *groups: int | Iterable[int]) -> Iterator[None]:
        """A context in which the links between groups of nodes are cut: `partition(1)` separates node 1 from all
        others, and `partition([1, 2], [3])` separates nodes 1 and 2 from node 3. Nodes that are in no group form a
        group together. Clients reach all nodes."""
        self._ask("cut", groups=[[group] if isinstance(group, int) else list(group) for group in groups])
        try:
            yield
        finally:
            self._ask("mend")

    def heal(self) -> None:
        """Restores all links, resumes and starts all nodes, and waits until they agree on a leader."""
        self._ask("heal")

    # -- preparing

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Creates a topic."""
        self._ask("create_topic", name=topic, queues=queues)

    def reset(self) -> None:
        """Heals the cluster and deletes all topics and groups, and all users but the first."""
        self._ask("heal")
        self._ask("clean")

    # -- ending

    def close(self) -> None:
        """Stops the nodes and removes their folder; may be called again."""
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> RaftMQCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, act: str, **fields: int | str | Sequence[Sequence[int]]) -> dict[str, Any]:
        with self._lock:
            if self._process.stdin is None or self._process.stdin.closed:
                raise ClusterError("the cluster is closed")
            try:
                self._process.stdin.write(json.dumps({"do": act, **fields}) + "\n")
                self._process.stdin.flush()
            except OSError:
                raise ClusterError(self._last_words()) from None
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ClusterError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        words = " ".join(self._process.stderr.read().split())
        return _INSTALL if "raftmq[server]" in words or "No such command" in words else words or "raftmq testbed ended"
