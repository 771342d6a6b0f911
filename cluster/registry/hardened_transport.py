"""Replaces pysyncobj's transport by one without pickle. Messages are msgpack, encrypted with the password. Entries that
a message refers to are synced before it is sent.

A connection that has not proven the password may send 4 KiB within five seconds, and there are at most 16 such
connections. Observers and administrative messages are always refused. Only registry processes import this module.
"""

from __future__ import annotations

import _socket
import socket
import struct
from typing import Any, NoReturn

import pysyncobj.pickle
from cryptography.fernet import InvalidToken
from pysyncobj import tcp_server, transport
from pysyncobj.monotonic import monotonic
from pysyncobj.node import TCPNode
from pysyncobj.tcp_connection import TcpConnection
from pysyncobj.transport import TCPTransport

from cluster.registry.peer_wire import MESSAGE_BYTES_MAX, decode, encode
from cluster.runtime.peer_frames import WireError

vars(socket)["inet_ntop"] = _socket.inet_ntop
"""Restores the function: the import of pysyncobj has replaced it by one that works only on Windows."""

UNPROVEN_MAX = 16
UNPROVEN_S = 5.0
UNPROVEN_BYTES_MAX = 4 << 10
UNSENT_BYTES_MAX = 32 << 20
_SIZE = struct.Struct("i")
_KEY_BYTES = 32


class RegistryConnection(TcpConnection):  # type: ignore[misc]  # no types
    """A connection between two registry processes. It has the method names of pysyncobj's own connection."""

    _TcpConnection__readBuffer: Any
    _TcpConnection__writeBuffer: Any
    recvLastTimestamp: Any

    def send(self, message: object) -> None:
        """Sends a message; closes the connection if it cannot be sent."""
        data = encode([self.sendRandKey, message] if self.sendRandKey else message)
        if self.encryptor:
            data = self.encryptor.encrypt_at_time(data, int(monotonic()))
        if self.getSendBufferSize() + len(data) > UNSENT_BYTES_MAX:
            self.disconnect()
            return
        self._TcpConnection__writeBuffer += _SIZE.pack(len(data)) + data
        self._TcpConnection__trySendBuffer()

    @property
    def _limit(self) -> int:
        return 2 * MESSAGE_BYTES_MAX if self.recvRandKey else UNPROVEN_BYTES_MAX

    def _TcpConnection__processRead(self) -> bool:
        is_enough = len(self._TcpConnection__readBuffer) > self._limit + _SIZE.size
        return not is_enough and bool(super()._TcpConnection__processRead())

    def _TcpConnection__processParseMessage(self) -> object:
        buffer = self._TcpConnection__readBuffer
        if len(buffer) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(buffer)
        if not 0 < size <= self._limit:
            self.disconnect()
            return None
        if len(buffer) < _SIZE.size + size:
            return None
        self._TcpConnection__readBuffer = buffer[_SIZE.size + size :]
        try:
            return self._opened(buffer[_SIZE.size : _SIZE.size + size])
        except (InvalidToken, WireError, ValueError):
            self.disconnect()
            return None

    def _opened(self, data: bytes) -> object:
        """Returns the message in encrypted bytes. Raises InvalidToken or WireError for bytes that the other side did
        not send on this connection."""
        if self.encryptor:
            sent_at = self.encryptor.extract_timestamp(data)
            data = self.encryptor.decrypt(data)
            if sent_at < self.recvLastTimestamp:
                raise WireError("an earlier message again")
            self.recvLastTimestamp = sent_at
        message = decode(data)
        if not self.recvRandKey:
            return message
        match message:
            case [bytes() as key, inner] if key == self.recvRandKey:
                return inner
        raise WireError("a message of another connection")


class RegistryTransport(TCPTransport):  # type: ignore[misc]  # no types
    """The connections of one registry process. It has the method names of pysyncobj's own transport."""

    def __init__(self, syncObj: Any, selfNode: TCPNode, otherNodes: list[TCPNode]) -> None:
        self._since: dict[RegistryConnection, float] = {}
        super().__init__(syncObj, selfNode, otherNodes)

    def send(self, node: TCPNode, message: object) -> bool:
        """Sends a message to a process, after syncing everything that it confirms. Returns False if it was not sent.
        Raises StorageError; the process cannot go on after that."""
        self._syncObj.store.journal.sync()
        return bool(super().send(node, message))

    def _onNewIncomingConnection(self, conn: RegistryConnection) -> None:
        if len(self._unknownConnections) >= UNPROVEN_MAX:
            conn.disconnect()
            return
        self._since[conn] = monotonic()
        super()._onNewIncomingConnection(conn)

    def _onIncomingMessageReceived(self, conn: RegistryConnection, message: object) -> None:
        is_key = isinstance(message, bytes) and len(message) == _KEY_BYTES
        is_node = isinstance(message, str) and message in self._nodeAddrToNode
        if is_node if conn.sendRandKey else is_key:
            super()._onIncomingMessageReceived(conn, message)
        else:
            conn.disconnect()

    def _onOutgoingMessageReceived(self, conn: RegistryConnection, message: object) -> None:
        if conn.sendRandKey or (isinstance(message, bytes) and len(message) == _KEY_BYTES):
            super()._onOutgoingMessageReceived(conn, message)
        else:
            conn.disconnect()

    def _onTick(self) -> None:
        super()._onTick()
        now = monotonic()
        for conn, since in list(self._since.items()):
            if conn not in self._unknownConnections:
                del self._since[conn]
            elif now - since > UNPROVEN_S:
                del self._since[conn]
                conn.disconnect()


def take_over() -> None:
    """Makes pysyncobj use RegistryConnection and never unpickle, for the rest of this process."""
    for module in (transport, tcp_server):
        vars(module)["TcpConnection"] = RegistryConnection
    for name in ("load", "loads"):
        vars(pysyncobj.pickle)[name] = _refuse


def _refuse(*_: object) -> NoReturn:
    raise WireError("nothing is unpickled in a registry process")
