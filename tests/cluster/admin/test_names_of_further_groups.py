"""A node of a further group of brokers is named by group and id wherever a person reads its name: ids are unique only
within their group, and a command that is shown is typed as it stands."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from cluster.admin.errors import ApiError
from cluster.admin.findings.finding import Cause, Finding
from cluster.admin.findings.merge import merged
from cluster.admin.findings.other_nodes import clock_conditions, setting_conditions
from cluster.admin.findings.rules import own_conditions
from cluster.admin.findings.watch import FindingsWatch, Memory
from cluster.admin.server import build_app
from cluster.admin.signed_identity import PASS_HEADER
from cluster.config.local_layout import link_object, node_object
from cluster.members.checks import quorum_of, told
from cluster.runtime import logs
from cluster.runtime.findings import Condition
from statemachine.cluster_wide.settings import SetMaintenance
from statemachine.topics.topics import CreateTopic
from tests.cluster.admin.conftest import FakeNode
from tests.cluster.admin.test_finding_rules import NOW_MS, link
from tests.support.codes import KEYS
from tests.support.fake_raw import CLUSTER

GROUP = 2
OWN_ID = re.compile(r"\bnode (?!2/)\d")
"""A node without its group."""


@pytest.fixture
def second() -> FakeNode:
    """Node 1 of the second group."""
    others = {"cluster__id": str(CLUSTER), "cluster__first_group": ["127.0.0.1:10912"], "peer__secret_file": "/SECRET"}
    return FakeNode(1, cluster__group=GROUP, **others)


def findings(node: Any, **changes: Any) -> list[Condition]:
    return own_conditions(node, msgspec.structs.replace(node.status(), **changes), NOW_MS)


def noted(node: int, *conditions: Condition) -> list[Finding]:
    return Memory(node, group=GROUP).note(conditions, NOW_MS, 0)


async def test_all_that_a_node_finds_names_the_group(second: FakeNode) -> None:
    second.apply([SetMaintenance(1, 0, "root", "disk")])
    found = findings(
        second,
        drained=True,
        quorum=quorum_of((1, 2, 3), lambda voter: voter == 1, GROUP),
        links=[link("SHUTDOWN", "no connection for bulk")],
        peers=[msgspec.structs.replace(second.status().peers[0], lag_entries=1 << 30)],
        load=msgspec.structs.replace(second.load, connections=1 << 30),
    )
    told = {str(each.code): each for each in found}
    assert told["node_drained"].object == "node 2/1"
    assert told["link_suspect"].object == "link 2/1-2/2"
    assert told["link_suspect"].says.startswith("node 2/1 to node 2/2: ")
    assert told["follower_behind"].object == "node 2/2"
    assert (
        told["no_quorum"].says == "no majority: nodes 2/2, 2/3 of the voters 2/1, 2/2, 2/3 are away, and writes need 2"
    )
    assert told["node_maintenance"].do_now == "raftmq node maintenance off 2/1"
    assert not [each for each in found if OWN_ID.search(f"{each.object}: {each.says}")]


def test_the_command_of_a_finding_names_the_node_of_the_group() -> None:
    about, by_itself = noted(
        1, Condition(KEYS["node_drained"], "node 2/3", ""), Condition(KEYS["recovering"], "cluster", "")
    )
    assert about.do_now == "raftmq node drain 2/3 --undo"
    assert by_itself.do_now == "raftmq recovery --node 2/1"


def test_nodes_of_the_group_are_members_go_down_and_explain_what_follows() -> None:
    links = {node: noted(node, Condition(KEYS["link_suspect"], link_object(GROUP, node, 3), "")) for node in (1, 2)}
    margin = noted(1, Condition(KEYS["no_quorum_margin"], "cluster", "the next failure stops writes"))
    views = {1: links[1] + margin, 2: links[2]}
    found = {each.code: each for each in merged(views, [1, 2, 3], group=GROUP)}
    assert (found["node_down"].object, found["node_down"].do_now) == ("node 2/3", "raftmq restart 2/3")
    assert found["node_down"].says.startswith("node 2/3 does not answer")
    assert found["link_suspect"].because_of == Cause("node_down", "node 2/3")
    assert found["no_quorum_margin"].do_now == "raftmq restart 2/3"
    assert {each.code for each in merged(views, [1, 2], group=GROUP)} == {"no_quorum_margin"}, "3 is no member"
    calm = {each.code: each.severity for each in merged(views, [1, 2, 3], [3], group=GROUP)}
    assert calm["node_down"] == "info", "it is in maintenance"
    alone = noted(2, Condition(KEYS["no_leader"], "cluster", "no leader is known in term 3"))
    (cut_off,) = merged({1: [], 2: alone}, [1, 2, 3], leaders={1: 1, 2: None}, group=GROUP)
    assert cut_off.says.startswith("node 2/2 knows no leader, although node 2/1 leads")


def test_what_only_a_comparison_shows_names_the_group() -> None:
    (off,) = clock_conditions({1: 0, 2: 0, 3: 9000}, 100, GROUP)
    assert (off.object, OWN_ID.search(off.says)) == ("node 2/3", None)
    (both,) = clock_conditions({1: 0, 2: 9000}, 100, GROUP)
    assert both.says.startswith("the clocks of nodes 2/1 and 2/2 are")
    (setting,) = setting_conditions({1: {"a": "1"}, 2: {"a": "2"}}, GROUP)
    assert "1 on node 2/1, 2 on node 2/2" in setting.says


async def test_refusals_name_the_group(second: FakeNode) -> None:
    second.leader = second.config.node_id
    async with TestClient(TestServer(build_app(second))) as client:  # type: ignore[arg-type]
        headers = {"Content-Type": "application/json"}
        for method, path, body in (
            ("GET", "/v1/members/9/status", None),
            ("DELETE", "/v1/members/9", None),
            ("DELETE", "/v1/members/2", None),
            ("POST", "/v1/members/9/promote", None),
            ("POST", "/v1/leader/transfer", b'{"to": 9}'),
            ("GET", "/v1/members/1/can-stop", None),
        ):
            answer = await client.request(method, path, data=body, headers=headers if body else {})
            told = await answer.text()
            assert "2/" in told, (method, path, told)
            assert not OWN_ID.search(told), (method, path, told)


async def test_health_and_status_say_the_group(second: FakeNode) -> None:
    async with TestClient(TestServer(build_app(second))) as client:  # type: ignore[arg-type]
        assert (await (await client.get("/v1/status")).json())["group"] == GROUP
        health = await (await client.get("/v1/health")).json()
        assert health["group"] == GROUP
        assert "node 2/2 is not connected" in health["warnings"]
        assert (await (await client.get("/v1/session")).json())["group"] == GROUP


def test_a_node_alone_in_its_cluster_has_the_names_of_before() -> None:
    assert (node_object(1, 3), link_object(1, 3, 1)) == ("node 3", "link 1-3")
    quorum = quorum_of((1, 2, 3), lambda voter: voter != 2)
    assert quorum.finding == "the next failure stops writes: node 2 of the voters 1, 2, 3 is away"
    assert told(quorum) == "voters 1, 2, 3 (2 away); 2 of 3 are a majority; no failure is survived"
    assert told(quorum, GROUP) == "voters 2/1, 2/2, 2/3 (2/2 away); 2 of 3 are a majority; no failure is survived"


def test_a_pass_for_one_group_proves_nothing_in_another(second: FakeNode) -> None:
    first, path = FakeNode(1), "/v1/findings"
    made = second.access.own_pass("2/1", path)[PASS_HEADER]
    passed = second.access.passes.check(made, "GET", path, b"")
    assert (passed.by, passed.who) == ("2/1", "node")
    with pytest.raises(ApiError, match="it is for node 2/1, and this is node 1"):
        first.access.passes.check(second.access.own_pass("2/1", path)[PASS_HEADER], "GET", path, b"")
    with pytest.raises(ApiError, match="it is for node 1, and this is node 2/1"):
        second.access.passes.check(first.access.own_pass(1, path)[PASS_HEADER], "GET", path, b"")


@pytest.mark.parametrize(("name", "shown"), [(3, "node 3"), ("2/3", "node 2/3")])
def test_each_line_of_the_log_begins_with_the_name(name: Any, shown: str) -> None:
    record = logging.makeLogRecord({"name": "cluster.node", "levelname": "INFO", "msg": "it serves"})
    assert logs.TextFormatter(name).format(record).endswith(f" INFO    {shown} cluster.node: it serves")
    assert json.loads(logs.JsonFormatter(name).format(record))["node"] == name
    stream, root = io.StringIO(), logging.getLogger()
    before = (root.handlers[:], root.level)
    try:
        logs.setup("info", "text", name, stream)
        logging.getLogger("cluster.node").warning("it serves")
    finally:
        root.handlers[:], root.level = before
    assert f" {shown} cluster.node: it serves" in stream.getvalue()


async def test_the_watch_takes_the_group_of_its_node(second: FakeNode) -> None:
    second.alarms.raise_alarm(KEYS["disk_slow"], "as the alarm says")
    watch = FindingsWatch(second)  # type: ignore[arg-type]
    found = {each.code: each for each in watch.cluster()}
    assert (found["disk_slow"].object, found["disk_slow"].seen_by) == ("node 2/1", [1])
    await watch.close()


async def test_every_series_of_a_further_group_says_its_group(second: FakeNode) -> None:
    for node, label in ((second, 'broker_group="2"'), (FakeNode(1), "broker_group")):
        node.apply([CreateTopic({"name": "orders"}, True)])
        node.traffic.messages_in("orders", 3, 300)
        async with TestClient(TestServer(build_app(node))) as client:  # type: ignore[arg-type]
            first, again = [(await (await client.get("/metrics")).text()).splitlines() for _ in range(2)]
        series = [line for line in again if line and not line.startswith("#")]
        assert len(series) > 100
        assert len(first) == len(again)
        wanted = series if node is second else []
        assert [line for line in series if line.count(label) == 1] == wanted
        assert any(line.startswith("process_start_time_seconds") for line in series)
        assert any(re.match(r"rocketmq_messages_in_total\{.*topic=\"orders\"", line) for line in series)
