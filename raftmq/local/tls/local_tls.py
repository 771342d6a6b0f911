"""TLS of a local cluster: a CA and a certificate for each node below its data directory, and `[tls]` in the nodes'
files.

    .raftmq/tls/ca.crt          its presence tells clients and commands to speak TLS
    .raftmq/tls/ca.key
    .raftmq/tls/node-1.crt      and node-1.key, for each node; node-2-1.crt for node 1 of group 2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cluster.config.loading import load
from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import set_tls
from raftmq.client.discovery import LOCAL_CA
from raftmq.local.tls.certificates import CA, certificate_path, new_ca, read_ca, write_pair
from raftmq.local.tls.node_certificates import issue_node, stem_of


def speaks_tls(data: Path) -> bool:
    """Returns True if the cluster in that directory speaks TLS."""
    return (data / LOCAL_CA).is_file()


def certify(data: Path, nodes: Iterable[NodeRecord]) -> None:
    """Makes what is missing: the CA, the certificates of these nodes, and `[tls]` in their configuration files. The
    directories of the nodes must exist. Raises LocalError."""
    certify_files((data / LOCAL_CA).parent, [node.config_path for node in nodes])


def certify_files(folder: Path, config_paths: Iterable[Path], env: Mapping[str, str] | None = None) -> list[Path]:
    """Makes what is missing: a CA in the folder, a certificate there for each node with one of these configuration
    files, and `[tls]` in the file. The nodes' directories must exist. Returns the paths of the certificates that were
    made. Raises LocalError."""
    if not certificate_path(folder, CA).exists():
        write_pair(new_ca(), folder, CA, replace=True)  # a CA's key without its certificate has issued nothing yet
    made = []
    for path in config_paths:
        config = load(path, env)
        certificate = certificate_path(folder, stem_of(config))
        if not certificate.exists():
            issue_node(read_ca(folder), config, folder, replace=True)
            made.append(certificate)
        if not (config.speaks_tls and Path(config.tls.cert_file).resolve() == certificate.resolve()):
            set_tls(path, stem_of(config), folder)
    return made
