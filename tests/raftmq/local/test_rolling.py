"""Restarting the nodes one by one: whom, in which order, and when not at all."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from raftmq.local import stop_check
from raftmq.local.http.admin_http import ApiRefusal
from raftmq.local.rolling_restart import RollingRestart, by_command
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.answering_api import Asked, MakeApi

ADDRESSES = {1: "127.0.0.1:1", 2: "127.0.0.1:2", 3: "127.0.0.1:3"}


class Cluster:
    """The nodes' HTTP APIs. Node 2 leads until it is restarted or drained."""

    def __init__(self, make_api: MakeApi) -> None:
        self.leader = 2
        self.done: list[str] = []
        self.answers: list[dict[str, Any] | None] = []
        self.started_s: dict[int, float] = {}
        self.returns = True
        self.addresses = {node: make_api(self._answers_of(node)).address for node in (1, 2, 3)}

    def _answers_of(self, asked: int) -> dict[str, Any]:
        about_all: dict[str, Any] = {f"GET /v1/members/{node}/can-stop": partial(self.ask, node) for node in (1, 2, 3)}
        about_all |= {f"POST /v1/members/{node}/drain": partial(self.drain, node) for node in (1, 2, 3)}
        return about_all | {
            "GET /v1/members": lambda _: {"leader": self.leader},
            "GET /v1/status": lambda _: self.status(asked),
            "GET /v1/health/ready": {"ready": True},
        }

    def ask(self, node: int, _: Asked) -> Any:
        self.done.append(f"ask {node}")
        return self.answers.pop(0) if self.answers else allowed()

    def drain(self, node: int, asked: Asked) -> dict[str, Any]:
        assert asked.body == {"drain": True}
        self.done.append(f"drain {node}")
        self.leader = 3 if node == 2 else 2
        return {}

    def restart(self, node: int) -> None:
        self.done.append(f"restart {node}")
        self.started_s[node] = time.monotonic()

    def status(self, node: int) -> dict[str, Any]:
        started = self.started_s.get(node) if self.returns else None
        return {"term": 1, "uptime_ms": 3_600_000 if started is None else 1000 * (time.monotonic() - started)}

    def rolling(self, wait_s: float = 5.0) -> RollingRestart:
        return RollingRestart(self.addresses, self.restart, wait_s=wait_s)


@pytest.fixture
def cluster(make_api: MakeApi) -> Cluster:
    return Cluster(make_api)


def allowed() -> dict[str, Any]:
    return {"allowed": True, "passes": False, "reasons": [], "do_now": ""}


def refused(*, passes: bool) -> dict[str, Any]:
    return {
        "allowed": False,
        "passes": passes,
        "reasons": ["node 3 is 900 entries behind"],
        "do_now": "raftmq node list",
    }


def test_the_leader_is_last_and_drained_first(cluster: Cluster) -> None:
    assert [each.node for each in cluster.rolling().run([1, 2, 3])] == [1, 3, 2]
    assert cluster.done == ["ask 1", "restart 1", "ask 3", "restart 3", "ask 2", "drain 2", "restart 2"]


def test_it_waits_for_a_copy_that_catches_up(cluster: Cluster) -> None:
    cluster.answers = [refused(passes=True), allowed()]
    cluster.rolling().run([1])
    assert cluster.done == ["ask 1", "ask 1", "restart 1"]


@pytest.mark.parametrize("answer", [refused(passes=False), None])
def test_it_stops_where_a_node_may_not_be_stopped(cluster: Cluster, answer: dict[str, Any] | None) -> None:
    cluster.answers = [allowed(), answer]
    with pytest.raises(LocalError) as error:
        cluster.rolling().run([1, 2, 3])
    assert error.value.exit_code is ExitCode.REFUSED
    assert cluster.done == ["ask 1", "restart 1", "ask 3"]


def test_a_node_that_does_not_return_ends_it(cluster: Cluster) -> None:
    cluster.returns = False
    with pytest.raises(LocalError, match="node 1 is not back"):
        cluster.rolling(wait_s=0.05).run([1, 3])
    assert "restart 3" not in cluster.done


def test_a_command_knows_which_node(tmp_path: Any) -> None:
    by_command(f'echo "$RAFTMQ_NODE $RAFTMQ_HOST $RAFTMQ_NODE_ADMIN" > {tmp_path}/said', ADDRESSES)(3)
    assert (tmp_path / "said").read_text() == "3 127.0.0.1 127.0.0.1:3\n"
    with pytest.raises(LocalError, match="the command for node 2 failed"):
        by_command("exit 3", ADDRESSES)(2)


def test_without_a_leader_nobody_can_say(make_api: MakeApi) -> None:
    refusal = ApiRefusal("no_leader", "no leader is known", "", "", ExitCode.REFUSED)
    api = make_api({"GET /v1/members/1/can-stop": refusal})
    assert stop_check.ask([api.address], 1) is None
    assert stop_check.require([api.address], 1, 0.0) is None
    assert len(api.asked) == 2
