"""/v1/consistency, /v1/repair: what a comparison asks of a node, over a real log in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import google_crc32c
import pytest

from cluster.admin.handlers import consistency
from cluster.admin.handlers.consistency import chunk_crcs
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.frame import make_entry
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import EntryType, NodeId

DATA = Path("/data")
GENESIS = Genesis(UUID(int=1), 1, 1 << 20, 1_700_000_000_000, (Voter(NodeId(1), UUID(int=11)),))


class Repairs:
    """The part of `cluster.repair.repair_service.Repairs` that the API asks."""

    may_vote = True

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.fs.mkdir(DATA)
        self.log = SegmentedLog.create(self.fs, DATA, genesis=GENESIS.entry(), segment_size=1 << 20)
        for number in range(5):
            entry = make_entry(
                self.log.tail,
                term=1,
                entry_type=EntryType.MESSAGES,
                payload=bytes([number]) * 1000,
                timestamp_ms=0,
                group_id=1,
                segment_size=1 << 20,
            )
            self.log.append([entry])
        self.asked = 0
        self.mends = True

    def now(self) -> None:
        self.asked += 1
        for damaged in self.log.damage.ranges if self.mends else ():
            self.log.damage.drop(damaged)

    def reachable(self) -> list[int]:
        return [2, 3]

    def rot(self, index: int) -> None:
        at = LOCAL_HEADER_SIZE + self.log.position_of(index) + 80
        path = DATA / "log" / f"{0:020d}.seg"
        self.fs.damage(path, at, bytes([self.fs.open(path).pread(1, at)[0] ^ 1]))


class Consistency:
    """The part of `cluster.repair.consistency.Consistency` that it asks."""

    fenced = False
    marks: int | None = 0

    def mark(self) -> int | None:
        return self.marks


@pytest.fixture
def repairs(node: Any) -> Repairs:
    made: Repairs = Repairs()
    node.repairs, node.consistency = made, Consistency()
    return made


async def get(client: Any, path: str) -> Any:
    answer = await client.get(path)
    return answer.status, await answer.json()


async def test_a_node_tells_where_its_log_ends_and_what_its_rows_sum_up_to(
    client: Any, node: Any, repairs: Repairs
) -> None:
    code, view = await get(client, "/v1/consistency")
    assert (code, view["fenced"], view["index"], view["log"]["last_index"]) == (200, False, 0, 5)
    assert view["sums"]["topics"] == f"{node.state.sums.totals['topics']:016x}"
    assert (await get(client, "/v1/consistency/0"))[1]["sums"] == view["sums"]
    assert (await get(client, "/v1/consistency/3"))[1]["sums"] == {}
    assert (await get(client, "/v1/consistency/x"))[1]["error"]["code"] == "bad_field"


async def test_a_marker_is_answered_once_it_is_applied(client: Any, node: Any, repairs: Repairs) -> None:
    answer = await client.post("/v1/consistency")
    assert (answer.status, await answer.json()) == (200, {"node": 1, "term": 3, "index": 0})
    node.consistency.marks = None
    answer = await client.post("/v1/consistency")
    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "not_leader")


async def test_a_marker_that_is_not_applied_in_time_is_in_the_log(
    client: Any, node: Any, repairs: Repairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency, "_APPLY_WAIT_S", 0.01)
    node.consistency.marks = 6
    answer = await client.post("/v1/consistency")
    assert (answer.status, (await answer.json())["error"]["code"]) == (504, "unknown_outcome")


async def test_entries_and_those_that_cannot_be_read(client: Any, repairs: Repairs) -> None:
    entry = repairs.log.read_entries(3, 4, 1)[0]
    code, view = await get(client, "/v1/consistency/entries/3")
    assert (code, view["position"], view["header_crc"]) == (200, entry.position, f"{entry.header_crc:08x}")
    assert (await get(client, "/v1/consistency/entries/9"))[0] == 404
    repairs.rot(3)
    code, view = await get(client, "/v1/consistency/entries/3")
    assert (code, view["position"], view["header_crc"]) == (200, entry.position, "")
    assert repairs.log.damage, "asking is reading: now it is known"


async def test_checksums_are_of_what_is_on_disk(client: Any, repairs: Repairs) -> None:
    end = repairs.log.tail.end_position
    body = {"position": 0, "end_position": end, "chunk_bytes": 512}
    before = (await (await client.post("/v1/consistency/log", json=body)).json())["crcs"]
    first = f"{google_crc32c.value(repairs.log.read_at(0, 512)):08x}"
    assert (len(before), before[0]) == (-(-end // 512), first)
    repairs.rot(4)
    after = (await (await client.post("/v1/consistency/log", json=body)).json())["crcs"]
    (differs,) = [number for number, pair in enumerate(zip(before, after, strict=True)) if len(set(pair)) > 1]
    assert differs == (repairs.log.position_of(4) + 80) // 512
    await get(client, "/v1/consistency/entries/4")
    assert chunk_crcs(repairs.log, 0, end, 512)[differs] is None, "known damage is not read"
    assert chunk_crcs(repairs.log, end, end + 5, 5) == [None]
    for wrong in (
        {"position": 9, "end_position": 8},
        {"position": 0, "end_position": 1 << 40},
        {"position": 0, "end_position": 5000, "chunk_bytes": 1},
    ):
        answer = await client.post("/v1/consistency/log", json=wrong)
        assert (answer.status, (await answer.json())["error"]["code"]) == (409, "refused")


async def test_repair_needs_a_majority(client: Any, node: Any, repairs: Repairs, nobody: Any) -> None:
    repairs.rot(2)
    await get(client, "/v1/consistency/entries/2")
    code, view = await get(client, "/v1/repair")
    assert (code, view["peers"], view["damage"][0]["first_index"]) == (200, [2, 3], 2)
    node.leader = nobody
    answer = await client.post("/v1/repair")
    assert (answer.status, "unsafe-recover" in (await answer.json())["error"]["hint"]) == (503, True)
    assert repairs.asked == 0
    node.leader = NodeId(2)
    answer = await client.post("/v1/repair")
    assert (await answer.json())["damage"] == []
