"""Makes TLS contexts from the files of `[tls]`. A context is never changed: changed files make new contexts.

TLS sessions are not resumed with tickets, and a context resumes no session of another context. So the certificate of
each connection was checked against the CAs of the context that accepted the connection.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cluster.config.node_sections import TlsSection
from cluster.config.source import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

FILE_BYTES_MAX = 1 << 20
"""The most bytes of a file of certificates."""
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Ends(NamedTuple):
    """The expiry of a certificate."""

    file: str
    subject: str
    at_s: float
    """Seconds since the Unix epoch at which it expires."""


class Contexts(NamedTuple):
    """All contexts from one reading of the files; immutable."""

    clients: ssl.SSLContext
    """Accepts connections of clients, and those to the HTTP API."""
    peers: ssl.SSLContext | None
    """Accepts connections of other nodes; None without `tls.ca_file`."""
    dialling: ssl.SSLContext | None
    """Dials other nodes, whose certificates contain their node uuid rather than their host; None without
    `tls.ca_file`."""
    asking: ssl.SSLContext
    """Dials the HTTP APIs of other nodes, whose certificates contain their hosts."""
    ends: tuple[Ends, ...]
    """The expiry of each certificate in the files."""
    authorities: tuple[Certificate, ...]


def load_contexts(tls: TlsSection) -> Contexts:
    """Reads the files. Raises ConfigError if they do not fit together, or are not of the right kind."""
    own = _certificates("cert_file", tls.cert_file)
    authorities = _certificates("ca_file", tls.ca_file) if tls.ca_file else []
    clients = _Server(tls, _VERIFY[tls.client_certificates])
    peers = _Server(tls, ssl.CERT_REQUIRED) if tls.ca_file else None
    dialling = _Dialling(tls, check_hostname=False) if tls.ca_file else None
    ends = [_end(tls.cert_file, own[0])] + [_end(tls.ca_file, each) for each in authorities]
    return Contexts(clients, peers, dialling, _Dialling(tls, check_hostname=True), tuple(ends), tuple(authorities))


class _Server(ssl.SSLContext):
    """A context that accepts connections."""

    def __new__(cls, tls: TlsSection, verify: ssl.VerifyMode) -> _Server:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, tls: TlsSection, verify: ssl.VerifyMode) -> None:
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        self.num_tickets = 0
        self.verify_mode = verify
        _show(self, tls)
        if tls.ca_file:
            _trust(self, tls)


class _Dialling(ssl.SSLContext):
    """A context that dials other nodes."""

    def __new__(cls, tls: TlsSection, *, check_hostname: bool) -> _Dialling:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, tls: TlsSection, *, check_hostname: bool) -> None:
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.check_hostname = check_hostname
        _show(self, tls)
        if tls.ca_file:
            _trust(self, tls)
        else:
            self.load_default_certs()


def _show(context: ssl.SSLContext, tls: TlsSection) -> None:
    """Loads this node's certificate into the context. Raises ConfigError if the files cannot be used."""
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except (OSError, ValueError) as error:
        why = str(error) if isinstance(error, ValueError) else _words(error)
        file = getattr(error, "filename", None) or f"{tls.cert_file} and {tls.key_file}"
        raise ConfigError(
            f"tls.cert_file, tls.key_file: cannot use {file}",
            why,
            f"check the two files; raftmq cert show {tls.cert_file} --key {tls.key_file} says if they belong together",
        ) from None


def _trust(context: ssl.SSLContext, tls: TlsSection) -> None:
    try:
        context.load_verify_locations(tls.ca_file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tls.ca_file: cannot use {tls.ca_file}",
            str(error) if isinstance(error, ValueError) else _words(error),
            "give a file with the certificates of the CAs, PEM: raftmq cert ca makes one",
        ) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted, and a node that starts by itself has nobody to ask for the password")


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        return (error.reason or "it is no PEM file").lower().replace("_", " ")
    return error.strerror or str(error)


def _certificates(key: str, path: str) -> list[Certificate]:
    from cryptography import x509

    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
        return x509.load_pem_x509_certificates(data)
    except (OSError, ValueError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error).splitlines()[0]
        raise ConfigError(
            f"tls.{key}: cannot use {path}", why, "give a file with certificates in PEM: raftmq cert node makes one"
        ) from None


def _end(file: str, certificate: Certificate) -> Ends:
    return Ends(file, certificate.subject.rfc4514_string()[:200], certificate.not_valid_after_utc.timestamp())


def issued_by_one_of(der: bytes, authorities: tuple[Certificate, ...]) -> bool:
    """Returns True if one of the CAs signed the certificate directly. Returns False also if an intermediate certificate
    signed it: the connection is then closed although the CA may be known, and is checked in full when it is made
    again."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        certificate = x509.load_der_x509_certificate(der)
    except ValueError:
        return False
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def told_day(at_s: float) -> str:
    """Returns the day of a time as text, UTC: "2026-11-21". `at_s` is seconds since the Unix epoch."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")
