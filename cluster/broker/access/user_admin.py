"""Changes users, rules and the mode: proposes the commands and reports their results (leader only). Also finds the
recent changes that the cluster's findings report.

The callers have checked the permission: only a Super (an administrator), or the operator with the cluster's secret, may
ask for a change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.broker.access.token_rate import TokenRate
from cluster.broker.refusal import Reason, Refused, not_written
from cluster.replication.outcome import Outcome, ProposeResult
from raftmq_wire.names import check_name
from raftmq_wire.user_file import read_user_file
from statemachine.access.access_commands import (
    ChangeUser,
    CreateUser,
    Origin,
    PutToken,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    RotateAuthKey,
    SetAuthKey,
    SetAuthMode,
    SetRules,
)
from statemachine.access.rules import Kind, Pattern, RuleRow, parse_resource
from statemachine.access.user_rows import Mode, User, checked_user_name
from statemachine.commands import InvalidCommandError
from statemachine.levels import ACCESS_LEVEL, OWNERS_LEVEL

if TYPE_CHECKING:
    from cluster.broker.access.secrets import Secrets
    from cluster.broker.services import Services
    from statemachine.access.user_rows import AuditRow
    from statemachine.access.users import Access
    from statemachine.commands import Command, CommandResult


LOOKED_AT: Final = 200
"""The number of most recent changes that are searched, once after each change."""
_NEWEST: Final = (1 << 63) - 1
_ABOUT_MODE: Final = "auth.mode"
_ABOUT_USER: Final = "User:"


TRIES: Final = 5
"""The most attempts to propose a user with the next free id. An attempt fails if another user takes the id first."""
_REASONS: Final = {
    "not_found": Reason.NOT_FOUND,
    "refused": Reason.ILLEGAL,
    "conflict": Reason.UNAVAILABLE,
    "exists": Reason.ILLEGAL,
}

TOKEN_DAYS_MAX: Final = 3_650
"""The most days, in log time, that a token may be valid."""
CLOCKS_MS: Final = 60_000
"""Milliseconds by which the log time of the node that created a token may be ahead of the leader's."""
DAY_MS: Final = 86_400_000

OPERATOR: Final = "operator"
"""The name of the operator in the audit log."""
FIRST_AWAITED: Final = "the first Super, which auth.first_user_file names, is not committed yet"
"""The text that says why requests are not judged yet in a new cluster."""
RESERVED: Final = (OPERATOR, "auth.first_user_file")
"""Names that the audit log uses for callers that are no users. No user may have one of them."""
LOGIN: Final = "login"
"""The prefix of the labels of tokens that a login created."""
LOGINS_MAX: Final = 50
"""The most login tokens that a user may have. A further login removes the oldest one."""


class Asker(NamedTuple):
    """The author of a change, for the audit log: a user, the operator, or the file with the first Super (`ASKER`). A
    user who is no Super (administrator) may only change its own tokens."""

    user: str
    """The name of the user, OPERATOR, or "auth.first_user_file"."""
    address: str
    """The address of the client; "" for the file."""


Changed = Callable[[Refused | None], None]
"""Called once: with None when the change is applied, or with the reason why nothing was changed."""


class UserAdmin:
    """Changes users, rules, tokens and the mode. A method raises Refused at once, or passes it to `told` later."""

    def __init__(self, services: Services, secrets: Secrets, peers_prove: Callable[[], bool]) -> None:
        """`peers_prove` returns True if every peer has to prove the cluster's secret."""
        self._peers_prove = peers_prove
        self._services = services
        self._secrets = secrets
        self._access = services.state.access
        self._rate = TokenRate()
        self.first_is_awaited = False
        """True while this node, as the leader, still has to write the first Super of the cluster."""

    def user(self, name: str) -> User:
        """Returns the user of that name. Raises Refused (NOT_FOUND) if there is none."""
        user = self._access.users.get(name)
        if user is None:
            raise Refused(Reason.NOT_FOUND, f"there is no user {name!r:.80}")
        return user

    def create(self, asker: Asker, name: str, secret: str, told: Changed, *, is_super: bool, enabled: bool) -> None:
        """Creates a user. A user that exists with the same properties is not an error. Calls `told` with the result.
        Raises Refused if the name or the secret is not allowed, or if this node cannot encrypt the secret."""
        try:
            if checked_user_name(name) in RESERVED:
                raise Refused(Reason.INVALID, f"the audit calls another caller {name}: choose another name")
        except InvalidCommandError as error:
            raise Refused(Reason.INVALID, str(error)) from None
        self._create(asker, name, secret, told, is_super, enabled, TRIES)

    def _create(
        self, asker: Asker, name: str, secret: str, told: Changed, is_super: bool, enabled: bool, tries: int
    ) -> None:
        user_id, key = self._access.next_id, self._secrets.key_to_use
        sealed = self._secrets.encrypted(user_id, secret)
        mark: list[Command] = [] if self._access.key_id else [SetAuthKey(self._origin(asker), key)]
        create = CreateUser(self._origin(asker), user_id, name, is_super, enabled, sealed, key)

        def done(result: CommandResult | None, refused: Refused | None) -> None:
            if result is not None and result.code == "conflict" and tries > 1:
                try:
                    self._create(asker, name, secret, told, is_super, enabled, tries - 1)
                except Refused as other:
                    told(other)
            elif result is not None and result.code == "exists" and self._equals(name, secret, is_super, enabled):
                told(None)
            else:
                told(refused)

        self._propose([*mark, create], done)

    def _equals(self, name: str, secret: str, is_super: bool, enabled: bool) -> bool:
        user = self._access.users.get(name)
        if user is None or (user.is_super, user.enabled) != (is_super, enabled):
            return False
        return self._secrets.of(user) == secret.encode()

    def change(
        self,
        asker: Asker,
        name: str,
        told: Changed,
        *,
        secret: str | None = None,
        is_super: bool | None = None,
        enabled: bool | None = None,
        keep_tokens: Sequence[str] = (),
    ) -> None:
        """Changes those properties of a user whose arguments are not None. Raises Refused if all of them are None. From
        OWNERS_LEVEL on, a change of the secret also removes the user's tokens, except those with a label in
        `keep_tokens`."""
        user = self.user(name)
        changes: dict[str, Any] = {}
        if secret is not None:
            changes["secret"] = [self._secrets.encrypted(user.id, secret), self._secrets.key_to_use]
            if keep_tokens and self._services.state.level >= OWNERS_LEVEL:
                changes["keep_tokens"] = list(keep_tokens)
        if is_super is not None:
            changes["super"] = is_super
        if enabled is not None:
            changes["enabled"] = enabled
        if not changes:
            raise Refused(Reason.INVALID, "nothing is to be changed: name a secret, a type or a status")
        self._tell(ChangeUser(self._origin(asker), user.id, changes), told)

    def remove(self, asker: Asker, name: str, told: Changed) -> None:
        """Removes a user, and the user's rules and tokens."""
        self._tell(RemoveUser(self._origin(asker), self.user(name).id), told)

    def set_rules(self, asker: Asker, name: str, rules: Sequence[RuleRow], told: Changed) -> None:
        """Sets rules of a user, in the form that `statemachine.access.rules.parse_rule` accepts. Raises Refused if a
        rule names something that no topic and no group can be called."""
        for rule in rules:
            _check_resource(rule[1])
        self._tell(SetRules(self._origin(asker), self.user(name).id, rules), told)

    def remove_rules(self, asker: Asker, name: str, policy: int | None, resource: str | None, told: Changed) -> None:
        """Removes the rules of a user with this policy and resource. None as `policy` means every policy, None as
        `resource` every resource."""
        self._tell(RemoveRules(self._origin(asker), self.user(name).id, policy, resource), told)

    def put_token(self, asker: Asker, user: User, digest: bytes, ends_ms: int, label: str, told: Changed) -> None:
        """Adds a token of a user. Also removes the user's expired tokens, and the oldest login tokens if there are too
        many. Raises Refused if the token would be valid for too long, or if the user creates tokens for itself too
        often."""
        now_ms = self._services.log_time_ms()
        last_ms = now_ms + TOKEN_DAYS_MAX * DAY_MS
        if ends_ms > last_ms + CLOCKS_MS:
            raise Refused(Reason.INVALID, f"a token ends within {TOKEN_DAYS_MAX} days")
        ends_ms = min(ends_ms, last_ms)
        if asker.user == user.name:
            self._rate.take(user.id, user.name, self._services.monotonic_ms())
        kept = sorted((row.ends_ms, each) for each in user.tokens if (row := self._access.tokens.get(each)) is not None)
        going = [each for kept_ms, each in kept if kept_ms <= now_ms]
        logins = [each for _, each in kept if each not in going and self._is_login(each)]
        going += logins[: max(0, 1 + len(logins) - LOGINS_MAX)] if label.startswith(LOGIN) else []
        run: list[Command] = [RemoveToken(self._origin(asker), each) for each in going]
        put = PutToken(self._origin(asker), user.id, digest, ends_ms, label)
        self._propose([*run, put], lambda _, refused: told(refused))

    def _is_login(self, digest: bytes) -> bool:
        row = self._access.tokens.get(digest)
        return row is not None and row.label.startswith(LOGIN)

    def remove_token(self, asker: Asker, digest: bytes, told: Changed) -> None:
        """Removes a token."""
        self._tell(RemoveToken(self._origin(asker), digest), told)

    def rotate_key(self, asker: Asker, key: str, told: Changed) -> None:
        """Makes the cluster encrypt new secrets with another key. The leader then encrypts the existing secrets again,
        in steps. `key`: the id of the key. Calls `told` with the result. Raises Refused if this node lacks that key, or
        a key that encrypts an existing secret."""
        if key not in self._secrets.key_ids:
            raise Refused(Reason.ILLEGAL, f"auth.key_file of this node does not have the key {key!r:.80}")
        if self._secrets.problem:
            raise Refused(Reason.ILLEGAL, f"this node cannot read all secrets: {self._secrets.problem}")
        self._tell(RotateAuthKey(self._origin(asker), key), told)

    def set_mode(self, asker: Asker, mode: str, told: Changed) -> None:
        """Sets `auth.mode`. Refuses `enforce` while the first Super is still to be written, while this node cannot
        verify signatures, or while a peer may connect without proving the cluster's secret: such a peer could claim to
        act for any user."""
        if mode == Mode.ENFORCE and self.first_is_awaited:
            raise Refused(Reason.UNAVAILABLE, FIRST_AWAITED)
        if mode == Mode.ENFORCE and self._secrets.problem:
            raise Refused(Reason.ILLEGAL, f"this node could verify no signature: {self._secrets.problem}")
        if mode == Mode.ENFORCE and not self._peers_prove():
            raise Refused(Reason.ILLEGAL, "nodes do not prove the cluster's secret to each other: raftmq secret status")
        self._tell(SetAuthMode(self._origin(asker), mode), told)

    def _origin(self, asker: Asker) -> Origin:
        return Origin(self._services.log_time_ms(), asker.user, asker.address)

    def _tell(self, command: Command, told: Changed) -> None:
        self._propose([command], lambda _, refused: told(refused))

    def _propose(self, run: list[Command], done: Callable[[CommandResult | None, Refused | None], None]) -> None:
        """Proposes the commands. Calls `done` with the result of the last command and None, or with the reason why it
        had no effect."""

        def applied(result: ProposeResult) -> None:
            if result.unacceptable:
                done(None, Refused(Reason.INVALID, result.remark))
            elif result.outcome is not Outcome.OK:
                done(None, not_written(result.outcome, result.remark))
            else:
                last = result.results[-1]
                reason = _REASONS.get(last.code, Reason.INVALID)
                done(last, None if last.ok else Refused(reason, str(last.value)))

        self._services.propose(run, applied)


def _check_resource(words: str) -> None:
    """Raises Refused for a rule that could never apply. The log still accepts such rules, as earlier versions wrote
    them."""
    try:
        kind, pattern, name = parse_resource(words)
        if pattern is not Pattern.ALL and kind in (Kind.TOPIC, Kind.GROUP):
            check_name(kind.name.lower(), name)
    except (InvalidCommandError, ValueError) as error:
        raise Refused(Reason.INVALID, str(error)) from None


# Creates the first Super of a cluster from a file, for containers and scripts, which cannot type a command.
#
# The file has two lines, the user's name and its secret, and mode 0600. A leader proposes the user if no user was ever
# created; the log refuses it if another one came first. It never changes an existing user.

logger = logging.getLogger(__name__)

ASKER: Final = Asker("auth.first_user_file", "")


class FirstUser:
    """Proposes the first Super once this node accepts writes and the cluster has the level that users need."""

    def __init__(self, path: str, services: Services, users: UserAdmin) -> None:
        """`path` is the file with the first user's name and secret; "" if none is configured."""
        self._path = path
        self._services = services
        self._users = users
        self._due = False

    def writes_opened(self) -> None:
        """Decides whether the first user still has to be created. Called when this node begins to accept writes."""
        self._due = bool(self._path) and self._services.state.access.next_id <= 1
        self._users.first_is_awaited = self._due
        if self._due and self._services.state.level < ACCESS_LEVEL:
            logger.info("auth.first_user_file waits for level %d of the cluster (raftmq upgrade plan)", ACCESS_LEVEL)

    def tick(self, _: int) -> None:
        """Proposes the first user once the cluster has the level for it, which a new cluster reaches just after it
        begins to accept writes. Called several times a second; cheap."""
        if self._due and self._services.state.level >= ACCESS_LEVEL:
            self._due = False
            if self._services.writes_open():
                self._propose()
            else:
                self._users.first_is_awaited = False

    def _propose(self) -> None:
        try:
            name, secret = read_user_file(Path(self._path))
            self._users.create(ASKER, name, secret, self._told, is_super=True, enabled=True)
        except OSError as error:
            self._give_up(f"cannot be read: {error.strerror or error}")
        except ValueError as error:
            self._give_up(f"holds no user: {error}")
        except Refused as refused:
            self._told(refused)

    def _give_up(self, why: str) -> None:
        self._users.first_is_awaited = False
        logger.error("auth.first_user_file: %s %s", self._path, why)

    def _told(self, refused: Refused | None) -> None:
        self._users.first_is_awaited = False
        if refused is None:
            logger.info("the first Super was made from auth.first_user_file; the file is needed no more")
        else:
            logger.error("the first Super could not be made from auth.first_user_file: %s", refused.remark)


class Recent(NamedTuple):
    """The recent changes that the cluster's findings report."""

    turned_off: AuditRow | None
    """The change that set the mode to `off`; None if the mode is not `off`, or if no change set it."""
    by_operator: AuditRow | None
    """The newest change of a user that the operator made, not a Super; None if there is none."""


class RecentChanges:
    """Finds recent changes in the audit log. It searches again whenever there are new changes."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._version = -1
        self._found = Recent(None, None)

    def look(self) -> Recent:
        """Returns the recent changes. A found change stays in the result until a newer one replaces it, even after more
        than LOOKED_AT later changes; `turned_off` only as long as the mode is `off`."""
        if self._version == self._access.version:
            return self._found
        self._version = self._access.version
        rows = list(self._access.audit(_NEWEST, LOOKED_AT))
        mode = next((row for row in rows if row.about == _ABOUT_MODE), self._found.turned_off)
        acts = [row for row in rows if row.user == OPERATOR and row.about.startswith(_ABOUT_USER)]
        is_off = self._access.mode is Mode.OFF
        self._found = Recent(mode if is_off else None, acts[0] if acts else self._found.by_operator)
        return self._found
