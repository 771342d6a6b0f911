"""The search for the cluster's servers: an explicit list, RAFTMQ_SERVERS, the local cluster's file, or the default
ports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

DEFAULT_SERVERS = ("127.0.0.1:9876", "127.0.0.1:9877", "127.0.0.1:9878")


def find_servers(
    servers: str | Iterable[str] | None = None, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[str, ...]:
    """Returns the "host:port" of each server to ask, in order.

    Raises ValueError for a malformed address, for a cluster.json that cannot be used, and if RAFTMQ_DATA names a
    directory without a cluster.
    """
    environ = os.environ if environ is None else environ
    if servers is not None:
        return parse_servers(servers)
    if environ.get("RAFTMQ_SERVERS"):
        return parse_servers(environ["RAFTMQ_SERVERS"])
    path = cluster_file(environ, cwd or Path.cwd())
    if path is None and environ.get("RAFTMQ_DATA"):
        raise ValueError(f"there is no cluster in {environ['RAFTMQ_DATA']} (RAFTMQ_DATA): it holds no cluster.json")
    return _servers_of(path) if path is not None else DEFAULT_SERVERS


def parse_servers(servers: str | Iterable[str]) -> tuple[str, ...]:
    """Splits "h1:p;h2:p" (also at commas and blanks) into addresses. Raises ValueError if there is no address, or one
    is not host:port; TypeError if `servers` is neither a str nor several str."""
    if isinstance(servers, str):
        servers = servers.replace(",", ";").replace(" ", ";").split(";")
    try:
        parsed = tuple(dict.fromkeys(part.strip() for part in servers if part.strip()))
    except (TypeError, AttributeError):
        raise TypeError(f'the servers are a str "host:port;host:port", or several addresses, not {servers!r}') from None
    if not parsed:
        raise ValueError('no servers given; write "host:port;host:port", for example "127.0.0.1:9876"')
    for address in parsed:
        split_address(address)
    return parsed


def split_address(address: str) -> tuple[str, int]:
    """Returns ("host", port) of "host:port" or "[v6]:port". Raises ValueError."""
    if "://" in address:
        raise ValueError(f'"{address}" is a URL; write host:port, for example "{_without_scheme(address)}"')
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f'"{address}" is not host:port, for example "127.0.0.1:9876"')
    return host.strip("[]"), int(port)


def _without_scheme(address: str) -> str:
    """Returns the host of a URL with port 9876, the port for clients. A port in the URL is dropped: it would be the
    port of the HTTP API."""
    host = address.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if host.startswith("["):
        return f"{host.partition(']')[0]}]:9876"
    return f"{host.partition(':')[0] or '127.0.0.1'}:9876"


def cluster_file(environ: Mapping[str, str], cwd: Path) -> Path | None:
    """Returns the path of cluster.json in RAFTMQ_DATA, or else in the nearest `.raftmq` at or above `cwd`; None if
    there is none."""
    if environ.get("RAFTMQ_DATA"):
        candidates = [Path(environ["RAFTMQ_DATA"])]
    else:
        candidates = [folder / ".raftmq" for folder in (cwd, *cwd.parents)]
    return next((path for path in (c / "cluster.json" for c in candidates) if _is_there(path)), None)


LOCAL_CA = Path("tls", "ca.crt")
"""Path of the CA certificate of a local cluster that speaks TLS, relative to the folder of its cluster.json."""
LOCAL_USER = Path("first-user")
"""Path of the file with name and secret of the user of a local cluster that has users, relative to the folder of its
cluster.json."""


def found_folder(
    servers: str | Iterable[str] | None, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Path | None:
    """Returns the folder of the local cluster if `find_servers`, with the same arguments, finds the servers there; None
    if the servers were named explicitly, or if there is no local cluster.

    The client uses the folder's CA and user only in the first case: a program that names its servers must behave alike
    in every directory.
    """
    environ = os.environ if environ is None else environ
    if servers is not None or environ.get("RAFTMQ_SERVERS"):
        return None
    path = cluster_file(environ, cwd or Path.cwd())
    return None if path is None else path.parent


def local_file(folder: Path | None, which: Path) -> str:
    """Returns the path of LOCAL_CA or LOCAL_USER in the folder of a local cluster; "" without folder or file."""
    return str(folder / which) if folder is not None and _is_there(folder / which) else ""


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:  # an unreadable cluster of another user is an error, and is not skipped silently
        return True


def _servers_of(path: Path) -> tuple[str, ...]:
    try:
        nodes = json.loads(path.read_text())["nodes"]
        return parse_servers(f"{node.get('host', '127.0.0.1')}:{node['namesrv_port']}" for node in nodes)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); set RAFTMQ_SERVERS instead") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a cluster ({error!r}); set RAFTMQ_SERVERS instead") from error
