"""Users, rules and tokens as values and as rows of the state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgpack

from statemachine.access.rules import Rule, RuleIndex, parse_rule
from statemachine.commands import CommandResult, InvalidCommandError, not_found
from statemachine.rows import meta_keys
from statemachine.rows.kv import KV, META

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Mode(StrEnum):
    """The mode of access control: whether requests are judged, and whether a denied request is refused."""

    OFF = "off"
    """No request is judged."""
    OBSERVE = "observe"
    """Every request passes; requests that would be denied are counted."""
    ENFORCE = "enforce"
    """A denied request is answered with code 16."""


MODES: Final = tuple([mode.value for mode in Mode])


@dataclass(frozen=True, slots=True)
class User:
    """One user at one moment. Immutable: a change makes another object with a higher version."""

    id: int
    name: str
    is_super: bool
    enabled: bool
    secret: bytes
    """The nonce and the encrypted secret. The encryption binds it to the cluster, the user's id and the key."""
    key_id: str
    """The id of the key that encrypted the secret."""
    created_ms: int
    """Log time at which the user was created."""
    version: int
    """The version (`Access.version`) of the last change to the user, its rules, tokens or revocations."""
    rules: tuple[Rule, ...] = ()
    tokens: tuple[bytes, ...] = ()
    """The SHA-256 of each of the user's tokens."""
    index: RuleIndex = field(init=False, compare=False, repr=False)
    """The user's rules, found by resource."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", RuleIndex(self.rules))


class Token(NamedTuple):
    """One access token: its user, its expiry and its label."""

    user_id: int
    ends_ms: int
    """Log time at which the token stops being valid."""
    label: str


@dataclass(slots=True)
class CopiedUser:
    """The changes of one user that were copied from the first group of brokers in one page (truth.py): its row if that
    changed, and the rules and tokens that changed."""

    user: User | None = None
    """The user without rules and tokens; None if its row did not change."""
    ended: bool = False
    """True if the user was removed, with its rules and tokens."""
    rules: dict[tuple[int, str], Rule | None] = field(default_factory=dict)
    """The changed rules by (policy, resource); None for one that was removed."""
    tokens: dict[bytes, Token | None] = field(default_factory=dict)
    """The changed tokens by their SHA-256; None for one that was removed."""


class AuditRow(NamedTuple):
    """One change to users, rules or tokens, as the audit records it."""

    number: int
    time_ms: int
    user: str
    """The name of the user who asked for the change; "" if the request named none."""
    address: str
    """The client's address, also if a node forwarded the request."""
    action: str
    about: str


AUDIT_FIELDS: Final = 5
"""The number of fields of an AuditRow in its stored row. From OWNERS_LEVEL on, one more field follows: the row's number
among those of the user."""


class AccessRow(NamedTuple):
    """The content of the row "access": the values that belong to no single user."""

    mode: str = Mode.OFF.value
    key: str = ""
    next_id: int = 1
    version: int = 0
    next_audit: int = 1


def no_user(user_id: int) -> CommandResult:
    """Returns the result of a command about a user that does not exist."""
    return not_found(f"no user with the id {user_id}")


def checked_user_name(name: str) -> str:
    """Returns `name` if it is a valid user name; otherwise raises InvalidCommandError."""
    if not NAME.fullmatch(name):
        raise InvalidCommandError(
            f"a user name has 1 to 64 letters, digits and . _ @ -, and begins with a letter or digit, not {name!r:.100}"
        )
    return name


def kind_of(user: User) -> str:
    """Returns the kind of a user, as RocketMQ's tools name it: "Super" or "Normal"."""
    return "Super" if user.is_super else "Normal"


def told(rule: Rule) -> str:
    """Returns the rule as text for the audit."""
    return f"{'ALLOW' if rule.allow else 'DENY'} {rule.resource}"


def listed(texts: list[str]) -> str:
    """Returns the first three of the texts, joined by commas, and the number of those left out."""
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def last_super(user: User) -> CommandResult:
    """Returns the result `refused` of a command that would leave no enabled Super; `user` is the last one."""
    return CommandResult(False, "refused", f"user {user.name} is the last enabled Super: make another one first")


def in_order(rules: list[Rule]) -> tuple[Rule, ...]:
    """Returns the rules in the order in which a user keeps them: by policy, then by resource as written."""
    return tuple(sorted(rules, key=lambda rule: (rule.policy, str(rule.resource))))


def rule_place(rule: Rule) -> tuple[int, str]:
    """Returns (policy, resource) of a rule. A user has at most one rule with the same pair."""
    return int(rule.policy), str(rule.resource)


def rule_name(user_id: int, rule: Rule) -> tuple[int, int, str]:
    """Returns the name of a rule in the journal of what groups of brokers copy (truth_journal.py)."""
    return (user_id, *rule_place(rule))


def rule_key(user_id: int, rule: Rule) -> bytes:
    """Returns the key of the rule's row."""
    return meta_keys.rule_key(user_id, rule.policy, str(rule.resource))


def user_row(user: User) -> list[Any]:
    """Returns the fields of a user that other groups of brokers copy (truth.py), without its rules and tokens."""
    return [user.name, user.is_super, user.enabled, user.secret, user.key_id, user.created_ms]


def pack_user(user: User) -> bytes:
    """Returns the packed value of the user's row."""
    row: bytes = msgpack.packb([*user_row(user), user.version])
    return row


def load_users(kv: KV, waiting: dict[int, CopiedUser]) -> Iterator[User]:
    """Reads all users with their rules and tokens from the store, and yields them. Adds rules and tokens whose user has
    no row yet to `waiting`, by user id."""
    rules: dict[int, list[Rule]] = {}
    for key, row in kv.scan(META, *meta_keys.RULES):
        rules.setdefault(meta_keys.rule_user(key), []).append(parse_rule(msgpack.unpackb(row)))
    tokens: dict[int, dict[bytes, Token | None]] = {}
    for digest, token in load_tokens(kv):
        tokens.setdefault(token.user_id, {})[digest] = token
    for key, row in kv.scan(META, *meta_keys.USERS):
        user_id = meta_keys.user_id(key)
        of_user = in_order(rules.pop(user_id, []))
        user = User(user_id, *msgpack.unpackb(row))
        yield replace(user, rules=of_user, tokens=tuple(tokens.pop(user_id, ())))
    for user_id in rules.keys() | tokens.keys():
        early = {rule_place(rule): rule for rule in rules.get(user_id, [])}
        waiting[user_id] = CopiedUser(rules=dict(early), tokens=tokens.get(user_id, {}))


def load_tokens(kv: KV) -> Iterator[tuple[bytes, Token]]:
    """Yields (SHA-256, token) of every token."""
    for key, row in kv.scan(META, *meta_keys.TOKENS):
        yield meta_keys.token_digest(key), Token(*msgpack.unpackb(row))
