"""GET and PUT /v1/config, and its history."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cluster.admin.handlers.configuration import warnings_of
from cluster.config.cluster_keys import CLUSTER_KEYS, in_type
from cluster.config.reload import KeyChange
from cluster.replication.outcome import Outcome
from tests.cluster.admin.conftest import make_config
from tests.support.rows import each_row


async def put(client: Any, values: dict[str, Any], **more: Any) -> tuple[int, Any]:
    answer = await client.put("/v1/config", json={"values": values, **more})
    return answer.status, await answer.json()


async def get(client: Any, path: str = "/v1/config") -> Any:
    answer = await client.get(path)
    assert answer.status == 200
    return await answer.json()


async def test_before_there_is_one_the_file_of_the_node_is_shown(client: Any) -> None:
    view = await get(client)
    assert (view["version"], [row["key"] for row in view["settings"]]) == (0, list(CLUSTER_KEYS))
    assert {(row["version"], row["set_ms"], row["author"]) for row in view["settings"]} == {(0, None, None)}


async def test_a_change_is_one_entry_with_its_author(client: Any, seeded: Any) -> None:
    status, changed = await put(client, {"retention.hours": 96, "topics.auto_create": False}, author="ops", reason="r")
    assert (status, changed["version"], changed["dry_run"], changed["warnings"]) == (200, 2, False, [])
    assert changed["changes"] == [
        {"key": "topics.auto_create", "before": True, "after": False},
        {"key": "retention.hours", "before": 72, "after": 96},
    ]
    assert changed["index"] == seeded.state.applied.index
    row = next(row for row in (await get(client))["settings"] if row["key"] == "retention.hours")
    assert row == {"key": "retention.hours", "value": 96, "default": 72, "version": 2, "set_ms": 0, "author": "ops"}


async def test_a_dry_run_says_the_same_and_changes_nothing(client: Any, seeded: Any) -> None:
    before = seeded.state.applied.index
    status, plan = await put(client, {"retention.hours": 1}, dry_run=True)
    assert (status, plan["version"], plan["index"]) == (200, 1, None)
    assert plan["changes"] == [{"key": "retention.hours", "before": 72, "after": 1}]
    assert plan["warnings"] == ["messages older than 1 h are removed; until now they were kept for 72 h"]
    assert seeded.state.applied.index == before


async def test_what_is_so_already_writes_nothing(client: Any, seeded: Any) -> None:
    before = seeded.state.applied.index
    assert (await put(client, {"retention.hours": 72}))[1]["changes"] == []
    assert seeded.state.applied.index == before


async def test_a_change_that_is_meant_for_another_version_is_refused(client: Any, seeded: Any) -> None:
    status, answer = await put(client, {"retention.hours": 96}, version=7)
    assert (status, answer["error"]["code"]) == (409, "refused")
    assert seeded.state.settings.version == 1


@each_row(
    ("values", "status", "said"),
    [
        ({"retention.hous": 1}, 400, "retention.hous"),
        ({"retention.hours": "soon"}, 400, "retention.hours"),
        ({"retention.hours": 1.5}, 400, "retention.hours"),
        ({"retention.hours": None}, 400, "retention.hours"),
        ({"limits.connections_max": 0}, 400, "limits.connections_max"),
        ({"raft.tick_ms": 20}, 400, "raft.tick_ms"),
        ({}, 400, "names no key"),
        ({"limits.frame_bytes_max": 1 << 20}, 409, "too small for limits.message_bytes_max"),
        ({"limits.frame_bytes_max": 5}, 409, "with 131072 to 50331648"),
        ({"limits.properties_bytes_max": 1}, 409, "with 1024 to 32767"),
        ({"limits.message_bytes_max": 1}, 409, "with 1024 to 32505856"),
        ({"offsets.flush_ms": 86_400_000}, 409, "with 1 to 10000"),
        ({"tier.bytes_per_second": 1}, 409, "with 0, or 65536 to"),
        ({"transaction.timeout_ms": 1}, 409, "with 100 to"),
        ({"limits.node_inflight_bytes_max": 2**70}, 409, "limits.node_inflight_bytes_max"),
        ({"send.deadline_ms": 9, "send.leader_wait_ms": 9}, 409, "send.deadline_ms cannot be 9"),
        ({"limits.connections_max": 40}, 409, "50 clients are connected to node 1"),
        ({"timer.delay_levels": ""}, 400, "timer.delay_levels"),
        ({"timer.delay_levels": "1x"}, 409, "are not delays"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(
    client: Any, seeded: Any, values: dict[str, Any], status: int, said: str
) -> None:
    found, answer = await put(client, values)
    assert (found, said in answer["error"]["message"]) == (status, True), answer
    assert seeded.state.settings.version == 1


@pytest.mark.parametrize(
    "values",
    [
        {"limits.connections_max": 40},
        {"limits.frame_bytes_max": 5},
        {"transaction.timeout_ms": 1},
        {"send.deadline_ms": 9},
        {"retention.disk_force_clean_percent": 5},
    ],
    ids=str,
)
async def test_the_hint_is_a_command_that_asks_nothing(client: Any, seeded: Any, values: dict[str, int]) -> None:
    _, answer = await put(client, values)
    command = answer["error"]["hint"].partition("    ")[0].split()
    assert command[:3] == ["raftmq", "config", "set"], answer
    pairs = [word for word in command[3:] if word != "--dry-run"]
    advised = {key: in_type(key, text) for key, text in zip(pairs[::2], pairs[1::2], strict=True)}
    status, plan = await put(client, advised, dry_run=True)
    assert (status, bool(plan["warnings"])) == (200, "--dry-run" in command), plan


async def test_what_is_dangerous_is_told_by_a_dry_run_and_needs_force(client: Any, seeded: Any) -> None:
    values = {"transaction.check_max": 1, "modes.flush_disk_type": "ASYNC_FLUSH"}
    status, plan = await put(client, values, dry_run=True)
    assert status == 200
    assert [each for each in plan["warnings"] if "rolled back before their producers could answer" in each]
    status, answer = await put(client, values)
    assert (status, seeded.state.settings.version) == (409, 1)
    assert "before a majority has them on disk" in answer["error"]["message"]
    assert "force" in answer["error"]["hint"]
    assert (await put(client, values, force=True))[0] == 200
    assert seeded.state.settings.version == 2


async def test_without_a_leader_that_answers_the_outcome_is_unknown(client: Any, seeded: Any) -> None:
    seeded.fate = Outcome.UNKNOWN
    assert (await put(client, {"retention.hours": 96}))[0] == 504


async def test_the_history_comes_in_pages(client: Any, seeded: Any) -> None:
    for hours in range(73, 78):
        await put(client, {"retention.hours": hours})
    page = await get(client, "/v1/config/history?limit=4")
    assert ([each["version"] for each in page["changes"]], page["next"]) == ([6, 5, 4, 3], 3)
    rest = await get(client, f"/v1/config/history?limit=4&before={page['next']}")
    assert ([each["version"] for each in rest["changes"]], rest["next"]) == ([2, 1], None)
    assert (await get(client, "/v1/config/history?before=1"))["changes"] == []


async def test_what_a_file_contradicts_is_shown_and_a_finding(client: Any, seeded: Any) -> None:
    seeded.contradicted = [KeyChange(key="retention.hours", before="72", after="5")]
    assert (await get(client))["overruled"] == ["retention.hours"]
    found = await get(client, "/v1/findings")
    (finding,) = [each for each in found["findings"] if each["code"] == "config_differs"]
    assert (finding["object"], finding["severity"]) == ("setting retention.hours", "warning")
    assert "says retention.hours = 5" in finding["says"]


def test_a_warning_says_that_evicted_messages_stay_in_the_tier() -> None:
    before = make_config(1)
    for url, gone in (("", "are removed;"), ("file:///srv/tier", "leave the nodes, and can be read in the tier;")):
        tier = replace(before.tier, evict=True, url=url)
        after = replace(before, tier=tier, retention=replace(before.retention, hours=1, bytes_max=1 << 20))
        by_age, by_size = warnings_of(replace(before, tier=tier), after)
        assert f"messages older than 1 h {gone}" in by_age
        assert gone.rstrip(";") in by_size


def test_aliases_that_come_or_go_move_keys_of_several_groups() -> None:
    on = make_config(1)
    off = replace(on, cluster=replace(on.cluster, producer_aliases=False))
    for before, after in ((on, off), (off, on)):
        assert any("move to other queues" in warning for warning in warnings_of(before, after))
    assert not list(warnings_of(on, on))
