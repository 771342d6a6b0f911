"""Issues certificates to nodes from their configuration: for their uuids and every address that they give to others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from raftlog.errors import RaftLogError
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import OsFileSystem
from raftlog.types import FIRST_GROUP
from raftmq.local.tls.certificates import NODE, NODE_DAYS, Pair, names_of, new_node, read_certificate, write_pair
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
    """Writes FOLDER/node-N.crt and node-N.key for the node with that configuration; returns "node-N" (`stem_of`).
    Raises LocalError."""
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
    stem = stem_of(config)
    names = [*hosts, *(each for each in _hosts(config) if each not in ANY)]
    if any(each in LOOPBACK for each in names):
        names.append("localhost")
    pair = new_node(ca, str(identity.cluster_uuid), str(identity.node_uuid), names, days)
    write_pair(pair, folder, stem, replace=replace)
    return stem


def stem_of(config: Config) -> str:
    """Returns the name, without a suffix, of the files with a node's certificate and key: "node-2", for node 2 of group
    3 "node-3-2"."""
    group = config.cluster.group
    return f"{NODE}-{config.node.id}" if group == FIRST_GROUP else f"{NODE}-{group}-{config.node.id}"


def steps_before_start(config: Config, file: Path, *, over_tls: bool) -> list[str]:
    """Returns the commands that make the certificate of a new node; [] if the node uses no TLS and the cluster was not
    asked over TLS. They are typed after the node's directory is made, because the certificate names the uuid in it, and
    before the node starts. `file` is the node's configuration."""
    if not config.speaks_tls and not over_tls:
        return []
    named = "" if config.speaks_tls else f"; then set tls.mode and its files in {file} as on the other nodes"
    return [f"raftmq cert node --config {file} --ca DIR --out DIR    (DIR has ca.crt and ca.key{named})"]


def why_unfit(config: Config) -> str:
    """Returns what is wrong with a node's certificates now, or will be within 30 days; "" if nothing is."""
    from cluster.config.source import ConfigError
    from cluster.runtime.tls.contexts import load_contexts, told_day
    from cluster.runtime.tls.tls_maintenance import EXPIRES_S

    try:
        ends = load_contexts(config.tls).ends
        certificate = read_certificate(Path(config.tls.cert_file))
    except (ConfigError, LocalError) as error:
        return f"{error.what}: {error.why}"
    first = min(ends, key=lambda each: each.at_s)
    if first.at_s - time.time() < EXPIRES_S:
        return f"the certificate of {first.subject} in {first.file} ends on {told_day(first.at_s)}: put another there"
    if certificate.not_valid_before_utc.timestamp() > time.time():
        begins = certificate.not_valid_before_utc.strftime("%Y-%m-%d %H:%M UTC")
        return f"{config.tls.cert_file} is valid from {begins} on: check the clock"
    if config.tls_mode(config.peer.tls) == "disabled":
        return ""
    try:
        identity = identities.load(OsFileSystem(), Path(config.node.data_dir))
    except (OSError, RaftLogError):
        return ""  # a directory that cannot be read is reported by another check
    own = f"raftmq://{identity.cluster_uuid}/{identity.node_uuid}"
    if own in names_of(certificate):
        return ""
    return f"{config.tls.cert_file} does not name {own}: other nodes refuse it; raftmq cert node --config FILE"


def _hosts(config: Config) -> Iterator[str]:
    """Yields every host by which the node's configuration says that it can be reached."""
    from cluster.config.address import split_address

    own = config.peer_of(config.node.id)
    yield own.host
    yield own.heartbeat_host
    yield from (split_address(address)[0] for address in (own.admin, *own.listeners.values()) if address)
    yield from (each.bind for each in config.listeners)
    yield config.peer.bind
    yield config.admin.bind
