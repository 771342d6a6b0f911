"""`raftmq alarm ack`: each group of brokers has events of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cluster.config.local_layout import ClusterFile, NodeRecord, write_cluster
from raftmq import cli
from raftmq.local.http.admin_http import ApiRefusal
from raftmq_wire.errors import ExitCode
from tests.support.answering_api import MakeApi

PATH = "/v1/alarms/unsafe_recovered/ack"
NONE = ApiRefusal("not_found", "there is no event behind it any more", "", "raftmq alarm list", ExitCode.REFUSED)
BUSY = ApiRefusal("no_leader", "no leader", "", "raftmq status", ExitCode.REFUSED)


@pytest.fixture
def groups(
    make_api: MakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Mapping[int, str | ApiRefusal]], None]:
    """Makes a local cluster of these groups, with the event that each acknowledges, or its refusal."""
    monkeypatch.setenv("RAFTMQ_DATA", str(tmp_path))

    def answer(told: Mapping[int, str | ApiRefusal]) -> None:
        apis = {
            group: make_api(
                {"POST /v1/alarms/unsafe_recovered/ack": {"event": event} if isinstance(event, str) else event}
            )
            for group, event in told.items()
        }
        nodes = [NodeRecord(1, None, 1, 2, 3, api.port, "", group=group) for group, api in apis.items()]
        write_cluster(tmp_path, ClusterFile(nodes))

    return answer


def test_the_groups_that_have_an_event_acknowledge_it(
    groups: Callable[[Mapping[int, str | ApiRefusal]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    groups({1: NONE, 2: "node 2/3 was recovered"})
    assert cli.run(["alarm", "ack", "unsafe_recovered", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == [{"group": 2, "event": "node 2/3 was recovered"}]
    assert cli.run(["alarm", "ack", "unsafe_recovered"]) == 0
    assert capsys.readouterr().out == "acknowledged: group 2: node 2/3 was recovered\n"


def test_no_event_in_any_group_is_a_refusal_and_another_one_names_its_group(
    groups: Callable[[Mapping[int, str | ApiRefusal]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    groups({1: NONE, 2: NONE})
    assert cli.run(["alarm", "ack", "unsafe_recovered"]) == ExitCode.REFUSED
    assert capsys.readouterr().err.startswith(NONE.what)
    groups({1: "an event", 2: BUSY})
    assert cli.run(["alarm", "ack", "unsafe_recovered"]) == ExitCode.UNKNOWN, "the first group's event is acknowledged"
    err = capsys.readouterr().err
    assert err.startswith("group 2: no leader")
    assert "done before: group 1" in err
