"""A whole cluster on one machine: `raftmq up`, `down`, `kill`, `restart`, `status` as functions.

Nodes are ordinary processes that run what `raftmq serve` runs; this module is not involved once they are up. It writes
each started process to cluster.json before it waits for it, so that every process can be found and ended.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from cluster.config.local_layout import (
    CLUSTER_FILE,
    GROUP_FOLDERS,
    REMOVED,
    NodeName,
    NodeRecord,
    RegistryRecord,
    group_folder,
    groups_of,
    key_of,
    locked,
    name_of,
    node_object,
    read_cluster,
    write_cluster,
)
from cluster.config.node_files import USERS_KEY, check_groups, plan_nodes
from raftlog.types import FIRST_GROUP
from raftmq.client.discovery import LOCAL_CA, LOCAL_USER
from raftmq.local import registry_processes
from raftmq.local.cluster_files import NODES_DEFAULT, ClusterFiles, prepare_data_dir
from raftmq.local.further_groups import add_groups, know_each_other, remove_groups
from raftmq.local.http.credentials import address_of
from raftmq.local.init import check_data_dirs, is_without_identity
from raftmq.local.local_users import ClientOptions, client_options, enforce
from raftmq.local.lost_disks import dead_group, dead_groups, lost_disk, lost_nodes
from raftmq.local.moved_ports import tell_new_ports
from raftmq.local.process import (
    Started,
    check_ports,
    ended,
    find_process,
    is_running,
    kill_node,
    start_node,
    stop_nodes,
)
from raftmq.local.retired_groups import retired, set_aside
from raftmq.local.status import GroupStatus, fetch_ready, view_cluster, view_groups
from raftmq.local.tls.local_tls import speaks_tls
from raftmq.local.waiting import until
from raftmq_wire.errors import ExitCode, LocalError


def bytes_in(folder: Path) -> int:
    """Returns the size of all files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


READY_TIMEOUT_S = 30.0
_FIRST_CONFIGURATION_S, _FIRST_COPY_S, _POLL_S = 3.0, 15.0, 0.05


class LocalCluster:
    """The cluster in one data directory. Every method reads cluster.json again, because other commands may change
    it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._files = ClusterFiles(data)

    @property
    def nodes(self) -> list[NodeRecord]:
        """The records of the nodes. Raises LocalError if there is no cluster in the directory."""
        return read_cluster(self.data).nodes

    @property
    def first_nodes(self) -> list[NodeRecord]:
        """The records of the nodes of the first group, the group that decides about topics, users and settings of the
        cluster."""
        return self.of_group(FIRST_GROUP)

    @property
    def registry(self) -> list[RegistryRecord]:
        """The records of the processes of the registry; [] if there is none."""
        return read_cluster(self.data).registry

    def of_group(self, group: int) -> list[NodeRecord]:
        """Returns the records of the nodes of one group; [] if there is no such group."""
        return read_cluster(self.data).of_group(group)

    @property
    def servers(self) -> str:
        """The servers for a client, as one text: "127.0.0.1:9876;127.0.0.1:9877;…". They are those of the first group,
        as `raftmq.client.discovery` finds them."""
        return ";".join(f"127.0.0.1:{node.namesrv_port}" for node in self.first_nodes)

    @property
    def admin_url(self) -> str:
        """The URL of the first node's HTTP API."""
        scheme = "https" if speaks_tls(self.data) else "http"
        return f"{scheme}://127.0.0.1:{self.nodes[0].admin_port}"

    @property
    def client_options(self) -> ClientOptions:
        """The arguments, besides the servers, with which `raftmq.connect` reaches this cluster: its CA, and its first
        user."""
        return client_options(self.data)

    def view(self, group: int = FIRST_GROUP) -> GroupStatus:
        """Returns the nodes of one group, the state of their processes, and their answers about themselves."""
        return view_cluster(self.of_group(group))

    def views(self) -> list[GroupStatus]:
        """Returns the view of each group, the first group first."""
        return view_groups(self.nodes)

    def up(
        self,
        count: int | None = None,
        base_port: int | None = None,
        *,
        groups: int | None = None,
        tier: str | None = None,
        tls: bool = False,
        auth: bool = False,
        failpoints: bool = False,
        registry: bool = False,
        on_stage: Callable[[str], None] = lambda stage: None,
        timeout_s: float = READY_TIMEOUT_S,
    ) -> GroupStatus:
        """Makes the cluster if there is none, starts every node that does not run, and waits until the leader of each
        group accepts writes. Returns the view of the first group. `tls`: nodes accept only TLS. `auth`: a first user of
        type Super is made, and rules are enforced.

        `groups`: the cluster gets further groups, of `count` nodes each (None: as many as the first one has), until it
        has this number; None: no further groups are made. An existing group stays as it is, even if it is running.

        `registry`: a cluster of several groups gets a registry, if it can have one (`registry_processes.why_none`). A
        registry that exists is started in any case; if it cannot run, the start goes on without it.

        A node that lost its disk is left out if the others of its group are a majority: it is to be replaced
        (`lost_nodes`). A further group without a majority is left out too (`dead_groups`), and does not keep other
        groups from starting. Raises LocalError, and ends the processes that it started, if a port is in use, the
        directory holds something else, all nodes that can be started run already, a node ends while it starts, the
        cluster has more than `groups` groups, or a group is not ready within `timeout_s` for each group there is.
        """
        if groups is not None:
            check_groups(groups)
        if count is not None or base_port is not None:
            plan_nodes(self.data, NODES_DEFAULT if count is None else count, base_port)  # before anything is made
        prepare_data_dir(self.data)
        with locked(self.data):
            cluster = self._files.load_or_make(count, base_port, groups, failpoints=failpoints, on_stage=on_stage)
            lost, dead = lost_nodes(cluster.nodes), dead_groups(cluster.nodes)
            there = [node for node in cluster.nodes if node not in lost and node.group not in dead]
            if tier is not None:
                self._files.change_tier(there, tier)
            if tls:
                self._files.change_to_tls(there)
            if auth:
                self._files.give_key(there)
            name_servers = self._provide_registry(there, base_port, make=registry)
            all_there: list[Started] = [*there, *name_servers]
            waiting = [each for each in all_there if not is_running(each)]
            if not waiting:
                for group in dead:
                    error = dead_group(group, cluster.of_group(group))
                    raise LocalError(error.what, f"{error.why}; all other groups run", error.fix, error.exit_code)
                for node in lost:
                    error = lost_disk(node)
                    why = f"{error.what}; all other nodes are already running"
                    raise LocalError(f"node {node.name} is lost and is not started", why, error.fix, ExitCode.REFUSED)
                raise LocalError(
                    f"the cluster in {self.data} is already running",
                    "all its nodes have a running process",
                    "raftmq status    (or raftmq down first)",
                    ExitCode.REFUSED,
                )
            check_ports(waiting)
            started: list[Started] = []
            try:
                for each in waiting:
                    on_stage(f"starting {node_object(*each.key)}")
                    self.start(each.name)
                    started.append(each)
                on_stage("waiting for a leader")
                starting = groups_of(there)  # all start at the same time, on the same cores
                for group in starting:
                    if group not in groups_of(there):  # the group has retired
                        continue
                    self._wait_up(group, lost, timeout_s * len(starting), moved=base_port is not None)
                    if group == FIRST_GROUP:
                        gone = retired(self.data, starting[1:], self.first_nodes)
                        for retired_group in sorted(gone):
                            on_stage(f"setting the nodes of group {retired_group} aside, which has retired")
                            set_aside(self.data, retired_group)
                        there = [node for node in there if node.group not in gone]
                        add_groups([node for node in there if node.group != FIRST_GROUP], self.first_nodes)
                if len(groups_of(there)) > 1:
                    until(lambda: know_each_other(there), _FIRST_COPY_S, _POLL_S)
                if auth:
                    enforce(self.data, [node for node in there if node.group == FIRST_GROUP])
                if names := [each.id for each in name_servers]:
                    on_stage("waiting for the registry")
                    registry_processes.wait_ready([each for each in self.registry if each.id in names])
                return self.view()
            except LocalError as error:
                self._stop(started)
                raise self._with_the_end_of(started, error) from error
            except BaseException:
                self._stop(started)
                raise

    def _wait_up(self, group: int, lost: Sequence[NodeRecord], timeout_s: float, *, moved: bool) -> None:
        """Waits until a group that was started takes writes and clients. `moved`: True if its nodes may have other
        ports than those in its log. Raises LocalError."""
        if any(node.group == group for node in lost):
            self.wait_leader(timeout_s, group)
            return
        view = self.wait_ready(timeout_s, group)
        if moved:
            tell_new_ports(view)
        self._wait_for_first_configuration(group)

    def _with_the_end_of(self, processes: list[Started], error: LocalError) -> LocalError:
        """Returns the error of a failed start with a sentence added: that the nodes in `processes`, which this command
        had started, were stopped again. Without such nodes, returns `error` itself."""
        started = [each for each in processes if isinstance(each, NodeRecord)]
        if not started:
            return error
        names = [str(node.name) for node in started]
        which = f"node {names[0]}" if len(started) == 1 else f"nodes {', '.join(names)}"
        was = "was" if len(started) == 1 else "were"
        logs = " ".join(f"{group_folder(self.data, group)}/n*/node.log" for group in groups_of(started))
        ended = f"{which}, which this command had started, {was} stopped again; logs: {logs}"
        return LocalError(error.what, f"{error.why}; {ended}", error.fix, error.exit_code)

    def down(self) -> list[NodeName]:
        """Stops every node of this cluster, and its registry. Returns the names of those that ran."""
        read_cluster(self.data)
        with locked(self.data):
            processes = read_cluster(self.data).processes
            running = [each.name for each in processes if is_running(each)]
            self._stop(processes)
        return running

    def purge(self) -> None:
        """Deletes the folders of the nodes and of the registry, which must not run, those of removed nodes, and the
        cluster's certificates and keys; other files in the data directory stay. Raises LocalError."""
        cluster = read_cluster(self.data)
        nodes = cluster.nodes
        with locked(self.data):
            if running := [node_object(*each.key) for each in cluster.processes if is_running(each)]:
                why = "the files of a running node are in use; nothing was deleted"
                raise LocalError(f"{running[0]} is running", why, "raftmq down --purge", ExitCode.REFUSED)
            removed = [folder / REMOVED for folder in (self.data, *self.data.glob(GROUP_FOLDERS))]
            for folder in (*(node.home for node in nodes), *removed, (self.data / LOCAL_CA).parent):
                if folder.exists():
                    shutil.rmtree(folder)
            registry_processes.remove_registry(self.data)
            remove_groups(self.data)
            for name in (LOCAL_USER, USERS_KEY):
                (self.data / name).unlink(missing_ok=True)
            (self.data / CLUSTER_FILE).unlink()
            (self.data / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder may contain backups
            self.data.rmdir()

    def kill(self, name: NodeName, *, beside_others: bool = False) -> int:
        """Kills one node, or process of the registry, with kill -9; returns its last pid. With `beside_others` it does
        so even while another command holds the directory's lock, and then leaves cluster.json to that command. Raises
        LocalError if it does not run, and BusyError if another command holds the lock."""
        read_cluster(self.data).process(name)
        if beside_others:
            node = read_cluster(self.data).process(name)
            if node.pid is None or not kill_node(node):
                raise self._not_running(name)
            return node.pid
        with locked(self.data):
            node = read_cluster(self.data).process(name)
            if node.pid is None or not kill_node(node):
                raise self._not_running(name)
            self._set_pid(name, None)
            return node.pid

    def way_back(self, name: NodeName) -> str:
        """Returns the command that brings a stopped node back: by starting it, or by replacing it if its disk is lost.
        Raises LocalError."""
        cluster = read_cluster(self.data)
        node = cluster.process(name)
        if isinstance(node, RegistryRecord) or not is_without_identity(node.home / "data"):
            return f"raftmq restart {node.name}"
        if node in lost_nodes(cluster.nodes):
            return f"raftmq node replace {node.name}    (its data directory was lost, so it cannot be started)"
        return "raftmq runbook no_quorum    (too many data directories were lost)"

    def aim(self, name: NodeName) -> Callable[[], None]:
        """Finds the node's process now, and returns a function that kills it at once (-9). Raises LocalError."""
        process = find_process(read_cluster(self.data).process(name))
        if process is None:
            raise self._not_running(name)

        def strike() -> None:
            process.kill()

        return strike

    def restart(self, name: NodeName, timeout_s: float = READY_TIMEOUT_S) -> int:
        """Stops the node if it runs, starts it, and waits until it knows a leader, if enough nodes run to elect one.
        For a process of the registry, waits until it answers. Returns its pid. Raises LocalError."""
        read_cluster(self.data).process(name)
        with locked(self.data):
            node = read_cluster(self.data).process(name)
            if isinstance(node, RegistryRecord):
                return self._restart_registry(node)
            own = self.of_group(node.group)
            lost = lost_nodes(own)
            if node in lost:  # it cannot start again, and its vote counts until it is replaced
                raise lost_disk(node)
            check_data_dirs([each for each in own if each not in lost])  # a wrong file must not end a good node
            stop_nodes([node])
            check_ports([node])
            pid = self.start(name)
            what = f"node {node.name} has not joined"
            self._wait(node.group, lambda view: _has_joined(view, node.id), timeout_s, what, [node])
            return pid

    def _restart_registry(self, record: RegistryRecord) -> int:
        if why := registry_processes.why_none(self.data):
            raise LocalError(f"{node_object(*record.key)} cannot run", why, "raftmq status", ExitCode.REFUSED)
        stop_nodes([record])
        if (fault := registry_processes.fault_of(record)) is not None:
            raise fault
        registry_processes.wait_for_orphans([record])
        check_ports([record])
        pid = self.start(record.name)
        (view,) = registry_processes.wait_ready([replace(record, pid=pid)])
        if not view.running:
            raise ended(view.record)
        return pid

    def _provide_registry(
        self, there: Sequence[NodeRecord], base_port: int | None, *, make: bool
    ) -> list[RegistryRecord]:
        """Returns the processes of the registry that can run; writes all existing ones to cluster.json. `there`: the
        nodes that are being started. `make`: True to make a registry for several groups if there is none. Raises
        LocalError."""
        cluster = read_cluster(self.data)
        why = registry_processes.why_none(self.data)
        found = registry_processes.provide(
            self.data,
            there,
            lambda: check_data_dirs(there),
            cluster.registry,
            None if base_port is None else base_port + 4 * len(cluster.nodes),
            make=make and len(groups_of(there)) > 1,
            why=why,
        )
        write_cluster(self.data, replace(cluster, registry=found))
        registry_processes.wait_for_orphans([each for each in found if not is_running(each)])
        return [] if why else [each for each in found if is_running(each) or registry_processes.fault_of(each) is None]

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S, group: int = FIRST_GROUP) -> GroupStatus:
        """Waits until all nodes of a group answer and agree on a leader, and the leader accepts writes. Raises
        LocalError."""
        what = "the cluster is not ready" if group == FIRST_GROUP else f"group {group} is not ready"
        return self._wait(group, lambda view: view.ready, timeout_s, what, self.of_group(group))

    def _not_running(self, name: NodeName) -> LocalError:
        return LocalError(
            f"{node_object(*key_of(name))} is not running",
            f"{self.data / CLUSTER_FILE} names no running process for it",
            self.way_back(name),
            ExitCode.REFUSED,
        )

    def _wait_for_first_configuration(self, group: int) -> None:
        """Waits until each node of a group takes clients. A new group gets its configuration and its level a moment
        after its first leader, and refuses newer commands until then; a further one also copies what all groups share.
        After some seconds it returns anyway: a node may refuse clients for another reason."""
        addresses = [address_of(node) for node in self.of_group(group)]
        longest_s = _FIRST_CONFIGURATION_S if group == FIRST_GROUP else _FIRST_COPY_S
        until(lambda: all(map(fetch_ready, addresses)), longest_s, _POLL_S)

    def wait_leader(self, timeout_s: float = READY_TIMEOUT_S, group: int = FIRST_GROUP) -> int:
        """Waits until a leader of a group accepts writes; other nodes may be down. Returns the leader's id in it.
        Raises LocalError."""
        what = "no node accepts writes" if group == FIRST_GROUP else f"no node of group {group} accepts writes"
        leader = self._wait(group, lambda view: view.writes_open, timeout_s, what, []).leader
        assert leader is not None
        return leader

    def start(self, name: NodeName) -> int:
        """Starts one node whose directory exists, or a process of the registry; returns its pid. The caller holds the
        directory's lock."""
        pid = start_node(read_cluster(self.data).process(name))
        self._set_pid(name, pid)
        return pid

    def _stop(self, processes: Iterable[Started]) -> None:
        chosen = {each.key for each in processes}
        stop_nodes(each for each in read_cluster(self.data).processes if each.key in chosen)
        for key in chosen:
            self._set_pid(name_of(*key), None)

    def _set_pid(self, name: NodeName, pid: int | None) -> None:
        write_cluster(self.data, read_cluster(self.data).with_pid(name, pid))

    def _wait(
        self,
        group: int,
        done: Callable[[GroupStatus], bool],
        timeout_s: float,
        what: str,
        must_run: Sequence[NodeRecord],
    ) -> GroupStatus:
        """Polls a group until `done` returns True, for at most `timeout_s`; returns its view. If a node in `must_run`
        ends meanwhile, the error names it and shows the last lines of its log. Raises LocalError."""
        deadline = time.monotonic() + timeout_s
        ids = [node.id for node in must_run]
        while True:
            view = self.view(group)
            if done(view):
                return view
            for node in view.nodes:
                if node.record.id in ids and not node.running:
                    raise ended(node.record)
            if time.monotonic() >= deadline:
                raise LocalError(f"{what} after {timeout_s:.0f} s", why_not_ready(view, ids), "raftmq logs")
            time.sleep(_POLL_S)


def _has_joined(view: GroupStatus, node_id: int) -> bool:
    """Returns True if the node answers and knows a leader. While too few nodes of its group run for an election,
    answering is enough."""
    too_few = 2 * sum(node.running for node in view.nodes) <= len(view.nodes)
    return any(
        node.record.id == node_id and (node.ready or (too_few and node.status is not None)) for node in view.nodes
    )


def why_not_ready(view: GroupStatus, waited_for: Sequence[int]) -> str:
    """Returns the reason why the nodes are not ready, in their own words if they have any. `waited_for`: the ids of the
    nodes that count; without it, all nodes count. A node that does not run is ignored."""
    nodes = [node for node in view.nodes if node.running and (not waited_for or node.record.id in waited_for)]
    if silent := [str(node.record.name) for node in nodes if node.status is None]:
        return f"no answer from node {', '.join(silent)}"
    words = [f"node {node.record.name}: {alarm['text']}" for node in nodes for alarm in (node.status or {})["alarms"]]
    return "; ".join([f"leader {view.leader_name}, term {view.term}", *words])
