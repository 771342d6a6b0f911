"""Wrong frames on the channel between groups of brokers, at all nodes of two groups: nobody ends, no leader changes,
memory stays bounded, and both groups serve."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.config.local_layout import groups_of
from cluster.peer import secret
from cluster.runtime import key_file
from jepsen_like.fuzz.group_channel import SPOKEN, GroupGuest
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import free_base_port
from raftmq_wire.queue_numbers import number_of
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.alone, pytest.mark.timeout(600)]

GUESTS, MADE_UP = 6, 10
GROWN_MAX = 200 << 20
"""Bytes by which a node's memory may grow, whatever is said to it."""
BAD_LOG = re.compile(r"Traceback|CRITICAL|Task exception was never retrieved")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "data")
    made.up(3, free_base_port(24), groups=2, timeout_s=at_most(60))
    yield made
    made.down()


def terms(cluster: LocalCluster) -> dict[int, tuple[int, int]]:
    """Group -> its leader and term, as the group says."""
    views = {group: AdminApi(addresses_of(cluster.of_group(group))).local("/v1/status") for group in (1, 2)}
    return {group: (view["leader"], view["term"]) for group, view in views.items()}


def memory(cluster: LocalCluster) -> dict[str, int]:
    """Node -> bytes of its memory. Raises OSError if its process has ended."""
    return {
        str(node.name): 4096 * int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) for node in cluster.nodes
    }


async def say_wrong_things(cluster: LocalCluster, seconds: float) -> GroupGuest:
    home = cluster.nodes[0].home / "data" / secret.SECRET
    key = key_file.parse(home.read_bytes())[0] if home.exists() else None
    uuid = AdminApi(addresses_of(cluster.of_group(1))).local("/v1/status")["cluster_id"]
    guest = GroupGuest(uuid, key, seed=1)
    await guest.start()
    end_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        while time.monotonic() < end_s:
            node = cluster.nodes[number % len(cluster.nodes)]
            number += 1
            await guest.visit(node.peer_port, node.id, groups_of(cluster.nodes))

    await asyncio.gather(*(one(number) for number in range(GUESTS)))
    guest.close()
    await asyncio.sleep(0.1)
    return guest


@pytest.mark.parametrize("seconds", [pytest.param(20, marks=pytest.mark.ci), pytest.param(180, marks=pytest.mark.slow)])
def test_wrong_frames_between_groups(cluster: LocalCluster, seconds: int, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("T", queues=2)
        # A group without nodes: whoever says that it is one of them is dialled. Of groups that are none nobody is.
        AdminApi(addresses_of(cluster.of_group(1))).post("/v1/broker-groups", {"group": MADE_UP})
        before, rest = terms(cluster), memory(cluster)
        logs = {node.name: Path(node.log).stat().st_size for node in cluster.nodes}
        guest = asyncio.run(say_wrong_things(cluster, seconds))
        assert [kind.name for kind in SPOKEN if not guest.counts[kind.name]] == []
        assert [what for what in ("let in", "dialled", "PROOF with more", "too long") if not guest.counts[what]] == []
        grown = {name: size - rest[name] for name, size in memory(cluster).items()}
        assert max(grown.values()) < GROWN_MAX, grown
        for node in cluster.nodes:
            with Path(node.log).open("rb") as file:
                file.seek(logs[node.name])
                assert not BAD_LOG.search(file.read().decode(errors="replace")), node.log
        assert terms(cluster) == before
        for group in (1, 2):
            mq.send("T", b"x", queue_id=number_of(group, 1))
        mq.admin.create_topic("afterwards", queues=1, groups=[1, 2])
        wait(lambda: len(mq.admin.describe_topic("afterwards").queues) == 2, "both groups have it")
    with capsys.disabled():
        print(f"\n    {sum(guest.counts.values())} things said; most MiB grown: {max(grown.values()) >> 20}")  # noqa: T201
