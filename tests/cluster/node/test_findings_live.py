"""Three real nodes: what is wrong with one is said by all, with its cause, and ends with it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from raftmq.client import connect
from tests.support.live_nodes import LiveCluster
from tests.support.wait_until import wait

pytestmark = pytest.mark.live


def findings(cluster: LiveCluster, node: int) -> dict[tuple[str, str], Any]:
    """Returns this node's findings about the whole cluster, unhealthy or not."""
    try:
        body = cluster.ask(node, "/v1/health")
    except urllib.error.HTTPError as error:
        body = json.load(error)
    return {(each["code"], each["object"]): each for each in body["findings"]}


Said = dict[tuple[str, str], Any]


def wait_for(cluster: LiveCluster, node: int, holds: Callable[[Said], bool]) -> Said:
    """The node's findings, once that holds of them."""
    said: Said = {}

    def told() -> bool:
        nonlocal said
        said = findings(cluster, node)
        return holds(said)

    wait(told, lambda: said, every_s=0.2)
    return said


@pytest.mark.ci
def test_a_killed_node_is_one_cause_and_its_consequences(live_cluster: LiveCluster) -> None:
    cluster = live_cluster
    leader = cluster.leader()
    gone, other = [node.id for node in cluster.nodes if node.id != leader]
    down, margin = ("node_down", f"node {gone}"), ("no_quorum_margin", "cluster")
    cluster.kill(gone)
    for node in (leader, other):
        said = wait_for(cluster, node, lambda said: down in said and margin in said)
        assert said.pop(down)["do_now"] == f"raftmq restart {gone}"
        causes = [each["because_of"] for each in said.values() if each["severity"] != "info"]
        assert causes == [{"code": down[0], "object": down[1]}] * len(causes)
    may = cluster.ask(leader, f"/v1/members/{other}/can-stop")
    assert (may["allowed"], may["passes"]) == (False, False)
    assert cluster.ask(leader, f"/v1/members/{gone}/can-stop")["allowed"], "it is away already"

    cluster.restart(gone)
    again = ("unclean_restart", f"node {gone}")
    for node in (leader, other, gone):
        wait_for(
            cluster, node, lambda said: again in said and all(each["severity"] == "info" for each in said.values())
        )
    assert cluster.ask(leader, f"/v1/members/{other}/can-stop")["allowed"]


def test_what_happened_is_there_after_a_restart(live_cluster: LiveCluster) -> None:
    cluster = live_cluster
    node = next(each.id for each in cluster.nodes if each.id != cluster.leader())
    before = cluster.ask(node, "/v1/events?limit=1000")["events"]
    assert {"start", "link", "leader"} <= {event["kind"] for event in before}
    cluster.restart(node)
    after = cluster.ask(node, "/v1/events?limit=1000")["events"]
    assert [event["id"] for event in after] == sorted({event["id"] for event in after})
    assert [event for event in after if event["id"] <= before[-1]["id"]] == before
    assert [event["kind"] for event in after if event["kind"] in ("start", "stop")][-2:] == ["stop", "start"]


def test_who_is_connected(live_cluster: LiveCluster) -> None:
    cluster = live_cluster
    leader = cluster.leader()
    with connect(cluster.servers) as mq:
        mq.send("who-is-it", b"x")
        listed = cluster.ask(leader, "/v1/clients")
        assert listed["total"] == len(listed["clients"]) > 0
        busiest = listed["clients"][0]
        assert busiest["received_bytes"] > 0
        other = next(each.id for each in cluster.nodes if each.id != leader)
        passed_on = cluster.ask(other, f"/v1/members/{leader}/clients")
        assert busiest["address"] in [each["address"] for each in passed_on["clients"]]
        gone = cluster.ask(leader, f"/v1/clients/{busiest['address']}", "DELETE")
        assert gone["disconnected"]
        mq.send("who-is-it", b"it connects again")


@pytest.mark.ci
def test_probes_of_a_follower_that_catches_up(live_cluster: LiveCluster) -> None:
    """It is never restarted for it, and no other node is stopped meanwhile: it is live, and not ready until it has
    applied what is committed."""
    cluster = live_cluster
    leader = cluster.leader()
    late = next(node.id for node in cluster.nodes if node.id != leader)

    def readiness() -> list[str]:
        assert cluster.ask(late, "/v1/health/live")["live"]
        try:
            told = cluster.ask(late, "/v1/health/ready")
        except urllib.error.HTTPError as refused:
            told = {**json.load(refused), "status": refused.code}
        assert told["ready"] == (told.get("status", 200) == 200)
        return list(told["reasons"])

    behind = {"values": {"health.follower_behind_entries": 50}}
    cluster.ask(leader, "/v1/config", "PUT", behind)
    cluster.wait_equal()
    assert readiness() == []
    cluster.failpoint(late, "append.write", "hold")
    try:
        with connect(cluster.servers) as mq:
            for number in range(100):
                mq.send("catch-up", b"%d" % number)
        (says,) = readiness()
        assert "it catches up" in says
        assert "health.follower_behind_entries = 50" in says
    finally:
        cluster.failpoint(late, "append.write", "off")
    cluster.wait_equal()
    assert readiness() == []


@pytest.mark.slow
def test_probes_of_a_node_without_a_leader(live_cluster: LiveCluster) -> None:
    cluster = live_cluster
    survivor, *others = [node.id for node in cluster.nodes]
    for node in others:
        cluster.kill(node)
    try:
        wait_for(cluster, survivor, lambda said: ("no_quorum", "cluster") in said)
        assert cluster.ask(survivor, "/v1/health/live")["live"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            cluster.ask(survivor, "/v1/health/ready")
        assert refused.value.code == 503
    finally:
        cluster.heal()
    assert cluster.ask(survivor, "/v1/health/ready")["ready"]
