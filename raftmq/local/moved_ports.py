"""After a start with other ports, tells each group the new addresses of its nodes if its log still has the old ones."""

from __future__ import annotations

from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import HOST
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.settled_changes import when_settled
from raftmq.local.status import GroupStatus


def tell_new_ports(view: GroupStatus) -> None:
    """Sends the leader of a ready group the present address of each member, if the group's log has another one. Raises
    LocalError.

    The members of GENESIS are found through each node's raftmq.toml; a node that joined later gave its address when it
    was added.
    """
    leader = next(node.record for node in view.nodes if node.record.id == view.leader)
    api = AdminApi([address_of(leader)], "raftmq node list")
    members = api.local("/v1/members")
    known = {member["id"]: member for member in members["members"]}
    for node in sorted(view.nodes, key=lambda node: node.record.id == view.leader):  # the leader last: it hands over
        member = known.get(node.record.id)
        if member is None:
            continue
        told = _place(node.record, member["listeners"])
        if any(member[key] != value for key, value in told.items()):
            who = {"id": node.record.id, "cluster_id": members["cluster_id"], "uuid": member["uuid"]}
            body = {**who, **told, "force": not node.running}
            when_settled(lambda body=body: api.post("/v1/members", body), lambda text: None)  # type: ignore[misc]


def _place(record: NodeRecord, listeners: dict[str, str]) -> dict[str, object]:
    broker = f"{HOST}:{record.broker_port}"
    return {
        "host": HOST,
        "port": record.peer_port,
        "admin": f"{HOST}:{record.admin_port}",
        "listeners": {name: broker if name in ("broker", "namesrv") else at for name, at in listeners.items()},
    }
