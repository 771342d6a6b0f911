"""Users and rules in the simulator: a run with them, and the model by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.broker.pulls.long_poll import LongPolls
from cluster.node.serving import Serving
from cluster.remoting.admission import Admission
from jepsen_like.sim.options import USERS_FROM, draw
from jepsen_like.sim.scripted import ScriptedWorld
from jepsen_like.sim.users.access_check import AccessCheck, Request
from jepsen_like.sim.users.access_model import AccessModel, Want, Who, is_allowed
from jepsen_like.sim.users.revocation import NAME, PARKED_S
from raftlog.types import Entry, EntryType, NodeId
from statemachine.access import access_decision
from statemachine.access.access_commands import ChangeUser, CreateUser, Origin, RemoveUser, SetRules
from statemachine.access.rules import RuleRow
from statemachine.commands import Command, pack

PUB = (Want("Topic", "users-a", ("Pub",)),)
HERE = "10.0.1.7"
ORIGIN = Origin(0, "root", "")
CALM = "nodes 3 users=1\nlead 1\nusers 2 send/ann pull/bob\nwait 1\nusers 1 clear/ann\nusers 2 send/ann\nsettle\n"
WORK = "nodes 3 users=1\nlead 1\ndemand 3\nkill 1\nwait 2\nstart 1\nsettle\n"


def model(*commands: Command) -> AccessModel:
    made = AccessModel(lambda user_id, secret, key: secret.decode())
    for index, command in enumerate(commands, 1):
        made.learn(index, [command])
    return made


def ann(user_id: int = 1) -> Command:
    return CreateUser(ORIGIN, user_id, "ann", False, True, b"first", "key")


def rules(*rows: RuleRow) -> Command:
    return SetRules(ORIGIN, 1, rows)


def may(made: AccessModel, secret: str = "first") -> bool:
    return is_allowed(made.newest, Who("ann", secret, HERE), PUB)


@pytest.mark.parametrize(
    ("rows", "allowed"),
    [
        ([(1, "Topic:users-a", ["Pub"], [], True)], True),
        ([(1, "Topic:users-a", ["Sub"], [], True)], False),
        ([(1, "Group:users-a", ["Pub"], [], True)], False),
        ([(1, "Topic:users*", ["Pub"], [], True), (1, "Topic:users-*", ["Pub"], [], False)], False),
        ([(1, "Topic:users*", ["Pub"], [], False), (1, "Topic:users-*", ["All"], [], True)], True),
        ([(1, "*", ["All"], [], True), (1, "Topic:*", ["Pub"], [], False)], False),
        ([(1, "*", ["All"], [], False), (2, "Topic:users-a", ["Pub"], [], True)], False),
        ([(1, "*", ["All"], ["10.9.0.0/16"], False), (2, "Topic:users-a", ["Pub"], ["10.0.1.0/24"], True)], True),
    ],
)
def test_the_model_and_the_product_judge_alike(rows: list[RuleRow], allowed: bool) -> None:
    from statemachine.access.rules import Action, Kind, Need, parse_rule
    from statemachine.access.user_rows import User

    assert may(model(ann(), rules(*rows))) is allowed
    user = User(1, "ann", False, True, b"", "key", 0, 1, tuple([parse_rule(row) for row in rows]))
    need = Need(Kind.TOPIC, "users-a", (Action.PUB,))
    assert isinstance(access_decision.judge(user, HERE, [need]), access_decision.Allowed) is allowed


def test_the_model_follows_each_change() -> None:
    everything: RuleRow = (1, "*", ["All"], [], True)
    made = model(ann(), rules(everything))
    assert may(made)
    made.learn(3, [ChangeUser(ORIGIN, 1, {"secret": [b"second", "key"]})])
    assert not may(made)
    assert may(made, "second")
    made.learn(4, [ChangeUser(ORIGIN, 1, {"enabled": False})])
    assert not may(made, "second")
    made.learn(5, [RemoveUser(ORIGIN, 1), ann(1)])
    assert "ann" not in made.newest, "an id is given once"
    made.learn(6, [ann(2)])
    assert not may(made), "no rule came along"
    assert [len(users) for users in made.states(5, 6)] == [0, 1]
    assert made.changes == 6


def test_a_script_with_users_is_clean() -> None:
    stage = ScriptedWorld(CALM)
    assert stage.users is not None
    check = stage.users.check
    assert stage.run().violations == ()
    assert check.judged == {"passed": 2, "denied": 1}


@pytest.mark.ci
def test_users_work_across_a_killed_leader() -> None:
    stage = ScriptedWorld(WORK)
    assert stage.users is not None
    check = stage.users.check
    assert stage.run().violations == ()
    assert min(check.judged.values()) > 20, "some were let through, and some denied"
    assert check.model.changes > 10


def test_what_a_node_applies_as_it_opens_is_learned_from_its_log() -> None:
    """Seed 130787260: entry 2 was applied by a node that opened, which tells nobody."""
    commands: Any = {1: [ann()], 2: [rules((1, "*", ["All"], [], True))], 3: [RemoveUser(ORIGIN, 1)]}
    entries = {
        index: SimpleNamespace(index=index, type=EntryType.COMMAND, payload=pack(found))
        for index, found in commands.items()
    }
    log = SimpleNamespace(read_entries=lambda first, end, size: [entries[index] for index in range(first, end)])
    check = AccessCheck(
        lambda checker, what: None, lambda: 0.0, lambda _: NodeId(1), lambda user_id, secret, key: secret.decode()
    )
    machine: Any = SimpleNamespace(
        node_id=NodeId(1),
        node=SimpleNamespace(
            state=SimpleNamespace(applied=SimpleNamespace(index=3)),
            storage=SimpleNamespace(directory=SimpleNamespace(log=log)),
        ),
    )
    check.applied(machine, [[cast(Entry, entries[1])]])
    check.applied(machine, [[cast(Entry, entries[3])]])
    wants = Who("ann", "first", HERE), PUB
    assert [is_allowed(users, *wants) for users in check.model.states(1, 3)] == [False, True, False]


class TwoNodes:
    """A check that is told by hand what two nodes apply. Node 2 leads, and node 1 asks it before it denies."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._told: list[int] = []
        self.check = AccessCheck(
            lambda checker, what: self.found.append(what),
            now=lambda: float(len(self._told)),
            leader_of=lambda _: NodeId(2),
            reveal=lambda user_id, secret, key: secret.decode(),
        )
        self.first, self.leader = self._machine(1), self._machine(2)
        for machine in (self.first, self.leader):
            self.check.started(machine)

    @staticmethod
    def _machine(node: int) -> Any:
        return SimpleNamespace(
            node_id=NodeId(node),
            node=SimpleNamespace(
                state=SimpleNamespace(applied=SimpleNamespace(index=0)),
                raw=SimpleNamespace(commit_index=0),
                serving=SimpleNamespace(
                    confirmed=SimpleNamespace(is_possible=node != 2),
                    services=SimpleNamespace(writes_open=lambda: node == 2),
                ),
            ),
        )

    def applies(self, machine: Any, *commands: Command) -> None:
        for command in commands:
            machine.node.state.applied.index += 1
            if machine.node.state.applied.index > self.check.model.index:
                self.check.model.learn(machine.node.state.applied.index, [command])
        self._told.append(0)
        self.check.applied(machine, ())
        self.check.heard(machine)

    def is_denied(self) -> None:
        """Node 1 denies a send of ann's."""
        request = Request("a send", Who("ann", "first", HERE), PUB, NodeId(1), float(len(self._told)))
        self.check.asks(request)
        self.check.answered(request, passed=False, denied=True)


EVERYTHING: RuleRow = (1, "*", ["All"], [], True)


def test_a_denial_waits_for_what_its_leader_was_applying() -> None:
    """The leader, node 2, denied by an entry that no node had told yet, while node 1 with the connection went on."""
    nodes = TwoNodes()
    first, leader = nodes.first, nodes.leader
    for machine in (first, leader):
        nodes.applies(machine, ann(), rules(EVERYTHING))
    leader.node.raw.commit_index = 4
    nodes.is_denied()
    nothing = RemoveUser(ORIGIN, 9)
    nodes.applies(first, nothing)
    nodes.applies(first)
    assert not nodes.check.judged["denied"], "nobody has told entry 4 yet"
    nodes.applies(leader, nothing, ChangeUser(ORIGIN, 1, {"enabled": False}))
    nodes.applies(leader)
    assert nodes.check.judged["denied"] == 1
    assert not nodes.found


@pytest.mark.parametrize("asks", [True, False])
def test_a_follower_that_denies_what_the_leader_had_allowed_is_found(asks: bool) -> None:
    nodes = TwoNodes()
    nodes.first.node.serving.confirmed.is_possible = asks
    nodes.applies(nodes.leader, ann(), rules(EVERYTHING))
    nodes.is_denied()
    nodes.applies(nodes.first, ann(), rules(EVERYTHING))
    nodes.applies(nodes.first)
    assert nodes.check.judged["denied"] == 1
    assert len(nodes.found) == asks, "a node that cannot ask judges by what it has applied"


def lets_all_through(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "_goes_on", lambda admission, frame, refused: True)


def gives_to_all_who_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongPolls, "is_allowed", lambda polls, pull: True)


class Revoking(ScriptedWorld):
    """A script at whose end a right is taken away."""

    def phases(self) -> None:
        super().phases()
        self._revoked()


@pytest.mark.parametrize(
    ("silent_s", "plant", "how"),
    [
        (PARKED_S / 2, None, ""),
        (60.0, None, "is not denied"),
        (PARKED_S / 2, gives_to_all_who_wait, "has no answer"),
    ],
)
def test_pulls_that_a_node_cannot_judge_yet_are_asked_again(
    silent_s: float, plant: Callable[[pytest.MonkeyPatch], None] | None, how: str
) -> None:
    """Seed 790000171: a node that had installed a snapshot heard no leader for half a second. It refused the pulls, and
    no pull was parked there when the right was taken away."""
    stage, asked = Revoking("nodes 3 users=1\nlead 1\n"), list[float]()

    def unheard(serving: Serving) -> str:
        if serving.services.node_id != 2 or NAME not in serving.services.state.access.users:
            return ""
        asked.append(stage.loop.now)
        return "no leader was heard" if asked[-1] < asked[0] + silent_s else ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Serving, "unheard", unheard)
        if plant is not None:
            plant(patch)
        found = [str(violation) for violation in stage.run().violations]
    assert asked
    assert bool(found) == bool(how)
    assert all(how in each for each in found), found


def test_a_pull_that_is_let_in_after_its_right_was_gone_is_found() -> None:
    """Followers say that no message came; the check asks again."""
    with pytest.MonkeyPatch.context() as patch:
        lets_all_through(patch)
        found = [str(violation) for violation in Revoking("nodes 3 users=1\nlead 1\n").run().violations]
    assert [each for each in found if "is not denied" in each], found


def test_every_other_late_seed_has_users() -> None:
    assert not any(draw(seed).users for seed in range(USERS_FROM - 20, USERS_FROM))
    assert 20 < sum([draw(seed).users for seed in range(USERS_FROM, USERS_FROM + 100)]) < 80
