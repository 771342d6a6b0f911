"""The state of a cluster, combined from the nodes' answers about themselves over HTTP."""

from __future__ import annotations

import concurrent.futures
import http.client
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from cluster.config.local_layout import NodeName, NodeRecord, groups_of, name_of
from raftlog.types import FIRST_GROUP
from raftmq.local.http.answers import decoded
from raftmq.local.http.credentials import address_of, like
from raftmq.local.http.http_exchange import exchange
from raftmq.local.process import is_running

STATUS_SCHEMA = 1


class NodeView(NamedTuple):
    """One node: whether its process runs, and its own status (`/v1/status`), None if it does not answer."""

    record: NodeRecord
    running: bool
    status: dict[str, Any] | None
    elsewhere: str = ""
    """The "host:port" of its HTTP API if it does not belong to a local cluster, else ""."""

    @property
    def ready(self) -> bool:
        """True if the node answers and knows a leader."""
        return self.status is not None and bool(self.status.get("leader"))

    @property
    def is_removed(self) -> bool:
        """True if the node says that it was removed from the cluster; no leader replicates to it any more."""
        return any(alarm["key"] == "removed" for alarm in (self.status or {}).get("alarms", ()))


class GroupStatus(NamedTuple):
    """All nodes of one group at about one moment. Leader and term are those of the highest term that any node knows."""

    nodes: list[NodeView]

    @property
    def group(self) -> int:
        """The number of the group."""
        return self.nodes[0].record.group if self.nodes else FIRST_GROUP

    def of_group(self, group: int) -> GroupStatus:
        """Returns the same view with `group` as the group of every node. A node outside a local cluster reports only
        its id within its group."""
        return GroupStatus([node._replace(record=replace(node.record, group=group)) for node in self.nodes])

    @property
    def leader_name(self) -> NodeName | None:
        """The name of the leader; None if there is none."""
        return None if self.leader is None else name_of(self.group, self.leader)

    @property
    def term(self) -> int | None:
        """The highest term that a node knows; None if no node answers."""
        return max((int(view.status["term"]) for view in self.nodes if view.status), default=None)

    @property
    def leader(self) -> int | None:
        """The id, in its group, of the node that says that it leads in the highest term; None if there is none."""
        for view in self.nodes:
            status = view.status
            if status and status["role"] == "leader" and int(status["term"]) == self.term:
                return view.record.id
        return None

    @property
    def writes_open(self) -> bool:
        """True if the leader accepts writes."""
        return any(
            view.record.id == self.leader and view.status is not None and bool(view.status["writes_open"])
            for view in self.nodes
        )

    @property
    def refusal(self) -> str:
        """The reason why the leader refuses every send although it accepts other writes; "" if it does not refuse
        them."""
        for view in self.nodes:
            disk = (view.status or {}).get("disk") or {}
            if view.record.id != self.leader:
                continue
            if disk.get("parked"):
                return f"the disk of node {self.leader_name} is full, and its log waits for space"
            if disk.get("refusing"):
                return f"the disk of node {self.leader_name} is full ({disk.get('used_percent', 0):.1f} % used)"
        return ""

    @property
    def ready(self) -> bool:
        """True if every node, except removed ones, answers and knows the same leader, and the leader accepts writes."""
        known = {view.status.get("leader") if view.status else None for view in self.nodes if not view.is_removed}
        return self.writes_open and known == {self.leader}

    def lag_of(self, node_id: int) -> int | None:
        """Returns by how many entries the node's log is behind the leader's, as the leader sees it; 0 for the leader
        itself, None if the leader does not say."""
        for view in self.nodes:
            if view.record.id == self.leader and view.status is not None:
                if node_id == self.leader:
                    return 0
                lags = {int(peer["node"]): int(peer["lag_entries"]) for peer in view.status["peers"]}
                return lags.get(node_id)
        return None

    def findings(self) -> list[dict[str, Any]] | None:
        """Returns the cluster's findings, from the leader if it answers, else from the first node that does; None if
        none does."""
        answering = sorted((view for view in self.nodes if view.status), key=lambda view: view.record.id != self.leader)
        for view in answering:
            health = fetch_health(view.elsewhere or address_of(view.record))
            if health is not None:
                found: list[dict[str, Any]] = health["findings"]
                return found
        return None

    def to_json(self) -> dict[str, Any]:
        """Returns the output of `raftmq status --json` for a cluster of one group, without the findings."""
        return {"schema": STATUS_SCHEMA, **self._leading(), "nodes": [_node_json(view) for view in self.nodes]}

    def group_json(self) -> dict[str, Any]:
        """Returns this group's object in the output for several groups; its nodes are listed elsewhere, with those of
        all groups."""
        return {"group": self.group, **self._leading()}

    def _leading(self) -> dict[str, Any]:
        return {
            "leader": self.leader,
            "term": self.term,
            "writes_open": self.writes_open,
            "sends_refused": self.refusal or None,
        }


def _node_json(view: NodeView) -> dict[str, Any]:
    group = view.record.group
    return {
        "id": view.record.id,
        **({} if group == FIRST_GROUP else {"group": group}),
        "pid": view.record.pid if view.running else None,
        "running": view.running,
        "answers": view.status is not None,
        "broker_port": view.record.broker_port,
        "namesrv_port": view.record.namesrv_port,
        "peer_port": view.record.peer_port,
        "admin_port": view.record.admin_port,
        "admin": view.elsewhere or f"127.0.0.1:{view.record.admin_port}",
        "log": view.record.log,
        "status": view.status,
    }


def json_of(views: Sequence[GroupStatus]) -> dict[str, Any]:
    """Returns the output of `raftmq status --json`, without the findings. `views`: the views of all groups, the first
    group's first. Leader, term and the like are those of the first group; `groups` is there only if there are
    several."""
    first, *others = views
    told = first.to_json()
    if others:
        told["nodes"] += [_node_json(node) for view in others for node in view.nodes]
        told["groups"] = [view.group_json() for view in views]
    return told


def fetch_status(address: str, timeout_s: float = 1.0) -> dict[str, Any] | None:
    """Returns the answer of `GET /v1/status` of one node (`cluster.admin.node_interface.NodeStatus`); None if nothing,
    or another program, answers."""
    body = _get(address, "/v1/status", timeout_s)
    return body if body is not None and "term" in body else None


def fetch_ready(address: str, timeout_s: float = 2.0) -> bool:
    """Returns True if the node says that clients may be sent to it; False if it does not answer."""
    body = _get(address, "/v1/health/ready", timeout_s)
    return body is not None and bool(body.get("ready"))


def fetch_health(address: str, timeout_s: float = 3.0) -> dict[str, Any] | None:
    """Returns the answer of `GET /v1/health` of one node, healthy or not; None if it does not answer."""
    body = _get(address, "/v1/health", timeout_s)
    return body if body is not None and "findings" in body else None


def _get(address: str, path: str, timeout_s: float) -> dict[str, Any] | None:
    """Returns the answer of a node, healthy or unhealthy (503); None for any other answer."""
    try:
        reply = exchange(address, "GET", path, timeout_s=timeout_s)
        body = decoded(reply.body)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return body if reply.status in (200, 503) and isinstance(body, dict) else None


def view_addresses(addresses: Sequence[str], timeout_s: float = 1.0) -> GroupStatus:
    """Returns a view of the cluster through HTTP APIs anywhere ("host:port"): asks each address, and all nodes that the
    first answer names.

    Only the id and the address of each node are known: its ports are given as 0, and it has no process on this machine.
    """
    asked, members = _asked(addresses, timeout_s)
    others = _others(asked, members)
    asked |= dict(zip(others, _statuses(others, timeout_s), strict=True))
    by_address = {address: node for node, address in members.items()}
    first = next((address for address, status in asked.items() if status), "")
    for address, status in asked.items():
        # The node may have refused this user; no token is sent to an address that only a node named.
        if status is None and address in others:
            asked[address] = _told_by(first, by_address[address], timeout_s)
    views = [_elsewhere(address, status, by_address.get(address, 0)) for address, status in asked.items()]
    return GroupStatus(sorted(views, key=lambda view: (view.record.id == 0, view.record.id)))


def with_members(addresses: Sequence[str], timeout_s: float = 1.0) -> list[str]:
    """Returns the addresses, and those of further nodes that the first node to answer names."""
    return [*addresses, *_others(*_asked(addresses, timeout_s))]


def _asked(addresses: Sequence[str], timeout_s: float) -> tuple[dict[str, dict[str, Any] | None], dict[int, str]]:
    """Asks all addresses. Returns address -> the node's status, and node -> address, as the first node to answer names
    them."""
    asked = dict(zip(addresses, _statuses(addresses, timeout_s), strict=True))
    first = next((address for address, status in asked.items() if status), None)
    if first is None:
        return asked, {}
    return asked, {node: like(first, address) for node, address in _members(first, timeout_s).items()}


def _others(asked: dict[str, dict[str, Any] | None], members: dict[int, str]) -> list[str]:
    known = {int(status["node"]) for status in asked.values() if status}
    return [address for node, address in members.items() if node not in known and address not in asked]


def _told_by(address: str, node: int, timeout_s: float) -> dict[str, Any] | None:
    """Asks the node at `address` for the status of another node, `node`. Returns None if either of them does not
    answer."""
    body = _get(address, f"/v1/members/{node}/status", timeout_s)
    return body if body is not None and "term" in body else None


def _elsewhere(address: str, status: dict[str, Any] | None, node_id: int) -> NodeView:
    number = int(status["node"]) if status else node_id
    return NodeView(NodeRecord(number, None, 0, 0, 0, 0, ""), status is not None, status, address)


def _statuses(addresses: Sequence[str], timeout_s: float) -> list[dict[str, Any] | None]:
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
        return list(pool.map(lambda address: fetch_status(address, timeout_s), addresses))


def _members(address: str, timeout_s: float) -> dict[int, str]:
    """Returns node -> the address of its HTTP API, as a node lists the members; {} if it does not answer."""
    body = _get(address, "/v1/members", timeout_s) or {}
    return {int(each["id"]): str(each["admin"]) for each in body.get("members", ()) if each.get("admin")}


def view_groups(nodes: Sequence[NodeRecord], timeout_s: float = 1.0) -> list[GroupStatus]:
    """Returns the views of all groups of a local cluster, in the order of their numbers: asks all nodes at the same
    time."""
    found = view_cluster(nodes, timeout_s).nodes
    return [GroupStatus([view for view in found if view.record.group == group]) for group in groups_of(nodes)]


def view_cluster(nodes: Sequence[NodeRecord], timeout_s: float = 1.0) -> GroupStatus:
    """Returns the view of a group of a local cluster: asks all its nodes at the same time."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
        statuses = list(pool.map(lambda node: fetch_status(address_of(node), timeout_s), nodes))
    return GroupStatus([NodeView(node, is_running(node), status) for node, status in zip(nodes, statuses, strict=True)])
