"""/v1/transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.admin.handlers.open_transactions import READ_BYTES_MAX, TRANSACTIONS_MAX
from statemachine.delivery.half_messages import CheckHalves, EndHalves
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic


async def listed(client: Any, query: str = "") -> Any:
    answer = await client.get(f"/v1/transactions{query}")
    assert answer.status == 200
    return await answer.json()


@pytest.fixture
def halves(node: Any) -> list[int]:
    node.consistency = SimpleNamespace(fenced=False)
    node.apply([CreateTopic({"name": name}, True) for name in ("orders", "gone")])
    properties = {"PGROUP": "shop", "UNIQ_KEY": "A1", "KEYS": "42 tea", "TRAN_MSG": "true"}
    return [node.add_half("orders", b"one", properties), node.add_half("gone", b"two", {"PGROUP": "other"})]


async def test_open_transactions_are_listed_in_the_order_of_the_log(client: Any, node: Any, halves: list[int]) -> None:
    node.apply([CheckHalves(36_000, halves[:1]), DeleteTopic("gone")])
    found = await listed(client, "?consistency=linearizable")
    first, second = found["transactions"]
    assert first == {
        "position": halves[0],
        "topic": "orders",
        "queue_id": 0,
        "size": first["size"],
        "checks": 1,
        "next_check_ms": 36_000,
        "group": "shop",
        "message_id": "A1",
        "keys": "42 tea",
        "stored_ms": 7,
    }
    assert (second["position"], second["topic"], second["group"], second["checks"]) == (halves[1], None, "other", 0)
    assert (found["open"], found["bytes"], found["more"]) == (2, first["size"] + second["size"], False)
    assert (found["applied_index"], node.reads_confirmed) == (node.state.applied.index, 1)
    node.apply([EndHalves(halves)])
    found = await listed(client)
    assert (found["open"], found["bytes"], found["transactions"]) == (0, 0, [])


async def test_no_more_than_the_bounds(client: Any, node: Any, halves: list[int]) -> None:
    halves.append(node.add_half("orders", bytes(READ_BYTES_MAX), {"PGROUP": "large"}))
    rows = (await listed(client))["transactions"]
    assert [row["group"] for row in rows] == ["shop", "other", None], "only so much is read"
    halves += [node.add_half("orders", b"x", {"PGROUP": "shop"}) for _ in range(TRANSACTIONS_MAX)]
    found = await listed(client)
    shown = halves[:TRANSACTIONS_MAX]
    assert ([row["position"] for row in found["transactions"]], found["more"]) == (shown, True)
    assert found["open"] == len(halves)


@pytest.mark.parametrize("fenced", [True, False])
async def test_what_cannot_be_read_is_listed_by_its_row(
    client: Any, node: Any, halves: list[int], fenced: bool
) -> None:
    node.consistency.fenced = fenced
    if not fenced:
        node.log[halves[0] + 92] ^= 1
    rows = (await listed(client))["transactions"]
    assert [row["position"] for row in rows] == halves
    assert [row["group"] for row in rows] == [None, None if fenced else "other"]
