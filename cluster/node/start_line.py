"""The first line of a node's log: versions, addresses, and the position of its log and state."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster import kernel
from cluster.config.exposure import open_folder, open_ports
from cluster.runtime.host.versions import versions

if TYPE_CHECKING:
    from cluster.node.node import Node

logger = logging.getLogger(__name__)


def tell(node: Node) -> None:
    """Logs it once the node serves clients."""
    config, raft, identity = node.config, node.raw, node.storage.directory.identity
    used = versions()
    ports = ", ".join(
        [
            *(f"{each.name} {each.bind}:{each.port}" for each in config.listeners),
            f"peer {config.peer.bind}:{config.peer.port}",
            f"admin {config.admin.bind}:{config.admin.port}",
        ]
    )
    logger.info(
        "node %d of cluster %s (%s) serves: raftmq %s, python %s, %s kernel; %s; directory %s; term %d, "
        "log up to index %d, applied up to %d; voters %s",
        node.node_id,
        config.cluster.name,
        identity.cluster_uuid,
        used["raftmq"],
        used["python"],
        kernel.NAME,
        ports,
        node.storage.directory.path,
        raft.term,
        raft.tail.index,
        raft.applied_index,
        ", ".join(map(str, sorted(node.membership.in_force.voter_ids))),
    )
    if node.environment.python_finding:
        logger.warning("node %d: %s", node.node_id, node.environment.python_finding)
    if ports := open_ports(config):
        logger.warning("%s", ports)
    if folder := open_folder(node.storage.directory.path):
        logger.warning("node %d: %s", node.node_id, folder.says)
    if kernel.WHY:
        logger.info("node %d uses the kernel in Python: %s", node.node_id, kernel.WHY)
