"""Holds: each counts one request in flight, in an account of its connection and in one of its node.

A request that is taken gets one `Hold`. Nothing else changes an account, not even in the kernel. So each request is
counted once and released once, whichever way it ends. When no request is in progress, all accounts are empty.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from raftmq_wire.kernel import twin

GIVEN_BACK = "a hold gives back once what it took"
"""The text of the RuntimeError that a Hold raises if it is released twice."""


@twin
class Account:
    """Counts the requests in flight of one owner, and their bytes. They also count for the owner `above`, if there is
    one. Only a `Hold` changes an account."""

    __slots__ = ("_above", "_bytes", "_requests")

    def __init__(self, above: Account | None = None) -> None:
        self._bytes = 0
        self._requests = 0
        self._above = above

    @property
    def bytes(self) -> int:
        """The bytes of the requests."""
        return self._bytes

    @property
    def requests(self) -> int:
        """The number of requests."""
        return self._requests

    def _count(self, requests: int, size: int) -> None:
        self._requests += requests
        self._bytes += size
        if self._above is not None:
            self._above._count(requests, size)


@twin
class Hold:
    """Counts one request in flight: `size` bytes for its connection until the request is answered, and for its node
    until it is decided. The constructor counts both."""

    __slots__ = ("_connection", "_node", "_size")

    def __init__(self, connection: Account | None, node: Account | None, size: int) -> None:
        """`connection`, `node`: the accounts in which the request counts; None for one in which it does not."""
        self._connection = connection
        self._node = node
        self._size = size
        if connection is not None:
            connection._count(1, size)
        if node is not None:
            node._count(1, size)

    def answered(self) -> None:
        """Releases the request's part of the connection's account, because the request was answered or never will be.
        Raises RuntimeError if there is nothing to release: it was released before, or there is no such account."""
        account, self._connection = self._connection, None
        if account is None:
            raise RuntimeError(GIVEN_BACK)
        account._count(-1, -self._size)

    def decided(self) -> None:
        """Releases the request's part of the node's account, because the request is decided. Raises RuntimeError if
        there is nothing to release: it was released before, or there is no such account."""
        account, self._node = self._node, None
        if account is None:
            raise RuntimeError(GIVEN_BACK)
        account._count(-1, -self._size)

    def ended(self) -> None:
        """Releases the parts of both accounts that are not released yet. Raises RuntimeError if there are none."""
        connection, self._connection = self._connection, None
        node, self._node = self._node, None
        if connection is None and node is None:
            raise RuntimeError(GIVEN_BACK)
        if connection is not None:
            connection._count(-1, -self._size)
        if node is not None:
            node._count(-1, -self._size)


NO_HOLD = Hold(None, None, 0)
"""The Hold of a request that was not taken. Releasing it raises RuntimeError."""


class HeldRequest(Protocol):
    """A request that `hold_each` takes together with others: `size` in bytes, and its `hold` once it is taken."""

    hold: Hold
    size: int


H = TypeVar("H", bound=HeldRequest)


@twin
def hold_each(requests: list[H], connection: Account, node: Account) -> int:
    """Gives each of the requests a Hold in these accounts. Returns the sum of their bytes."""
    total = 0
    for request in requests:
        request.hold = Hold(connection, node, request.size)
        total += request.size
    return total


@twin
def decide_each(requests: list[H]) -> None:
    """Calls `Hold.decided` for each of the requests."""
    for request in requests:
        request.hold.decided()
