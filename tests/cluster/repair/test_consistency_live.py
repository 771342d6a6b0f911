"""Real processes: nodes are compared, a rotten byte is found and mended, other rows are fenced and come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftmq.cli import cli
from raftmq.client import connect
from tests.support.pace import at_most
from tests.support.spoiled_rows import spoil_sums

pytestmark = pytest.mark.live
PATIENCE_S = at_most(60)


def command(live_cluster: Any, *words: str) -> tuple[int, Any]:
    """Exit code and JSON of a `raftmq` command."""
    done = CliRunner().invoke(cli, [*words, "--data", str(live_cluster.data), "--json"], standalone_mode=False)
    return done.return_value, json.loads(done.output.splitlines()[0]) if done.output else None


def until(reached: Callable[[], object]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                await asyncio.sleep(0.1)

    asyncio.run(wait())


def send(live_cluster: Any, count: int) -> None:
    with connect(live_cluster.servers) as mq, mq.producer() as producer:
        for number in range(count):
            producer.send("compared", b"x" * 1000 + str(number).encode())


def flip(data: Path, position: int) -> None:
    with (data / "log" / f"{0:020d}.seg").open("r+b") as file:
        file.seek(LOCAL_HEADER_SIZE + position)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 8]))


@pytest.mark.ci
def test_a_rotten_byte_is_found_and_mended_while_all_serve(live_cluster: Any) -> None:
    send(live_cluster, 50)
    code, report = command(live_cluster, "inspect-consistency")
    assert (code, report["findings"], report["unknown"], report["nodes"]) == (0, [], [], [1, 2, 3])
    assert report["bytes_compared"] > 50_000
    assert report["marker"] > 0
    flip(live_cluster.data / "n2" / "data", 20_000)
    code, report = command(live_cluster, "inspect-consistency")
    (finding,) = report["findings"]
    assert (code, finding["what"], finding["position"], finding["damaged"]) == (1, "log bytes", 20_000, [2])
    until(lambda: command(live_cluster, "repair")[0] == 0)
    assert command(live_cluster, "inspect-consistency")[0] == 0
    flip(live_cluster.data / "n3" / "data", 30_000)
    code, told = command(live_cluster, "scrub", "--node", "3")
    assert code == 1
    assert len(told["nodes"][0]["findings"]) == 1
    until(lambda: command(live_cluster, "inspect-consistency")[0] == 0)


@pytest.mark.ci
def test_a_node_with_other_rows_is_fenced_and_comes_back(live_cluster: Any) -> None:
    send(live_cluster, 5)
    follower = next(node.id for node in live_cluster.nodes if node.id != live_cluster.leader())
    live_cluster.local.down()
    spoil_sums(live_cluster.data / f"n{follower}" / "data")
    live_cluster.local.up(3)
    until(lambda: live_cluster.ask(follower, "/v1/consistency")["fenced"])
    code, report = command(live_cluster, "inspect-consistency")
    assert code == 1
    assert [finding["what"] for finding in report["findings"]] == ["cq"]
    live_cluster.local.restart(follower)
    account = live_cluster.ask(follower, "/v1/recovery")["recovery"]
    assert (account["state_found"], account["state_source"]) == ("wrong_rows", "peer"), account["reasons"]
    until(lambda: command(live_cluster, "inspect-consistency")[0] == 0)
    until(
        lambda: (
            not any(
                live_cluster.ask(node.id, "/v1/status")["alarms"] for node in live_cluster.nodes if node.id != follower
            )
        )
    )
