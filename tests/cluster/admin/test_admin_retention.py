"""/v1/retention: what a node shows of it, and what a person who asks is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.retention.policy import TrimDecision
from cluster.retention.service import Ran
from cluster.retention.views import LeaseView, RetentionView
from raftlog.types import EntryId


class Retention:
    """The part of `cluster.retention.service.Retention` that the API asks."""

    def __init__(self) -> None:
        self.answer: Ran | None = None
        self.dry: list[bool] = []

    def view(self, node: int) -> RetentionView:
        return RetentionView(
            node=node,
            leader=1,
            applied_index=9,
            trim_position=500,
            trim_index=4,
            trimmed_at_index=8,
            trimmed_ms=7,
            first_position=100,
            first_index=1,
            end_position=900,
            files_left=2,
            bytes_left=400,
            files_held_by="the lease of a backup",
            log_held_by="",
            disk_used_percent=12.5,
            keep_ms=1,
            bytes_max=0,
            delete_when="04",
            protect_unconsumed=False,
            leases=[LeaseView(holder="a backup", position=100)],
        )

    def run(self, *, dry: bool = False) -> asyncio.Future[Ran | None]:
        self.dry.append(dry)
        done: asyncio.Future[Ran | None] = asyncio.get_running_loop().create_future()
        done.set_result(self.answer)
        return done


@pytest.fixture
def retention(node: Any) -> Retention:
    node.retention = Retention()
    made: Retention = node.retention
    return made


async def test_a_node_shows_where_its_log_begins(client: Any, retention: Retention) -> None:
    answer = await client.get("/v1/retention")
    view = await answer.json()
    assert (answer.status, view["trim_position"], view["first_position"], view["files_left"]) == (200, 500, 100, 2)
    assert (view["settings"]["hours"], view["settings"]["delete_when"]) == (72, "04")
    assert view["leases"] == [{"holder": "a backup", "position": 100}]


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (Ran(TrimDecision(300, 3, "age", 2), EntryId(3, 0)), 200, {"segments": 2, "index": 0, "reason": "age"}),
        (Ran(TrimDecision(0, 0, "", 0, "topic x"), None), 200, {"segments": 0, "index": None, "held_by": "topic x"}),
        (None, 503, "not_leader"),
        (Ran(TrimDecision(300, 3, "age", 2), None), 503, "not_leader"),
    ],
)
async def test_a_person_who_asks_is_told_what_went(
    client: Any, retention: Retention, answer: Ran | None, status: int, told: Any
) -> None:
    retention.answer = answer
    reply = await client.post("/v1/retention/run", json={})
    body = await reply.json()
    assert reply.status == status
    if isinstance(told, dict):
        assert {key: body[key] for key in told} == told
    else:
        assert body["error"]["code"] == told


async def test_a_trim_that_is_not_applied_in_time_is_unknown(client: Any, node: Any, retention: Retention) -> None:
    node.waits = node.waits._replace(trimmed_s=0.01)
    retention.answer = Ran(TrimDecision(300, 3, "age", 2), EntryId(3, 99))
    reply = await client.post("/v1/retention/run", json={})
    assert (reply.status, (await reply.json())["error"]["code"]) == (504, "unknown_outcome")


async def test_a_dry_run_says_what_would_go(client: Any, retention: Retention) -> None:
    retention.answer = Ran(TrimDecision(300, 3, "age", 2), None, 4)
    reply = await client.post("/v1/retention/run?dry_run=true", json={})
    body = await reply.json()
    assert (reply.status, retention.dry) == (200, [True])
    told = {"dry_run": True, "segments": 2, "bytes": 300, "position": 300, "queues": 4, "index": None, "reason": "age"}
    assert told.items() <= body.items()
    assert (await client.post("/v1/retention/run?dry_run=perhaps", json={})).status == 400
    assert retention.dry == [True]
