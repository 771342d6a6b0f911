"""Access to the HTTP API from browsers: the host names that it answers to, and the sites whose pages may use it.

A web page can make its own host name point to 127.0.0.1 (DNS rebinding). Its requests then carry that name as Host, and
the browser lets the page read the answers. Unknown names are therefore refused. IP addresses cannot be rebound and are
accepted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cluster.admin.errors import ApiError
from cluster.config.config import split_address

if TYPE_CHECKING:
    from cluster.admin.port import AdminPort


def check_site(port: AdminPort, host: str | None, origin: str | None) -> None:
    """Looks at a request's Host and Origin. Raises ApiError(`foreign_host` or `cross_origin`).

    Without Host (HTTP/1.0) no browser sent it.
    """
    if host is not None and not _is_ours(_name_of(host), port):
        raise ApiError(
            "foreign_host",
            f"this node is not called {host[:255]}",
            "ask by an address, by localhost or by an advertised name, or list the name in admin.allowed_hosts",
        )
    if origin is not None and urlsplit(origin).netloc != host:
        raise ApiError(
            "cross_origin", f"a page of {origin[:255]} may not use this node", "use the command line or this page"
        )


def _name_of(host: str) -> str:
    """Without the port and a root dot, in lower case."""
    try:
        name = split_address(host)[0]
    except ValueError:
        name = host.removeprefix("[").removesuffix("]")
    return name.removesuffix(".").lower()


def _is_ours(name: str, port: AdminPort) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        allowed = port.config.admin.allowed_hosts.lower().split(";")
        return any(fnmatchcase(name, each.strip()) for each in allowed) or name in set(_advertised(port))
    return True


def _advertised(port: AdminPort) -> Iterable[str]:
    """Every name under which a member says that it can be reached."""
    yield port.config.admin.bind.lower()
    for listener in port.config.listeners:
        yield _name_of(listener.advertised)
    for known in port.membership.addresses.values():
        yield known.host.lower()
        yield from (_name_of(address) for address in (known.admin, *known.listeners.values()) if address)
