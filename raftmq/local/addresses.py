"""The addresses in the log of a local cluster: they follow after its ports have changed.

The members of GENESIS are found through each node's raftmq.toml; who joined later said where it is when it was added.
"""

from __future__ import annotations

from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import HOST
from raftmq.local.admin_http import AdminApi
from raftmq.local.status import ClusterView


def tell_new_ports(view: ClusterView) -> None:
    """Tells the leader of a ready cluster where each member is now, if its log says otherwise. Raises LocalError."""
    leader = next(node.record for node in view.nodes if node.record.id == view.leader)
    api = AdminApi([f"{HOST}:{leader.admin_port}"], "raftmq node list")
    members = api.local("/v1/members")
    known = {member["id"]: member for member in members["members"]}
    for node in sorted(view.nodes, key=lambda node: node.record.id == view.leader):  # a leader that moves hands over
        member = known.get(node.record.id)
        if member is None:
            continue
        told = _place(node.record, member["listeners"])
        if any(member[key] != value for key, value in told.items()):
            who = {"id": node.record.id, "cluster_id": members["cluster_id"], "uuid": member["uuid"]}
            api.post("/v1/members", {**who, **told, "force": not node.running})


def _place(record: NodeRecord, listeners: dict[str, str]) -> dict[str, object]:
    broker = f"{HOST}:{record.broker_port}"
    return {
        "host": HOST,
        "port": record.peer_port,
        "admin": f"{HOST}:{record.admin_port}",
        "listeners": {name: broker if name in ("broker", "namesrv") else at for name, at in listeners.items()},
    }
