"""The client's interfaces to the outside world besides the event loop, so that a simulator can replace them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from raftmq.client.discovery import LOCAL_USER, local_file
from raftmq.client.patience import Patience
from raftmq.client.port_probe import Probe, probe_port
from raftmq.client.tls import Tls, TlsDialler, find_tls
from raftmq_wire.signature import Credentials
from raftmq_wire.user_file import USER_VARIABLES, read_user_file

Dial = Callable[[str, int, Callable[[], asyncio.Protocol]], Awaitable[object]]
"""A function that opens a byte stream to (host, port) and attaches the protocol; raises OSError."""


class Environment(NamedTuple):
    """The wall clock, randomness and network that a client uses. Timeouts come from the running loop's own clock."""

    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]
    dial: Dial
    members_every_s: float = 5.0
    """Interval in seconds at which the leader is asked for the list of nodes; 0: only on trouble."""
    credentials: Credentials | None = None
    """The user in whose name requests are signed; None: requests are not signed."""
    speaks_tls: bool = False
    """True if `dial` opens TLS connections."""
    ended: Callable[[], Awaitable[None]] | None = None
    """Waits until closed connections are gone; None if nothing has to be waited for."""
    probe: Probe | None = None
    """Finds out what a server that hung up speaks; None: no server is probed."""
    patience: Patience = Patience()
    """The times for which the client waits, and the intervals at which it asks."""


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


async def _dial_tcp(host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> object:
    return await asyncio.get_running_loop().create_connection(factory, host, port)


class IncompleteUser(ValueError):
    """Raised when only one of a user's name and secret was given. The error's text contains neither value."""

    def __init__(self, given: str, missing: str) -> None:
        """`given` and `missing` name the two, as arguments or as environment variables."""
        super().__init__(given, missing)
        self.given = given
        self.missing = missing

    def __str__(self) -> str:
        return f"{self.given} is given, and {self.missing} is not; they belong together: give both, or none"


REAL = Environment(_wall_clock_ms, os.urandom, _dial_tcp, probe=probe_port)


def with_credentials(
    environment: Environment,
    access_key: str,
    secret_key: str,
    environ: Mapping[str, str] = os.environ,
    local: Path | None = None,
) -> Environment:
    """Returns an environment whose requests are signed. The keys are the given ones, else RAFTMQ_ACCESS_KEY and
    RAFTMQ_SECRET_KEY, else those of the first user of the local cluster in the folder `local`. Returns the given
    environment if there are no keys. Raises IncompleteUser if only one of the two keys is given, and ValueError if the
    user's file cannot be used."""
    names = ("access_key=", "secret_key=")
    if not access_key and not secret_key:
        names = USER_VARIABLES
        access_key, secret_key = (environ.get(name, "") for name in names)
    if bool(access_key) != bool(secret_key):
        raise IncompleteUser(*(names if access_key else reversed(names)))
    if not access_key and (path := local_file(local, LOCAL_USER)):
        access_key, secret_key = user_of(Path(path))
    return environment._replace(credentials=Credentials(access_key, secret_key)) if access_key else environment


def user_of(path: Path) -> tuple[str, str]:
    """Returns (name, secret) from a user's file. Raises ValueError if the file cannot be used."""
    try:
        return read_user_file(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"the user in {path} cannot be used: {why}") from None


def with_tls(
    environment: Environment,
    tls: Tls | bool | None,
    local: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Environment:
    """Returns an environment that dials over TLS if `tls` or RAFTMQ_TLS asks for TLS, or if `local` is the folder of a
    local cluster that speaks TLS; else the given environment. Raises ValueError as `find_tls` does."""
    found = find_tls(tls, environ, local)
    if found is None:
        return environment
    dialler = TlsDialler(found)
    return environment._replace(dial=dialler.dial, speaks_tls=True, ended=dialler.ended)
