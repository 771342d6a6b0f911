"""`raftmq alarm ack`: each group of brokers has events of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftmq import cli
from raftmq.commands import alarm
from raftmq.local.http import all_groups
from raftmq.local.http.admin_http import ApiRefusal
from raftmq_wire.errors import ExitCode

NONE = ApiRefusal("not_found", "there is no event behind it any more", "", "raftmq alarm list", ExitCode.REFUSED)
BUSY = ApiRefusal("no_leader", "no leader", "", "raftmq status", ExitCode.REFUSED)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> dict[int, str | ApiRefusal]:
    """Group -> the event that it acknowledges, or its refusal."""
    known: dict[int, str | ApiRefusal] = {}

    class Api:
        def __init__(self, addresses: list[str], look: str) -> None:
            self.told = known[int(addresses[0])]

        def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            assert path == "/v1/alarms/unsafe_recovered/ack"
            if isinstance(self.told, ApiRefusal):
                raise self.told
            return {"event": self.told}

    monkeypatch.setattr(all_groups, "AdminApi", Api)
    monkeypatch.setattr(alarm, "all_groups", lambda admin, data: {group: [str(group)] for group in known})
    return known


def test_the_groups_that_have_an_event_acknowledge_it(
    groups: dict[int, str | ApiRefusal], capsys: pytest.CaptureFixture[str]
) -> None:
    groups |= {1: NONE, 2: "node 2/3 was recovered"}
    assert cli.run(["alarm", "ack", "unsafe_recovered", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == [{"group": 2, "event": "node 2/3 was recovered"}]
    assert cli.run(["alarm", "ack", "unsafe_recovered"]) == 0
    assert capsys.readouterr().out == "acknowledged: group 2: node 2/3 was recovered\n"


def test_no_event_in_any_group_is_a_refusal_and_another_one_names_its_group(
    groups: dict[int, str | ApiRefusal], capsys: pytest.CaptureFixture[str]
) -> None:
    groups |= {1: NONE, 2: NONE}
    assert cli.run(["alarm", "ack", "unsafe_recovered"]) == ExitCode.REFUSED
    assert capsys.readouterr().err.startswith(NONE.what)
    groups |= {1: "an event", 2: BUSY}
    assert cli.run(["alarm", "ack", "unsafe_recovered"]) == ExitCode.REFUSED
    assert capsys.readouterr().err.startswith("group 2: no leader")
