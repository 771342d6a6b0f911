"""Edits of raftmq.toml files that keep what the user wrote: comments, order, spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.items import AoT, Table

from cluster.config.local_layout import NodeRecord

HOST = "127.0.0.1"


def like_another(own: str, other: str, own_sections: frozenset[str]) -> str:
    """The file `own` of a node that joins, with whatever else the file `other` of another node says."""
    document, settings = tomlkit.parse(own), tomlkit.parse(other)
    for section in settings:
        if section not in own_sections:
            document[section] = settings[section]
    return tomlkit.dumps(document)


def moved(text: str, node: NodeRecord, nodes: Sequence[NodeRecord], *, failpoints: bool) -> str:
    """A node's file for other ports. Former members leave [[peers]], new ones are added."""
    document = tomlkit.parse(text)
    _table(document, "node")["data_dir"] = "data"
    _table(document, "peer")["port"] = node.peer_port
    _table(document, "admin")["port"] = node.admin_port
    for listener in document.get("listeners", ()):
        port = listener_port(node, str(listener.get("name")))
        if port is not None:
            listener["port"] = port
            listener.pop("advertised", None)
    document["peers"] = _moved_peers(document, node, nodes)
    if failpoints:
        _table(document, "failpoints")["enabled"] = True
    return tomlkit.dumps(document)


def with_tier(text: str, url: str) -> str:
    """A node's file with another store."""
    document = tomlkit.parse(text)
    _table(document, "tier")["url"] = url
    return tomlkit.dumps(document)


def with_tls(text: str, files: Mapping[str, str]) -> str:
    """A node's file with these files for TLS; without a mode before, plain text is refused from now on."""
    document = tomlkit.parse(text)
    table = _table(document, "tls")
    table.setdefault("mode", "enforcing")
    for key, path in files.items():
        table[key] = path
    return tomlkit.dumps(document)


def listener_port(node: NodeRecord, name: str) -> int | None:
    """The port of one of the two listeners that a local cluster knows by name."""
    return {"broker": node.broker_port, "namesrv": node.namesrv_port}.get(name)


def _table(document: TOMLDocument, name: str) -> Any:
    if name not in document:
        document[name] = tomlkit.table()
    return document[name]


def _moved_peers(document: TOMLDocument, node: NodeRecord, nodes: Sequence[NodeRecord]) -> AoT:
    known = {int(peer["id"]): peer for peer in document.get("peers", ())}
    peers = tomlkit.aot()
    for other in nodes:
        like = known.get(other.id)
        peers.append(_moved_peer(like if like is not None else _copy_of(known.get(node.id)), other))
    return peers


def _copy_of(peer: Any) -> Table:
    table = tomlkit.table()
    for key, value in (peer or {}).items():
        table[key] = value.unwrap() if hasattr(value, "unwrap") else value
    return table


def _moved_peer(table: Any, node: NodeRecord) -> Table:
    """The table of `node`; what has no place in cluster.json stays as it is."""
    table["id"] = node.id
    table["port"] = node.peer_port
    table["admin"] = f"{HOST}:{node.admin_port}"
    for name in table.get("listeners", {}):
        if listener_port(node, name):
            table["listeners"][name] = f"{HOST}:{node.broker_port}"
    assert isinstance(table, Table)
    return table
