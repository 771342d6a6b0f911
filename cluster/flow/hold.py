"""Holds: what one request keeps in flight, in the account of its connection and in one of its node.

A request that is taken gets one `Hold`. Nothing else changes an account, in the kernel too: so what is taken is given
back once, whichever way the request ends. When no request is in progress, all accounts are empty.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from raftmq_wire.kernel import twin

GIVEN_BACK = "a hold gives back once what it took"
"""The text of the RuntimeError of a hold that has nothing left to give back."""


@twin
class Account:
    """The requests that one owner holds. They are also counted for the owner `above`. Only a `Hold` changes it."""

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
    """Keeps a request in flight: `size` bytes for its connection until it is answered, and for its node until it is
    decided. Making one takes both."""

    __slots__ = ("_connection", "_node", "_size")

    def __init__(self, connection: Account | None, node: Account | None, size: int) -> None:
        """`connection` and `node` are None for accounts in which this request does not count."""
        self._connection = connection
        self._node = node
        self._size = size
        if connection is not None:
            connection._count(1, size)
        if node is not None:
            node._count(1, size)

    def answered(self) -> None:
        """Releases what counts for the connection, because the request was answered, or never will be. Raises
        RuntimeError if that happened before."""
        account, self._connection = self._connection, None
        if account is None:
            raise RuntimeError(GIVEN_BACK)
        account._count(-1, -self._size)

    def decided(self) -> None:
        """Releases what counts for the node, because the request is decided. Raises RuntimeError if that happened
        before."""
        account, self._node = self._node, None
        if account is None:
            raise RuntimeError(GIVEN_BACK)
        account._count(-1, -self._size)

    def ended(self) -> None:
        """Releases everything that is still held. Raises RuntimeError if nothing is."""
        connection, self._connection = self._connection, None
        node, self._node = self._node, None
        if connection is None and node is None:
            raise RuntimeError(GIVEN_BACK)
        if connection is not None:
            connection._count(-1, -self._size)
        if node is not None:
            node._count(-1, -self._size)


NO_HOLD = Hold(None, None, 0)
"""The hold of a request that was not taken. Giving it back is an error."""


class HeldRequest(Protocol):
    """A request that is taken with others at once."""

    hold: Hold
    size: int


H = TypeVar("H", bound=HeldRequest)


@twin
def hold_each(requests: list[H], connection: Account, node: Account) -> int:
    """Takes a Hold for each of the requests. Returns their bytes."""
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
