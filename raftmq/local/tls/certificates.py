"""Makes P-256 certificates: a CA, and the certificates that it issues to nodes and clients. Files with keys have mode
0600.

A node's certificate names the cluster and the node as `raftmq://CLUSTER-UUID/NODE-UUID`, and the hosts by which others
reach the node. A client's certificate cannot be used as a node's.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster.config.local_layout import replace_file
from raftmq_wire.errors import ExitCode, LocalError

CA, NODE, CLIENT = "ca", "node", "client"
CA_DAYS, NODE_DAYS, CLIENT_DAYS = 3650, 365, 365
EARLY = datetime.timedelta(minutes=5)
"""A certificate is valid from this long before it is made, because clocks differ."""


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_ca(name: str = "RaftMQ CA", days: float = CA_DAYS) -> Pair:
    """Makes a CA that may issue certificates of nodes and clients, but no other CAs."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    builder = _builder(subject, subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def new_node(ca: Pair, cluster: str, node: str, hosts: Iterable[str], days: float = NODE_DAYS) -> Pair:
    """Issues a certificate to the node with the uuid `node`. `hosts`: the names and addresses by which it is
    reached."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"raftmq://{cluster}/{node}")]
    names += [_host(each) for each in dict.fromkeys(hosts)]
    return _issue(ca, f"RaftMQ node {node}", names, [ExtendedKeyUsageOID.SERVER_AUTH], days)


def new_client(ca: Pair, name: str, days: float = CLIENT_DAYS) -> Pair:
    """Issues a certificate to a client. `name` is shown to people."""
    return _issue(ca, name, [], [], days)


def _issue(
    ca: Pair, name: str, names: list[x509.GeneralName], usages: list[x509.ObjectIdentifier], days: float
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_named(name), ca.certificate.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    usage = x509.ExtendedKeyUsage([*usages, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(usage, critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY + datetime.timedelta(days=min(days, 0)))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def certificate_path(folder: Path, stem: str) -> Path:
    """Returns the path of a certificate in a folder."""
    return folder / f"{stem}.crt"


def key_path(folder: Path, stem: str) -> Path:
    """Returns the path of a key in a folder."""
    return folder / f"{stem}.key"


def write_pair(pair: Pair, folder: Path, stem: str, *, replace: bool = False) -> None:
    """Writes FOLDER/STEM.crt and STEM.key, each atomically. Raises LocalError if one exists, unless `replace`."""
    paths = certificate_path(folder, stem), key_path(folder, stem)
    taken = next((path for path in paths if path.exists()), None)
    if taken is not None and not replace:
        raise LocalError(
            f"{taken} is there already",
            "a key that is written over is lost, and what it certified with it",
            "give another --out, or --replace",
            ExitCode.REFUSED,
        )
    key = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(paths[1], key, 0o600)
        replace_file(paths[0], pair.certificate.public_bytes(Encoding.PEM), 0o600)
    except OSError as error:
        raise LocalError(
            f"{error.filename or folder} cannot be written",
            error.strerror or str(error),
            "give another --out",
            ExitCode.FAILED,
        ) from None


def read_ca(folder: Path) -> Pair:
    """Reads the CA from FOLDER/ca.crt and ca.key. Raises LocalError."""
    path = key_path(folder, CA)
    try:
        certificate = read_certificate(certificate_path(folder, CA))
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error).splitlines()[0]
        raise LocalError(
            f"there is no CA in {folder}", f"{path}: {why}", f"raftmq cert ca --out {folder}", ExitCode.FAILED
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise LocalError(
            f"{path} is not the key of {certificate_path(folder, CA)}",
            "a certificate and its key are made together",
            "give the folder of another CA: --ca FOLDER",
            ExitCode.FAILED,
        )
    return Pair(certificate, key)


def read_certificate(path: Path) -> x509.Certificate:
    """Returns the first certificate in a file. Raises LocalError."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else "it is no certificate in PEM"
        raise LocalError(f"{path} cannot be read", why, "give the path of a certificate", ExitCode.FAILED) from None


def is_key_of(path: Path, certificate: x509.Certificate) -> bool:
    """Returns True if the file contains the certificate's key. Raises LocalError if it contains no key."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else "it is no key in PEM, or is encrypted"
        raise LocalError(f"{path} cannot be read", why, "give the path of a private key", ExitCode.FAILED) from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


def describe(certificate: x509.Certificate) -> dict[str, str | list[str]]:
    """Returns the fields of a certificate as texts for people."""
    return {
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "names": names_of(certificate),
        "begins": certificate.not_valid_before_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "ends": certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def names_of(certificate: x509.Certificate) -> list[str]:
    """Returns the names that the certificate is issued for: hosts, and the node's URI."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in found]
