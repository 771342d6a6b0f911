"""/v1/registry, and the lines of `raftmq registry status`."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.placement.registry_state import RegistryProcess, RegistryState
from raftmq.commands.nodes import registry

THREE = [RegistryProcess(number, f"10.0.0.{number}:9867", number != 2) for number in (1, 2, 3)]


async def told(client: Any) -> Any:
    answer = await client.get("/v1/registry")
    assert answer.status == 200
    return await answer.json()


async def test_a_cluster_without_a_registry_lacks_nothing(client: Any) -> None:
    assert await told(client) == {"node": 1, "group": 1, "processes": [], "has_majority": True}


@pytest.mark.parametrize(("away", "has_majority"), [((2,), True), ((2, 3), False), ((1, 2, 3), False), ((), True)])
async def test_a_majority_is_more_than_half(client: Any, node: Any, away: tuple[int, ...], has_majority: bool) -> None:
    node.registry_processes = [each._replace(reached=each.id not in away) for each in THREE]
    answer = await told(client)
    assert answer["has_majority"] == has_majority
    assert [each["reached"] for each in answer["processes"]] == [each.id not in away for each in THREE]
    assert answer["processes"][0]["address"] == "10.0.0.1:9867"


async def test_a_process_that_is_reached_says_how_it_is(client: Any, node: Any) -> None:
    state = RegistryState(
        ready=True,
        missing=[2],
        living=4,
        has_majority=True,
        leader=0,
        operations=7,
        entries=3,
        accepted_ms=-1,
        child_starts=2,
    )
    node.registry_processes = [THREE[0]._replace(state=state), THREE[1]]
    first, second = (await told(client))["processes"]
    assert first == {
        "id": 1,
        "address": "10.0.0.1:9867",
        "reached": True,
        "ready": True,
        "missing": [2],
        "living": 4,
        "accepts": True,
        "leader": None,
        "operations": 7,
        "journal_operations": 3,
        "accepted_ms": None,
        "child_restarts": 1,
    }
    assert {name: each for name, each in second.items() if each is not None} == {
        "id": 2,
        "address": "10.0.0.2:9867",
        "reached": False,
    }


def test_lines_name_the_node_of_each_group(capsys: pytest.CaptureFixture[str]) -> None:
    said = {"ready": True, "missing": [], "living": 4, "accepts": False, "leader": 2}
    other = said | {"missing": [2, 7], "accepts": True}
    processes = [each._asdict() | more for each, more in zip(THREE, (said, {}, other), strict=True)]
    registry.show_reached(
        {
            1: {"node": 3, "processes": processes, "has_majority": True},
            2: {"node": 1, "processes": processes[1:2], "has_majority": False},
        }
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if "10.0.0" in line] == [
        ["3", "1", "10.0.0.1:9867", "yes", "yes", "4", "no", "2"],
        ["3", "2", "10.0.0.2:9867", "no", "-", "-", "-", "-"],
        ["3", "3", "10.0.0.3:9867", "yes", "without", "2,", "7", "4", "yes", "2"],
        ["2/1", "2", "10.0.0.2:9867", "no", "-", "-", "-", "-"],
    ]
    assert lines[-1] == "node 2/1 reaches no majority of the registry"
    registry.show_reached({1: {"node": 3, "processes": [], "has_majority": True}})
    assert capsys.readouterr().out == "the cluster has no registry: cluster.registry is empty\n"
