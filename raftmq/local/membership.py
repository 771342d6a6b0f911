"""Adds, replaces and removes nodes of a local cluster: configuration, directory, process and membership in one step.

Each step leaves a visible record (cluster.json, the log), so that an interrupted command continues when it is typed
again. Nothing is deleted: a node that left keeps its folder, in `removed/`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from cluster.config.loading import load
from cluster.config.local_layout import (
    REMOVED,
    NodeName,
    NodeRecord,
    group_folder,
    locked,
    name_of,
    read_cluster,
    write_cluster,
)
from cluster.config.node_files import plan_node, write_config_like
from cluster.members.joining import add_request, clear_half_made, make_directory
from cluster.peer.secret_files import copy_from_any
from raftlog.storage.files.fs import OsFileSystem
from raftlog.types import FIRST_GROUP
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.asked_nodes import no_group, no_node
from raftmq.local.http.credentials import address_of, addresses_of
from raftmq.local.process import check_ports, is_running, stop_nodes
from raftmq.local.registry_processes import free_beside
from raftmq.local.settled_changes import when_settled
from raftmq.local.status import fetch_status
from raftmq.local.tls.local_tls import certify, speaks_tls
from raftmq_wire.errors import ExitCode, LocalError

POLL_S = 0.1
LOCK_S = 60.0
"""Time in seconds to wait for another command on the same directory."""
ELECTED_S = 30.0
"""Time in seconds to wait for a leader."""
UNHEARD_S = 60.0
"""Time in seconds to wait for a new node from which the leader hears nothing, or for a leader to be elected
meanwhile."""

Tell = Callable[[str], object]
"""A function that reports the present stage to a person."""


class Joined(NamedTuple):
    """A node that has joined the cluster."""

    record: NodeRecord
    role: str
    """The node's role: voter or learner."""
    entry: int
    """Index of the MEMBERSHIP entry that gave the node this role."""
    voters: list[int]


class LocalMembers:
    """Changes the members of one group of a running local cluster; node ids are those within the group. Methods raise
    LocalError."""

    def __init__(
        self,
        cluster: LocalCluster,
        tell: Tell = lambda stage: None,
        group: int = FIRST_GROUP,
        unheard_s: float = UNHEARD_S,
    ) -> None:
        """`unheard_s`: seconds to wait for a new node from which the leader hears nothing."""
        self._cluster = cluster
        self._unheard_s = unheard_s
        self._group = group
        self._tell = tell
        self._asked = False
        """True once the cluster was asked to add the node that is being made, which may therefore be a member."""

    @property
    def _nodes(self) -> list[NodeRecord]:
        """The records of the group's nodes. Raises LocalError if there is no such group."""
        cluster = read_cluster(self._cluster.data)
        if nodes := cluster.of_group(self._group):
            return nodes
        raise no_group(self._group, cluster.groups)

    def _record(self, node_id: int) -> NodeRecord:
        return read_cluster(self._cluster.data).node(self._name(node_id))

    def _name(self, node_id: int) -> NodeName:
        return name_of(self._group, node_id)

    @property
    def _api(self) -> AdminApi:
        """The HTTP API of the group's running nodes, or of all its nodes if none runs."""
        nodes = self._nodes
        running = [node for node in nodes if is_running(node)] or nodes
        return AdminApi(addresses_of(running), "raftmq node list")

    def members(self) -> dict[str, Any]:
        """Returns the answer of `GET /v1/members`, from the leader."""
        return self._patiently(lambda: self._api.get("/v1/members"))

    def _patiently(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Repeats a request during an election. Raises LocalError if it is refused, if its outcome is unknown, or if
        there is no leader for ELECTED_S."""
        deadline = time.monotonic() + ELECTED_S
        while True:
            try:
                return ask()
            except LocalError as error:
                passing = isinstance(error, ApiRefusal) and error.is_passing
                silent = error.exit_code is ExitCode.UNREACHABLE and any(map(is_running, self._nodes))
                if not (passing or silent) or time.monotonic() >= deadline:
                    raise
            self._tell("waiting for a leader")
            time.sleep(POLL_S)

    def _change(self, change: Callable[[], dict[str, Any]]) -> None:
        """Changes the members; waits while another change is in progress. Raises LocalError."""
        when_settled(lambda: self._patiently(change), self._tell)

    def _is_member(self, node_id: int) -> bool:
        return node_id in [member["id"] for member in self.members()["members"]]

    def add(self, *, node_id: int | None = None, learner: bool = False, replaces: int | None = None) -> Joined:
        """Adds a node with an empty disk: a learner, which the leader promotes when it has caught up.

        With `learner` it stays a learner. Returns when the node has its final role.
        """
        with _locked_in_turn(self._cluster.data):
            before, self._asked = [node.id for node in self._nodes], False
            try:
                record = self._prepare(node_id, replaces)
                self._join(record, learner)
            except BaseException as error:
                refused = isinstance(error, LocalError) and error.exit_code is not ExitCode.UNKNOWN
                if refused or not self._asked:
                    self._undo(before)
                raise
        return self.wait_promoted(record, "learner" if learner else "voter")

    def replace(self, node_id: int) -> tuple[Joined, Path | None]:
        """Replaces `node_id` by a new node, which joins, catches up and votes. Then the old node is removed and
        stopped, and its folder is moved aside. Returns the new node, and the folder of the old one (None if there is
        none on this machine). Continues where an interrupted attempt stopped. Raises LocalError."""
        members = self.members()
        if node_id not in [member["id"] for member in members["members"]] + [node.id for node in self._nodes]:
            raise _no_member(self._name(node_id), node_id, members)
        joined = self.add(replaces=node_id)
        self._tell(f"removing node {self._name(node_id)}")
        return joined, self.remove(node_id, below_three=True)  # the number of nodes stays the same

    def remove(self, node_id: int, *, below_three: bool = False) -> Path | None:
        """Removes a node from the cluster, then stops it and moves its folder aside. Returns the folder's new path.
        Leaves fewer than three voters only with `below_three`. Raises LocalError."""
        members = self.members()
        if node_id in [member["id"] for member in members["members"]]:
            self._take_out(node_id, "?below_three=true" if below_three else "")
        elif node_id not in [node.id for node in self._nodes]:
            raise _no_member(self._name(node_id), node_id, members)
        with _locked_in_turn(self._cluster.data):
            return self._set_aside(node_id)

    def _take_out(self, node_id: int, query: str) -> None:
        try:
            self._change(lambda: self._api.delete(f"/v1/members/{node_id}{query}"))
        except LocalError as error:
            # A removed leader may end before it can answer that it was removed.
            if error.exit_code is not ExitCode.UNKNOWN or self._is_member(node_id):
                raise

    # --- steps of joining --------------------------------------------------------------------------------------------

    def _prepare(self, node_id: int | None, replaces: int | None) -> NodeRecord:
        """Makes the node's configuration, directory and record in cluster.json; returns those of an interrupted attempt
        if there was one."""
        data, nodes = self._cluster.data, self._nodes
        join = self._patiently(lambda: self._api.get("/v1/members/join"))
        record = unfinished(nodes, node_id, replaces, join)
        if record is None:
            self._tell("creating the data directory")
            number = node_id or max(join["next_id"], 1 + max(node.id for node in nodes))
            if number in join["taken_ids"]:
                raise _taken(number, join)
            if (folder := group_folder(data, self._group) / f"n{number}").exists():
                raise _folder_is_there(folder)
            cluster = read_cluster(data)
            planned = plan_node(data, number, cluster.nodes, free_beside(cluster.registry), self._group)
            record = replace(planned, replaces=replaces)
            check_ports([record])
            write_config_like(record, [*nodes, record], with_files(nodes, replaces)[0].config_path)
            write_cluster(data, cluster.with_nodes([*cluster.nodes, record]))
        directory = Path(load(record.config_path).node.data_dir)
        if record.id not in join["taken_ids"]:
            clear_half_made(OsFileSystem(), directory)
        make_directory(OsFileSystem(), directory, record.id, join, time.time_ns() // 1_000_000)
        having = [load(node.config_path) for node in with_files(nodes, replaces) if node.id != record.id]
        copy_from_any(having, load(record.config_path), join.get("secret_key", ""), join["cluster_id"])
        if speaks_tls(data):
            certify(data, [record])
        return record

    def _join(self, record: NodeRecord, learner: bool) -> None:
        config = load(record.config_path)
        join = self._patiently(lambda: self._api.get("/v1/members/join"))
        identity = make_directory(OsFileSystem(), Path(config.node.data_dir), record.id, join, 0)
        self._tell(f"adding node {record.name}")
        if not self._is_member(record.id):
            request = add_request(config, identity, auto_promote=not learner)
            self._asked = True
            self._change(lambda: self._api.post("/v1/members", request))
        if is_running(record) and _lacks_secret(record, join.get("secret_key", "")):
            stop_nodes([record])  # it was started without the secret, which a node reads only when it starts
        if not is_running(record):
            self._tell(f"starting node {record.name}")
            self._cluster.start(record.name)

    def _undo(self, before: list[int]) -> None:
        """Removes what this command made for a node that the cluster refused; the node is empty and does not run."""
        cluster = read_cluster(self._cluster.data)
        for node in cluster.of_group(self._group):
            if node.id not in before and not is_running(node):
                shutil.rmtree(node.home, ignore_errors=True)
                write_cluster(self._cluster.data, cluster.without(node.name))

    def wait_promoted(self, record: NodeRecord, role: str) -> Joined:
        """Waits until the node is a voter, or a learner that has caught up, as `role` asks. Raises LocalError if it
        ended, was removed, or the leader hears nothing of it for `unheard_s`."""
        heard = time.monotonic()
        while True:
            view = self._look()
            member = next((each for each in view["members"] if each["id"] == record.id), None) if view else None
            current = self._record(record.id)
            if view is not None and member is None:
                raise LocalError(
                    f"node {record.name} was removed in the meantime",
                    "another command changed the members",
                    "raftmq node list",
                    ExitCode.REFUSED,
                )
            if view is not None and member is not None and _has_arrived(member, role) and view["committed"]:
                voters = [each["id"] for each in view["members"] if each["role"] == "voter"]
                return Joined(current, member["role"], view["index"], voters)
            if not is_running(current):
                raise LocalError(
                    f"node {record.name} has exited",
                    "it is a member and catches up once it runs again",
                    f"raftmq logs {record.name}, then raftmq restart {record.name}; the leader then promotes it",
                )
            if member is not None and member["live"]:
                heard = time.monotonic()
            if time.monotonic() - heard >= self._unheard_s:
                raise unheard(record.name, fetch_status(address_of(record)), self._unheard_s, led=view is not None)
            self._tell(_progress(record.name, member))
            time.sleep(POLL_S)

    def _look(self) -> dict[str, Any] | None:
        """Returns the members; None while no node can answer, for example during an election."""
        try:
            return self.members()
        except LocalError as error:
            if error.exit_code in (ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.FAILED):
                return None
            raise

    def _set_aside(self, node_id: int) -> Path | None:
        data, cluster = self._cluster.data, read_cluster(self._cluster.data)
        record = next((node for node in cluster.of_group(self._group) if node.id == node_id), None)
        if record is None:
            return None
        stop_nodes([record])
        removed = group_folder(data, self._group) / REMOVED
        removed.mkdir(exist_ok=True)
        target = removed / f"n{node_id}"
        if record.home.exists():  # the folder is missing if the disk is lost, or if an interrupted attempt has moved it
            record.home.rename(target)
        rest = [
            replace(node, replaces=None) if (node.group, node.replaces) == record.key else node
            for node in cluster.nodes
        ]
        write_cluster(data, cluster.with_nodes(rest).without(record.name))
        return target if target.exists() else None


@contextmanager
def _locked_in_turn(data: Path) -> Iterator[None]:
    """Takes the lock of the directory as `locked` does, but waits up to LOCK_S while another command holds it, for
    example the restart of a node. Raises LocalError if there is no cluster, or if the lock is not free in time."""
    read_cluster(data)  # raises at once if the directory has no cluster
    deadline = time.monotonic() + LOCK_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(data))
                break
            except LocalError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_S)
        yield


def unfinished(
    nodes: list[NodeRecord], node_id: int | None, replaces: int | None, join: dict[str, Any]
) -> NodeRecord | None:
    """Returns the node that an interrupted command began to make, if any: one that replaces the same node, or one that
    is no member yet; None if there is none."""
    for node in nodes:
        if replaces is not None and node.replaces == replaces:
            return node
        if replaces is None and node.id == (node_id or node.id) and node.id not in join["taken_ids"]:
            return node
    return None


def with_files(nodes: Sequence[NodeRecord], replaces: int | None) -> list[NodeRecord]:
    """Returns the nodes that have a configuration file on this machine. The node that is to be replaced comes last,
    because its disk may be lost."""
    there = [node for node in nodes if node.config_path.is_file()]
    return sorted(there or nodes, key=lambda node: node.id == replaces)


def _lacks_secret(record: NodeRecord, wanted: str) -> bool:
    """Returns True if the running node reports that it has no secret, or another one than the cluster."""
    status = fetch_status(address_of(record))
    return status is not None and bool(wanted) and status.get("secret", {}).get("key", wanted) != wanted


def unheard(node: NodeName, status: dict[str, Any] | None, waited_s: float, *, led: bool) -> LocalError:
    """Returns the error for a node that runs and does not join. `status`: the node's own status, None if it does not
    answer. `waited_s`: the seconds that were waited. `led`: True if the cluster has a leader."""
    if not led:
        return LocalError(
            f"the cluster has had no leader for {waited_s:g} s, so node {node} cannot join",
            "a majority of the voters must run and reach each other",
            "raftmq status    (then repeat the command: it continues)",
        )
    said = [] if status is None else [alarm["text"] for alarm in status.get("alarms", ())]
    said += [link["finding"] or link["reason"] for link in (status or {}).get("links", ())]
    told = dict.fromkeys(text for text in said if text)  # each reason once, because links often report the same
    return LocalError(
        f"node {node} runs, but the leader has heard nothing of it for {waited_s:g} s",
        "; ".join(told) or ("it does not answer" if status is None else "it gives no reason"),
        f"raftmq logs {node}    (then repeat the command: it continues)",
    )


def _has_arrived(member: dict[str, Any], role: str) -> bool:
    if member["role"] == "voter":
        return True
    return role == "learner" and bool(member["caught_up"])


def _progress(node: NodeName, member: dict[str, Any] | None) -> str:
    if member is None or member["lag_entries"] is None or not member["live"]:
        return f"node {node} is starting"
    if member["state"] == "SNAPSHOT":
        return f"node {node} is fetching a snapshot"
    return f"node {node} is catching up: {member['lag_entries']:,} entries behind"


def _no_member(name: NodeName, node_id: int, members: dict[str, Any]) -> LocalError:
    error = no_node(name, [member["id"] for member in members["members"]])
    if node_id in [member["id"] for member in members["removed"]]:
        return LocalError(f"{error.what} any more", f"{error.why}; node {name} was removed", error.fix, error.exit_code)
    return error


def _taken(node_id: int, join: dict[str, Any]) -> LocalError:
    return LocalError(
        f"node {node_id} is, or was, another node's id",
        f"ids are never reused; taken: {', '.join(map(str, join['taken_ids']))}",
        f"raftmq node add --id {join['next_id']}    (or leave out --id)",
        ExitCode.REFUSED,
    )


def _folder_is_there(folder: Path) -> LocalError:
    return LocalError(
        f"{folder} already exists",
        "a new node starts with an empty disk and takes over no existing files",
        f"mv {folder} {folder.parent / REMOVED}    (then repeat the command)",
        ExitCode.REFUSED,
    )
