"""`raftmq testbed`: a cluster for another program's tests. The program drives it by lines of JSON, and it ends with the
program.

There is one request per line on standard input, and one answer per line on standard output. At the end of standard
input, for whatever reason the program ended, the testbed ends the nodes and removes their folder. Nodes that a killed
testbed leaves are ended by the next testbed.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.error
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from jepsen_like.live.subjects.processes import Processes

READY_S = 60.0
_POLL_S = 0.02


class TestbedError(Exception):
    """The request is invalid or cannot be carried out; the text says why."""


@click.command()
@click.argument("folder", type=LocalPath(path_type=Path, file_okay=False))
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, 7), help="How many.")
@click.option("--secured", is_flag=True, help="Nodes take TLS alone, and enforce users and rules.")
def testbed(folder: Path, nodes: int, secured: bool) -> None:
    """Run a cluster for tests, in FOLDER, which must not exist.

    A test program talks to it by lines of JSON and its nodes end with that program. The pytest plugin of raftmq uses
    this command; the page "Testing a program that uses RaftMQ" of the docs lists the requests.
    """
    from jepsen_like.live.subjects.owned_resources import owning
    from jepsen_like.live.subjects.processes import Processes

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the driving program gets it too, and closes our input
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if folder.exists():
        raise click.UsageError(f"{folder} exists; a testbed makes its folder and removes it")
    with owning(folder.parent, lambda line: click.echo(line, err=True)) as owned:
        owned.add_directory(folder)
        with Bed(folder, Processes(owned), nodes, secured=secured) as bed:
            serve(bed, sys.stdin, lambda line: click.echo(line))


def serve(bed: Bed, requests: Iterable[str], answer: Callable[[str], None]) -> None:
    """Starts the nodes and answers requests until there are no more."""
    began = time.monotonic()
    bed.start()
    answer(json.dumps({"ready_s": round(time.monotonic() - began, 3), **bed.describe()}))
    for line in requests:
        try:
            answer(json.dumps(bed.do(line)))
        except TestbedError as error:
            answer(json.dumps({"error": str(error)}))


class Bed:
    """A testbed's nodes, and the requests about them. As a context manager it ends the nodes and removes the folder."""

    def __init__(self, folder: Path, processes: Processes, count: int, *, secured: bool = False) -> None:
        from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

        self._folder = folder
        self._secured = secured
        self._nodes = RaftMQSubject(
            folder, processes, count=count, is_empty=True, has_users=secured, speaks_tls=secured
        )
        self._paused: set[int] = set()

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        import shutil

        for node in self._paused:
            self._nodes.resume(node)
        for node in self._nodes.node_ids:
            self._nodes.kill(node)  # the data is deleted, so no orderly stop is needed
        self._nodes.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Starts all nodes and waits until the leader accepts writes. Raises LocalError."""
        self._nodes.start()

    def describe(self) -> dict[str, object]:
        """Returns the addresses, the nodes, and the user and the CA of a secured cluster."""
        rows = [
            {
                "id": node.id,
                "pid": self._nodes.processes.pid(node.id),
                "running": self._nodes.is_running(node.id),
                "paused": node.id in self._paused,
                "address": f"127.0.0.1:{node.broker_port}",
                "admin": f"{'https' if self._secured else 'http'}://127.0.0.1:{node.admin_port}",
                "log": node.log,
            }
            for node in self._nodes.nodes
        ]
        return {"servers": self._nodes.servers, "nodes": rows, **self._access()}

    def _access(self) -> dict[str, str]:
        if not self._secured:
            return {}
        options = self._nodes.client_options
        ca = options["tls"].ca if options["tls"] else ""
        return {"tls_ca": ca, "access_key": options["access_key"], "secret_key": options["secret_key"]}

    def do(self, line: str) -> dict[str, object]:
        """Carries out one request. Raises TestbedError."""
        try:
            request = json.loads(line)
            act = _ACTS[request["do"]]
        except (ValueError, KeyError, TypeError):
            raise TestbedError(f"{line.strip()!r} is no request; there are {', '.join(_ACTS)}") from None
        return act(self, request) or {}

    # -- requests

    def describe_again(self, _: dict[str, Any]) -> dict[str, object]:
        """Returns the present addresses, nodes, and the user and CA of a secured cluster, as `describe` does."""
        return self.describe()

    def leader(self, _: dict[str, Any]) -> dict[str, object]:
        """Returns the id of the leader that accepts writes; waits until there is one."""
        return {"leader": self._wait_leader()}

    def _wait_leader(self) -> int:
        from jepsen_like.live.subjects.subject import leader_of

        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            states = {node: state for node, state in self._nodes.states().items() if node not in self._paused}
            leader = leader_of(states)
            if leader is not None and (state := states[leader]) is not None and state.open:
                return leader
            time.sleep(_POLL_S)
        raise TestbedError(f"no node takes writes after {READY_S:.0f} s: do a majority run and reach each other?")

    def kill(self, request: dict[str, Any]) -> None:
        """Kills a node with kill -9."""
        node = self._node(request)
        self._paused.discard(node)
        if not self._nodes.kill(node):
            raise TestbedError(f"node {node} does not run")

    def stop(self, request: dict[str, Any]) -> None:
        """Stops a node in an orderly way."""
        node = self._node(request)
        self._resume(node)
        if not self._nodes.is_running(node):
            raise TestbedError(f"node {node} does not run")
        self._nodes.terminate(node)

    def restart(self, request: dict[str, Any]) -> None:
        """Stops a node if it runs, starts it, and waits until all nodes that can agree on a leader do."""
        node = self._node(request)
        self._resume(node)
        self._nodes.terminate(node)
        self._nodes.start_node(node)
        self._wait_joined()

    def pause(self, request: dict[str, Any]) -> None:
        """Stops a node's process with SIGSTOP."""
        node = self._node(request)
        if not self._nodes.pause(node):
            raise TestbedError(f"node {node} does not run")
        self._paused.add(node)

    def resume(self, request: dict[str, Any]) -> None:
        """Continues a node's process with SIGCONT."""
        self._resume(self._node(request))

    def _resume(self, node: int) -> None:
        self._nodes.resume(node)
        self._paused.discard(node)

    def cut(self, request: dict[str, Any]) -> None:
        """Cuts the links between groups of nodes, in both directions; nodes in no group form a group together."""
        groups = [frozenset(self._node({"node": node}) for node in group) for group in _lists(request.get("groups"))]
        rest = frozenset(self._nodes.node_ids).difference(*groups)
        groups += [rest] if rest else []
        for n, group in enumerate(groups):
            for other in groups[n + 1 :]:
                self._nodes.fabric.cut(self._nodes.fabric.between(group, other))

    def mend(self, _: dict[str, Any]) -> None:
        """Restores all links."""
        self._nodes.fabric.heal(reset=True)

    def heal(self, _: dict[str, Any]) -> None:
        """Restores links, resumes paused nodes, starts stopped ones, and waits until all nodes agree on a leader."""
        self._nodes.fabric.heal(reset=True)
        for node in list(self._paused):
            self._resume(node)
        for node in self._nodes.node_ids:
            if not self._nodes.is_running(node):
                self._nodes.start_node(node)
        self._wait_joined()

    def _wait_joined(self) -> None:
        from jepsen_like.live.subjects.subject import is_healthy

        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            able = [n for n in self._nodes.node_ids if self._nodes.is_running(n) and n not in self._paused]
            states = self._nodes.states()
            if is_healthy({node: states[node] for node in able}) or 2 * len(able) <= len(states):
                return
            time.sleep(_POLL_S)
        raise TestbedError(f"the nodes do not agree on a leader after {READY_S:.0f} s; are links cut?")

    def clean(self, _: dict[str, Any]) -> None:
        """Deletes every topic and every consumer group of the cluster, and in a secured one every user but the
        first."""
        leader = self._wait_leader()
        for kind in ("topics", "groups", "users") if self._secured else ("topics", "groups"):
            for row in self._nodes.whole(leader, f"/v1/{kind}", kind)[kind]:
                if kind != "users" or row["name"] != self._nodes.client_options["access_key"]:
                    self._delete(leader, f"/v1/{kind}/{quote(row['name'], safe='')}")

    def create_topic(self, request: dict[str, Any]) -> None:
        """Creates a topic."""
        body = {"name": request.get("name"), "queues": request.get("queues", 4)}
        try:
            self._nodes.request(self._wait_leader(), "POST", "/v1/topics", body)
        except urllib.error.HTTPError as error:
            raise TestbedError(f"POST /v1/topics: {error}") from None

    def _delete(self, node: int, path: str) -> None:
        try:
            self._nodes.request(node, "DELETE", path)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:  # the deletion of a group also deletes its retry topic
                raise TestbedError(f"DELETE {path}: {error}") from None

    def _node(self, request: dict[str, Any]) -> int:
        node, known = request.get("node"), self._nodes.node_ids
        if not isinstance(node, int) or node not in known:
            raise TestbedError(f"there is no node {node}; there are {', '.join(map(str, known))}")
        return node


def _lists(groups: object) -> list[list[object]]:
    if not isinstance(groups, list) or not groups or not all(isinstance(group, list) for group in groups):
        raise TestbedError('"groups" is a list of lists of nodes, for example [[1], [2, 3]]')
    return groups


_ACTS: dict[str, Callable[[Bed, dict[str, Any]], dict[str, object] | None]] = {
    "describe": Bed.describe_again,
    "leader": Bed.leader,
    "kill": Bed.kill,
    "stop": Bed.stop,
    "restart": Bed.restart,
    "pause": Bed.pause,
    "resume": Bed.resume,
    "cut": Bed.cut,
    "mend": Bed.mend,
    "heal": Bed.heal,
    "clean": Bed.clean,
    "create_topic": Bed.create_topic,
}
