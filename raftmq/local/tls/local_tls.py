"""TLS of a local cluster: a CA and a certificate for each node below its data directory, and `[tls]` in the nodes'
files.

    .raftmq/tls/ca.crt          its presence tells clients and commands to speak TLS
    .raftmq/tls/ca.key
    .raftmq/tls/node-1.crt      and node-1.key, for each node
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cluster.config.loading import load
from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import set_tls
from raftmq.client.discovery import LOCAL_CA
from raftmq.local.tls.certificates import CA, NODE, certificate_path, new_ca, read_ca, write_pair
from raftmq.local.tls.node_certificates import issue_node


def speaks_tls(data: Path) -> bool:
    """Returns True if the cluster in that directory speaks TLS."""
    return (data / LOCAL_CA).is_file()


def certify(data: Path, nodes: Iterable[NodeRecord]) -> None:
    """Makes what is missing: the CA, the certificates of these nodes, and `[tls]` in their configuration files. The
    directories of the nodes exist. Raises LocalError."""
    folder = (data / LOCAL_CA).parent
    if not speaks_tls(data):
        write_pair(new_ca(), folder, CA, replace=True)  # a key without a certificate has certified nothing
    ca = read_ca(folder)
    for node in nodes:
        if not certificate_path(folder, f"{NODE}-{node.id}").exists():
            issue_node(ca, load(node.config_path), folder, replace=True)
        set_tls(node, folder)
