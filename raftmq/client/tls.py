"""TLS on the client's side: the CAs that it trusts, the certificate that it presents, and how it dials.

Every new connection uses the newest content of the files.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from raftmq.client.discovery import LOCAL_CA, local_file
from raftmq.client.port_probe import PLAIN_ALONE

HANDSHAKE_S = 5.0
_ANSWERS_PLAINLY = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons for an answer that is no TLS record."""
GOODBYE_S = 1.0
"""The seconds that the other side has to finish closing a connection."""
TURNS = 3
"""The number of turns of the event loop after which the sockets of lost connections are closed."""
_OFF, _ON = ("", "0", "false", "off", "no"), ("1", "true", "on", "yes")


class Tls(NamedTuple):
    """The PEM files with which a client speaks TLS. Without `ca` it trusts the CAs of the operating system."""

    ca: str = ""
    """File with the CAs that issue servers' certificates."""
    cert: str = ""
    """File with the client's own certificate, for servers that ask for one."""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Returns an SSL context with the present content of the files. Raises ValueError, whose text names the file
        and its fault."""
        if bool(self.cert) != bool(self.key):
            raise ValueError("tls: a certificate and its key belong together (RAFTMQ_TLS_CERT and RAFTMQ_TLS_KEY)")
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ValueError) as error:
            raise ValueError(f"tls: {self.ca} cannot be used as a file of CAs: {_words(error)}") from None
        try:
            if self.cert:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ValueError(f"tls: {self.cert} and {self.key} cannot be used: {_words(error)}") from None
        return context


def find_tls(
    tls: Tls | bool | None = None, environ: Mapping[str, str] = os.environ, local: Path | None = None
) -> Tls | None:
    """Returns the TLS to use: the one given, else that of RAFTMQ_TLS, RAFTMQ_TLS_CA, RAFTMQ_TLS_CERT and
    RAFTMQ_TLS_KEY, else that of the local cluster in the folder `local`; None for plain text. Raises ValueError for a
    value of RAFTMQ_TLS that is neither yes nor no, and for files that cannot be used; TypeError for a `tls` of another
    type."""
    word = environ.get("RAFTMQ_TLS", "").strip().lower()
    if word not in (*_OFF, *_ON):
        raise ValueError(f"RAFTMQ_TLS={word}: write 1 or 0")
    named = Tls(*(environ.get(f"RAFTMQ_TLS_{key}", "") for key in ("CA", "CERT", "KEY")))
    if tls is None and (word or named != Tls()):
        tls = (word in _ON or named != Tls()) and not (word in _OFF and "RAFTMQ_TLS" in environ)
    if tls is not None and not isinstance(tls, (bool, Tls)):
        raise TypeError(f"tls= is Tls(ca=FILE, cert=FILE, key=FILE), or True for the system's CAs, not {tls!r}")
    found = tls if isinstance(tls, Tls) else named if tls else None
    if found is None and tls is None and not word and (ca := local_file(local, LOCAL_CA)):
        found = Tls(ca=ca)
    if found is not None:
        found.context()
    return found


class TlsError(OSError):
    """The client or the server refused the TLS connection. The text is worded to follow the server's address in a
    sentence."""


class _Watched(asyncio.Protocol):
    """A protocol that passes all calls on to another one, and reports the end of its connection."""

    def __init__(self, inner: asyncio.Protocol, lost: asyncio.Future[None]) -> None:
        self._inner = inner
        self._lost = lost
        self.connection_made = inner.connection_made  # type: ignore[method-assign] # reads cost no further call
        self.data_received = inner.data_received  # type: ignore[method-assign] # reads cost no further call

    def eof_received(self) -> bool | None:
        """Called when the other side has finished sending."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Called when the other side reads too slowly to take more."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Called when the other side reads fast enough again."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection is lost: resolves the future that `TlsDialler.ended` waits for."""
        if not self._lost.done():
            self._lost.set_result(None)
        self._inner.connection_lost(exc)


class TlsDialler:
    """Dials connections over TLS with the newest content of the files."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._seen: tuple[tuple[int, int] | None, ...] = ()
        self._context: ssl.SSLContext | None = None
        self._open: dict[asyncio.Future[None], asyncio.BaseTransport] = {}
        """Transports of open connections, by the future that is resolved when the connection is lost."""

    async def dial(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> object:
        """Opens a connection to (host, port); the server's certificate must name the host. Raises OSError, and
        TlsError."""
        loop = asyncio.get_running_loop()
        context = self._newest()
        lost: asyncio.Future[None] = loop.create_future()
        try:
            made = await loop.create_connection(
                lambda: _Watched(factory(), lost),
                host,
                port,
                ssl=context,
                server_hostname=host,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
            if not lost.done():
                self._open[lost] = made[0]
                lost.add_done_callback(lambda done: self._open.pop(done, None))
            return made
        except (ssl.SSLError, ConnectionAbortedError, ConnectionResetError) as error:
            raise refused_server(error) from None

    async def ended(self) -> None:
        """Waits until closed connections have ended; the other side has GOODBYE_S for its part. If the loop were closed
        before that, the connections would end with an error."""
        open_now = dict(self._open)
        if open_now:
            await asyncio.wait(open_now, timeout=GOODBYE_S)
        for lost, transport in open_now.items():
            if not lost.done():
                cast(asyncio.Transport, transport).abort()  # the transport of uvloop is no subclass of it
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def _newest(self) -> ssl.SSLContext:
        seen = tuple(_stat(path) for path in self._tls)
        if self._context is None or seen != self._seen:
            try:
                self._context = self._tls.context()
            except ValueError as error:
                if self._context is None:
                    raise OSError(str(error)) from None
                return self._context  # the new files are half written: keep the old context until they are complete
            self._seen = seen
        return self._context


def refused_server(error: OSError) -> OSError:
    """Returns an error that says why no connection over TLS could be made; `error` itself if TLS was not the reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"is not trusted: {error.verify_message}")
    of_tls = isinstance(error, ssl.SSLError | ConnectionAbortedError | ConnectionResetError)
    return refused(error) if of_tls else error


def refused(error: OSError) -> TlsError:
    """Returns an error which says that a server refuses this client's TLS, with the reason as far as the server gave
    one. In TLS 1.3 the server examines the client's certificate after the handshake is over for the client, so the
    refusal ends an open connection."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if reason.endswith("CERTIFICATE_REQUIRED") or reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        why = "it asks for a certificate of the client (RAFTMQ_TLS_CERT and RAFTMQ_TLS_KEY, --tls-cert and --tls-key)"
    elif "ALERT" in reason:
        why = f"it refuses the client's certificate or version ({_words(error)})"
    elif reason in _ANSWERS_PLAINLY:
        return TlsError(f"{PLAIN_ALONE} ({_words(error)})")
    elif reason:
        why = _words(error)
    else:
        why = str(error) or "it hung up"
    return TlsError(f"does not take this client's TLS: {why}")


def _stat(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat() if path else None
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if found is not None else None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM file").lower().replace("_", " ")
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
