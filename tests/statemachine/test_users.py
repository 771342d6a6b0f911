"""Users, rules, tokens and the mode in the state: what the log decides, what goes with a user, and the audit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
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
    SetAuthMode,
    SetRules,
)
from statemachine.access.access_decision import ALLOWED, judge
from statemachine.access.rules import RULES_OF_USER_MAX, Action, Kind, Need, Policy, RuleRow
from statemachine.access.user_rows import AuditRow, Mode, Token
from statemachine.access.users import AUDIT_KEPT, Access
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command
from statemachine.levels import ACCESS_LEVEL, OWNERS_LEVEL
from statemachine.rows import keys, meta_keys
from statemachine.rows.digest import digest
from statemachine.rows.kv import META
from tests.support.rows import each_row
from tests.support.state_kit import FedState, applied_in_groups

ORIGIN = Origin(5_000, "ops", "10.0.0.9")
SEND: RuleRow = (1, "Topic:orders", ["Pub"], [], True)
READ: RuleRow = (1, "Group:billing*", ["sub", "GET"], ["10.0.0.0/8"], False)
TOKEN = b"t" * 32


class Broker(FedState):
    """A state, and the log that feeds it."""

    @property
    def access(self) -> Access:
        return self.state.access

    def do(self, kind: Callable[..., Command], *arguments: Any) -> Any:
        return self.run(kind(ORIGIN, *arguments))[0]

    def create(self, name: str, is_super: bool = False, enabled: bool = True) -> Any:
        return self.do(CreateUser, self.access.next_id, name, is_super, enabled, b"secret", "key-1")


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    broker = Broker(new_log())
    broker.do(SetAuthKey, "key-1")
    return broker


def test_a_user_is_there_with_its_rules_also_after_a_restart(broker: Broker) -> None:
    user_id = broker.create("shop").value
    assert broker.do(SetRules, user_id, [SEND, READ]).value is True
    broker.do(PutToken, user_id, TOKEN, 9_000, "laptop")
    user = broker.access.users["shop"]
    assert (user.id, user.is_super, user.enabled, user.secret, user.key_id) == (1, False, True, b"secret", "key-1")
    assert [str(rule.resource) for rule in user.rules] == ["Group:billing*", "Topic:orders"]
    assert user.tokens == (TOKEN,)
    again = BrokerState(broker.kv).access
    assert again.users["shop"] == again.by_id[1] == user
    assert again.tokens == broker.access.tokens == {TOKEN: Token(1, 9_000, "laptop")}
    assert (again.mode, again.key_id, again.version) == (broker.access.mode, "key-1", broker.access.version)


def test_a_rule_takes_the_place_of_the_one_with_its_policy_and_resource(broker: Broker) -> None:
    user_id = broker.create("shop").value
    broker.do(SetRules, user_id, [SEND, (2, *SEND[1:])])
    version = broker.access.users["shop"].version
    assert broker.do(SetRules, user_id, [SEND]).value is False
    assert broker.access.users["shop"].version == version, "the same rule again is no change"
    broker.do(SetRules, user_id, [(1, "topic:orders", ["All"], [], False)])
    custom, default = broker.access.users["shop"].rules
    assert (custom.policy, custom.allow, default.policy, default.allow) == (1, False, 2, True)
    assert broker.access.users["shop"].version > version


def test_rules_go_by_resource_by_policy_and_all_together(broker: Broker) -> None:
    user_id = broker.create("shop").value
    broker.do(SetRules, user_id, [SEND, READ, (2, *SEND[1:])])
    assert broker.do(RemoveRules, user_id, 1, "Topic:orders").value == 1
    assert [rule.policy for rule in broker.access.users["shop"].rules] == [Policy.CUSTOM, Policy.DEFAULT]
    assert broker.do(RemoveRules, user_id, 1, "Topic:orders").code == "not_found"
    assert broker.do(RemoveRules, user_id, None, None).value == 2
    assert not list(broker.kv.scan(META, *meta_keys.RULES))


def test_a_user_made_again_under_an_old_name_inherits_nothing(broker: Broker) -> None:
    first = broker.create("shop").value
    broker.do(SetRules, first, [SEND])
    broker.do(PutToken, first, TOKEN, 9_000, "laptop")
    create = CreateUser(ORIGIN, 2, "shop", False, True, b"other", "key-1")
    results = broker.run(RemoveUser(ORIGIN, first), create)
    assert [result.ok for result in results] == [True, True]
    user = broker.access.users["shop"]
    assert (user.id, user.rules, user.tokens) == (2, (), ())
    assert first not in broker.access.by_id
    assert not broker.access.tokens
    assert broker.do(SetRules, first, [SEND]).code == "not_found", "an old id is nobody's"
    assert not list(broker.kv.scan(META, *meta_keys.RULES)) + list(broker.kv.scan(META, *meta_keys.TOKENS))


def test_a_name_is_taken_once_and_an_id_is_the_next_one(broker: Broker) -> None:
    broker.create("shop")
    assert broker.create("shop").code == "exists"
    late = broker.do(CreateUser, 1, "other", False, True, b"s", "key-1")
    assert (late.ok, late.code) == (False, "conflict")
    assert "id 2, not 1" in late.value


@pytest.mark.parametrize(
    ("kind", "rest"),
    [(RemoveUser, ()), (ChangeUser, ({"enabled": False},)), (ChangeUser, ({"super": False},))],
)
def test_the_last_enabled_super_stays(broker: Broker, kind: Callable[..., Command], rest: tuple[Any, ...]) -> None:
    ann = broker.create("ann", is_super=True).value
    assert broker.do(kind, ann, *rest).code == "refused"
    bob = broker.create("bob", is_super=True).value
    both = broker.run(kind(ORIGIN, ann, *rest), kind(ORIGIN, bob, *rest))
    assert [(result.ok, result.code) for result in both] == [(True, ""), (False, "refused")], "they race: one stays"
    assert broker.access.supers == BrokerState(broker.kv).access.supers == 1
    assert broker.access.users["bob"].enabled


def test_enforcing_needs_an_enabled_super(broker: Broker) -> None:
    broker.create("ann", is_super=True, enabled=False)
    assert broker.do(SetAuthMode, "observe").value is True
    assert broker.do(SetAuthMode, "enforce").code == "refused"
    assert broker.access.mode is Mode.OBSERVE
    broker.do(ChangeUser, 1, {"enabled": True})
    assert broker.do(SetAuthMode, "enforce").value is True
    assert broker.do(SetAuthMode, "enforce").value is False
    assert BrokerState(broker.kv).access.mode is Mode.ENFORCE


def test_secrets_are_those_of_the_marked_key(broker: Broker) -> None:
    assert broker.do(CreateUser, 1, "shop", False, True, b"s", "key-2").code == "invalid"
    broker.create("shop")
    assert broker.do(SetAuthKey, "key-2").code == "refused"
    assert broker.do(ChangeUser, 1, {"secret": [b"new", "key-1"]}).value is True
    assert broker.access.users["shop"].secret == b"new"
    assert broker.do(ChangeUser, 1, {"secret": [b"new", "key-2"]}).code == "invalid"


def test_a_token_is_taken_away(broker: Broker) -> None:
    user_id = broker.create("shop").value
    broker.do(PutToken, user_id, TOKEN, 9_000, "laptop")
    assert broker.do(PutToken, user_id, TOKEN, 9_000, "again").code == "exists"
    assert broker.do(RemoveToken, TOKEN).ok
    assert not broker.access.tokens
    assert not broker.access.users["shop"].tokens
    assert broker.do(RemoveToken, TOKEN).code == "not_found"


@each_row(
    "command",
    [
        ["create_user", 1, "no spaces", False, True, b"s", "key-1"],
        ["create_user", 1, "", False, True, b"s", "key-1"],
        ["create_user", 1, "shop", 1, True, b"s", "key-1"],
        ["create_user", 1, "shop", False, True, "s", "key-1"],
        ["create_user", 1, "shop", False, True, b"s" * 513, "key-1"],
        ["set_rules", 7, []],
        ["set_rules", 7, [[3, "Topic:a", ["Pub"], [], True]]],
        ["set_rules", 7, [[1, "Topic:", ["Pub"], [], True]]],
        ["set_rules", 7, [[1, "Topic:a*b", ["Pub"], [], True]]],
        ["set_rules", 7, [[1, "Queue:a", ["Pub"], [], True]]],
        ["set_rules", 7, [[1, "Topic:a", [], [], True]]],
        ["set_rules", 7, [[1, "Topic:a", ["Write"], [], True]]],
        ["set_rules", 7, [[1, "Topic:a", ["Pub"], ["10.0.0.300"], True]]],
        ["set_rules", 7, [[1, "Topic:a", ["Pub"], [], "ALLOW"]]],
        ["change_user", 7, {"name": "x"}],
        ["change_user", 7, {"secret": b"s"}],
        ["put_token", 7, b"short", 1, ""],
        ["set_auth_mode", "on"],
        ["set_auth_mode", 3],
    ],
)
def test_what_is_no_user_and_no_rule_changes_nothing(broker: Broker, command: list[Any]) -> None:
    while broker.access.next_id <= 7 and command[1] == 7:
        broker.create(f"user{broker.access.next_id}")
    before = dict(broker.kv.scan(META, *meta_keys.AUDIT))
    assert broker.raw(command[0], list(ORIGIN), *command[1:]).code == "invalid"
    assert dict(broker.kv.scan(META, *meta_keys.AUDIT)) == before


def test_every_change_is_a_row_of_the_audit(broker: Broker) -> None:
    user_id = broker.create("shop").value
    broker.do(SetRules, user_id, [SEND])
    broker.do(SetRules, user_id, [SEND])
    newest, before, *_ = broker.access.audit(before=99, limit=9)
    assert newest == AuditRow(3, 5_000, "ops", "10.0.0.9", "rules set: ALLOW Topic:orders", "User:shop")
    assert (before.number, before.action) == (2, "created, Normal")
    assert [row.number for row in broker.access.audit(before=3, limit=1)] == [2]


def test_the_oldest_rows_of_the_audit_go_by_count(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert AUDIT_KEPT == 100_000
    monkeypatch.setattr("statemachine.access.users.AUDIT_KEPT", 3)
    for number in range(5):
        broker.create(f"user{number}")
    assert [row.number for row in broker.access.audit(before=99, limit=99)] == [6, 5, 4]
    assert len(list(broker.kv.scan(META, *meta_keys.AUDIT))) == 3


def raise_level(broker: Broker, level: int = OWNERS_LEVEL) -> None:
    assert broker.run(Finalize(level))[0].ok


def by(user: str, number: int) -> Command:
    """A change of that user."""
    return SetRules(Origin(5_000, user, "10.0.0.9"), 1, [(1, f"Topic:{user}{number}", ["Pub"], [], number % 2 == 0)])


def kept(broker: Broker) -> list[int]:
    numbers = [row.number for row in broker.access.audit(before=1 << 62, limit=1_000)]
    assert numbers == [row.number for row in BrokerState(broker.kv).access.audit(before=1 << 62, limit=1_000)]
    return numbers[::-1]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statemachine.access.users.AUDIT_KEPT", 10)
    monkeypatch.setattr("statemachine.access.users.AUDIT_OF_USER_KEPT", 3)


@pytest.mark.usefixtures("small")
def test_a_user_with_many_changes_does_not_push_those_of_others_out(broker: Broker) -> None:
    raise_level(broker)
    broker.create("shop")
    for number in range(5):
        broker.run(by("ann", number))
    for number in range(50):
        broker.run(by("flood", number))
    rows = list(broker.access.audit(before=99, limit=99))
    assert [row.user for row in rows] == ["flood"] * 10 + ["ann"] * 3 + ["ops"]
    assert [row.action for row in rows if row.user == "ann"] == [
        f"rules set: {'ALLOW' if number % 2 == 0 else 'DENY'} Topic:ann{number}" for number in (4, 3, 2)
    ]
    assert kept(broker)[0] == 2, "row 1 is of below the level"
    for number in range(5, 7):
        broker.run(by("ann", number))
    rows = list(broker.access.audit(before=99, limit=99))
    assert [row.action[-1] for row in rows if row.user == "ann"] == ["6", "5", "4"], "the newest three of ann"
    for number in range(50, 70):
        broker.run(by("flood", number))
    assert [row.user for row in broker.access.audit(before=99, limit=99)] == ["flood"] * 10 + ["ann"] * 3 + ["ops"]
    left = list(broker.kv.scan(META, meta_keys.AUDIT_KEPT_PREFIX, meta_keys.AUDIT_KEPT_PREFIX + b"\xff"))
    assert len(left) == 4, "nothing finds a row that is gone"


@pytest.mark.usefixtures("small")
def test_below_the_level_the_audit_goes_by_count_alone_and_after_it_rows_of_before_do(broker: Broker) -> None:
    raise_level(broker, OWNERS_LEVEL - 1)
    broker.create("shop")
    for number in range(5):
        broker.run(by("ann", number))
    for number in range(20):
        broker.run(by("flood", number))
    assert [row.user for row in broker.access.audit(before=99, limit=99)] == ["flood"] * 10
    assert not [key for key, _ in broker.kv.scan(META, b"audit_", b"audit`")], "rows of the version before"
    assert {len(msgpack.unpackb(row)) for _, row in broker.kv.scan(META, *meta_keys.AUDIT)} == {5}
    raise_level(broker)
    broker.run(by("ann", 7))
    for number in range(20, 40):
        broker.run(by("flood", number))
    assert [row.user for row in broker.access.audit(before=99, limit=99)] == ["flood"] * 10 + ["ann"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(10))
def test_what_the_audit_keeps_is_what_a_model_keeps(broker: Broker, seed: int) -> None:
    rng, model, level_at = Random(seed), [], 0
    broker.create("shop")
    for number in range(150):
        if number == 40:
            raise_level(broker)
            level_at = next(iter(broker.access.audit(before=99, limit=1))).number
        user = rng.choice(["ann", "bob", "bob", "flood", "flood", "flood", "flood"])
        broker.run(by(user, number))
        row = next(iter(broker.access.audit(before=1 << 62, limit=1)))
        model.append((row.number, user))
    newest = {number for number, _ in model[-10:]}
    for name in ("ann", "bob", "flood"):
        newest |= {number for number, user in [each for each in model if each[1] == name][-3:] if number > level_at}
    assert set(kept(broker)) == newest


def test_tokens_end_with_a_change_of_the_secret_unless_kept_by_name(broker: Broker) -> None:
    broker.create("other")
    broker.do(PutToken, 1, b"o" * 32, 9_000, "laptop")
    user_id = broker.create("shop").value
    for number, label in enumerate(["laptop", "scrape", "login from 10.0.0.1"]):
        broker.do(PutToken, user_id, bytes([number]) * 32, 9_000, label)
    raise_level(broker, OWNERS_LEVEL - 1)
    assert broker.do(ChangeUser, user_id, {"secret": [b"new", "key-1"]}).ok
    assert len(broker.access.users["shop"].tokens) == 3, "today's rule"
    with_names = {"secret": [b"newer", "key-1"], "keep_tokens": ["scrape"]}
    assert broker.do(ChangeUser, user_id, with_names).code == "invalid"
    raise_level(broker)
    assert broker.do(ChangeUser, user_id, {"enabled": False}).ok
    assert len(broker.access.users["shop"].tokens) == 3, "the secret is the same"
    assert broker.do(ChangeUser, user_id, with_names).ok
    assert broker.access.users["shop"].tokens == (b"\1" * 32,)
    assert set(broker.access.tokens) == {b"o" * 32, b"\1" * 32}
    assert next(iter(broker.access.audit(99, 1))).action == "another secret, tokens ended: 2"
    again = BrokerState(broker.kv).access
    assert (again.users["shop"], again.tokens) == (broker.access.users["shop"], broker.access.tokens)
    for wrong in ("scrape", [7], ["x"] * 101, ["x" * 300]):
        assert broker.do(ChangeUser, user_id, with_names | {"keep_tokens": wrong}).code == "invalid"
    assert broker.do(ChangeUser, user_id, {"secret": [b"newest", "key-1"]}).ok
    assert broker.access.users["shop"].tokens == ()
    assert len(list(broker.kv.scan(META, *meta_keys.TOKENS))) == 1


def test_rules_have_a_limit_for_one_user(broker: Broker) -> None:
    user_id = broker.create("shop").value
    rules = [[1, f"Topic:t{number}", ["Pub"], [], True] for number in range(RULES_OF_USER_MAX + 1)]
    assert broker.do(SetRules, user_id, rules[:-1]).ok
    assert broker.do(SetRules, user_id, rules[-1:]).code == "invalid"
    assert len(broker.access.users["shop"].rules) == RULES_OF_USER_MAX


def test_ten_thousand_rules_are_those_of_ten_users(broker: Broker) -> None:
    """A user has at most 1,000: the next one is refused, and each of the 10,000 decides."""
    for number in range(10):
        user_id = broker.create(f"shop{number}").value
        rules = [[1, f"Topic:t{number}-{each:03d}*", ["Pub"], [], each % 2 == 0] for each in range(RULES_OF_USER_MAX)]
        assert broker.do(SetRules, user_id, rules).ok
        refused = broker.do(SetRules, user_id, [(1, "Topic:one-more", ["Pub"], [], True)])
        assert (refused.code, refused.value) == ("invalid", "a user has at most 1000 rules: use prefixes")
    again = BrokerState(broker.kv).access
    assert sum(len(user.rules) for user in again.users.values()) == 10_000
    for number in range(10):
        user = again.users[f"shop{number}"]
        for each in (0, 1, 500, 999):
            need = Need(Kind.TOPIC, f"t{number}-{each:03d}-x", (Action.PUB,))
            assert (judge(user, "10.0.0.1", [need]) == ALLOWED) is (each % 2 == 0)


def test_a_prefix_that_is_empty_is_every_name_of_its_kind(broker: Broker) -> None:
    user_id = broker.create("shop").value
    assert broker.do(SetRules, user_id, [(1, "Topic:*", ["Pub"], [], True), (1, "Topic:t*", ["Pub"], [], False)]).ok
    user = broker.access.users["shop"]
    verdicts = [
        judge(user, "10.0.0.1", [Need(kind, "orders", (Action.PUB,))]) == ALLOWED for kind in (Kind.TOPIC, Kind.GROUP)
    ]
    assert verdicts == [True, False]
    assert judge(user, "10.0.0.1", [Need(Kind.TOPIC, "tables", (Action.PUB,))]) != ALLOWED


_NAMES = st.sampled_from(["ann", "bob", "cy"])
_IDS = st.integers(1, 5)
_COMMANDS = st.one_of(
    st.tuples(st.just(CreateUser), _IDS, _NAMES, st.booleans(), st.booleans(), st.just(b"s"), st.just("key-1")),
    st.tuples(st.just(ChangeUser), _IDS, st.fixed_dictionaries({"enabled": st.booleans(), "super": st.booleans()})),
    st.tuples(st.just(RemoveUser), _IDS),
    st.tuples(st.just(SetRules), _IDS, st.lists(st.sampled_from([SEND, READ]), min_size=1, max_size=2)),
    st.tuples(st.just(RemoveRules), _IDS, st.none(), st.none()),
    st.tuples(st.just(PutToken), _IDS, st.sampled_from([TOKEN, b"u" * 32]), st.just(9), st.just("l")),
    st.tuples(st.just(RemoveToken), st.sampled_from([TOKEN, b"u" * 32])),
    st.tuples(st.just(SetAuthMode), st.sampled_from(list(Mode))),
    st.tuples(st.just(ChangeUser), _IDS, st.just({"secret": [b"new", "key-1"]})),
    st.just((Finalize,)),
)


def _drawn(kind: Callable[..., Command], *arguments: Any) -> Command:
    return kind(OWNERS_LEVEL) if kind is Finalize else kind(ORIGIN, *arguments)


@pytest.mark.usefixtures("small")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_COMMANDS, max_size=40), st.integers(0, 99))
def test_any_grouping_of_entries_leaves_the_same_rows_and_a_super(
    new_log: Callable[[], Any], run: list[Any], grouping: int
) -> None:
    log = new_log()
    entries = [log.command(SetAuthKey(ORIGIN, "key-1"))]
    entries += [log.command(_drawn(*each)) for each in run]
    (alone, kv), (grouped, pieces) = applied_in_groups(entries[:0], 0), applied_in_groups(entries, grouping)
    alone.apply(entries)
    assert list(kv.scan(META, keys.FIRST, keys.LAST)) == list(pieces.scan(META, keys.FIRST, keys.LAST))
    for access in (alone.access, grouped.access, BrokerState(kv).access):
        assert dict(access.by_id) == dict(alone.access.by_id)
        assert access.tokens == alone.access.tokens
        assert {user.name: user for user in access.by_id.values()} == dict(access.users)
        assert access.supers == sum(user.is_super and user.enabled for user in access.by_id.values())
        assert access.supers or access.mode is not Mode.ENFORCE
        assert {token.user_id for token in access.tokens.values()} <= set(access.by_id)


def test_users_have_a_level_of_commands(broker: Broker) -> None:
    assert broker.run(Finalize(ACCESS_LEVEL))[0].ok


def test_rows_are_in_the_digest(broker: Broker) -> None:
    before = digest(broker.kv)
    broker.create("shop")
    assert digest(broker.kv)[META] != before[META]
