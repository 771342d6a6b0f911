"""This node's TLS while it runs: reads changed files again, warns before certificates expire, and closes connections
whose certificate or CA is no longer valid.

The files are checked every few seconds, and by `raftmq reload`. If only one half of a pair was replaced, the old pair
stays in use and a finding reports it. A connection is closed when the other side's certificate expires, or when its CA
is no longer in `tls.ca_file`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import ssl
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cluster.config.config import Config
from cluster.config.node_sections import TlsMode
from cluster.config.source import ConfigError
from cluster.runtime.alarms import Alarms
from cluster.runtime.findings import Code
from cluster.runtime.listeners import Signal
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.tls.contexts import Contexts, issued_by_one_of, load_contexts, told_day
from cluster.runtime.tls.dialling import PLAIN_DIALLING, Dialling
from cluster.runtime.tls.port_security import PLAIN, Security
from cluster.runtime.tls.transport import TlsTransport

logger = logging.getLogger(__name__)

FILES_ALARM = Code("tls_files", "warning", "raftmq cert show --help")
EXPIRES_ALARM = Code("tls_expires", "warning", "raftmq cert show --help")
EXPIRES_SOON_ALARM = Code("tls_expires_soon", "critical", "raftmq cert show --help")
PLAIN_ALARM = Code("tls_plain", "warning", "raftmq cert show --help")
DAY_S = 86_400
EXPIRES_S, EXPIRES_SOON_S = 30 * DAY_S, 7 * DAY_S
LOOK_EVERY_MS = 5_000
ENDS_EVERY_MS = 1_000
RENEW_S = 30.0
"""Seconds before the expiry of a certificate at which links to other nodes are made again."""
CHECK_AFTER_MS = 3_000
"""Milliseconds between the use of other files and the closing of connections under a removed CA. In this time links are
made again with the other certificates."""
CHECKED_PER_TICK = 64
"""Open connections that are checked against new CAs in one tick: each takes a verification, about 0.1 ms."""
PLAIN_SHOWN = 4
RETRY_EVERY_MS = 60_000
"""Milliseconds after which links in plain text are made again, because TLS may work by now."""
_Seen = tuple[tuple[int, int, int] | None, ...]


class ReadFiles(NamedTuple):
    """The files of `[tls]`, as they were read at one moment."""

    seen: _Seen
    contexts: Contexts


class TlsMaintenance:
    """The TLS contexts of one node, and the connections that use them. Event loop only."""

    def __init__(self, config: Config, alarms: Alarms, wall_ms: Callable[[], int]) -> None:
        """Raises ConfigError if the node must use TLS and its files cannot be used."""
        self._config = config
        self._alarms = alarms
        self._wall_ms = wall_ms
        self._seen: _Seen = ()
        self._contexts: Contexts | None = None
        self.changed: Signal[[]] = Signal()
        """Sent when open links to other nodes should be made again: other files are in use, certificates on links
        expire soon, or TLS should be tried again on links in plain text."""
        self._open: weakref.WeakSet[TlsTransport] = weakref.WeakSet()
        """Connections whose other side presented a certificate."""
        self._ends: list[tuple[float, int, weakref.ref[TlsTransport]]] = []
        """A heap of (expiry of the certificate in seconds since the epoch, a number, the connection)."""
        self._plain: list[tuple[asyncio.BaseTransport, str]] = []
        """Links in plain text for which TLS was tried and failed, each with its address and the reason."""
        self._numbers = itertools.count()
        self._renewals: set[float] = set()
        """Seconds since the epoch at which links must be made again."""
        self._checks: Iterator[TlsTransport] = iter(())
        """The connections that are not checked yet against the CAs of the newest files."""
        self._checks_due_ms: int | None = None
        self._now_ms = self._look_due_ms = self._ends_due_ms = self._retry_due_ms = 0
        if config.speaks_tls:
            self._seen = self._look()
            self._contexts = load_contexts(config.tls)
            self._tell_ends()

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="tls", tick=self.tick)

    @property
    def contexts(self) -> Contexts:
        """The newest contexts; only if this node uses TLS."""
        assert self._contexts is not None
        return self._contexts

    @property
    def view(self) -> str:
        """The expiry of each certificate in the files in use, for people."""
        return "; ".join(f"{each.subject} until {told_day(each.at_s)}" for each in self.contexts.ends)

    def security(self, name: str, wanted: TlsMode, refusal: bytes = b"") -> Security:
        """Returns the security of the listener `name`. `wanted` is the listener's own TLS mode; if it is "", `tls.mode`
        counts."""
        mode = self._config.tls_mode(wanted)
        if mode == "disabled":
            return PLAIN
        return Security(name, mode, lambda: self.contexts.clients, self.opened, refusal)

    def peer_security(self, refusal: bytes) -> Security:
        """Returns the security of the peer port. `refusal` is the answer to plain text if TLS is required."""
        mode = self._config.tls_mode(self._config.peer.tls)
        return PLAIN if mode == "disabled" else Security("peer", mode, self._peers, self.opened, refusal)

    def peer_dialling(self) -> Dialling:
        """Returns the Dialling for links to other nodes: in plain text if `peer.tls` is "disabled"."""
        mode = self._config.tls_mode(self._config.peer.tls)
        return PLAIN_DIALLING if mode == "disabled" else Dialling(mode, self._dialling, self._dialled, self._fell_back)

    def http_dialling(self) -> Dialling:
        """Returns the Dialling for the HTTP APIs of other nodes: in plain text if `admin.tls` is "disabled"."""
        mode = self._config.tls_mode(self._config.admin.tls)
        return PLAIN_DIALLING if mode == "disabled" else Dialling(mode, lambda: self.contexts.asking)

    def _peers(self) -> ssl.SSLContext:
        assert self.contexts.peers is not None  # the rules of the configuration ask for tls.ca_file
        return self.contexts.peers

    def _dialling(self) -> ssl.SSLContext:
        assert self.contexts.dialling is not None
        return self.contexts.dialling

    def _dialled(self, connection: TlsTransport) -> None:
        """Registers a link whose handshake this node began and completed; it is made again before its certificate
        expires."""
        self.opened(connection)
        told = connection.get_extra_info("peercert")
        renew_s = ssl.cert_time_to_seconds(told["notAfter"]) - RENEW_S
        if renew_s * 1000 > self._wall_ms():
            self._renewals.add(renew_s)

    def opened(self, connection: TlsTransport) -> None:
        """Registers a connection with a completed handshake. If the other side presented a certificate, the connection
        is closed when that expires."""
        told = connection.get_extra_info("peercert")
        if not told:
            return
        end_s = ssl.cert_time_to_seconds(told["notAfter"])
        self._open.add(connection)
        heapq.heappush(self._ends, (end_s, next(self._numbers), weakref.ref(connection)))
        if end_s * 1000 <= self._wall_ms():
            connection.abort()

    def _fell_back(self, transport: asyncio.BaseTransport, address: str, why: str) -> None:
        """Registers a link in plain text for which TLS was tried and failed."""
        self._plain.append((transport, f"{address} ({why})"))
        self._tell_plain()

    def _tell_plain(self) -> None:
        """Raises the alarm while there are links in plain text for which TLS was tried and failed, and clears it
        otherwise."""
        self._plain = [row for row in self._plain if not row[0].is_closing()]
        if not self._plain:
            self._alarms.clear(PLAIN_ALARM)
            return
        where = ", ".join(sorted({text for _, text in self._plain})[:PLAIN_SHOWN])
        self._alarms.raise_alarm(PLAIN_ALARM, f"links to other nodes are in plain text, because TLS failed: {where}")

    def reload(self) -> bool:
        """Reads the files again. Returns True if they have changed and are in use now; False if they have not, or if
        this node does not use TLS. Raises ConfigError, and changes nothing, if they cannot be used or change while they
        are read."""
        return self.use(self.read())

    def read(self) -> ReadFiles | None:
        """Reads the files again, and changes nothing; returns None if this node does not use TLS. Raises ConfigError if
        they cannot be used or change while they are read."""
        if self._contexts is None:
            return None
        seen = self._look()
        contexts = load_contexts(self._config.tls)
        if self._look() != seen:
            raise ConfigError(
                "[tls]: the files changed while they were read", "somebody writes them", "reload again in a moment"
            )
        return ReadFiles(seen, contexts)

    def use(self, files: ReadFiles | None) -> bool:
        """Uses files that `read` returned; returns True if they are others than before."""
        if files is None or self._contexts is None:
            return False
        different, contexts = files.seen != self._seen, files.contexts
        self._seen = files.seen
        self._alarms.clear(FILES_ALARM)
        if different:
            before, self._contexts = self._contexts, contexts
            if set(before.authorities) - set(contexts.authorities):
                self._checks_due_ms = self._now_ms + CHECK_AFTER_MS
            logger.info("TLS: other files are in use")
            self.changed()
            self._tell_ends()
        return different

    def tick(self, now_ms: int) -> None:
        """Checks for changed files and expired certificates. Called periodically."""
        if self._contexts is None:
            return
        self._now_ms = now_ms
        if self._checks_due_ms is not None and now_ms >= self._checks_due_ms:
            self._checks_due_ms, self._checks = None, iter(list(self._open))
        for connection in itertools.islice(self._checks, CHECKED_PER_TICK):
            self._check(connection)
        if now_ms >= self._ends_due_ms:
            self._ends_due_ms = now_ms + ENDS_EVERY_MS
            self._end_connections()
        if now_ms >= self._look_due_ms:
            self._look_due_ms = now_ms + LOOK_EVERY_MS
            self._tell_plain()
            if self._plain and now_ms >= self._retry_due_ms:
                self._retry_due_ms = now_ms + RETRY_EVERY_MS
                self.changed()  # the other side may take TLS by now
            if self._look() != self._seen:
                self._try_to_reload()
            self._tell_ends()

    def _try_to_reload(self) -> None:
        try:
            self.reload()
        except ConfigError as error:
            self._alarms.raise_alarm(
                FILES_ALARM,
                f"the files of [tls] changed and cannot be used, the former ones are: {error.what}: {error.why}",
            )

    def _look(self) -> _Seen:
        """Returns (inode, size, time of the last change) for each file; None for a file that cannot be read. The result
        differs after a file was replaced."""
        tls = self._config.tls
        return tuple(_stat(path) for path in (tls.cert_file, tls.key_file, tls.ca_file) if path)

    def _check(self, connection: TlsTransport) -> None:
        certificate = connection.certificate
        if not connection.is_closing() and certificate and not issued_by_one_of(certificate, self.contexts.authorities):
            logger.warning("TLS: a connection ends, the CA of its certificate is no longer in tls.ca_file")
            connection.abort()

    def _end_connections(self) -> None:
        now_s = self._wall_ms() / 1000
        due = {each for each in self._renewals if each <= now_s}
        if due:
            self._renewals -= due
            self.changed()
        ends = self._ends
        while ends and (ends[0][0] <= now_s or ends[0][2]() is None):
            connection = heapq.heappop(ends)[2]()
            if connection is not None and not connection.is_closing():
                logger.warning("TLS: a connection ends with the certificate of its other side")
                connection.abort()
        if len(ends) > 2 * len(self._open) + 64:  # most of these are closed
            self._ends = [each for each in ends if each[2]() is not None]
            heapq.heapify(self._ends)

    def _tell_ends(self) -> None:
        """Raises and clears the alarms about certificates that expire."""
        first = min(self.contexts.ends, key=lambda each: each.at_s)
        left_s = first.at_s - self._wall_ms() / 1000
        what = "has ended" if left_s <= 0 else "ends"
        says = f"the certificate of {first.subject} in {first.file} {what} on {told_day(first.at_s)}: put another there"
        if left_s <= EXPIRES_SOON_S:
            self._alarms.raise_alarm(EXPIRES_SOON_ALARM, says)
        else:
            self._alarms.clear(EXPIRES_SOON_ALARM)
        if EXPIRES_SOON_S < left_s <= EXPIRES_S:
            self._alarms.raise_alarm(EXPIRES_ALARM, says)
        else:
            self._alarms.clear(EXPIRES_ALARM)


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
