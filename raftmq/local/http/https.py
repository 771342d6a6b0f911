"""TLS of the HTTP API for the command line: https if the user asked for it, or if a local cluster speaks it.

`--tls-ca`, an address that begins with https://, a context with a CA and RAFTMQ_TLS_CA apply to every address of the
command, because the addresses that nodes report belong to the same cluster.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.client.tls import Tls

# The client is imported inside functions, so that help and completion do not load it.

_chosen: list[Tls] = []
"""The TLS that this command was told to use, as a list of one; empty if the environment decides."""


def speak_tls(ca: str = "", cert: str = "", key: str = "") -> None:
    """Makes every further request to HTTP APIs use TLS; the arguments are the files of `Tls`. Raises LocalError for
    files that cannot be used."""
    from raftmq.client.tls import Tls

    tls = Tls(ca, cert, key)
    try:
        tls.context()
    except ValueError as error:
        raise LocalError(
            str(error).removeprefix("tls: "),
            "https needs the CA that the certificates of the nodes come from",
            "--tls-ca FILE    (or RAFTMQ_TLS_CA=FILE)",
            ExitCode.USAGE,
        ) from None
    _chosen[:] = [tls]


def forget_tls() -> None:
    """Forgets the chosen TLS, so that the environment decides again."""
    _chosen.clear()


def chosen_tls() -> Tls | None:
    """Returns the TLS of this command, chosen by an option, an address, a context or the environment; None for plain
    text. Raises LocalError."""
    if _chosen:
        return _chosen[0]
    from raftmq.client.tls import find_tls

    try:
        return find_tls()
    except ValueError as error:
        why = "it comes from RAFTMQ_TLS, RAFTMQ_TLS_CA, RAFTMQ_TLS_CERT and RAFTMQ_TLS_KEY"
        raise LocalError(str(error), why, "RAFTMQ_TLS_CA=FILE raftmq ...", ExitCode.USAGE) from None


def local_tls(data: Path) -> Tls | None:
    """Returns the TLS of the local cluster in that directory; None if it speaks plain text."""
    from raftmq.client.discovery import LOCAL_CA
    from raftmq.client.tls import Tls

    ca = data / LOCAL_CA
    return Tls(ca=str(ca)) if ca.is_file() else None


def connection_to(address: str, tls: Tls | None, timeout_s: float) -> http.client.HTTPConnection:
    """Opens a connection to "host:port". Raises OSError."""
    host, _, port = address.rpartition(":")
    bare, number = host.strip("[]"), int(port)
    connection = (
        http.client.HTTPConnection(bare, number, timeout=timeout_s)
        if tls is None
        else http.client.HTTPSConnection(bare, number, timeout=timeout_s, context=tls.context())
    )
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        from raftmq.client.tls import refused_server

        raise refused_server(error) if tls is not None else error from None
    return connection
