"""The registry of a local cluster of several groups (docs/registry.md): three processes in addition to the nodes.

    .raftmq/registry/r1/registry.toml     the process's settings; its existence means that there is a registry
    .raftmq/registry/r1/node.log          what it printed
    .raftmq/registry/r1/data/             its directory; if it is lost, the others and the groups fill it again

The nodes' files name the processes in `cluster.registry`. Nodes do not depend on them, so a failure here does not keep
nodes from starting, unless a port is taken.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import itertools
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import tomlkit
from msgspec.structs import replace

from cluster.config.address import split_address
from cluster.config.loading import load
from cluster.config.local_layout import REGISTRY, NodeRecord, RegistryRecord, node_object, replace_file
from cluster.config.node_files import GROUPS_SECRET, HOST, set_registry
from cluster.registry import registry_file
from cluster.registry.directory_check import DirectoryReport, check_directory
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.process import check_ports, is_free, is_running
from raftmq.local.tls.local_tls import speaks_tls
from raftmq.local.waiting import until
from raftmq_wire.codec import HEADER_AT, decode_header, encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.errors import ExitCode, LocalError

COUNT = 3
PORTS = 3 * COUNT
_USUAL = 9866
"""The first of the usual ports: they lie just below the ports of RocketMQ's name servers."""
_HOME = re.compile(r"r([1-9])", re.ASCII)
READY_S = 15.0
"""Seconds for which a start waits for the registry; nodes connect to it within two seconds."""
_ORPHAN_S = 5.0
"""Seconds in which the child of a killed process ends."""
_ASK_S = 3.0


class RegistryView(NamedTuple):
    """One process of the registry: whether it runs, and whether it answers clients."""

    record: RegistryRecord
    running: bool
    answer: str
    """The reason why the process does not answer clients; "" if it does."""

    def to_json(self) -> dict[str, Any]:
        """Returns the process as `raftmq status --json` shows it."""
        record = self.record
        return {
            "name": record.name,
            "pid": record.pid if self.running else None,
            "running": self.running,
            "ready": not self.answer,
            "port": record.port,
            "peer_port": record.peer_port,
            "log": record.log,
        }


def servers_of(records: Iterable[RegistryRecord]) -> str:
    """Returns the addresses of the processes for clients, as one text."""
    return ";".join(f"{HOST}:{record.port}" for record in records)


def addresses_of(records: Iterable[RegistryRecord]) -> tuple[str, ...]:
    """Returns the value of `cluster.registry`."""
    return tuple(f"{HOST}:{record.peer_port}" for record in records)


def why_none(data: Path) -> str:
    """Returns the reason why a cluster of several groups in that directory cannot have a registry; "" if it can."""
    if speaks_tls(data):
        return "it speaks no TLS, and the nodes of this cluster speak nothing else"
    if importlib.util.find_spec("pysyncobj") is None:
        return "pysyncobj is not installed: pip install 'raftmq[groups]', and raftmq up again"
    return ""


# --- files ------------------------------------------------------------------------------------------------------------


def read_registry(data: Path) -> list[RegistryRecord]:
    """Returns the processes as their files describe them; [] unless the files of all COUNT processes are there. Raises
    ConfigError."""
    found = []
    for home in sorted((data / REGISTRY).glob("r*")):
        path = home / "registry.toml"
        if _HOME.fullmatch(home.name) and path.is_file():
            settings = registry_file.load(path)
            _, own = split_address(settings.processes[settings.id - 1])
            found.append(
                RegistryRecord(settings.id, None, settings.port, settings.peer_port, own, str(home / "node.log"))
            )
    return found if len(found) == COUNT else []


def plan_registry(data: Path, base_port: int | None, known: Sequence[NodeRecord]) -> list[RegistryRecord]:
    """Returns the processes with consecutive ports: from `base_port`, else the usual ones if they are free, else above
    those of all nodes (`known`). Raises LocalError."""
    base = _free_row(known) if base_port is None else base_port
    if base + PORTS > 65536:
        raise LocalError(
            f"there is no room for the ports of the registry from {base} on",
            f"its processes need {PORTS} consecutive ports after those of the nodes",
            "raftmq up --base-port 20000",
            ExitCode.USAGE,
        )
    return [
        RegistryRecord(
            at + 1,
            None,
            base + at,
            base + COUNT + at,
            base + 2 * COUNT + at,
            str(data / REGISTRY / f"r{at + 1}" / "node.log"),
        )
        for at in range(COUNT)
    ]


def _free_row(known: Sequence[NodeRecord]) -> int:
    taken = {port for node in known for port in node.ports.values()}
    above = max(taken, default=20000) + 1
    usual = [_USUAL] if any(node.namesrv_port == _USUAL + PORTS + 1 for node in known) else []
    for base in itertools.chain(usual, range(above, min(above + 200, 65537 - PORTS))):
        if all(port not in taken and is_free(port) for port in range(base, base + PORTS)):
            return base
    raise LocalError(
        f"no {PORTS} consecutive free ports were found for the registry",
        f"the ranges from {above} upwards were tried",
        "raftmq down && raftmq up --base-port P    (with a P of your choice)",
        ExitCode.REFUSED,
    )


def free_beside(records: Iterable[RegistryRecord]) -> Callable[[int], bool]:
    """Returns a function that says whether a port is free. Ports of `records` count as taken, even while these
    processes do not run."""
    taken = {port for record in records for port in record.ports.values()}
    return lambda port: port not in taken and is_free(port)


def write_registry(data: Path, records: Sequence[RegistryRecord], uuid: UUID) -> None:
    """Writes the files of the processes: new files, or existing ones with other ports. All other settings in a file
    stay."""
    processes = [f"{HOST}:{record.own_port}" for record in records]
    for record in records:
        record.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = record.config_path
        document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.is_file() else tomlkit.document()
        document.update(
            {
                "id": record.id,
                "cluster_id": str(uuid),
                "secret_file": os.path.relpath(data / GROUPS_SECRET, record.home),
                "data_dir": "data",
                "processes": processes,
                "port": record.port,
                "peer_port": record.peer_port,
            }
        )
        replace_file(path, tomlkit.dumps(document).encode(), check=registry_file.load)


def check_cluster(records: Iterable[RegistryRecord], uuid: UUID) -> None:
    """Raises LocalError if the files belong to another cluster. `uuid`: the uuid of this cluster."""
    for record in records:
        found = registry_file.load(record.config_path).cluster_id
        if found != uuid:
            raise LocalError(
                f"{record.config_path} is of another cluster",
                f"it has cluster_id {found}, and this cluster is {uuid}",
                f"mv {record.home.parent} ELSEWHERE && raftmq up    (the registry is made anew, and loses nothing)",
                ExitCode.REFUSED,
            )


def remove_registry(data: Path) -> None:
    """Removes the folder of the registry, whose processes do not run."""
    shutil.rmtree(data / REGISTRY, ignore_errors=True)


def names_another(nodes: Iterable[NodeRecord], records: Sequence[RegistryRecord]) -> bool:
    """Returns True if the files of these nodes name a registry whose processes are not in the data directory: then
    somebody else runs it."""
    named = [load(node.config_path).cluster.registry for node in nodes]
    return not records and any(named)


def tell_nodes(nodes: Iterable[NodeRecord], records: Sequence[RegistryRecord], wanted: bool) -> None:
    """Makes nodes register with these processes, or no longer if it is not `wanted`: changes their configuration files,
    and reloads those of running nodes. A node whose file names other processes keeps these, unless `wanted`. Raises
    LocalError."""
    own = addresses_of(records)
    for node in nodes:
        named = load(node.config_path).cluster.registry
        if wanted == (named == own) or (named and named != own and not wanted):
            continue
        set_registry(node.config_path, own if wanted else ())
        if is_running(node):
            AdminApi([address_of(node)], "raftmq reload").post("/v1/config/reload", {})


# --- processes --------------------------------------------------------------------------------------------------------


def report_on(record: RegistryRecord) -> DirectoryReport:
    """Checks the directory of a process that does not run. Raises ConfigError."""
    settings = registry_file.load(record.config_path)
    return check_directory(Path(settings.data_dir), settings.cluster_id.bytes, settings.id)


def fault_of(record: RegistryRecord) -> LocalError | None:
    """Returns the error for a process that could not start with its directory; None if it can start. Nothing else needs
    that directory."""
    report = report_on(record)
    if not report.fault:
        return None
    return LocalError(
        f"the directory of {node_object(*record.key)} cannot be used",
        report.fault,
        f"mv {report.directory} ELSEWHERE && raftmq restart {record.name}    (the others and the groups fill it)",
        ExitCode.REFUSED,
    )


def wait_for_orphans(records: Sequence[RegistryRecord]) -> None:
    """Waits for the children of processes that were killed: they end by themselves, and hold a port until then."""
    until(lambda: all(is_free(record.own_port) for record in records), _ORPHAN_S, 0.05)


def answer_of(record: RegistryRecord) -> str:
    """Sends a client's request to a process. Returns the reason why it does not answer, "" if it does. A refusal counts
    as an answer."""
    try:
        with socket.create_connection((HOST, record.port), _ASK_S) as link, link.makefile("rb") as reader:
            link.settimeout(_ASK_S)
            link.sendall(encode_frame(RequestCode.GET_BROKER_CLUSTER_INFO, 1, 0))
            head = reader.read(HEADER_AT)
            header = decode_header(head[4], reader.read(int.from_bytes(head[5:HEADER_AT])))
    except (OSError, ValueError, IndexError) as error:
        return getattr(error, "strerror", None) or "it does not answer"
    return "" if header.code != 1 else header.remark or "it refuses"


def view_registry(records: Sequence[RegistryRecord]) -> list[RegistryView]:
    """Asks all processes at the same time; returns their views."""
    if not records:
        return []
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(records)) as pool:
        answers = pool.map(lambda record: answer_of(record) if is_running(record) else "it does not run", records)
    return [RegistryView(record, is_running(record), answer) for record, answer in zip(records, answers, strict=True)]


def wait_ready(records: Sequence[RegistryRecord], timeout_s: float = READY_S) -> list[RegistryView]:
    """Waits until each of these processes answers clients, or has ended, at most `timeout_s`; returns their views."""
    found: list[RegistryView] = []

    def is_over() -> bool:
        found[:] = view_registry(records)
        return all(not each.answer or not each.running for each in found)

    until(is_over, timeout_s, 0.1)
    return found


def with_pids(records: Iterable[RegistryRecord], known: Iterable[RegistryRecord]) -> list[RegistryRecord]:
    """Returns the processes with the pids that cluster.json has (`known`)."""
    pids = {record.id: record.pid for record in known}
    return [replace(record, pid=pids.get(record.id)) for record in records]


def provide(
    data: Path,
    nodes: Sequence[NodeRecord],
    uuid: Callable[[], UUID],
    known: Sequence[RegistryRecord],
    base_port: int | None,
    *,
    make: bool,
    why: str,
) -> list[RegistryRecord]:
    """Finds or makes the processes of the registry at a start; returns them, [] if there are none. `nodes`: the nodes
    whose directories exist. `known`: the processes in cluster.json. `make`: True to make a registry if the nodes name
    none. `why`: the reason why none may run; "" if one may. Raises LocalError."""
    records = with_pids(read_registry(data), known)
    if records:
        check_cluster(records, uuid())
    elif not make or why or names_another(nodes, records):
        return []
    if not records or (base_port is not None and not any(map(is_running, records))):
        records = plan_registry(data, base_port, nodes)
        check_ports(records)
        write_registry(data, records, uuid())
    tell_nodes(nodes, records, wanted=not why)
    return records
