"""Measures the cost of each acknowledgement mode on this machine's disk: three nodes, one load after the other, one
table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from raftmq.commands.bench_load import Result, run
from raftmq.commands.open_arrivals import percentile
from raftmq.local.cluster import LocalCluster
from raftmq.local.local_users import ClientOptions
from raftmq.local.process import free_base_port
from raftmq_wire.signature import Credentials

TOPIC = "bench"
WARM_UP_S = 1.0
PROBE_WRITES = 200
PROBE_BYTES = 4096
SYNC: dict[str, str] = {}
ASYNC = {"FLUSH_DISK_TYPE": "ASYNC_FLUSH"}
POOL = {**ASYNC, "TRANSIENT_STORE_POOL_ENABLE": "true"}


class Mode(msgspec.Struct, frozen=True):
    """An acknowledgement level together with the [modes] settings of a cluster."""

    level: str
    flush: str
    """The flush mode: `sync` and `async` stand for SYNC_FLUSH and ASYNC_FLUSH, `pool` for
    transient_store_pool_enable."""
    settings: dict[str, str]


MODES = (
    Mode("all", "sync", SYNC),
    Mode("quorum+fsync", "sync", SYNC),
    Mode("leader", "sync", SYNC),
    Mode("quorum", "async", ASYNC),
    Mode("leader", "async", ASYNC),
    Mode("leader", "async+pool", POOL),
)
"""The modes from the strongest to the weakest; modes with the same settings share a cluster."""


class Disk(msgspec.Struct, frozen=True):
    """The speed of the disk alone: PROBE_WRITES appends of PROBE_BYTES, each followed by an fdatasync."""

    sync_p50_ms: float
    sync_p99_ms: float


class ModeMeasurements(msgspec.Struct, frozen=True):
    """The measurements of one load in one mode."""

    level: str
    flush: str
    size_bytes: int
    in_flight: int
    messages_per_second: int
    p50_ms: float
    p99_ms: float
    cpu_us_per_message: float
    """User and system time of all nodes per message, in microseconds."""


class ModesReport(msgspec.Struct, frozen=True):
    """The output of `raftmq bench modes --json`."""

    schema: int
    directory: str
    disk: Disk
    load_before: tuple[float, float, float]
    """The machine's load averages before the measurement began, which should be low."""
    seconds_per_row: float
    rows: list[ModeMeasurements]
    secured: bool = False
    """True if clients, nodes and the HTTP API spoke TLS, and requests were signed and judged."""


def probe(directory: Path) -> Disk:
    """Measures how long writes of PROBE_BYTES with fdatasync take on the disk under `directory`."""
    path, took = directory / "probe", []
    with path.open("wb", buffering=0) as file:
        for _ in range(PROBE_WRITES):
            began = time.perf_counter()
            file.write(bytes(PROBE_BYTES))
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    path.unlink()
    took.sort()
    return Disk(round(percentile(took, 0.5), 3), round(percentile(took, 0.99), 3))


def measure(
    directory: Path,
    sizes: Sequence[int],
    in_flight: Sequence[int],
    seconds: float,
    on_stage: Callable[[str], None] = lambda stage: None,
    *,
    secured: bool = False,
) -> ModesReport:
    """Measures every mode in clusters under `directory`, which must be empty, and ends the clusters. `secured`: True to
    use TLS and signed requests. Raises LocalError."""
    before = os.getloadavg()
    disk = probe(directory)
    rows: list[ModeMeasurements] = []
    for settings in (SYNC, ASYNC, POOL):
        modes = [mode for mode in MODES if mode.settings is settings]
        place = directory / f"cluster{len(rows)}"
        with _cluster(place, settings, secured=secured) as (port, pids, options):
            _load(port, "", sizes[0], 16, WARM_UP_S, options)
            for mode in modes:
                for size in sizes:
                    for window in in_flight:
                        on_stage(f"{mode.level}, {mode.flush}: {size} bytes, {window} in flight")
                        cpu = _cpu_seconds(pids)
                        result = _load(port, mode.level, size, window, seconds, options)
                        rows.append(_row(mode, size, window, result, _cpu_seconds(pids) - cpu))
    rows.sort(key=lambda row: (row.size_bytes, row.in_flight))
    return ModesReport(1, str(directory), disk, before, seconds, rows, secured)


def _load(port: int, level: str, size: int, in_flight: int, seconds: float, options: ClientOptions) -> Result:
    name, secret = options.get("access_key", ""), options.get("secret_key", "")
    return run(
        "127.0.0.1",
        port,
        topic=TOPIC,
        size=size,
        batch=1,
        in_flight=in_flight,
        seconds=seconds,
        properties=f"ACK_LEVEL\\u0001{level}\\u0002" if level else "",
        credentials=Credentials(name, secret) if name else None,
        tls=options["tls"] or None,
    )


def _row(mode: Mode, size: int, in_flight: int, result: Result, cpu_s: float) -> ModeMeasurements:
    latencies = result.latencies_ms
    return ModeMeasurements(
        mode.level,
        mode.flush,
        size,
        in_flight,
        round(result.messages / result.seconds),
        round(percentile(latencies, 0.5), 2),
        round(percentile(latencies, 0.99), 2),
        round(cpu_s * 1e6 / max(1, result.messages), 1),
    )


def _cpu_seconds(pids: Sequence[int]) -> float:
    import psutil

    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


@contextmanager
def _cluster(
    directory: Path, settings: Mapping[str, str], *, secured: bool
) -> Iterator[tuple[int, list[int], ClientOptions]]:
    """Runs three nodes with these settings of the section [modes]; yields (the leader's port for clients, the nodes'
    pids, the options with which clients connect)."""
    cluster = LocalCluster(directory)
    names = {f"RAFTMQ_MODES__{key}": value for key, value in settings.items()}
    saved = {name: os.environ.get(name) for name in names}
    os.environ.update(names)  # the nodes inherit this environment
    try:
        view = cluster.up(3, free_base_port(12), tls=secured, auth=secured)
    finally:
        for name, value in saved.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    try:
        nodes = cluster.nodes
        port = next(node.broker_port for node in nodes if node.id == view.leader)
        yield port, [node.pid for node in nodes if node.pid is not None], cluster.client_options
    finally:
        cluster.down()
