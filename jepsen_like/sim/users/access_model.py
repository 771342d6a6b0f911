"""A model of users and access rules, built from the log's commands: which user may do what at which index of the log.

The model shares no line with `statemachine.access`, so that a wrong rank, an id that is given twice or a secret that
outlives its change is wrong in one of the two alone.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from statemachine.commands import (
    CHANGE_USER,
    CREATE_USER,
    FINALIZE,
    OWNERS_LEVEL,
    PUT_TOKEN,
    REMOVE_RULES,
    REMOVE_TOKEN,
    REMOVE_USER,
    SET_AUTH_MODE,
    SET_RULES,
    Command,
)

Reveal = Callable[[int, bytes, str], str]
"""Function that decrypts a user's secret: (user id, encrypted secret, key id) -> secret."""


class Want(NamedTuple):
    """One resource that a request touches, and the actions of which any one suffices."""

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


Users = dict[str, ModelUser]


class ModelToken(NamedTuple):
    """A token of a user."""

    user_id: int
    label: str
    given_at: int
    """Index of the entry that gave it."""
    ended_at: int = 0
    """Index of the entry that ended it; 0: none did."""

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
        """Digest -> token, of all that were ever given."""
        self._changed_at = [0]
        self._users: list[Users] = [{}]
        """The users as of each index in `_changed_at`."""

    def learn(self, index: int, commands: Sequence[Command]) -> None:
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

    def states(self, low: int, high: int) -> Iterator[Users]:
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
    def newest(self) -> Users:
        """The users as of the last entry learned."""
        return self._users[-1]

    def _change(self, users: Users, command: Command) -> None:
        name, *arguments = command
        if name == SET_AUTH_MODE and arguments[1] == "enforce" and not self.enforced_at:
            self.enforced_at = self.index
        elif name == CREATE_USER:
            self._create(users, *arguments[1:])
        elif name in (CHANGE_USER, REMOVE_USER, SET_RULES, REMOVE_RULES):
            found = [each for each in users if users[each].id == arguments[1]]
            for each in found:
                user = users.pop(each)
                if name != REMOVE_USER:
                    users[each] = self._changed(user, name, arguments[2:])

    def _change_tokens(self, users: Users, command: Command) -> None:
        """Gives and ends tokens as the command says, whose effect on `users` is still to come."""
        name, *arguments = command
        ids = {user.id for user in users.values()}
        if name == FINALIZE:
            self.level = max(self.level, arguments[0])
        elif name == PUT_TOKEN:
            user_id, digest, _, label = arguments[1:]
            if user_id in ids and digest not in self.tokens:
                self.tokens[digest] = ModelToken(user_id, label, self.index)
        elif name == REMOVE_TOKEN:
            self._end([arguments[1]])
        elif name == REMOVE_USER:
            self._end([digest for digest, token in self.tokens.items() if token.user_id == arguments[1]])
        elif name == CHANGE_USER and "secret" in arguments[2] and self.level >= OWNERS_LEVEL:
            kept = arguments[2].get("keep_tokens", [])
            own = [(digest, token) for digest, token in self.tokens.items() if token.user_id == arguments[1]]
            self._end([digest for digest, token in own if token.label not in kept])

    def _end(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            token = self.tokens.get(digest)
            if token is not None and not token.ended_at:
                self.tokens[digest] = token._replace(ended_at=self.index)

    def _create(
        self, users: Users, user_id: int, name: str, is_super: bool, enabled: bool, secret: bytes, key: str
    ) -> None:
        if name not in users and user_id == self._next_id:
            self._next_id += 1
            users[name] = ModelUser(user_id, self._reveal(user_id, secret, key), is_super, enabled)

    def _changed(self, user: ModelUser, name: str, arguments: list[Any]) -> ModelUser:
        places = {(rule.policy, rule.resource): rule for rule in user.rules}
        if name == CHANGE_USER:
            changes = arguments[0]
            secret = self._reveal(user.id, *changes["secret"]) if "secret" in changes else user.secret
            return user._replace(
                secret=secret,
                is_super=changes.get("super", user.is_super),
                enabled=changes.get("enabled", user.enabled),
            )
        if name == SET_RULES:
            for policy, resource, actions, sources, allow in arguments[0]:
                places[policy, resource] = ModelRule(policy, resource, frozenset(actions), tuple(sources), allow)
        else:
            policy, resource = arguments
            places = {
                place: rule
                for place, rule in places.items()
                if policy not in (None, place[0]) or resource not in (None, place[1])
            }
        return user._replace(rules=tuple(places.values()))


def is_allowed_by_id(users: Users, user_id: int, who: Who, wants: Sequence[Want]) -> bool:
    """Returns True if the rules allow the request to the user with this id; for requests whose signature a node has
    verified before."""
    found = [(name, user) for name, user in users.items() if user.id == user_id]
    return any(is_allowed(users, Who(name, user.secret, who.source), wants) for name, user in found)


def is_allowed(users: Users, who: Who, wants: Sequence[Want]) -> bool:
    """Returns True if the signature is right and the rules allow the signer all that the request wants."""
    user = users.get(who.name)
    if user is None or not who.secret or user.secret != who.secret or not user.enabled:
        return False
    return user.is_super or all(user.may(want, who.source) for want in wants)
