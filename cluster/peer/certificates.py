"""The node that the certificate on a connection names: `raftmq://CLUSTER-UUID/NODE-UUID` among its names.

TLS has checked that one of our CAs issued it. The secret proof goes on inside: a CA may issue for several clusters.
"""

from __future__ import annotations

from typing import Any, Protocol

_SCHEME = "raftmq://"


class Transport(Protocol):
    """A connection."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns what asyncio's transports tell, here `peercert`."""


def certified(transport: Transport) -> tuple[str, str] | None:
    """Returns [cluster uuid, node uuid] in the other side's certificate, ("", "") if it names no node; None in plain
    text."""
    told = transport.get_extra_info("peercert")
    if told is None:
        return None
    for kind, name in told.get("subjectAltName", ()):
        if kind == "URI" and name.startswith(_SCHEME):
            cluster, _, node = name.removeprefix(_SCHEME).partition("/")
            return cluster, node
    return "", ""


def why_not_certified(transport: Transport, cluster: object, node_uuid: object) -> str:
    """Why the certificate is not of that node; "" if it is, and in plain text."""
    found = certified(transport)
    if found is None or found == (cluster, node_uuid):
        return ""
    if found == ("", ""):
        return "its certificate names no node: raftmq cert node makes one that does"
    return (
        f"its certificate is of node {found[1]:.36} in cluster {found[0]:.36}: raftmq cert node makes one for each node"
    )
