"""A model of users and access rules, built from the log's commands: which user may do what at which index of the log.

The model shares no code with `statemachine.access`. So a bug, such as a wrong rank of rules or a secret that stays
valid after its change, is in only one of the two, and the check sees the difference.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from statemachine.access.access_commands import (
    ChangeUser,
    CreateUser,
    PutToken,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    SetAuthMode,
    SetRules,
)
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Found
from statemachine.levels import OWNERS_LEVEL

Reveal = Callable[[int, bytes, str], str]
"""Function that decrypts a user's secret: (user id, encrypted secret, key id) -> secret."""


class Want(NamedTuple):
    """One resource that a request touches, and the actions on it. A user needs the right to any one of them."""

    kind: str
    """The kind of resource: Topic or Group."""
    name: str
    actions: tuple[str, ...]


class Who(NamedTuple):
    """The signer of a request, as the request claims it."""

    name: str
    """User name; "" for a request that is not signed."""
    secret: str
    source: str
    """IP address of the client."""


class ModelRule(NamedTuple):
    """One access rule of a user: policy 1 (Custom) or 2 (Default), resource, actions, source addresses, allow or
    deny."""

    policy: int
    resource: str
    actions: frozenset[str]
    sources: tuple[str, ...]
    allow: bool

    def rank(self, want: Want) -> tuple[int, int, int] | None:
        """Returns how specific the rule is for this resource (a larger tuple is more specific), None if the rule is
        about another resource."""
        if self.resource == "*":
            return 0, 0, 0
        kind, _, name = self.resource.partition(":")
        if kind != want.kind:
            return None
        if not name.endswith("*"):
            return (1, 2, len(name)) if name == want.name else None
        prefix = name[:-1]
        if not want.name.startswith(prefix):
            return None
        return 1, int(bool(prefix)), len(prefix)

    def is_for(self, action: str, source: str) -> bool:
        """Returns True if the rule covers this action of a client at this address."""
        if not self.actions & {action, "All"}:
            return False
        address = ipaddress.ip_address(source)
        return not self.sources or any(address in ipaddress.ip_network(net, strict=False) for net in self.sources)


class ModelUser(NamedTuple):
    """One user as of one index of the log."""

    id: int
    secret: str
    is_super: bool
    enabled: bool
    rules: tuple[ModelRule, ...] = ()

    def may(self, want: Want, source: str) -> bool:
        """Returns True if the user's rules allow at least one of the actions to a client at this address."""
        return any(self._may(want, action, source) for action in want.actions)

    def _may(self, want: Want, action: str, source: str) -> bool:
        for policy in (1, 2):
            near = [
                (rank, rule.allow)
                for rule in self.rules
                if rule.policy == policy and rule.is_for(action, source) and (rank := rule.rank(want)) is not None
            ]
            if near:
                highest = max(rank for rank, _ in near)
                return all(allow for rank, allow in near if rank == highest)
        return False


ModelUsers = dict[str, ModelUser]


class ModelToken(NamedTuple):
    """A token of a user."""

    user_id: int
    label: str
    given_at: int
    """Index of the entry that created the token."""
    ended_at: int = 0
    """Index of the entry that ended the token; 0 if none has."""

    def is_there(self, index: int) -> bool:
        """Returns True if the token is there at this index of the log."""
        return self.given_at <= index and not (self.ended_at and self.ended_at <= index)


class AccessModel:
    """The users and rules that the log describes, at every index, learned entry by entry."""

    def __init__(self, reveal: Reveal) -> None:
        self._reveal = reveal
        self._next_id = 1
        self.index = 0
        """Index of the last entry that the model has learned."""
        self.enforced_at = 0
        """Index of the entry from which on denials are enforced. Before it, everybody may do everything."""
        self.level = 0
        """The level of the cluster at `index`."""
        self.tokens: dict[bytes, ModelToken] = {}
        """Digest -> token, for all tokens that were ever created."""
        self._changed_at = [0]
        self._users: list[ModelUsers] = [{}]
        """The users as of each index in `_changed_at`."""

    def learn(self, index: int, commands: Sequence[Found]) -> None:
        """Applies the commands of the next entry to the model."""
        self.index = index
        users = dict(self._users[-1])
        before = dict(users)
        for command in commands:
            self._change_tokens(users, command)
            self._change(users, command)
        if users != before:
            self._changed_at.append(index)
            self._users.append(users)

    def states(self, low: int, high: int) -> Iterator[ModelUsers]:
        """Yields each distinct state of the users between these two indexes, both included."""
        at = bisect_right(self._changed_at, max(low, 0)) - 1
        end = bisect_right(self._changed_at, max(low, high))
        yield from self._users[at:end]

    def is_open(self, low: int) -> bool:
        """Returns True if a node that has applied no more than this index lets everybody do everything."""
        return low < self.enforced_at

    def id_of(self, who: Who) -> int:
        """Returns the id of the user who at any index had the signer's name and secret; 0 if no user had."""
        found = [users[who.name] for users in self._users if who.name in users]
        return next((user.id for user in found if user.secret == who.secret), 0)

    @property
    def changes(self) -> int:
        """The number of entries that changed a user."""
        return len(self._users) - 1

    @property
    def newest(self) -> ModelUsers:
        """The users as of the last entry learned."""
        return self._users[-1]

    def _change(self, users: ModelUsers, command: Found) -> None:
        if isinstance(command, SetAuthMode):
            if command.mode == "enforce" and not self.enforced_at:
                self.enforced_at = self.index
        elif isinstance(command, CreateUser):
            self._create(users, command)
        elif isinstance(command, ChangeUser | RemoveUser | SetRules | RemoveRules):
            found = [each for each in users if users[each].id == command.user_id]
            for each in found:
                user = users.pop(each)
                if not isinstance(command, RemoveUser):
                    users[each] = self._changed(user, command)

    def _change_tokens(self, users: ModelUsers, command: Found) -> None:
        """Applies the command to `tokens` and `level`. `users` must be as they were before the command."""
        ids = {user.id for user in users.values()}
        if isinstance(command, Finalize):
            self.level = max(self.level, command.level)
        elif isinstance(command, PutToken):
            if command.user_id in ids and command.digest not in self.tokens:
                self.tokens[command.digest] = ModelToken(command.user_id, command.label, self.index)
        elif isinstance(command, RemoveToken):
            self._end([command.digest])
        elif isinstance(command, RemoveUser):
            self._end([digest for digest, token in self.tokens.items() if token.user_id == command.user_id])
        elif isinstance(command, ChangeUser) and "secret" in command.changes and self.level >= OWNERS_LEVEL:
            kept: Any = command.changes.get("keep_tokens", [])
            own = [(digest, token) for digest, token in self.tokens.items() if token.user_id == command.user_id]
            self._end([digest for digest, token in own if token.label not in kept])

    def _end(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            token = self.tokens.get(digest)
            if token is not None and not token.ended_at:
                self.tokens[digest] = token._replace(ended_at=self.index)

    def _create(self, users: ModelUsers, command: CreateUser) -> None:
        user_id = command.user_id
        if command.name not in users and user_id == self._next_id:
            self._next_id += 1
            secret = self._reveal(user_id, command.secret, command.key)
            users[command.name] = ModelUser(user_id, secret, command.is_super, command.enabled)

    def _changed(self, user: ModelUser, command: ChangeUser | SetRules | RemoveRules) -> ModelUser:
        places = {(rule.policy, rule.resource): rule for rule in user.rules}
        if isinstance(command, ChangeUser):
            changes: Mapping[str, Any] = command.changes
            secret = self._reveal(user.id, *changes["secret"]) if "secret" in changes else user.secret
            return user._replace(
                secret=secret,
                is_super=changes.get("super", user.is_super),
                enabled=changes.get("enabled", user.enabled),
            )
        if isinstance(command, SetRules):
            for policy, resource, actions, sources, allow in command.rules:
                places[policy, resource] = ModelRule(policy, resource, frozenset(actions), tuple(sources), allow)
        else:
            places = {
                place: rule
                for place, rule in places.items()
                if command.policy not in (None, place[0]) or command.resource not in (None, place[1])
            }
        return user._replace(rules=tuple(places.values()))


def is_allowed_by_id(users: ModelUsers, user_id: int, who: Who, wants: Sequence[Want]) -> bool:
    """Returns True if the rules allow the request to the user with this id; for requests whose signature a node has
    verified before."""
    found = [(name, user) for name, user in users.items() if user.id == user_id]
    return any(is_allowed(users, Who(name, user.secret, who.source), wants) for name, user in found)


def is_allowed(users: ModelUsers, who: Who, wants: Sequence[Want]) -> bool:
    """Returns True if the signature is right and the rules allow the signer everything in `wants`."""
    user = users.get(who.name)
    if user is None or not who.secret or user.secret != who.secret or not user.enabled:
        return False
    return user.is_super or all(user.may(want, who.source) for want in wants)
