"""A node process and a directory as its tier, through the command line: listed, damaged, repaired and swept."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.cli import run
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.process import free_base_port
from tests.support.left_copies import wait_verified
from tests.support.pace import at_most
from tests.support.small_segments import small_segments

pytestmark = pytest.mark.live
PATIENCE_S = at_most(60)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One node with a closed segment in its tier, below `tier` of the directory above."""
    home = tmp_path_factory.mktemp("tiered")
    cluster = LocalCluster(home / "data")
    try:
        with small_segments():
            cluster.up(1, free_base_port(4), tier=(home / "tier").as_uri())
        with connect(cluster.servers) as mq:
            for number in range(10):
                mq.send("orders", b"%d" % number)
        api = AdminApi(admin_addresses(None, str(home / "data")))
        sealed = api.post("/v1/tier/seal", {})["position"]
        wait_verified(api, sealed)
        yield home / "data"
    finally:
        cluster.down()


class Command:
    """`raftmq tier ...` in this process: its exit code, and what it prints."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._data = data
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = run(["tier", *arguments, "--data", str(self._data)])
        return code, self._capsys.readouterr().out

    def json(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self(*arguments, "--json")[1])
        return answer


@pytest.fixture
def tier(data: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(data, capsys)


def test_objects_are_listed_verified_repaired_and_swept(data: Path, tier: Command) -> None:
    listed = tier.json("ls")["segments"]
    names = [name for row in listed for name in row["parts"] if name.startswith("log/")]
    (cluster_id,) = [path.name for path in (data.parent / "tier").iterdir() if not path.name.startswith(".")]
    folder = data.parent / "tier" / cluster_id
    assert names
    assert tier("ls")[0] == tier("verify")[0] == 0

    part = folder / names[0]
    intact = part.read_bytes()
    part.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    assert tier("verify", "--sizes-only")[0] == 0
    code, said = tier("verify")
    assert (code, names[0] in said) == (1, True)
    assert (tier("repair")[0], part.read_bytes()) == (0, intact)

    part.unlink()
    assert tier("verify", "--sizes-only")[0] == 1
    assert (tier("repair")[0], part.read_bytes()) == (0, intact)

    orphan = part.with_name(part.name.replace(part.name.split(".")[1], "0" * 16))
    orphan.write_bytes(b"of a leader that died")
    (folder / "notes.txt").write_text("mine")
    assert tier.json("verify")["orphans"] == 1
    swept = tier.json("sweep")
    assert (swept["swept"], swept["strange"], orphan.exists()) == (1, 1, False)
    assert (folder / "notes.txt").exists()
    assert (tier.json("sweep")["swept"], tier("verify")[0]) == (0, 0)


def test_pulls_read_where_tier_read_says(data: Path) -> None:
    cluster, api = LocalCluster(data), AdminApi(admin_addresses(None, str(data)))

    def served() -> int:
        (address,) = admin_addresses(None, str(data))
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = [line for line in lines if line.startswith("raftmq_tier_served_bytes_total ")]
        return int(float(line.split()[1]))

    with connect(cluster.servers) as mq:

        def read() -> list[bytes]:
            return [m.body for queue in range(8) for m in mq.pull("orders", queue, 0).messages]

        wanted = read()
        assert len(wanted) == 10
        assert served() == 0
        assert run(["config", "set", "tier.read", "FORCE", "--data", str(data), "--yes"]) == 0
        assert read() == wanted
        assert (before := served()) > 0
        with pytest.raises(Exception, match="cannot be DISABLE"):
            api.post("/v1/topics", {"name": "orders", "if_exists": "update", "attributes": {"tier.read": "DISABLE"}})
        level = {"tier.read": "NOT_IN_DISK"}
        api.post("/v1/topics", {"name": "orders", "if_exists": "update", "attributes": level})
        assert read() == wanted
        assert served() == before


def test_a_page_begins_at_a_number(data: Path) -> None:
    api = AdminApi(admin_addresses(None, str(data)))
    assert api.local("/v1/tier/segments?since=999999999999")["segments"] == []
    with pytest.raises(Exception, match="since cannot be -1"):
        api.local("/v1/tier/segments?since=-1")
