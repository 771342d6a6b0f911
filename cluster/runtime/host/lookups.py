"""Lookups of the peers' names: at most one of each name at a time, however often the name is dialled.

The system answers lookups on few threads. A resolver that says nothing about one name (that of a container that is
gone, while the next resolver cannot be reached) holds a thread for tens of seconds. Dials of that name that each began
another lookup would take all threads, and no other node could be dialled by its name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

P = TypeVar("P", bound=asyncio.BaseProtocol)

LOOKUP_THREADS = 32
"""Threads of uvloop for lookups; it uses half of them, and that is more than a cluster has nodes."""


def widen() -> None:
    """Gives uvloop enough threads; in force if it has not looked up anything yet."""
    os.environ.setdefault("UV_THREADPOOL_SIZE", str(LOOKUP_THREADS))


_RUNNING: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[list[Any]]]] = WeakKeyDictionary()
"""Loop -> name -> the lookup that is under way."""


async def connect(make: Callable[[], P], host: str, port: int) -> P:
    """Connects to the first address of the host that takes the connection. Raises OSError. If the caller gives up,
    the lookup is left to the next one that asks for the name."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"the name {host} has no address")
    for address in await _addresses(host):
        try:
            return (await loop.create_connection(make, address, port))[1]
        except OSError as error:
            failure = error
    raise failure


async def _addresses(host: str) -> Iterable[str]:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return dict.fromkeys(str(row[4][0]) for row in await _rows(host))
    return (host,)


async def _rows(host: str) -> list[Any]:
    loop = asyncio.get_running_loop()
    running = _RUNNING.setdefault(loop, {})
    lookup = running.get(host)
    if lookup is None:
        lookup = running[host] = asyncio.ensure_future(loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
        lookup.add_done_callback(_retrieved)
    try:
        return await asyncio.shield(lookup)
    finally:
        if lookup.done() and running.get(host) is lookup:
            del running[host]  # the next dial looks again: the node may have moved


def _retrieved(done: asyncio.Future[list[Any]]) -> None:
    """The dialler may have given up: its error is not one that nobody looked at."""
    if not done.cancelled():
        done.exception()
