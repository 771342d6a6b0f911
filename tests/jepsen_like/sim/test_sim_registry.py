"""The registry in the simulated world: the product passes, the model of pysyncobj is like the product's replicas, and
what is broken is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

from cluster.placement.group_map import Epoch
from cluster.registry.records import Records
from jepsen_like.sim.groups.map_check import MapCheck
from jepsen_like.sim.options import REGISTRY_FROM, draw
from jepsen_like.sim.registry.registry_faults import KINDS
from jepsen_like.sim.registry.registry_machine import FOREIGN
from jepsen_like.sim.registry.replicas import Replicas
from jepsen_like.sim.scripted import ScriptedWorld
from tests.support.pace import at_most
from tests.support.registry_table import CLUSTER, Outcome, Step, outcomes

ROOT = Path(__file__).parents[3]
BEGIN = "nodes 3 second=1 groups=1 registry=1\nlead 1\n"
FAULTS = "".join(
    f"registry copy\nregistry {kind.replace(' ', '-')} {numbers} seconds=1\n"
    for kind, numbers in zip(KINDS, ("1 2 3", "1 2 3", "2", "1 2", "3", "1", "1 2 3"), strict=True)
)
STORY = BEGIN + "second 2\n" + FAULTS + "kill 1@2\nwait 1\nregistry lies 2 seconds=1\nstart 1@2\nsettle\n"


def played(script: str) -> tuple[ScriptedWorld, list[str], str]:
    """Plays a script; returns the world, the checkers that reported, and the hash of all events."""
    stage = ScriptedWorld(script)
    result = stage.run()
    return stage, [violation.checker for violation in result.violations], result.hash


def test_half_of_the_seeds_with_nodes_of_a_second_group_have_a_registry() -> None:
    drawn = [draw(seed) for seed in range(REGISTRY_FROM, REGISTRY_FROM + 200)]
    assert not any(options.registry for options in drawn if not options.second)
    shares = [options.registry for options in drawn if options.second]
    assert 0.25 < sum(shares) / len(shares) < 0.75
    assert not any(draw(seed).registry for seed in range(REGISTRY_FROM - 200, REGISTRY_FROM))


def test_the_model_of_the_replicas_is_like_those_of_the_product(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.registry_table", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=at_most(60), check=False)
    assert done.returncode == 0, done.stderr
    model, away = Replicas(CLUSTER, (1, 2, 3)), set[int]()
    model.joined = lambda one, other: not {one, other} & away

    def arrange(step: Step) -> None:
        away.clear()
        away.update(step.away)

    def apply(step: Step, operation: bytes) -> Outcome:
        answer = model.apply(step.at, operation)
        return None if answer is None else (answer[0], answer[1].hex())

    found = outcomes(model.disks.__getitem__, apply, arrange)
    assert json.loads(json.dumps(found)) == json.loads(done.stdout)


def test_a_replica_has_what_a_majority_accepted_once_it_hears_of_it() -> None:
    from tests.support.registry_table import NEWEST, groups, record

    model = Replicas(CLUSTER, (1, 2, 3))
    runs = {1, 2}
    model.runs = runs.__contains__
    assert model.apply(1, groups(NEWEST)) is not None
    assert model.disks[3].view.groups == {}
    copy = model.disks[3].dump()
    runs.add(3)
    assert model.apply(2, groups(record(2, 1, 0, 1))) is not None
    assert set(model.disks[3].view.groups) == {1, 2}
    model.put_back(3, copy)
    assert model.disks[3].view.groups == {}
    runs.remove(1)
    runs.remove(2)
    assert model.apply(3, groups(NEWEST)) is None, "one of three is no majority"


def test_all_faults_of_the_registry_and_a_run_that_repeats_exactly() -> None:
    stage, found, digest = played(STORY)
    assert found == []
    second = stage.second
    assert second is not None
    assert second.registry is not None
    assert set(second.registry.faults.applied) == set(KINDS)
    assert sum(client.from_registry for client in second.clients) > 5
    assert second.registry.replicas.accepted > 10
    assert played(STORY)[2] == digest


def test_what_has_retired_does_not_come_back_with_an_old_copy() -> None:
    script = BEGIN.replace("registry=1", "registry=1 retires=1")
    stage, found, _ = played(script + "wait 3\nregistry copy\nretire\nregistry returns\n")
    assert found == []
    assert stage.second is not None
    assert stage.second.registry is not None
    assert 2 in stage.second.registry.replicas.disks[1].view.groups, "the registry deletes nothing"


def test_the_registry_reports_a_process_whose_map_goes_back() -> None:
    stage = ScriptedWorld(BEGIN + "wait 4\nkill 1@2\nwait 4\n")
    assert stage.second is not None
    registry = stage.second.registry
    assert registry is not None

    def forget() -> None:
        assert registry.machines[1].server is not None
        view = registry.machines[1].server.records.view
        groups = {number: replace(record, epoch=Epoch(0, 0)) for number, record in view.groups.items()}
        registry.machines[1].server.records.view = view._replace(groups=groups)

    stage.loop.call_outside(9.3, forget)  # between two frames with whole maps
    assert {violation.checker for violation in stage.run().violations} == {"registry"}


def test_the_map_check_reports_groups_that_are_lost_or_foreign() -> None:
    told: list[str] = []
    stage = ScriptedWorld(BEGIN + "wait 3\n")
    check = MapCheck(lambda checker, what: told.append(what), {1: {}, 2: {}})

    def look() -> None:
        machine = stage.machines[1]  # type: ignore[index]
        assert machine.node is not None
        known = machine.node.serving.other_groups
        check.look(machine)
        whole = known.others
        known.others = lambda: {FOREIGN: whole()[2]}  # type: ignore[method-assign]
        check.look(machine)
        known.others = whole  # type: ignore[method-assign]

    stage.loop.call_outside(4.0, look)
    assert stage.run().violations == ()
    assert [what.split(" has ")[1] for what in told] == ["lost group 2", "group 9, which is not of this cluster"]


def test_records_of_the_simulator_are_those_of_the_product() -> None:
    assert isinstance(Replicas(CLUSTER, (1,)).disks[1], Records)
