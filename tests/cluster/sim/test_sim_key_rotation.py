"""Another key for the secrets of users: on nodes that are killed at each step, with users who go on sending."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.broker.access.secrets import USERS_PER_STEP
from cluster.broker.refusal import Refused
from cluster.runtime.key_file import key_id
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import ROTATION_LEVEL
from tests.cluster.sim.test_sim_users import parked
from tests.support.sim_cluster import SimCluster
from tests.support.sim_users import OPERATOR, SHOP, answer, ask_admin, begin, send, settle

OLD, NEW = b"k" * 32, b"n" * 32
OLD_ID, NEW_ID = (key_id(key).hex() for key in (OLD, NEW))
USERS = 2 * USERS_PER_STEP + 5


class Rotated:
    """A cluster, and the key file that all its nodes read."""

    def __init__(self, sim: SimCluster, path: Path) -> None:
        self.sim, self.path = sim, path

    def write(self, *keys: bytes) -> None:
        """Puts these keys into the file, and has every node read it."""
        self.path.write_bytes(b"".join(base64.b64encode(key) + b"\n" for key in keys))
        self.path.chmod(0o600)
        for node in self.sim.running:
            node.run(node.running.serving.broker.secrets.look)

    def is_done(self) -> bool:
        return all(node.state.access.keys_in_use == {NEW_ID} for node in self.sim.running)


@pytest.fixture
def rotated(tmp_path: Path) -> Iterator[Rotated]:
    path = tmp_path / "auth.key"
    path.write_bytes(base64.b64encode(OLD) + b"\n")
    path.chmod(0o600)
    overrides: dict[str, Any] = {"auth.key_file": str(path)}
    with SimCluster(11, **overrides) as sim:
        sim.create_topic("T")
        begin(sim)
        sim.propose(sim.leader(), Finalize(ROTATION_LEVEL))
        for number in range(USERS):
            name = f"user-{number}"
            assert ask_admin(sim, "create", name, f"secret-of-{name}", is_super=False, enabled=True) is None
        settle(sim)
        yield Rotated(sim, path)


def test_everybody_keeps_the_secret_the_rights_and_the_connection(rotated: Rotated) -> None:
    sim = rotated.sim
    follower = sim.followers()[0]
    waiting, path = parked(sim, follower), sim.leader().connect()
    assert ask_admin(sim, "set_rules", "shop", [[1, "Topic:T", ["Pub", "Sub"], [], True]]) is None
    path.ask(send(SHOP, 1))
    assert answer(sim, path, 1) == 0
    with pytest.raises(Refused, match="does not have the key"):
        ask_admin(sim, "rotate_key", NEW_ID)
    rotated.write(NEW, OLD)
    assert ask_admin(sim, "rotate_key", NEW_ID) is None
    sim.loop.run_until(rotated.is_done, 10, "every secret is encrypted with the new key")
    rotated.write(NEW)
    sim.loop.run_for(1.0)
    for opaque, node in enumerate(sim.running, 2):
        assert not node.running.serving.broker.secrets.problem
        again = node.connect()
        again.ask(send(SHOP, opaque))
        assert answer(sim, again, opaque) == 0
    path.ask(send(SHOP, 9))
    assert answer(sim, path, 9) == 0, "its connection went on"
    assert not path.closed
    assert not waiting.closed
    sim.settle()
    sim.check_equal()


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("step", range(4))
def test_another_leader_goes_on_where_one_was_killed(rotated: Rotated, step: int, power: bool) -> None:
    sim = rotated.sim
    rotated.write(NEW, OLD)
    told: list[Refused | None] = []
    leader = sim.leader()
    leader.run(lambda: leader.running.serving.broker.user_admin.rotate_key(OPERATOR, NEW_ID, told.append))
    if step:
        wanted = USERS + 2 - (step - 1) * USERS_PER_STEP
        access = leader.state.access
        sim.loop.run_until(
            lambda: access.key_id == NEW_ID and sum(u.key_id == OLD_ID for u in access.by_id.values()) <= wanted,
            10,
            f"step {step}",
        )
    leader.kill(power=power)
    sim.loop.run_for(0.2)
    leader.start()
    after = sim.leader()
    if after.state.access.key_id != NEW_ID:  # it was killed before anybody had heard
        assert step == 0
        assert ask_admin(sim, "rotate_key", NEW_ID) is None
    sim.loop.run_until(rotated.is_done, 30, "every secret is encrypted with the new key")
    rotated.write(NEW)
    path = sim.leader().connect()
    path.ask(send(SHOP, 1))
    assert answer(sim, path, 1) == 0
    sim.settle()
    sim.check_equal()


def test_without_a_key_in_use_no_signature_is_taken_and_none_is_called_wrong(rotated: Rotated) -> None:
    sim = rotated.sim
    rotated.write(NEW, OLD)
    leader = sim.leader()
    leader.apply.hold()
    told: list[Refused | None] = []
    leader.run(lambda: leader.running.serving.broker.user_admin.rotate_key(OPERATOR, NEW_ID, told.append))
    leader.apply.release()
    sim.loop.run_until(lambda: leader.state.access.key_id == NEW_ID, 10)
    rotated.write(OLD)
    path = leader.connect()
    path.ask(send(SHOP, 1))
    assert answer(sim, path, 1) == 14
    assert NEW_ID in path.replies[1][0][1]
    rotated.write(NEW, OLD)
    sim.loop.run_until(rotated.is_done, 30, "it goes on")


def test_a_secret_that_changed_meanwhile_stays(rotated: Rotated) -> None:
    sim = rotated.sim
    rotated.write(NEW, OLD)
    assert ask_admin(sim, "rotate_key", NEW_ID) is None
    leader, told = sim.leader(), list[Refused | None]()
    leader.run(
        lambda: leader.running.serving.broker.user_admin.change(OPERATOR, "shop", told.append, secret="another-one")
    )
    sim.loop.run_until(rotated.is_done, 10, "every secret is encrypted with the new key")
    assert told == [None]
    path = sim.leader().connect()
    path.ask(send(SHOP, 1))
    assert answer(sim, path, 1) == 16
