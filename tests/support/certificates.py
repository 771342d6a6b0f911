"""Certificates for tests: a CA, a node and a client in files, made by what `raftmq cert` uses."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from raftmq.local.tls.certificates import Pair, new_ca, new_client, new_node, write_pair

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


def write_chain(ca: Pair, folder: Path, days: tuple[int, int], links: int) -> tuple[str, str]:
    """Writes a certificate that counts from some days on until others, with so many between it and the CA, and its key.
    Returns both paths."""
    now, above = datetime.datetime.now(datetime.UTC), ca
    chain: list[x509.Certificate] = []
    for number in range(links + 1):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"link {number}")])
        builder = x509.CertificateBuilder(above.certificate.subject, name, key.public_key(), number + 1)
        builder = builder.not_valid_before(now + datetime.timedelta(days[0])).not_valid_after(
            now + datetime.timedelta(days[1])
        )
        is_last = number == links
        builder = builder.add_extension(x509.BasicConstraints(ca=not is_last, path_length=None), critical=True)
        above = Pair(builder.sign(above.key, hashes.SHA256()), key)
        chain.insert(0, above.certificate)
    paths = folder / "chain.crt", folder / "chain.key"
    paths[0].write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in chain))
    paths[1].write_bytes(above.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(paths[0]), str(paths[1])


def make_files(folder: Path, *, days: float = 90, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> Files:
    ca = new_ca()
    write_pair(ca, folder, "ca")
    write_pair(new_node(ca, CLUSTER, NODE, hosts, days), folder, "node")
    write_pair(new_client(ca, "a client", days), folder, "client")
    return Files(folder, ca)
