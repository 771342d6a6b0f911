"""A change of the members that meets another one is asked for again, for a while, and only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.members.checks import IN_PROGRESS
from raftmq.cli import run
from raftmq.commands.nodes import node as commands
from raftmq.local import membership, node_replacement, settled_changes
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.membership import LocalMembers
from raftmq.local.settled_changes import LONGEST_S, SETTLED_S, when_settled, while_passing
from raftmq_wire.errors import ExitCode

WHY = "node 4 becomes a voter: its entry 21 is not committed yet"


def unsettled() -> ApiRefusal:
    return ApiRefusal("refused", IN_PROGRESS, WHY, "raftmq node list", ExitCode.REFUSED)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses.append(pause_s)


def refusing(errors: list[ApiRefusal]) -> Callable[[], str]:
    """A change that fails with these errors, one after the other, and then is made."""

    def change() -> str:
        if errors:
            raise errors.pop(0)
        return "made"

    return change


def test_it_waits_until_the_other_change_is_committed_and_says_so_once() -> None:
    time, told = Time(), list[str]()
    errors = [unsettled() for _ in range(7)]
    assert when_settled(refusing(errors), told.append, time.sleep, lambda: time.now_s) == "made"
    assert told == [f"{IN_PROGRESS} ({WHY}); waiting until it is committed"]
    assert time.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, LONGEST_S, LONGEST_S]


def test_it_does_not_wait_for_ever_nor_for_another_refusal() -> None:
    time = Time()
    with pytest.raises(ApiRefusal, match=IN_PROGRESS):
        when_settled(refusing([unsettled() for _ in range(999)]), str, time.sleep, lambda: time.now_s)
    assert SETTLED_S <= time.now_s <= SETTLED_S + LONGEST_S
    other = ApiRefusal("refused", "without node 3 there would be no majority", "", "", ExitCode.REFUSED)
    again = Time()
    with pytest.raises(ApiRefusal, match="no majority"):
        when_settled(refusing([other]), str, again.sleep, lambda: again.now_s)
    assert again.pauses == []


def test_it_asks_again_while_the_refusal_passes() -> None:
    time = Time()
    passing = [ApiRefusal("failed", "the first Super is not committed yet", "", "", ExitCode.FAILED) for _ in range(3)]
    assert while_passing(refusing(list(passing)), time.sleep, lambda: time.now_s) == "made"
    assert time.pauses == [0.1, 0.2, 0.4]
    with pytest.raises(ApiRefusal, match="first Super"):
        while_passing(refusing(passing * 99), time.sleep, lambda: time.now_s)
    assert SETTLED_S <= time.now_s <= SETTLED_S + LONGEST_S + 1
    again = Time()
    with pytest.raises(ApiRefusal, match=IN_PROGRESS):
        while_passing(refusing([unsettled()]), again.sleep, lambda: again.now_s)
    assert again.pauses == []


class Cluster(AdminApi):
    """Nodes 1, 2 and 3, and 4, which joins; every change is refused twice, because another is in progress."""

    views: list[dict[str, Any]]
    done: list[str]
    refusals = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def get(self, path: str) -> dict[str, Any]:
        views = Cluster.views
        return views.pop(0) if len(views) > 1 else views[0]

    def _change(self, what: str) -> dict[str, Any]:
        Cluster.refusals += 1
        if Cluster.refusals % 3:
            raise unsettled()
        Cluster.done.append(what)
        return {"id": 3, "role": "removed", "index": 22, "voters": [1, 2, 4]}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._change(f"POST {path}")

    def delete(self, path: str) -> dict[str, Any]:
        return self._change(f"DELETE {path}")


def view(role: str = "voter", *, committed: bool = True, **of_four: Any) -> dict[str, Any]:
    known = {"host": "h", "port": 1, "admin": "h:2", "listeners": {}, "uuid": "u", "connected": True, "live": True}
    known |= {"state": "REPLICATE", "lag_entries": 0, "leader": False}
    voters = [{"id": node, "role": "voter", **known} for node in (1, 2, 3)]
    return {
        "members": [*voters, {"id": 4, "role": role, **known, **of_four}],
        "committed": committed,
        "cluster_id": "c",
        "leader": 1,
    }


@pytest.fixture
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster.views, Cluster.done, Cluster.refusals = [view()], [], 0
    for module in (commands, node_replacement, membership):
        monkeypatch.setattr(module, "AdminApi", Cluster)
    monkeypatch.setattr(settled_changes, "FIRST_S", 0.0)
    monkeypatch.setattr(node_replacement, "POLL_S", 0.0)


@pytest.mark.usefixtures("_cluster")
def test_a_replacement_waits_for_its_own_change_and_tells_each_stage_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "n4.toml"
    file.write_text('[node]\nid = 4\ndata_dir = "data"\n')
    absent = {"live": False, "connected": False}
    Cluster.views = [
        view("learner", live=None, lag_entries=None, state=None),
        *[view("learner", **absent)] * 9,
        *[view("learner", lag_entries=70)] * 9,
        *[view(committed=False)] * 9,
        view(),
    ]
    assert run(["node", "replace", "3", "--config", str(file), "--via", "http://h:2"]) == ExitCode.OK
    assert Cluster.done == ["DELETE /v1/members/3?below_three=true"]
    waiting = "node 4 is a learner; waiting until it has caught up and votes"
    silent = "the leader has no connection to it (does it run, and does the leader take its certificate and secret?)"
    assert capsys.readouterr().err.splitlines()[2:] == [
        f"{waiting}: {silent}",
        f"{waiting}: 70 entries behind",
        "node 4 becomes a voter; waiting until that is committed",
        "node 4 votes; removing node 3",
        f"{IN_PROGRESS} ({WHY}); waiting until it is committed",
    ]


@pytest.mark.usefixtures("_cluster")
@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        (["promote", "4"], "POST /v1/members/4/promote"),
        (["remove", "3", "--yes"], "DELETE /v1/members/3?below_three=true"),
    ],
)
def test_each_command_that_changes_the_members_waits(arguments: list[str], done: str) -> None:
    assert run(["node", *arguments, "--admin", "h:2"]) == ExitCode.OK
    assert Cluster.done == [done]


@pytest.mark.usefixtures("_cluster")
def test_a_local_cluster_waits_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(LocalMembers, "_api", Cluster())
    LocalMembers(LocalCluster(tmp_path))._take_out(3, "")
    assert Cluster.done == ["DELETE /v1/members/3"]
