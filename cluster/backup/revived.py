"""Reads the users, rules and tokens in a backup's state. Makes the commands with which a restore removes the tokens,
and replaces the users by those of another copy of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from statemachine.access.access_commands import (
    ChangeUser,
    CreateUser,
    Origin,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    RotateAuthKey,
    SetAuthKey,
    SetAuthMode,
    SetRules,
)
from statemachine.access.rules import ACTION_NAMES, Rule, rule_row
from statemachine.access.user_rows import User
from statemachine.access.users import Access
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.commands import Command, pack

if TYPE_CHECKING:
    from statemachine.rows.kv import KV

COMMANDS_PER_ENTRY: Final = 500
ENTRY_BYTES_MAX: Final = 1 << 20
"""The most bytes of commands in one log entry, unless it has only one command."""
ASKER: Final = "raftmq restore"
"""The name under which the audit records the changes that a restore makes."""
UNUSED: Final = "raftmq-restore.unused"
"""Beginning of the names of users that are created and removed only to use up an id. Ids are given in ascending order
without gaps."""


class Revived(NamedTuple):
    """The users in a backup. They may be older than the cluster's last state, and have rights that were taken away
    since."""

    users: tuple[User, ...] = ()
    """All users, by name."""
    mode: str = "off"
    """The mode in which requests are judged (`auth.mode`)."""
    key: str = ""
    """The id of the key that encrypts new secrets."""
    keys: tuple[str, ...] = ()
    """The ids of all keys that encrypt secrets of these users."""
    tokens: tuple[bytes, ...] = ()
    """The SHA-256 of each token. A restore removes all tokens."""
    next_id: int = 1
    """The id that the next new user will get."""

    def changes(self, wanted: Revived | None, now_ms: int) -> list[list[Command]]:
        """Returns commands that remove all tokens, and that replace these users by `wanted` if it is not None. Each
        inner list is for one log entry. Users keep their ids, because their encrypted secrets are bound to the ids."""
        origin = Origin(now_ms, ASKER, "")
        commands: list[Command] = [RemoveToken(origin, digest) for digest in self.tokens]
        if wanted is not None:
            commands += _taking(self, wanted, origin)
        entries: list[list[Command]] = []
        size = 0
        for command in commands:
            more = len(pack([command]))
            if not entries or len(entries[-1]) >= COMMANDS_PER_ENTRY or size + more > ENTRY_BYTES_MAX:
                entries.append([])
                size = 0
            entries[-1].append(command)
            size += more
        return entries

    def differences(self, newest: Revived) -> list[str]:
        """Returns sentences about what changed between these users and those of a newer copy, for people."""
        later = {user.id: user for user in newest.users}
        lines = [] if self.mode == newest.mode else [f"auth.mode: {self.mode}, later {newest.mode}"]
        for user in self.users:
            lines += [f"{user.name}: {each}" for each in _changed(user, later.get(user.id))]
        known = {user.id for user in self.users}
        lines += [f"{user.name}: was made later, and is missing" for user in newest.users if user.id not in known]
        return lines


def _changed(user: User, later: User | None) -> Iterator[str]:
    if later is None:
        yield "was removed later"
        return
    if user.is_super != later.is_super:
        yield "is a Super, later Normal" if user.is_super else "is Normal, later a Super"
    if user.enabled != later.enabled:
        yield "is enabled, later disabled" if user.enabled else "is disabled, later enabled"
    if (user.secret, user.key_id) != (later.secret, later.key_id):
        yield "its secret, or the key that encrypts it, was changed later"
    before, after = _by_place(user), _by_place(later)
    for place, rule in before.items():
        if place not in after:
            yield f"the rule {_told(rule)} was removed later"
        elif after[place] != rule:
            yield f"the rule {_told(rule)} is later {_told(after[place])}"
    for place, rule in after.items():
        if place not in before:
            yield f"the rule {_told(rule)} was added later, and is missing"


def _by_place(user: User) -> dict[tuple[int, str], Rule]:
    return {(rule.policy, str(rule.resource)): rule for rule in user.rules}


def _told(rule: Rule) -> str:
    actions = ", ".join(ACTION_NAMES[action] for action in sorted(rule.actions))
    return f"{'Allow' if rule.allow else 'Deny'} {rule.resource} {actions}"


def _taking(present: Revived, wanted: Revived, origin: Origin) -> Iterator[Command]:
    """Yields the commands that replace the users and rules `present` by `wanted`.

    The last enabled Super cannot be removed, so there must be one after each command. It is a user that stays until the
    end, if there is one. Otherwise it is the first user that is created only to use up an id.
    """
    key, next_id = present.key, present.next_id
    known = {user.id: user for user in present.users}
    theirs = {user.id: user for user in wanted.users}
    fresh = sorted(theirs.keys() - known.keys())
    names = {theirs[each].name: each for each in fresh}
    guard = _guard([user for user in present.users if user.name not in names], theirs)

    def use(wanted_key: str) -> Iterator[Command]:
        nonlocal key
        if wanted_key != key:
            yield RotateAuthKey(origin, wanted_key) if key else SetAuthKey(origin, wanted_key)
            key = wanted_key

    if guard is not None:
        yield ChangeUser(origin, guard, {"super": True, "enabled": True})
    unused: list[int] = []
    removed = set()
    for user in (theirs[each] for each in fresh):
        yield from use(user.key_id)
        while next_id < user.id:
            is_guard = guard is None and not unused
            yield CreateUser(origin, next_id, f"{UNUSED}-{next_id}", is_guard, is_guard, b"none", key)
            unused.append(next_id)
            if not is_guard:
                yield RemoveUser(origin, next_id)
            next_id += 1
        for other in present.users:
            if other.name == user.name:  # the new user needs this name
                removed.add(other.id)
                yield RemoveUser(origin, other.id)
        yield CreateUser(origin, user.id, user.name, user.is_super, user.enabled, user.secret, user.key_id)
        next_id = user.id + 1
    for user in sorted(wanted.users, key=lambda user: (not (user.is_super and user.enabled), user.id == guard)):
        if user.id in known:
            yield from use(user.key_id)
            secret = (user.secret, user.key_id)
            yield ChangeUser(origin, user.id, {"super": user.is_super, "enabled": user.enabled, "secret": secret})
            if known[user.id].rules:
                yield RemoveRules(origin, user.id, None, None)
        if user.rules:
            yield SetRules(origin, user.id, [rule_row(rule) for rule in user.rules])
    yield from (RemoveUser(origin, each) for each in known if each not in theirs and each not in removed)
    if guard is None and unused:
        yield RemoveUser(origin, unused[0])
    yield from use(wanted.key)
    yield SetAuthMode(origin, wanted.mode)


def _guard(staying: list[User], theirs: dict[int, User]) -> int | None:
    """Returns the id of the user that is made an enabled Super and stays one until all other changes are made; None if
    `staying` is empty. A user that will be an enabled Super afterwards is preferred."""

    def stays(user: User) -> bool:
        later = theirs.get(user.id)
        return later is not None and later.is_super and later.enabled

    return max(staying, key=stays).id if staying else None


def revived_in(state: Path) -> Revived:
    """Returns the users in the state in that folder, without changing it. Raises KVError."""
    with CheckpointReader(state) as reader:
        return revived_of(Access(cast("KV", reader)))  # `Access` only calls `get` and `scan` to load itself


def revived_of(access: Access) -> Revived:
    """Returns the users, rules, tokens and mode that `access` has now."""
    return Revived(
        tuple(access.users.values()),
        access.mode.value,
        access.key_id,
        tuple(sorted(access.keys_in_use)),
        tuple(sorted(access.tokens)),
        access.next_id,
    )
