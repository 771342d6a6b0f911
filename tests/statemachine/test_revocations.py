"""What is taken away in another group of brokers than the first counts there beside the copy, until the first group has
decided about it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine.access.access_commands import (
    ChangeUser,
    CreateUser,
    Origin,
    PutToken,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    SetAuthKey,
    SetRules,
)
from statemachine.access.revocations import WAITING_MAX, EndRevocations, Revoke, revocation_of
from statemachine.access.rules import RuleRow
from statemachine.access.user_rows import User
from statemachine.commands import Command, CommandResult, pack
from tests.statemachine.conftest import LogBuilder
from tests.support.truth_kit import ASKED, KEY, SECOND, BrokerLog, copy_all, drawn_change

ALLOW: RuleRow = (1, "Topic:a", ["Pub"], [], True)
DENY: RuleRow = (1, "Topic:b", ["Pub"], [], False)
TOKEN = bytes([7]) * 32
ROOT, SHOP = 1, 2
LATER = Origin(2_000, "bob", "10.0.0.2")


class Groups:
    """The first group with a Super and a user, and the second one with their copy."""

    def __init__(self, new_log: Callable[[], Any]) -> None:
        self.first, self.second = BrokerLog(new_log()), BrokerLog(new_log(), 2)
        self.first.run(
            SetAuthKey(ASKED, KEY),
            CreateUser(ASKED, ROOT, "root", True, True, b"s", KEY),
            CreateUser(ASKED, SHOP, "shop", False, True, b"s", KEY),
            SetRules(ASKED, SHOP, [ALLOW, DENY]),
            PutToken(ASKED, SHOP, TOKEN, 9_000, "laptop"),
            SECOND,
        )
        self.first.make_ready()
        copy_all(self.first, self.second)

    def revoke(self, act: Command) -> CommandResult:
        return self.second.one(Revoke(pack([act])))

    def shop(self) -> User:
        """What readers in the second group see of the user."""
        by_id, users = self.second.state.access.by_id, self.second.state.access.users
        assert by_id[SHOP] == users["shop"]
        return by_id[SHOP]

    def numbers(self) -> list[int]:
        return list(self.second.state.revocations.waiting)


@pytest.fixture
def groups(new_log: Callable[[], Any]) -> Groups:
    return Groups(new_log)


@pytest.mark.parametrize("act", [ChangeUser(ASKED, SHOP, {"enabled": False}), RemoveUser(ASKED, SHOP)], ids=str)
def test_a_user_may_do_nothing_whatever_a_copy_says_until_the_first_group_has_decided(
    groups: Groups, act: Command
) -> None:
    version = groups.second.state.access.version
    assert groups.revoke(act) == (True, "", 1)
    assert not groups.shop().enabled
    assert groups.second.state.access.version > version, "verdicts of before end"
    groups.first.run(ChangeUser(ASKED, SHOP, {"secret": [b"t", KEY]}), SetRules(ASKED, SHOP, [DENY]))
    copy_all(groups.first, groups.second)
    assert (groups.shop().enabled, groups.shop().secret) == (False, b"t")
    groups.second.restart()
    assert (groups.shop().enabled, groups.numbers()) == (False, [1])
    assert groups.second.one(EndRevocations([1, 9])) == (True, "", 1)
    assert groups.shop().enabled, "the first group did not do it"
    assert groups.numbers() == []


def test_what_the_first_group_has_done_stays(groups: Groups) -> None:
    act = RemoveUser(ASKED, SHOP)
    groups.revoke(act)
    groups.first.one(act)
    copy_all(groups.first, groups.second)
    assert SHOP not in groups.second.state.access.by_id
    groups.second.one(EndRevocations([1]))
    assert SHOP not in groups.second.state.access.by_id
    assert groups.second.state.access.tokens == {}
    groups.second.restart()
    assert list(groups.second.state.access.users) == ["root"]


@pytest.mark.parametrize(("policy", "resource"), [(1, "Topic:a"), (1, None), (None, None)])
def test_rules_that_allow_go_and_those_that_deny_stay(groups: Groups, policy: int | None, resource: str | None) -> None:
    assert groups.revoke(RemoveRules(ASKED, SHOP, policy, resource)).ok
    assert [(str(rule.resource), rule.allow) for rule in groups.shop().rules] == [("Topic:b", False)]
    assert groups.shop().enabled
    groups.first.one(SetRules(ASKED, SHOP, [ALLOW]))
    copy_all(groups.first, groups.second)
    assert [rule.allow for rule in groups.shop().rules] == [False]
    groups.second.one(EndRevocations([1]))
    assert [rule.allow for rule in groups.shop().rules] == [True, False]


def test_a_token_is_not_there(groups: Groups) -> None:
    assert groups.revoke(RemoveToken(ASKED, TOKEN)).ok
    assert TOKEN not in groups.second.state.access.tokens
    groups.first.one(SetRules(ASKED, SHOP, [DENY]))
    copy_all(groups.first, groups.second)
    groups.second.restart()
    assert TOKEN not in groups.second.state.access.tokens
    assert groups.revoke(RemoveToken(ASKED, TOKEN)).code == "not_found"
    groups.second.one(EndRevocations([1]))
    assert groups.second.state.access.tokens[TOKEN].label == "laptop"


def test_one_that_is_revoked_again_is_not_ended_with_the_former(groups: Groups) -> None:
    """The first group has decided about the former, and given the right back; that copy and this revocation race."""
    groups.revoke(ChangeUser(ASKED, SHOP, {"enabled": False}))
    assert groups.revoke(ChangeUser(LATER, SHOP, {"enabled": False})).value == 2
    assert groups.numbers() == [2], "it has taken the place of the former"
    groups.second.one(EndRevocations([1]))
    assert not groups.shop().enabled
    groups.second.one(EndRevocations([2]))
    groups.second.restart()
    assert groups.revoke(ChangeUser(LATER, SHOP, {"enabled": False})).value == 3, "no number is given twice"


def test_the_last_super_that_is_left_is_not_revoked(groups: Groups) -> None:
    disable = ChangeUser(ASKED, ROOT, {"enabled": False})
    assert groups.revoke(disable).code == "refused"
    groups.first.one(CreateUser(ASKED, 3, "ann", True, True, b"s", KEY))
    copy_all(groups.first, groups.second)
    assert groups.revoke(disable).ok
    assert groups.revoke(disable).ok, "it may be said again"
    assert groups.revoke(RemoveUser(ASKED, 3)).code == "refused", "root counts no more"


@pytest.mark.parametrize(
    "act",
    [
        ChangeUser(ASKED, SHOP, {"enabled": True}),
        ChangeUser(ASKED, SHOP, {"enabled": False, "super": True}),
        ChangeUser(ASKED, SHOP, {"secret": [b"t", KEY]}),
        SetRules(ASKED, SHOP, [DENY]),
        CreateUser(ASKED, 3, "ann", True, True, b"s", KEY),
    ],
    ids=str,
)
def test_what_gives_rights_is_no_revocation(groups: Groups, act: Command) -> None:
    assert revocation_of(act) is None
    assert groups.revoke(act) == (False, "invalid", "this takes more than rights away")
    assert groups.numbers() == []


def test_what_is_not_taken(groups: Groups) -> None:
    disable = ChangeUser(ASKED, SHOP, {"enabled": False})
    for packed in (b"", b"\x90", b"x", pack([disable, disable]), pack([EndRevocations([1])])):
        assert groups.second.one(Revoke(packed)).code == "invalid"
    for act in (ChangeUser(ASKED, 9, {"enabled": False}), RemoveRules(ASKED, SHOP, 1, "Topic:b"), RemoveUser(ASKED, 9)):
        assert groups.revoke(act).code == "not_found"
    assert groups.revoke(RemoveRules(ASKED, SHOP, 1, "no such kind:a")).code == "invalid"
    assert groups.first.one(Revoke(pack([disable]))).code == "refused"
    assert groups.numbers() == []


def test_they_are_bounded(groups: Groups) -> None:
    assert WAITING_MAX == 1_000
    ids = range(SHOP + 1, SHOP + WAITING_MAX)
    groups.first.run(*[CreateUser(ASKED, number, f"user{number}", False, True, b"s", KEY) for number in ids])
    copy_all(groups.first, groups.second, 1 << 20)
    disabled = [Revoke(pack([ChangeUser(ASKED, number, {"enabled": False})])) for number in ids]
    assert all(result.ok for result in groups.second.run(*disabled))
    assert groups.revoke(RemoveRules(ASKED, SHOP, None, None)).ok
    assert groups.revoke(RemoveToken(ASKED, TOKEN)).code == "invalid"
    assert groups.revoke(RemoveRules(LATER, SHOP, None, None)).ok, "in the place of its former"


@given(st.integers(0, 1 << 32))
def test_nobody_may_do_more_than_the_copy_says_and_all_ends_as_the_first_group_says(seed: int) -> None:
    rng, groups = Random(seed), Groups(LogBuilder)
    for _ in range(rng.randint(10, 60)):
        act = drawn_change(groups.first, rng)
        if rng.random() < 0.3:
            copy_all(groups.first, groups.second)
        if rng.random() < 0.2 and groups.numbers():
            groups.second.one(EndRevocations([rng.choice(groups.numbers())]))
        if revocation_of(act) is not None and rng.random() < 0.7:
            groups.revoke(act)
        else:
            groups.first.one(act)
        if rng.random() < 0.1:
            groups.second.restart()
        seen = groups.second.state.access
        for user in seen.by_id.values():
            known = seen.current(user.id)
            assert known is not None
            assert user.enabled <= known.enabled
            assert {rule for rule in user.rules if rule.allow} <= {rule for rule in known.rules if rule.allow}
            assert [rule for rule in user.rules if not rule.allow] == [rule for rule in known.rules if not rule.allow]
    copy_all(groups.first, groups.second)
    if groups.numbers():
        groups.second.one(EndRevocations(groups.numbers()))
    shown, wanted = groups.second.state.access, groups.first.state.access
    assert shown.tokens == wanted.tokens
    assert {(user.id, user.enabled, user.rules, user.tokens) for user in shown.by_id.values()} == {
        (user.id, user.enabled, user.rules, user.tokens) for user in wanted.by_id.values()
    }
