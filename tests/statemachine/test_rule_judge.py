"""The judge of rules: the table of its ranks, and a naive reference that looks at every rule by itself."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire.denial import how_to_allow
from statemachine.access.access_decision import ALLOWED, Denied, Verdict, Verdicts, judge
from statemachine.access.rules import (
    ACTION_NAMES,
    Action,
    Kind,
    Need,
    Policy,
    Rule,
    parse_resource,
    parse_rule,
    rule_row,
)
from statemachine.access.user_rows import User
from tests.support.rows import each_row

SHOP = User(1, "shop", False, True, b"", "", 0, 1)
HERE = "10.1.2.3"
PUB = Need(Kind.TOPIC, "orders-eu", (Action.PUB,))


def rule(resource: str, decision: str = "ALLOW", actions: str = "Pub", policy: int = 1, source: str = "") -> Rule:
    return parse_rule((policy, resource, actions.split(), source.split(), decision == "ALLOW"))


def allowed(*rules: Rule, need: Need = PUB, source: str = HERE) -> bool:
    return judge(replace(SHOP, rules=rules), source, [need]) == ALLOWED


def test_no_rule_is_a_denial_and_says_what_was_needed() -> None:
    verdict = judge(SHOP, HERE, [PUB])
    assert verdict == Denied("user shop has no right to Pub on Topic:orders-eu from 10.1.2.3")
    assert judge(SHOP, HERE, []) == ALLOWED, "a request that needs a user alone"


@pytest.mark.parametrize(
    ("need", "command"),
    [
        (PUB, "raftmq acl set shop Topic:orders-eu Pub --add    (as a Super)"),
        (
            PUB._replace(actions=(Action.SUB, Action.GET)),
            "raftmq acl set shop Topic:orders-eu Sub --add    (as a Super; instead of Sub, Get would",
        ),
        (Need(Kind.GROUP, "query a b", (Action.PUB,)), "raftmq acl set shop 'Group:query a b' Pub --add    (as"),
        (
            Need(Kind.TOPIC, "a from b on Group:c", (Action.GET,)),
            "raftmq acl set shop 'Topic:a from b on Group:c' Get ",
        ),
    ],
)
def test_a_denial_leads_to_the_command_that_ends_it(need: Need, command: str) -> None:
    verdict = judge(SHOP, HERE, [need])
    assert isinstance(verdict, Denied)
    advice = how_to_allow(f"route: {verdict.reason}")
    assert advice.startswith(command)
    *_, user, resource, action, _ = shlex.split(advice.partition("    ")[0])
    assert (user, judge(replace(SHOP, rules=(rule(resource, actions=action),)), HERE, [need])) == ("shop", ALLOWED)
    assert how_to_allow("user shop is disabled") == ""


def test_a_super_passes_and_a_disabled_one_does_not() -> None:
    assert judge(replace(SHOP, is_super=True), HERE, [PUB]) == ALLOWED
    assert judge(replace(SHOP, is_super=True, enabled=False), HERE, []) == Denied("user shop is disabled")


RANKS = ("Topic:orders-eu", "Topic:orders-*", "Topic:or*", "Topic:*", "*")


@each_row("near", range(len(RANKS)))
@each_row("far", range(len(RANKS)))
def test_the_more_special_rule_decides_and_at_equal_rank_deny_wins(near: int, far: int) -> None:
    for order in (1, -1):
        rules = [rule(RANKS[near], "ALLOW"), rule(RANKS[far], "DENY", "Pub Sub")][::order]
        assert allowed(*rules) is (near < far)


def test_only_rules_of_the_action_the_kind_and_the_source_count() -> None:
    assert not allowed(rule("Topic:orders-eu", actions="Sub Get"))
    assert not allowed(rule("Group:orders-eu"))
    assert not allowed(rule("Topic:orders"))
    assert allowed(rule("Topic:orders-eu", actions="All"))
    assert allowed(rule("Topic:*", source="10.0.0.0/8 192.168.0.1"))
    assert not allowed(rule("Topic:*", source="192.168.0.1"))
    assert allowed(rule("Topic:*"), rule("Topic:orders-eu", "DENY", source="192.168.0.1"))
    assert allowed(rule("Topic:*", source="10.0.0.0/8"), source="::ffff:10.1.1.1")
    assert not allowed(rule("Topic:*", source="10.0.0.0/8"), source="unknown")
    assert allowed(rule("Topic:*", source="fe80::/10"), source="fe80::1%eth0")


def test_a_default_rule_counts_where_no_custom_one_fits() -> None:
    assert allowed(rule("Topic:*", "DENY", policy=2), rule("*", "ALLOW", policy=1))
    assert not allowed(rule("Topic:orders-eu", "ALLOW", policy=2), rule("*", "DENY", policy=1))
    assert allowed(rule("Topic:orders-eu", "ALLOW", policy=2), rule("*", "DENY", "Sub", policy=1))


def test_one_of_several_actions_suffices_and_every_resource_is_needed() -> None:
    either = Need(Kind.TOPIC, "orders-eu", (Action.PUB, Action.SUB))
    assert allowed(rule("Topic:orders-eu", actions="Sub"), rule("Topic:orders-eu", "DENY", policy=2), need=either)
    group = Need(Kind.GROUP, "billing", (Action.SUB,))
    user = replace(SHOP, rules=(rule("Topic:*"),))
    assert judge(user, HERE, [PUB, group]) == Denied("user shop has no right to Sub on Group:billing from 10.1.2.3")
    assert judge(replace(SHOP, rules=(*user.rules, rule("Group:b*", actions="Sub"))), HERE, [PUB, group]) == ALLOWED


_NAME = st.text("ab", min_size=1, max_size=3)
_RESOURCE = st.one_of(
    st.just("*"), st.builds("{}:{}{}".format, st.sampled_from(["Topic", "Group"]), _NAME, st.sampled_from(["", "*"])),
    st.sampled_from(["Topic:*", "Group:*"]),
)  # fmt: skip
_RULE = st.builds(
    lambda policy, resource, actions, sources, allow: parse_rule((policy, resource, actions, sources, allow)),
    st.sampled_from([1, 2]),
    _RESOURCE,
    st.lists(st.sampled_from(["All", "Pub", "Sub"]), min_size=1, max_size=2),
    st.lists(st.sampled_from(["10.0.0.0/8", "10.1.2.3", "11.0.0.1"]), max_size=1),
    st.booleans(),
)
_ACTIONS = st.lists(st.sampled_from([Action.PUB, Action.SUB]), min_size=1, max_size=2, unique=True)
_NEED = st.builds(Need, st.sampled_from([Kind.TOPIC, Kind.GROUP]), _NAME, _ACTIONS.map(tuple))


def naive(rules: list[Rule], source: str, need: Need) -> bool:
    """One action after the other, one list after the other, the rules ordered by what makes them special."""
    for action in need.actions:
        for policy in (Policy.CUSTOM, Policy.DEFAULT):
            fitting = []
            for each in rules:
                text = str(each.resource)
                kind, _, name = text.partition(":")
                if each.policy != policy or not ({Action.ALL, action} & each.actions):
                    continue
                network = source.startswith("10.") and "10.0.0.0/8" in each.sources
                if each.sources and not network and source not in each.sources:
                    continue
                if text == "*":
                    fitting.append((0, 0, not each.allow))
                elif kind.upper() == need.kind.name:
                    if name == need.name:
                        fitting.append((9, 0, not each.allow))
                    elif name.endswith("*") and need.name.startswith(name[:-1]):
                        fitting.append((1, len(name), not each.allow))
            if fitting:
                if not max(fitting)[2]:
                    return True
                break
    return False


@given(st.lists(_RULE, max_size=8), st.sampled_from(["10.1.2.3", "11.0.0.1", "12.0.0.1"]), _NEED)
def test_the_judge_agrees_with_the_reference(rules: list[Rule], source: str, need: Need) -> None:
    unique = [*{(each.policy, each.resource): each for each in rules}.values()]
    assert allowed(*unique, need=need, source=source) is naive(unique, source, need)


def test_actions_go_by_the_names_that_mqadmin_has() -> None:
    names = {action: parse_rule((1, "*", [name], [], True)).actions for action, name in ACTION_NAMES.items()}
    assert names == {action: {action} for action in Action}
    assert ACTION_NAMES[Action.UPDATE] == "Update"
    assert [ACTION_NAMES[action] for action in (Action.DELETE, Action.GET, Action.LIST)] == ["Delete", "Get", "List"]


@given(_RULE)
def test_a_rule_survives_its_row(rule: Rule) -> None:
    assert parse_rule(rule_row(rule)) == rule
    assert parse_resource(str(rule.resource)) == rule.resource


_FEW = st.sampled_from([PUB, Need(Kind.TOPIC, "a", (Action.PUB,)), Need(Kind.GROUP, "a", (Action.SUB,))])


@given(st.lists(st.tuples(st.lists(_RULE, max_size=4), st.booleans(), _FEW), max_size=12))
def test_kept_verdicts_are_those_of_the_rules_now(history: list[tuple[list[Rule], bool, Need]]) -> None:
    kept, version, user = Verdicts(HERE), 1, SHOP
    for rules, changes, need in history:
        if changes:
            version += 1
            user = replace(SHOP, version=version, rules=tuple(rules))
        verdict: Verdict = kept.judge(user, [need])
        assert verdict == judge(user, HERE, [need])


def test_kept_verdicts_are_of_one_user_and_bounded() -> None:
    class Name(str):
        """A name of which it is seen whether somebody has it still."""

        __slots__ = ("__weakref__",)

    kept, names = Verdicts(HERE), WeakSet[Name]()
    one, other = replace(SHOP, rules=(rule("*"),)), replace(SHOP, id=2)
    assert kept.judge(one, [PUB]) == ALLOWED
    assert kept.judge(other, [PUB]) != ALLOWED, "a user made again has another id"
    assert kept.judge(replace(one, enabled=False), [PUB]) != ALLOWED
    for number in range(3 * Verdicts.KEPT_MAX):
        name = Name(f"t{number}")
        names.add(name)
        kept.judge(one, [Need(Kind.TOPIC, name, (Action.PUB,))])
        del name
    assert 100 < len(names) <= Verdicts.KEPT_MAX + 1


OTHERS: dict[str, Any] = {
    "policy": Policy.DEFAULT,
    "resource": parse_resource("Topic:other"),
    "actions": frozenset({Action.SUB}),
    "sources": ("10.9.0.0/16",),
    "allow": False,
}
"""Field of a stored rule -> another value than that of the rule below."""
CHANGES: dict[str, Any] = {"is_super": True, "enabled": False}
BESIDE_RIGHTS = {
    "id": "the name in other rows",
    "name": "shown",
    "secret": "signs (tests/raftmq_wire/test_signature.py)",
    "key_id": "decrypts the secret",
    "created_ms": "shown",
    "version": "changes with the rest",
    "rules": "tried above",
    "tokens": "log in (tests/cluster/admin/test_users_http.py)",
}


@each_row("field", [*Rule._fields, *(each.name for each in fields(User) if each.init)])
def test_each_stored_field_of_a_user_and_a_rule_decides_something(field: str) -> None:
    """A field that is added and that nobody obeys has no other value here, or none that changes an answer."""
    if field in BESIDE_RIGHTS:
        return
    one, default = rule("Topic:orders-eu", actions="Pub"), rule("Topic:orders-eu", "DENY", policy=2)
    needs = [PUB, PUB._replace(actions=(Action.SUB,)), PUB._replace(name="other")]

    def answers(user: User) -> list[bool]:
        return [judge(user, source, [need]) == ALLOWED for source in (HERE, "10.9.1.1") for need in needs]

    before = answers(replace(SHOP, rules=(one, default)))
    if field in Rule._fields:
        assert answers(replace(SHOP, rules=(one._replace(**{field: OTHERS[field]}), default))) != before
    else:
        assert answers(replace(SHOP, rules=(one, default), **{field: CHANGES[field]})) != before
