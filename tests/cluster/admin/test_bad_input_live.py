"""Mistakes of an operator, a script or a stranger, on three real nodes: each is answered in words, changes
nothing, and the cluster takes a write afterwards."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from raftmq.cli import run
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.local.http.contexts import read_contexts, write_contexts
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.slow]
BIG = b'{"name": "' + b"a" * (10 << 20) + b'"}'
TOPIC = "bad-input"
Row = tuple[str, str, Any, int, str]

BAD: list[Row] = [
    # bodies of 10 MiB
    ("POST", "/v1/topics", BIG, 413, "larger than"),
    ("PUT", "/v1/config", BIG, 413, "larger than"),
    ("POST", "/v1/metadata", BIG, 413, "larger than"),
    # wrong types
    ("POST", "/v1/topics", {"name": 5}, 400, "field name is not valid: expected str, got int"),
    ("POST", "/v1/topics", {"name": "a", "queues": "8"}, 400, "field queues is not valid: expected int"),
    ("POST", "/v1/topics", [], 400, "not a JSON object"),
    ("POST", "/v1/topics", b"{", 400, "not JSON"),
    ("POST", "/v1/topics", b"\xff", 400, "not JSON"),
    ("PUT", "/v1/config", {"values": {"retention.hours": "48"}}, 400, "values.retention.hours"),
    ("PUT", "/v1/config", {"values": [["retention.hours", 48]]}, 400, "field values is not valid"),
    ("PUT", "/v1/config", {"values": {"retention.hours": 48}, "dry_run": "yes"}, 400, "field dry_run is not valid"),
    ("POST", "/v1/members/2/drain", {"drain": 1}, 400, "field drain is not valid"),
    ("GET", "/v1/topics/bad-input/queues/x/messages", None, 400, "x"),
    ("GET", "/v1/members/x/can-stop", None, 400, "x is not the id of a node"),
    # unknown fields and queries, with a pointer
    ("POST", "/v1/topics", {"name": "a", "queus": 3}, 400, "unknown field queus|did you mean queues"),
    ("PUT", "/v1/config", {"values": {"retention.hous": 1}}, 400, "unknown field"),
    ("PUT", "/v1/config", {"valus": {}}, 400, "unknown field valus|did you mean values"),
    ("GET", "/v1/config?consistncy=local", None, 400, "unknown query consistncy|did you mean consistency"),
    ("DELETE", "/v1/topics/bad-input?dry-run=true", None, 400, "unknown query dry-run|did you mean dry_run"),
    # paths that lead out
    ("GET", "/static/../../../../etc/passwd", None, 404, ""),
    ("GET", "/static/..%2f..%2f..%2fetc%2fpasswd", None, 404, ""),
    ("GET", "/static/%2e%2e/%2e%2e/config.py", None, 404, ""),
    ("GET", "/v1/topics/..%2f..%2fetc", None, 404, "there is no topic ../../etc"),
    ("POST", "/v1/backup", {"to": "/etc/../../root"}, 403, ""),
    # names and numbers that nothing has
    ("GET", "/v1/topics/bad-imput", None, 404, "did you mean bad-input"),
    ("GET", "/v1/members/99/status", None, 404, "there is no node 99"),
    ("GET", "/v1/messages/99999999999999999999999", None, 400, ""),
    ("GET", "/v1/config/history?limit=0", None, 400, "limit"),
    ("GET", "/v1/events?limit=100000", None, 400, "limit cannot be 100000"),
    # changes that would stop the cluster, or contradict themselves
    ("PUT", "/v1/config", {"values": {"limits.connections_max": 0}}, 400, "limits.connections_max"),
    ("PUT", "/v1/config", {"values": {"limits.frame_bytes_max": 1}}, 409, "with 131072 to 50331648"),
    (
        "PUT",
        "/v1/config",
        {"values": {"limits.frame_bytes_max": 131072}},
        409,
        "too small for limits.message_bytes_max",
    ),
    ("PUT", "/v1/config", {"values": {"send.deadline_ms": 5}}, 409, "with 100 to 600000"),
    ("GET", f"/v1/members/{'9' * 5000}/status", None, 400, "is not the id of a node"),
    (
        "PUT",
        "/v1/config",
        {
            "values": {
                "retention.disk_max_used_percent": 1,
                "retention.disk_force_clean_percent": 1,
                "retention.disk_refuse_writes_percent": 1,
            }
        },
        409,
        "it would refuse every write",
    ),
    ("PUT", "/v1/config", {"values": {"raft.election_ticks": 1}}, 400, "raft.election_ticks"),
    ("PUT", "/v1/config", {"values": {"retention.hours": 1}, "version": 999}, 409, "is meant for 999"),
]
BEYOND = [
    ("/v1/topics/bad-input/queues/0/messages?offset=9007199254740993", "messages"),
    ("/v1/config/history?before=0", "changes"),
    ("/v1/events?since=999999999999999", "events"),
    ("/v1/tier/segments?since=999999999999999", "segments"),
]


@pytest.fixture(scope="module")
def ready(live_cluster: LiveCluster) -> Iterator[LiveCluster]:
    with connect(live_cluster.servers) as mq:
        mq.send(TOPIC, b"before")
        yield live_cluster
        mq.send(TOPIC, b"after")
    live_cluster.wait_equal()


def ask(cluster: LiveCluster, node: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """Status and body; the path goes out as it is written here."""
    where = urlsplit(cluster.admin(node))
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=at_most(60))
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(data or b"")))
        connection.endheaders()
        with contextlib.suppress(OSError):  # it has answered and closed: it does not wait for 10 MiB
            connection.send(data or b"")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path", "body", "status", "said"), BAD, ids=lambda value: str(value)[:60])
def test_it_is_refused_in_words_and_changes_nothing(
    ready: LiveCluster, method: str, path: str, body: Any, status: int, said: str
) -> None:
    version = ready.ask(ready.leader(), "/v1/config")["version"]
    for node in (ready.leader(), next(each.id for each in ready.nodes if each.id != ready.leader())):
        found, data = ask(ready, node, method, path, body)
        assert found == status, data[:300]
        error = json.loads(data)["error"]
        for part in said.split("|"):
            assert part in f"{error['message']} {error['hint']}"
    assert ready.ask(ready.leader(), "/v1/config")["version"] == version


@pytest.mark.parametrize(("path", "rows"), BEYOND)
def test_a_page_beyond_the_end_is_empty(ready: LiveCluster, path: str, rows: str) -> None:
    status, data = ask(ready, ready.leader(), "GET", path)
    assert (status, json.loads(data)[rows]) == (200, [])


@pytest.mark.parametrize("path", ["/v1/status", "/v1/config", "/v1/topics", "/metrics", "/", "/v1/health/live"])
def test_head_is_get_without_the_body(ready: LiveCluster, path: str) -> None:
    assert ask(ready, ready.leader(), "HEAD", path) == (ask(ready, ready.leader(), "GET", path)[0], b"")


def test_a_context_that_names_another_cluster_is_refused(
    ready: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAFTMQ_CONTEXTS", str(tmp_path / "contexts.json"))
    address = ready.admin(ready.leader()).removeprefix("http://")
    assert run(["context", "add", "prod", "--admin", address]) == 0
    assert run(["config", "show", "--admin", "prod", "--json"]) == 0
    known = read_contexts()["prod"]
    write_contexts({"prod": known._replace(cluster_id="00000000-0000-0000-0000-000000000000")})
    capsys.readouterr()
    assert run(["config", "set", "retention.hours", "1", "--yes", "--admin", "prod"]) == 5
    assert "another cluster answers at the addresses of the context prod" in capsys.readouterr().err
    assert ready.ask(ready.leader(), "/v1/config")["settings"], "and nothing was changed"


def test_a_group_is_reset_while_it_consumes(ready: LiveCluster) -> None:
    with connect(ready.servers) as mq:
        for number in range(5):
            mq.send("bad-input-reset", str(number).encode())
        with mq.consumer("bad-input-readers", "bad-input-reset", max_wait_s=60, follow=False) as consumer:
            first = [message.body for message in islice(consumer, 5)]
        assert sorted(first) == [b"0", b"1", b"2", b"3", b"4"]
        body = {"topic": "bad-input-reset", "to": "earliest", "dry_run": True}
        plan = ready.ask(ready.leader(), "/v1/groups/bad-input-readers/reset", "POST", body)
        assert plan["dry_run"]
        ready.ask(ready.leader(), "/v1/groups/bad-input-readers/reset", "POST", {**body, "dry_run": False})
        with mq.consumer("bad-input-readers", "bad-input-reset", max_wait_s=60, follow=False) as consumer:
            again = [message.body for message in islice(consumer, 5)]
        assert sorted(again) == sorted(first)


def test_a_change_counts_on_every_node_without_a_restart(ready: LiveCluster) -> None:
    pids = {node.id: node.pid for node in ready.nodes}
    before = {row["key"]: row["value"] for row in ready.ask(1, "/v1/config")["settings"]}
    key = "limits.message_bytes_max"
    try:
        changed = ready.ask(ready.leader(), "/v1/config", "PUT", {"values": {key: 1024}, "author": "test"})
        assert changed["changes"] == [{"key": key, "before": before[key], "after": 1024}]
        ready.wait_equal()
        for node in ready.nodes:
            assert ready.ask(node.id, "/v1/status")["limits"]["message_bytes_max"] == 1024
            with connect(f"127.0.0.1:{node.broker_port}") as mq, pytest.raises(RaftMQError, match="message_bytes_max"):
                mq.send(TOPIC, b"x" * 1025)
    finally:
        ready.ask(ready.leader(), "/v1/config", "PUT", {"values": {key: before[key]}})
    assert {node.id: node.pid for node in ready.nodes} == pids
