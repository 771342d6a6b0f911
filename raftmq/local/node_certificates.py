"""Issues certificates to nodes by their configuration: their uuids and every address that they tell others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from raftlog.errors import RaftLogError
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import OsFileSystem
from raftmq.local.certificates import NODE, NODE_DAYS, Pair, new_node, write_pair
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.config.config import Config

ANY = ("0.0.0.0", "::", "")
LOOPBACK = ("127.0.0.1", "::1")


def issue_node(
    ca: Pair,
    config: Config,
    folder: Path,
    *,
    hosts: Iterable[str] = (),
    days: float = NODE_DAYS,
    replace: bool = False,
) -> str:
    """Writes FOLDER/node-N.crt and node-N.key for the node with that configuration, and returns "node-N". Raises
    LocalError."""
    data_dir = Path(config.node.data_dir)
    try:
        identity = identities.load(OsFileSystem(), data_dir)
    except (OSError, RaftLogError) as error:
        raise LocalError(
            f"{data_dir} is no data directory of a node: {str(error).splitlines()[0]}",
            "the certificate names the node and its cluster, whose uuids are in the directory",
            "raftmq init --config FILE ...    (for a new cluster), then raftmq cert node again",
            ExitCode.FAILED,
        ) from None
    stem = f"{NODE}-{config.node.id}"
    names = [*hosts, *(each for each in _hosts(config) if each not in ANY)]
    if any(each in LOOPBACK for each in names):
        names.append("localhost")
    pair = new_node(ca, str(identity.cluster_uuid), str(identity.node_uuid), names, days)
    write_pair(pair, folder, stem, replace=replace)
    return stem


def _hosts(config: Config) -> Iterator[str]:
    """Every host by which this node says that it is reached."""
    from cluster.config.config import split_address

    own = config.peer_of(config.node.id)
    yield own.host
    yield own.heartbeat_host
    yield from (split_address(address)[0] for address in (own.admin, *own.listeners.values()) if address)
    yield from (each.bind for each in config.listeners)
    yield config.peer.bind
    yield config.admin.bind
