"""Restarting the nodes one by one: whom, in which order, and when not at all."""

from __future__ import annotations

import time
from typing import Any

import pytest

from raftmq.local import rolling_restart, stop_check
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.rolling_restart import RollingRestart, by_command
from raftmq_wire.errors import ExitCode, LocalError

ADDRESSES = {1: "127.0.0.1:1", 2: "127.0.0.1:2", 3: "127.0.0.1:3"}


class FakeCluster:
    """Node 2 leads until it is restarted or drained."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leader = 2
        self.done: list[str] = []
        self.answers: list[dict[str, Any] | None] = []
        self.started_s: dict[int, float] = {}
        self.returns = True
        monkeypatch.setattr(stop_check, "POLL_S", 0.001)
        monkeypatch.setattr(rolling_restart, "POLL_S", 0.001)
        monkeypatch.setattr(stop_check, "ask", self.ask)
        monkeypatch.setattr(rolling_restart, "drain_node", self.drain)
        monkeypatch.setattr(rolling_restart, "fetch_status", self.status)
        monkeypatch.setattr(rolling_restart, "fetch_ready", lambda address: True)
        monkeypatch.setattr(rolling_restart.RollingRestart, "_leader", lambda _: self.leader)

    def ask(self, addresses: list[str], node: int) -> dict[str, Any] | None:
        assert addresses == list(ADDRESSES.values())
        self.done.append(f"ask {node}")
        return self.answers.pop(0) if self.answers else allowed()

    def drain(self, node: int, addresses: list[str]) -> None:
        self.done.append(f"drain {node}")
        self.leader = 3 if node == 2 else 2

    def restart(self, node: int) -> None:
        self.done.append(f"restart {node}")
        self.started_s[node] = time.monotonic()

    def status(self, address: str, timeout_s: float) -> dict[str, Any]:
        started = self.started_s.get(int(address.rpartition(":")[2])) if self.returns else None
        return {"uptime_ms": 3_600_000 if started is None else 1000 * (time.monotonic() - started)}

    def rolling(self, wait_s: float = 5.0) -> RollingRestart:
        return RollingRestart(ADDRESSES, self.restart, wait_s=wait_s)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return FakeCluster(monkeypatch)


def allowed() -> dict[str, Any]:
    return {"allowed": True, "passes": False, "reasons": [], "do_now": ""}


def refused(*, passes: bool) -> dict[str, Any]:
    return {
        "allowed": False,
        "passes": passes,
        "reasons": ["node 3 is 900 entries behind"],
        "do_now": "raftmq node list",
    }


def test_the_leader_is_last_and_drained_first(cluster: FakeCluster) -> None:
    assert [each.node for each in cluster.rolling().run([1, 2, 3])] == [1, 3, 2]
    assert cluster.done == ["ask 1", "restart 1", "ask 3", "restart 3", "ask 2", "drain 2", "restart 2"]


def test_it_waits_for_a_copy_that_catches_up(cluster: FakeCluster) -> None:
    cluster.answers = [refused(passes=True), refused(passes=True), allowed()]
    cluster.rolling().run([1])
    assert cluster.done == ["ask 1", "ask 1", "ask 1", "restart 1"]


@pytest.mark.parametrize("answer", [refused(passes=False), None])
def test_it_stops_where_a_node_may_not_be_stopped(cluster: FakeCluster, answer: dict[str, Any] | None) -> None:
    cluster.answers = [allowed(), answer]
    with pytest.raises(LocalError) as error:
        cluster.rolling().run([1, 2, 3])
    assert error.value.exit_code is ExitCode.REFUSED
    assert cluster.done == ["ask 1", "restart 1", "ask 3"]


def test_a_node_that_does_not_return_ends_it(cluster: FakeCluster) -> None:
    cluster.returns = False
    with pytest.raises(LocalError, match="node 1 is not back"):
        cluster.rolling(wait_s=0.05).run([1, 3])
    assert "restart 3" not in cluster.done


def test_a_command_knows_which_node(tmp_path: Any) -> None:
    by_command(f'echo "$RAFTMQ_NODE $RAFTMQ_HOST $RAFTMQ_NODE_ADMIN" > {tmp_path}/said', ADDRESSES)(3)
    assert (tmp_path / "said").read_text() == "3 127.0.0.1 127.0.0.1:3\n"
    with pytest.raises(LocalError, match="the command for node 2 failed"):
        by_command("exit 3", ADDRESSES)(2)


def test_without_a_leader_nobody_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def local(api: Any, path: str) -> Any:
        raise ApiRefusal("no_leader", "no leader is known", "", "", ExitCode.REFUSED)

    monkeypatch.setattr(AdminApi, "local", local)
    assert stop_check.ask(["127.0.0.1:1"], 1) is None
    assert stop_check.require(["127.0.0.1:1"], 1, 0.0) is None
