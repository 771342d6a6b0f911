"""Users of a restored copy become those of a later one, whatever happened in between; and what happened is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.backup.revived import COMMANDS_PER_ENTRY, Revived, revived_of
from statemachine.access.access_commands import (
    ChangeUser,
    CreateUser,
    Origin,
    PutToken,
    RemoveRules,
    RemoveUser,
    RotateAuthKey,
    SetAuthKey,
    SetAuthMode,
    SetRules,
)
from statemachine.access.user_rows import User
from statemachine.access.users import Access
from statemachine.commands import Command
from tests.support.state_kit import FedState

ORIGIN = Origin(5_000, "ops", "")
PUB, SUB = [1, "Topic:orders", ["Pub"], [], True], [1, "Group:billing*", ["Sub"], [], False]
NAMES, KEYS = ("root", "ann", "bob", "cyd"), ("key-1", "key-2")
STEPS = st.lists(
    st.tuples(st.sampled_from(("create", "remove", "super", "off", "secret", "rule", "unrule", "token", "key", "mode")),
              st.integers(0, 3), st.integers(0, 1)),
    max_size=25,
)  # fmt: skip


class Broker(FedState):
    @property
    def access(self) -> Access:
        return self.state.access

    def do(self, kind: Callable[..., Command], *arguments: Any) -> Any:
        return self.run(kind(ORIGIN, *arguments))[0]

    def begin(self) -> None:
        self.do(SetAuthKey, KEYS[0])
        self.do(CreateUser, 1, "root", True, True, b"of-root", KEYS[0])

    def step(self, number: int, what: str, who: int, which: int) -> None:
        access = self.access
        user = access.users.get(NAMES[who])
        if what == "key":
            self.do(RotateAuthKey, KEYS[which])
        elif what == "mode":
            self.do(SetAuthMode, ("off", "enforce")[which])
        elif what == "create":
            self.do(CreateUser, access.next_id, NAMES[who], bool(which), True, b"new%d" % number, access.key_id)
        elif user is None:
            return
        elif what == "remove":
            self.do(RemoveUser, user.id)
        elif what == "super":
            self.do(ChangeUser, user.id, {"super": bool(which)})
        elif what == "off":
            self.do(ChangeUser, user.id, {"enabled": bool(which)})
        elif what == "secret":
            self.do(ChangeUser, user.id, {"secret": [b"other%d" % number, access.key_id]})
        elif what == "rule":
            self.do(SetRules, user.id, [(PUB, SUB)[which]])
        elif what == "unrule":
            self.do(RemoveRules, user.id, None, None)
        elif what == "token":
            self.do(PutToken, user.id, bytes([which]) * 32, 9_000, "x")


def content(user: User) -> tuple[object, ...]:
    return user.id, user.name, user.is_super, user.enabled, user.secret, user.key_id, user.rules


def seen(access: Access) -> tuple[object, ...]:
    return [content(user) for user in access.users.values()], access.mode, access.key_id


@settings(deadline=None, max_examples=150)
@given(STEPS, STEPS)
def test_a_copy_gets_the_users_of_a_later_one(new_log: Callable[[], Any], before: list[Any], after: list[Any]) -> None:
    restored, later = Broker(new_log()), Broker(new_log())
    for broker in (restored, later):
        broker.begin()
        for number, step in enumerate(before):
            broker.step(number, *step)
    for number, step in enumerate(after, len(before)):
        later.step(number, *step)
    present, wanted = revived_of(restored.access), revived_of(later.access)
    assert present.differences(present) == []
    for commands in present.changes(wanted, 6_000):
        assert all(each.ok for each in restored.run(*commands)), commands
    assert seen(restored.access) == seen(later.access)
    assert not restored.access.tokens
    assert revived_of(restored.access).differences(wanted) == []


def test_the_last_super_may_be_another_one_of_the_same_name(new_log: Callable[[], Any]) -> None:
    restored, later = Broker(new_log()), Broker(new_log())
    for broker in (restored, later):
        broker.begin()
    later.do(CreateUser, 2, "deputy", True, True, b"of-deputy", KEYS[0])
    later.do(RemoveUser, 1)
    later.do(CreateUser, 3, "root", True, True, b"of-root-again", KEYS[0])
    later.do(RemoveUser, 2)
    for commands in revived_of(restored.access).changes(revived_of(later.access), 6_000):
        assert all(each.ok for each in restored.run(*commands)), commands
    assert seen(restored.access) == seen(later.access)


def test_what_was_changed_later_is_named(new_log: Callable[[], Any]) -> None:
    broker = Broker(new_log())
    broker.begin()
    for name in ("eve", "shop"):
        broker.do(CreateUser, broker.access.next_id, name, name == "eve", True, b"secret", KEYS[0])
    broker.do(SetRules, 3, [PUB])
    then = revived_of(broker.access)
    broker.do(RemoveUser, 2)
    broker.do(SetRules, 3, [SUB, (*PUB[:4], False)])
    broker.do(ChangeUser, 3, {"enabled": False, "secret": [b"leaked", KEYS[0]]})
    broker.do(CreateUser, 4, "new", False, True, b"secret", KEYS[0])
    broker.do(SetAuthMode, "enforce")
    assert then.differences(revived_of(broker.access)) == [
        "auth.mode: off, later enforce",
        "eve: was removed later",
        "shop: is enabled, later disabled",
        "shop: its secret, or the key that encrypts it, was changed later",
        "shop: the rule Allow Topic:orders Pub is later Deny Topic:orders Pub",
        "shop: the rule Deny Group:billing* Sub was added later, and is missing",
        "new: was made later, and is missing",
    ]


def test_tokens_go_in_entries_of_limited_size() -> None:
    many = Revived(tokens=tuple(number.to_bytes(32, "big") for number in range(2 * COMMANDS_PER_ENTRY + 1)))
    assert [len(entry) for entry in many.changes(None, 1)] == [COMMANDS_PER_ENTRY, COMMANDS_PER_ENTRY, 1]
