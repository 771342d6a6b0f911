"""Copies of the log of a node that is gone: a backup, its directory, and the tier."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

import raftmq
from raftmq.arrow.columns import COLUMNS
from raftmq.arrow.log_copy import FILES, TIER, CopySource
from raftmq.cli import run
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.process import free_base_port
from tests.support.wait_until import wait

SMALL = {
    "RAFTMQ_LOG__SEGMENT_SIZE_BYTES": 1 << 20,
    "RAFTMQ_LIMITS__MESSAGE_BYTES_MAX": 1 << 18,
    "RAFTMQ_LIMITS__BATCH_BYTES_MAX": 1 << 18,
}
ORDERS, OTHER = "left-orders", "left-other"


class Left(NamedTuple):
    """`tables`: what was in each topic, all columns, in order of queues and offsets; `middle_ms`: a log time within."""

    backup: CopySource
    directory: CopySource
    tier: CopySource
    tables: dict[str, pa.Table]
    middle_ms: int


def seal(data: Path) -> None:
    """Returns when all that is stored is in the tier, and the manifest says so."""
    api = AdminApi(admin_addresses(None, str(data)))
    sealed = api.post("/v1/tier/seal", {})["position"]
    wait_verified(api, sealed)


def wait_verified(api: AdminApi, position: int) -> None:
    """Returns when the log is in the tier up to `position`."""

    def verified() -> int:
        return int(api.local("/v1/tier")["verified_to"])

    wait(lambda: verified() >= position, lambda: api.local("/v1/tier"), progress=verified)


def leave(home: Path) -> Left:
    """Leaves copies of one node, which is gone then. Segment files are small: tests copy them."""
    cluster = LocalCluster(home / "data")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, size in SMALL.items():
                patch.setenv(name, str(size))
            cluster.up(1, free_base_port(4), tier=(home / "tier").as_uri())
        tables = fill(cluster.servers, home)
        return copies(home, tables)
    finally:
        cluster.down()


def fill(servers: str, home: Path) -> dict[str, pa.Table]:
    """Two topics through three segments, with keys, tags and large bodies. The nodes lie in `home`/data."""
    with raftmq.connect(servers) as mq:
        mq.admin.create_topic(ORDERS, 2)
        mq.admin.create_topic(OTHER, 1)
        for number in range(3):
            mq.send_batch(ORDERS, [b"%d a%d" % (number, each) for each in range(150)], queue_id=0, key="k")
            mq.send_batch(OTHER, [b"x" * 30_000] * 3, tag="new")
            if number:  # the first segment has nothing of this queue
                mq.send_batch(ORDERS, [b"%d b%d" % (number, each) for each in range(30 * number)], queue_id=1)
            seal(home / "data")
    return {name: raftmq.read_arrow(name, columns=tuple(COLUMNS), servers=servers) for name in (ORDERS, OTHER)}


def copies(home: Path, tables: dict[str, pa.Table]) -> Left:
    """Makes the backup; the nodes still run."""
    assert run(["backup", "create", "--to", str(home / "backups"), "--data", str(home / "data")]) == 0
    (backup,) = (home / "backups").iterdir()
    times = sorted(tables[ORDERS].column("store_ms").to_pylist())
    return Left(
        CopySource(FILES, str(backup)),
        CopySource(FILES, str(home / "data/n1/data")),
        CopySource(TIER, (home / "tier").as_uri()),
        tables,
        times[len(times) // 2],
    )
