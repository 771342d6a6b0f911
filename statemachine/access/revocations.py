"""Revocations: changes that take rights away, in the log of another group of brokers than the first one, made while the
first one cannot be asked (docs/adr/0110).

The group has a copy of the first group's users, rules and tokens, and revocations do not change its rows. Readers see
the copy without the rights that revocations take away. A revocation is kept until the first group has decided about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Final, Self

import msgspec
from msgspec import Meta

from raftlog.types import FIRST_GROUP
from raftlog.work import ITEM_UNITS, charge
from statemachine.access.access_commands import ChangeUser, Origin, RemoveRules, RemoveToken, RemoveUser
from statemachine.access.rules import Policy, Rule, parse_resource
from statemachine.access.user_rows import User, last_super, no_user
from statemachine.access.users import Access
from statemachine.commands import (
    U64,
    Command,
    CommandReader,
    CommandResult,
    InvalidCommandError,
    done,
    not_found,
    pack,
)
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import GROUPS_LEVEL
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage

ACT_BYTES_MAX: Final = 4 << 10
WAITING_MAX: Final = 1_000
"""The most revocations that wait for the first group."""
ENDED_MAX: Final = 64
"""The most revocations that one command ends."""

Act = ChangeUser | RemoveUser | RemoveRules | RemoveToken
"""The commands that a revocation may contain: they only take rights away."""
_NOBODY: Final = Origin(0, "", "")
_READER: Final = CommandReader([ChangeUser, RemoveUser, RemoveRules, RemoveToken])


class Revoke(Command, tag="revoke", frozen=True):
    """Revokes rights in this group, until the first group has decided about the same revocation."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    act: Annotated[bytes, Meta(max_length=ACT_BYTES_MAX)]
    """The command for the first group, packed as in a COMMAND entry."""


class EndRevocations(Command, tag="end_revocations", frozen=True):
    """Ends revocations: the first group has decided about them, and its decision is copied."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    numbers: Annotated[Sequence[U64], Meta(min_length=1, max_length=ENDED_MAX)]


def revocation_of(command: Command) -> Act | None:
    """Returns `command` if it only takes rights away, else None."""
    if isinstance(command, ChangeUser):
        return command if command.changes == {"enabled": False} else None
    return command if isinstance(command, RemoveUser | RemoveRules | RemoveToken) else None


class Revocations(Family):
    """The revocations of a group. `waiting` is replaced and never changed, so any thread may read it."""

    ROWS = ((META, meta_keys.REVOCATION_PREFIX), (META, meta_keys.NEXT_REVOCATION_KEY))
    LATER_ROWS = (
        LaterRows(GROUPS_LEVEL, META, meta_keys.REVOCATION_PREFIX),
        LaterRows(GROUPS_LEVEL, META, meta_keys.NEXT_REVOCATION_KEY),
    )

    def __init__(self, kv: KV, access: Access, group: int) -> None:
        self._access, self._own = access, group
        self._acts = {meta_keys.revocation_number(key): _act(row) for key, row in kv.scan(META, *meta_keys.REVOCATIONS)}
        row = kv.get(META, meta_keys.NEXT_REVOCATION_KEY)
        self._next: int = 1 if row is None else keys.U64.unpack(row)[0]
        self._of_user: dict[int, list[Act]] = {}
        self._tokens: set[bytes] = set()
        self._index()
        self.changed: bool = True
        self.waiting: Mapping[int, Act] = {}
        """Number -> the command of each revocation about which the first group has not decided, numbers ascending."""
        access.less(self._shrunk, self._tokens.__contains__)
        self.publish()

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[Access], families.group)

    @applies(Revoke)
    def revoke(self, stage: Stage, command: Revoke) -> CommandResult:
        """Revokes rights. If an equal revocation waits for the first group, this one replaces it. The result's value is
        the new revocation's number. The result is `refused` in the first group, or if no enabled Super would be left;
        it is `not_found` if there is nothing to take away.

        Raises InvalidCommandError if the act is malformed, or WAITING_MAX revocations wait already.
        """
        if self._own == FIRST_GROUP:
            return CommandResult(False, "refused", f"group {FIRST_GROUP} changes users and rules themselves")
        act = _act(command.act)
        why_not = self._why_not(act)
        if why_not is not None:
            return why_not
        about = _about(act)
        for number in [number for number, other in self._acts.items() if _about(other) == about]:
            self._drop(stage, number)
        if len(self._acts) >= WAITING_MAX:
            raise InvalidCommandError(f"{WAITING_MAX} revocations wait for group {FIRST_GROUP} already")
        number, self._next = self._next, self._next + 1
        self._acts[number] = act
        stage.put(META, meta_keys.revocation_key(number), command.act)
        stage.put(META, meta_keys.NEXT_REVOCATION_KEY, keys.U64.pack(self._next))
        self._look_again(stage, [act])
        return done(number)

    @applies(EndRevocations)
    def end(self, stage: Stage, command: EndRevocations) -> CommandResult:
        """Ends revocations, because the first group has decided about them. Numbers that have ended already are
        ignored. The result's value is the number of revocations that the command ended."""
        ended = [self._drop(stage, number) for number in command.numbers if number in self._acts]
        if ended:
            self._look_again(stage, ended)
        return done(len(ended))

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.waiting, self.changed = dict(self._acts), False

    def _drop(self, stage: Stage, number: int) -> Act:
        stage.delete(META, meta_keys.revocation_key(number))
        return self._acts.pop(number)

    def _look_again(self, stage: Stage, acts: Sequence[Act]) -> None:
        self.changed = True
        self._index()
        for act in acts:
            if isinstance(act, RemoveToken):
                self._access.show_token(stage, act.digest)
            else:
                self._access.show(stage, act.user_id)

    def _index(self) -> None:
        self._of_user.clear()
        self._tokens.clear()
        for act in self._acts.values():
            if isinstance(act, RemoveToken):
                self._tokens.add(act.digest)
            else:
                self._of_user.setdefault(act.user_id, []).append(act)

    def _why_not(self, act: Act) -> CommandResult | None:
        if isinstance(act, RemoveToken):
            return None if self._access.has_token(act.digest) else not_found("no such token")
        user = self._access.current(act.user_id)
        if user is None:
            return no_user(act.user_id)
        if isinstance(act, RemoveRules):
            if any(rule.allow and _matches(act, rule) for rule in user.rules):
                return None
            return not_found(f"user {user.name} has no such rule that allows something")
        return last_super(user) if self._is_last_super(user) else None

    def _is_last_super(self, user: User) -> bool:
        """Returns True if `user` is the only enabled Super among the users as readers see them."""
        users = self._access.all()
        charge(ITEM_UNITS * len(users))
        left = [each.id for each in users if each.is_super and self._shrunk(each).enabled]
        return left == [user.id]

    def _shrunk(self, user: User) -> User:
        """Returns the copied user without the rights that the waiting revocations take away. Any of them that is not
        about rules disables the user."""
        acts = self._of_user.get(user.id)
        if not acts:
            return user
        of_rules = [act for act in acts if isinstance(act, RemoveRules)]
        gone = {rule for rule in user.rules if rule.allow and any(_matches(act, rule) for act in of_rules)}
        rules = tuple([rule for rule in user.rules if rule not in gone])
        return replace(user, enabled=user.enabled and len(of_rules) == len(acts), rules=rules)


class RevocationReads(Reads):
    """Read access to what a state holds about revocations."""

    revocations = family_of(Revocations)
    """The rights that this group's log took away, about which the first group has not decided."""


def _act(packed: bytes) -> Act:
    """Unpacks the command of a revocation. Raises InvalidCommandError if it is malformed or does more than take rights
    away."""
    try:
        found = _READER.unpack(packed)
    except (ValueError, RecursionError, TypeError) as error:
        raise InvalidCommandError(f"a malformed revocation: {error!s:.200}") from error
    act = revocation_of(found[0]) if len(found) == 1 and isinstance(found[0], Command) else None
    if act is None:
        raise InvalidCommandError("this takes more than rights away")
    if isinstance(act, RemoveRules) and act.resource is not None:
        parse_resource(act.resource)
    return act


def _about(act: Act) -> bytes:
    """Returns a key of a revocation without its origin: two revocations with equal keys differ at most in who asked,
    when and from where."""
    return pack([msgspec.structs.replace(act, origin=_NOBODY)])


def _matches(act: RemoveRules, rule: Rule) -> bool:
    of_policy = act.policy is None or Policy(act.policy) == rule.policy
    return of_policy and (act.resource is None or parse_resource(act.resource) == rule.resource)
