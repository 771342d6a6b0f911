"""Certificates for tests: a CA, a node and a client in files, made by what `raftmq cert` uses."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raftmq.local.certificates import Pair, new_ca, new_client, new_node, write_pair

CLUSTER, NODE = "6f9a2f9e-52a7-4d0f-8f3c-0d6d3a1f0001", "6f9a2f9e-52a7-4d0f-8f3c-0d6d3a1f0002"


class Files(NamedTuple):
    """A folder with ca.crt, node.crt, client.crt and their keys."""

    folder: Path
    ca: Pair

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def section(self, **more: str) -> str:
        """The section [tls] of a node's file."""
        keys = {"cert_file": self.path("node.crt"), "key_file": self.path("node.key"), "ca_file": self.path("ca.crt")}
        return "[tls]\n" + "".join(f'{key} = "{value}"\n' for key, value in {**keys, **more}.items())


def make_files(folder: Path, *, days: float = 90, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> Files:
    ca = new_ca()
    write_pair(ca, folder, "ca")
    write_pair(new_node(ca, CLUSTER, NODE, hosts, days), folder, "node")
    write_pair(new_client(ca, "a client", days), folder, "client")
    return Files(folder, ca)
