"""RocketMQ's plain_acl.yml as users and rules: what becomes what, what is named, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from raftmq.cli import run
from raftmq.local.plain_acl import AclPlan, PlainAclError, document_of, plan_of
from tests.support.rows import each_row

SECRET = "planted-secret-of-an-account"
FILE = f"""
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: {SECRET}
  whiteRemoteAddress: 192.168.0.*
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  - '%RETRY%groupB=SUB'
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB
- accessKey: rocketmq2
  secretKey: {SECRET}-2
  whiteRemoteAddress:
  admin: true
  topicPerms: [topicA=ANY]
"""


def planned(text: str = FILE) -> AclPlan:
    return plan_of(document_of(text))


def test_the_file_of_rocketmq_s_own_page() -> None:
    plan = planned()
    shop, root = plan.users
    assert (shop.name, shop.secret, shop.is_super) == ("RocketMQ", SECRET, False)
    assert [(each["resource"], each["decision"], each["actions"]) for each in shop.rules] == [
        ("Topic:topicA", "Deny", ["All"]),
        ("Topic:topicB", "Allow", ["Pub", "Sub"]),
        ("Topic:topicC", "Allow", ["Sub"]),
        ("Group:groupB", "Allow", ["Sub"]),
        ("Group:*", "Allow", ["Sub"]),
        ("Group:groupA", "Deny", ["All"]),
        ("Group:groupB", "Allow", ["Pub", "Sub"]),
    ]
    assert (root.name, root.is_super, root.rules) == ("rocketmq2", True, ())
    assert plan.unsigned == ("10.10.103.* (globalWhiteRemoteAddresses)", "192.168.0.* (account RocketMQ)")
    assert [note for note in plan.notes if note.startswith("rocketmq2 is a Super")]
    assert plan.left_out == ()
    assert SECRET not in repr(plan)


UNQUOTED = [
    "12345678",
    "0123456701",
    "012345678",
    "0x12345678",
    "12_345_678",
    "1234567.50",
    "1e10000000",
    "1.0e+100000",
    "190:20:30:40",
    "2026-11-26",
    "2026-11-26T10:00:00Z",
    "+12345678",
    "0b1010101010",
    "1234567890123456789012345",
    "-12345678",
    ".12345678",
    "0o12345670",
]
TO_YAML = yaml.SafeLoader.yaml_implicit_resolvers
"""First letter -> (tag, pattern)."""


def is_text_to_yaml(value: str) -> bool:
    return not any(pattern.match(value) for _, pattern in TO_YAML.get(value[0], []))


@each_row("secret", UNQUOTED)
def test_a_secret_without_quotes_is_the_text_that_stands_there(secret: str) -> None:
    plan = planned(f"accounts:\n- accessKey: shop\n  secretKey: {secret}\n  admin: true\n")
    (user,) = plan.users
    assert (user.secret, user.is_super) == (secret, True)
    named = [note for note in plan.notes if note.startswith("shop: its secretKey has no quotes")]
    assert len(named) == (0 if is_text_to_yaml(secret) else 1)
    assert secret not in repr(plan) + "".join(plan.notes)


@each_row("name", ["0123456701", "on", "1e3", "1_000", "no"])
def test_so_is_a_name(name: str) -> None:
    plan = planned(f"accounts:\n- accessKey: {name}\n  secretKey: {SECRET}\n")
    (user,) = plan.users
    assert user.name == name
    assert any(note.startswith(f"{name}: its accessKey has no quotes") for note in plan.notes) != is_text_to_yaml(name)


def test_quoted_texts_need_no_note_and_nothing_is_nothing() -> None:
    quoted = planned("accounts:\n- accessKey: '0123456701'\n  secretKey: \"012345678\"\n  admin: yes\n")
    assert [(user.name, user.secret, user.is_super) for user in quoted.users] == [("0123456701", "012345678", True)]
    assert [note for note in quoted.notes if "quotes" in note] == []
    nothing = planned("accounts:\n- accessKey: shop\n  secretKey: ~\n")
    assert nothing.left_out == ("account shop: its secret has 0 bytes, and 8 to 256 are possible",)


def test_addresses_and_resources_are_texts_too() -> None:
    plan = planned(
        f"globalWhiteRemoteAddresses: [10.10]\naccounts:\n- accessKey: shop\n  secretKey: {SECRET}\n"
        "  topicPerms: [012=PUB]\n  whiteRemoteAddress: 1_0\n"
    )
    assert plan.unsigned == ("10.10 (globalWhiteRemoteAddresses)", "1_0 (account shop)")
    assert plan.users[0].rules[0]["resource"] == "Topic:012"


@each_row(
    ("account", "why"),
    [
        ({"accessKey": "a b", "secretKey": SECRET}, "user name"),
        ({"accessKey": "shop", "secretKey": "1234567"}, "has 7 bytes"),
        ({"accessKey": "shop"}, "has 0 bytes"),
        ({"accessKey": "shop", "secretKey": SECRET, "topicPerms": ["orders=WRITE"]}, "orders=WRITE is no permission"),
        ({"accessKey": "shop", "secretKey": SECRET, "topicPerms": ["orders"]}, "orders is no permission"),
        ({"accessKey": "shop", "secretKey": SECRET, "topicPerms": ["or*=PUB"]}, "a star stands for any end"),
        ({"accessKey": "shop", "secretKey": SECRET, "defaultTopicPerm": "ALL"}, "ALL is no permission"),
        ({"accessKey": "shop", "secretKey": SECRET, "topicPerm": []}, "topicPerm is not known"),
    ],
)
def test_what_has_no_counterpart_is_named(account: dict[str, Any], why: str) -> None:
    plan = plan_of({"accounts": [account]})
    assert len(plan.left_out) == 1
    assert why in plan.left_out[0]
    assert SECRET not in plan.left_out[0]
    assert all(not user.rules for user in plan.users), "nothing is allowed in its place"


@each_row(
    "document",
    [
        None,
        [],
        {"accounts": 5},
        {"accounts": [5]},
        {"accounts": [{"accessKey": "shop", "secretKey": SECRET, "topicPerms": "x"}]},
    ],
)
def test_what_is_no_such_file(document: Any) -> None:
    with pytest.raises(PlainAclError):
        plan_of(document)


def test_the_first_of_two_equal_accounts_counts() -> None:
    twice = {"accessKey": "shop", "secretKey": SECRET}
    plan = plan_of({"accounts": [twice, {**twice, "admin": True}]})
    assert [(user.name, user.is_super) for user in plan.users] == [("shop", False)]
    assert "it is there twice" in plan.left_out[0]


@pytest.mark.parametrize(
    ("text", "more", "code", "says"),
    [
        (FILE, ("--dry-run",), 0, "needs a signature from now on: 10.10.103.*"),
        (FILE, ("--yes",), 5, "--all-must-sign"),
        (f"accounts: [secretKey: {SECRET}: x", ("--yes",), 2, "is no YAML"),
        (f"- {SECRET}", ("--yes",), 2, "it has no list `accounts`"),
    ],
)
def test_the_command_shows_the_plan_and_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: tuple[str, ...], code: int, says: str
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    assert run(["acl", "import", str(path), *more]) == code
    said = "".join(capsys.readouterr())
    assert says in said
    assert SECRET not in said
