"""Creates the first users of a run, as an operator at the leader does, and switches access control to enforce."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cluster.broker.access.user_admin import Asker
from cluster.broker.refusal import Refused
from jepsen_like.sim.machines.machine import CLUSTER, USER_KEY, Machine
from jepsen_like.sim.options import ROOT
from jepsen_like.sim.users import requesters
from jepsen_like.sim.users.attackers import NEIGHBOUR, OWN
from jepsen_like.sim.users.attackers import rules_of as attackers_rules
from jepsen_like.sim.users.user_clients import NAMES, first_secret, usual_rules

if TYPE_CHECKING:
    from cluster.broker.access.user_admin import Changed, UserAdmin

OPERATOR: Final = Asker("operator", "127.0.0.1")
_NONCE_BYTES: Final = 12
_ATTEMPTS_MAX: Final = 100
AdminStep = Callable[["UserAdmin", "Changed"], None]


def reveal(user_id: int, sealed: bytes, key: str) -> str:
    """Returns the decrypted secret of a user of the simulated cluster."""
    bound = b"raftmq user secret 1\0%b\0%d\0%b" % (str(CLUSTER).encode(), user_id, key.encode())
    return AESGCM(USER_KEY).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound).decode()


def steps() -> Iterator[AdminStep]:
    """Yields the changes that create the users with their rules and then switch to enforce. The caller repeats each
    change until it is done."""

    def create(users: UserAdmin, told: Changed, name: str, secret: str, *, is_super: bool) -> None:
        users.create(OPERATOR, name, secret, told, is_super=is_super, enabled=True)

    def change(users: UserAdmin, told: Changed, method: str, *arguments: Any) -> None:
        getattr(users, method)(OPERATOR, *arguments, told)

    yield partial(create, name=ROOT[0], secret=ROOT[1], is_super=True)
    for name, rules in first_rules().items():
        yield partial(create, name=name, secret=first_secret(name), is_super=False)
        yield lambda users, told, name=name, rules=rules: change(users, told, "set_rules", name, rules)  # type: ignore[misc]
    yield lambda users, told: change(users, told, "set_mode", "enforce")


def first_rules() -> dict[str, list[list[object]]]:
    """Returns user -> first rules, for all users except the Super."""
    attackers = {name: attackers_rules(name) for name in (OWN, NEIGHBOUR)}
    return {**{name: usual_rules() for name in NAMES}, requesters.NAME: requesters.rules(), **attackers}


def create_all(machine: Machine, pass_time: Callable[[float], None]) -> None:
    """Makes the changes of `steps` at the leading node on `machine`, while `pass_time` lets virtual seconds pass.
    Raises SystemExit if the node keeps refusing one.
    """
    for step in steps():
        done: list[bool] = []
        for _ in range(_ATTEMPTS_MAX):
            if done:
                break
            attempt(machine, step, done)
            pass_time(1.0)
        else:
            raise SystemExit("the node refuses to create users")


def attempt(machine: Machine, step: AdminStep, done: list[bool]) -> None:
    """Asks the machine's node to make a change; appends to `done` when the change is made. A refusal is ignored."""
    node, process = machine.node, machine.process
    assert node is not None
    assert process is not None

    def told(refused: Refused | None) -> None:
        if refused is None:
            done.append(True)

    def ask() -> None:
        try:
            step(node.serving.broker.user_admin, told)
        except Refused:
            return  # the node does not lead, or the cluster's level has no users yet

    process.run(ask)
