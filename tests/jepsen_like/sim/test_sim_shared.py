"""Things that all users share: the check of them on simulated nodes, its model of tokens, and greedy clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from cluster.broker.access import denials
from cluster.broker.access.denials import Denials
from jepsen_like.sim.machines.loop import Process
from jepsen_like.sim.scripted import ScriptedWorld
from jepsen_like.sim.users.access_model import AccessModel
from jepsen_like.sim.users.audit_check import KEPT, OF_USER_KEPT, AuditCheck, small_audit
from jepsen_like.sim.users.shared_check import LINES_MAX, SharedCheck, bytes_of
from raftlog.types import NodeId
from statemachine.access import users
from statemachine.access.access_commands import ChangeUser, CreateUser, Origin, PutToken, RemoveToken, RemoveUser
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command
from statemachine.levels import OWNERS_LEVEL
from statemachine.rows import meta_keys

ORIGIN = Origin(0, "root", "")
MALICE = "many-names long-names denied ask-and-leave ask-on-many register guess tokens"
TOKEN = b"d" * 32


@pytest.mark.ci
def test_a_script_with_greedy_users_is_clean() -> None:
    stage = ScriptedWorld(f"nodes 3 users=1\nlead 1\nmalice 6 {MALICE}\nsettle\n")
    shared, attackers, guessers, check = stage.shared, stage.attackers, stage.guessers, stage.users
    assert stage.run().violations == ()
    assert shared is not None
    assert attackers is not None
    assert guessers is not None
    assert check is not None
    assert all(shared.seen[each] for each in ("standing", "costly", "memory", "lines", "tokens"))
    assert attackers.counts["many-names 29"]
    assert attackers.counts["long-names 29"]
    assert guessers.rounds
    tokens = check.check.model.tokens.values()
    assert {bool(token.ended_at) for token in tokens} == {True, False}
    assert users.AUDIT_KEPT > 1_000, "only nodes of the simulator forget so soon"
    assert denials.logger.name == denials.__name__


class Model:
    """A model of a cluster with one user, who has a token."""

    def __init__(self, level: int = OWNERS_LEVEL) -> None:
        self.model = AccessModel(lambda user_id, secret, key: secret.decode())
        self.learn(Finalize(level))
        self.learn(CreateUser(ORIGIN, 1, "ann", False, True, b"first", "key"))
        self.learn(PutToken(ORIGIN, 1, TOKEN, 1, "ci"))

    def learn(self, command: Command) -> None:
        self.model.learn(self.model.index + 1, [command])

    def is_there(self, index: int = 0) -> bool:
        return self.model.tokens[TOKEN].is_there(index or self.model.index)


@pytest.mark.parametrize(
    ("command", "level", "stays"),
    [
        (ChangeUser(ORIGIN, 1, {"secret": [b"second", "key"]}), OWNERS_LEVEL, False),
        (ChangeUser(ORIGIN, 1, {"secret": [b"second", "key"]}), OWNERS_LEVEL - 1, True),
        (ChangeUser(ORIGIN, 1, {"secret": [b"second", "key"], "keep_tokens": ["ci"]}), OWNERS_LEVEL, True),
        (ChangeUser(ORIGIN, 1, {"enabled": False}), OWNERS_LEVEL, True),
        (ChangeUser(ORIGIN, 2, {"secret": [b"second", "key"]}), OWNERS_LEVEL, True),
        (RemoveUser(ORIGIN, 1), OWNERS_LEVEL, False),
        (RemoveToken(ORIGIN, TOKEN), OWNERS_LEVEL, False),
    ],
)
def test_when_a_token_ends(command: Command, level: int, stays: bool) -> None:
    model = Model(level)
    assert model.is_there()
    model.learn(command)
    assert model.is_there() is stays
    assert model.is_there(model.model.index - 1)
    assert not model.is_there(1), "it was not given yet"


def test_a_token_is_given_to_users_alone() -> None:
    model = Model()
    model.learn(PutToken(ORIGIN, 9, b"e" * 32, 1, "ci"))
    assert list(model.model.tokens) == [TOKEN]


def test_text_is_measured_wherever_it_is_kept() -> None:
    kept = Denials(lambda: 0)
    empty = bytes_of(kept)
    kept.note(1, "10.0.0.1", "x" * 200, "SEND_MESSAGE", enforced=True)
    assert bytes_of(kept) > empty + 200
    assert bytes_of(["\N{GRINNING FACE}" * 50]) == 100 + 4 * 50
    assert bytes_of(SimpleNamespace(text="x" * 200)) == 0, "what is of another module is not kept for this"


def test_many_lines_about_one_address_are_too_many() -> None:
    found, now_s = list[str](), [0.0]
    check = SharedCheck(
        lambda checker, what: found.append(checker),
        lambda: now_s[0],
        machines=lambda: (),
        model=Model().model,
        clients=lambda: (),
        is_calm=lambda: True,
    )
    node = Process("node1", "10.0.0.1")
    with check.hears_lines():
        for at in range(LINES_MAX + 1):
            now_s[0] = 2 * at / LINES_MAX
            node.run(denials.logger.warning, "client %s: %s", "10.0.1.1", "denied")
            node.run(denials.logger.warning, "client %s: %s", f"10.0.1.{at + 2}", "denied")
        assert not found
        for _ in range(LINES_MAX):
            node.run(denials.logger.warning, "client %s: %s", "10.0.1.1", "denied")
    assert found[0] == "lines"


class Audited:
    """A machine with an audit that a test makes."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.found: list[str] = []
        self.check = AuditCheck(lambda checker, what: self.found.append(what))
        self.node_id, self.kv = NodeId(1), SimpleNamespace(scan=lambda *_: list(self.rows.items()))

    def note(self, number: int, user: str, of_user: int) -> None:
        self.rows[meta_keys.audit_key(number)] = msgpack.packb([0, user, "", "", "", of_user])

    def look(self) -> list[str]:
        self.check.look(cast(Any, self))
        return self.found


def test_the_newest_changes_of_each_user_are_kept() -> None:
    audited = Audited()
    audited.note(1, "ann", 1)
    assert audited.look() == []
    for number in range(2, KEPT + 2):
        audited.note(number, "mal", number - 1)
    assert audited.look() == []
    del audited.rows[meta_keys.audit_key(1)]
    assert audited.look() == ["node 1 has lost the change 1, one of the newest of ann"]


def test_the_newest_changes_of_all_are_kept_and_not_many_more() -> None:
    audited = Audited()
    for number in range(1, KEPT + OF_USER_KEPT + 2):
        audited.note(number, "mal", number)
    assert "keeps" in audited.look()[0]
    audited.found.clear()
    del audited.rows[meta_keys.audit_key(KEPT)], audited.rows[meta_keys.audit_key(1)]
    assert "one of the newest of all" in audited.look()[0]


def test_audits_are_small_only_in_the_simulator() -> None:
    with small_audit():
        assert users.AUDIT_KEPT == KEPT
    assert users.AUDIT_KEPT > KEPT
