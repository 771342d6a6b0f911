"""Users with their rules and tokens, the mode in which requests are judged, and the audit of all changes.

Each user has an id that no later user gets. A user that is created under the name of a removed one has another id and
inherits nothing. Secrets are encrypted before they are proposed, and of a token only the SHA-256 is stored. This module
can therefore read neither. Every change names the user who asked for it and the client's address, and becomes a row of
the audit.

If two changes race, their order in the log decides. A change that would leave no enabled Super (a user who may do
everything) is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, Final, Self

import msgpack

from raftlog.format_versions import BASELINE
from raftlog.work import charge
from statemachine.access.access_commands import (
    TOKENS_OF_USER_MAX,
    ChangeUser,
    CreateUser,
    Labels,
    Origin,
    PutToken,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    ResealUser,
    RotateAuthKey,
    Secret,
    SetAuthKey,
    SetAuthMode,
    SetRules,
)
from statemachine.access.rules import (
    RULES_OF_USER_MAX,
    Policy,
    Resource,
    parse_resource,
    parse_rule,
    rule_row,
)
from statemachine.access.user_rows import (
    AUDIT_FIELDS,
    MODES,
    AccessRow,
    AuditRow,
    CopiedUser,
    Mode,
    Token,
    User,
    checked_user_name,
    in_order,
    kind_of,
    last_super,
    listed,
    load_tokens,
    load_users,
    no_user,
    pack_user,
    rule_key,
    rule_name,
    rule_place,
    told,
    user_row,
)
from statemachine.cluster_wide.cluster_level import ClusterLevel
from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import (
    TEXT_LENGTH_MAX,
    CommandResult,
    InvalidCommandError,
    checked_bool,
    converted,
    done,
    not_found,
)
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import ACCESS_LEVEL, OWNERS_LEVEL
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.write_batch import Stage

USERS_MAX: Final = 10_000
AUDIT_KEPT: Final = 100_000
"""The number of audit rows that are kept. Applying a change removes older ones."""
AUDIT_OF_USER_KEPT: Final = 1_000
"""The number of each user's newest audit rows that are kept as well, from OWNERS_LEVEL on. They are the changes that
the user asked for."""
NOBODY: Final = 0
"""A user id that no user has."""


class Access(Family):
    """All users, rules and tokens. The apply thread changes them; any thread may read `users`, `by_id`, `tokens` and
    the other public attributes."""

    ROWS = (
        (META, meta_keys.ACCESS_KEY),
        (META, meta_keys.USER_PREFIX),
        (META, meta_keys.RULE_PREFIX),
        (META, meta_keys.TOKEN_PREFIX),
        (META, meta_keys.AUDIT_PREFIX),
        (META, meta_keys.AUDIT_COUNT_PREFIX),
        (META, meta_keys.AUDIT_KEPT_PREFIX),
    )
    LATER_ROWS = (
        LaterRows(ACCESS_LEVEL, META, meta_keys.ACCESS_KEY),
        LaterRows(ACCESS_LEVEL, META, meta_keys.USER_PREFIX),
        LaterRows(ACCESS_LEVEL, META, meta_keys.RULE_PREFIX),
        LaterRows(ACCESS_LEVEL, META, meta_keys.TOKEN_PREFIX),
        LaterRows(ACCESS_LEVEL, META, meta_keys.AUDIT_PREFIX),
        LaterRows(OWNERS_LEVEL, META, meta_keys.AUDIT_PREFIX, lambda row: len(msgpack.unpackb(row)) > AUDIT_FIELDS),
        LaterRows(OWNERS_LEVEL, META, meta_keys.AUDIT_COUNT_PREFIX),
        LaterRows(OWNERS_LEVEL, META, meta_keys.AUDIT_KEPT_PREFIX),
    )

    def __init__(
        self, kv: KV, level: Callable[[], int] = lambda: BASELINE, journal: TruthJournal | None = None
    ) -> None:
        """`level` returns the level of the cluster at the command that is being applied. The journal is read from the
        rows if it is None."""
        self._kv = kv
        self._journal = journal or TruthJournal(kv)
        self._level = level
        row = kv.get(META, meta_keys.ACCESS_KEY)
        common = AccessRow() if row is None else AccessRow(*msgpack.unpackb(row))
        self._mode, self._key, self._next_id = Mode(common.mode), common.key, common.next_id
        self._version, self._next_audit = common.version, common.next_audit
        self._waiting: dict[int, CopiedUser] = {}
        """Rules and tokens, by user id, that were copied before their user."""
        found = {user.id: user for user in load_users(kv, self._waiting)}
        self._ids = found
        """The users by id, with the changes of the batch being applied."""
        self._names = {user.name: user.id for user in found.values()}
        self._supers = sum([user.is_super and user.enabled for user in found.values()])
        self._under = Counter(user.key_id for user in found.values())
        self._tokens: dict[bytes, Token | None] = {}
        """Tokens that the batch being applied has changed; None for a removed one."""
        self._touched: dict[int, User | None] = {}
        """Users that the batch being applied has changed; None for a removed one."""
        self.changed: bool = False
        """True if the batch being applied has changed a user, rule, token, the mode or the key."""
        self.users = SortedMap((user.name, user) for user in found.values())
        """The users by name, as readers see them."""
        self.by_id = SortedMap((user.id, user) for user in found.values())
        self.tokens = {digest: token for digest, token in load_tokens(kv) if token.user_id in found}
        """The tokens by their SHA-256, as readers see them. Readers look up single tokens and never iterate over the
        map."""
        self.mode = self._mode
        self.judges = self._mode is not Mode.OFF
        """True if requests are judged: the mode is not OFF."""
        self.key_id = self._key
        """The id of the key with which users' secrets are encrypted; "" if there is none."""
        self.keys_in_use = self._keys_in_use()
        """The ids of the present key and of all keys with which some user's secret is encrypted."""
        self.version = self._version
        """The version of users, rules, tokens, mode and key together; it rises by one with each change."""
        self.next_id = self._next_id
        """The id that the next created user gets."""
        self.supers = self._supers
        """The number of enabled Supers (users who may do everything)."""
        self._shrunk: Callable[[User], User] = lambda user: user
        self._is_ended: Callable[[bytes], bool] = lambda digest: False

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[ClusterLevel].staged, families[TruthJournal])

    def audit(self, before: int, limit: int) -> Iterator[AuditRow]:
        """Yields up to `limit` changes from the audit whose numbers are below `before`, newest first."""
        start, end = meta_keys.AUDIT[0], meta_keys.audit_key(before)
        while limit > 0 and (row := self._kv.seek_last(META, start, end)) is not None:
            yield AuditRow(meta_keys.audit_number(row[0]), *msgpack.unpackb(row[1])[:AUDIT_FIELDS])
            end, limit = row[0], limit - 1

    # -- commands, called on the apply thread only

    @property
    def touched(self) -> Collection[int]:
        """The ids of the users that the batch being applied has changed."""
        return self._touched.keys()

    def less(self, shrunk: Callable[[User], User], is_ended: Callable[[bytes], bool]) -> None:
        """Sets what readers see: of each user what `shrunk` returns, and no token for which `is_ended` returns True
        (revocations.py). The rows stay as they are."""
        self._shrunk, self._is_ended = shrunk, is_ended
        for user in [user for user in self._ids.values() if shrunk(user) is not user]:
            self._publish_one(None, user)
        for digest in [digest for digest in self.tokens if is_ended(digest)]:
            del self.tokens[digest]

    def show(self, stage: Stage, user_id: int) -> None:
        """Makes the next `publish` show the user to readers again, because its revocations changed."""
        user = self._ids.get(user_id)
        if user is not None:
            self._begin_version(stage)
            self._store(stage, user)

    def show_token(self, stage: Stage, digest: bytes) -> None:
        """Makes the next `publish` show the token and its user to readers again, because the token's revocation
        changed."""
        row = stage.get(META, meta_keys.token_key(digest))
        token = self._tokens[digest] = None if row is None else Token(*msgpack.unpackb(row))
        if token is not None:
            self.show(stage, token.user_id)

    def has_token(self, digest: bytes) -> bool:
        """Returns True if the token exists, with the changes of the batch being applied, and no revocation ends it."""
        return self._token(digest) is not None and not self._is_ended(digest)

    def all(self) -> Collection[User]:
        """Returns all users, with the changes of the batch being applied."""
        return self._ids.values()

    def current(self, user_id: int) -> User | None:
        """Returns the user, with the changes of the batch being applied; None if there is none."""
        return self._ids.get(user_id)

    @applies(CreateUser)
    def create_user(self, stage: Stage, command: CreateUser) -> CommandResult:
        """Creates a user with an id to which its secret is bound. The result is `conflict` if that is not the next free
        id, and `exists` if the name is taken; otherwise its value is the id. Raises InvalidCommandError if the name is
        not valid, there are USERS_MAX users, or the secret is not encrypted with the recorded key."""
        asked, user_id = command.origin, command.user_id
        name = checked_user_name(command.name)
        if name in self._names:
            return CommandResult(False, "exists", f"user {name} exists already")
        if user_id != self._next_id:
            return CommandResult(False, "conflict", f"the next user has the id {self._next_id}, not {user_id}")
        if len(self._ids) >= USERS_MAX:
            raise InvalidCommandError(f"a cluster has at most {USERS_MAX} users")
        key = self._checked_key(command.key)
        user = User(user_id, name, command.is_super, command.enabled, command.secret, key, asked.now_ms, 0)
        self._next_id += 1
        self._names[name] = user.id
        says = f"created, {kind_of(user)}{'' if user.enabled else ', disabled'}"
        self._put(stage, asked, user, says)
        return done(user.id)

    @applies(ChangeUser)
    def change_user(self, stage: Stage, command: ChangeUser) -> CommandResult:
        """Changes `super`, `enabled` or `secret` ([bytes, key id]) of a user. From OWNERS_LEVEL on, its tokens end with
        the secret, except those whose labels `keep_tokens` lists. The result's value is True if anything changed. The
        result is `not_found` if there is no such user, and `refused` if no enabled Super would be left."""
        asked, changes = command.origin, command.changes
        user = self._ids.get(command.user_id)
        if user is None:
            return no_user(command.user_id)
        ends_tokens = self._level() >= OWNERS_LEVEL
        known = {"super", "enabled", "secret"} | ({"keep_tokens"} if ends_tokens else set())
        if not changes or not changes.keys() <= known:
            raise InvalidCommandError(f"changes of a user are super, enabled and secret, not {changes!r:.200}")
        kept_labels = converted(changes.get("keep_tokens", ()), Labels)
        is_super = checked_bool(changes.get("super", user.is_super), "super")
        enabled = checked_bool(changes.get("enabled", user.enabled), "enabled")
        after = replace(user, is_super=is_super, enabled=enabled)
        if "secret" in changes:
            secret, key = converted(changes["secret"], tuple[Secret, str])
            after = replace(after, secret=secret, key_id=self._checked_key(key))
        if after == user:
            return done(False)
        if self._is_last_super(user) and not (is_super and enabled):
            return last_super(user)
        says = [] if is_super == user.is_super else [kind_of(after)]
        says += [] if enabled == user.enabled else ["enabled" if enabled else "disabled"]
        says += ["another secret"] if "secret" in changes else []
        if "secret" in changes and ends_tokens:
            ending = [each for each in user.tokens if self._label(each) not in kept_labels]
            for digest in ending:
                self._forget_token(stage, user.id, digest)
            after = replace(after, tokens=tuple([each for each in user.tokens if each not in ending]))
            says += [f"tokens ended: {len(ending)}"] if ending else []
        self._put(stage, asked, after, ", ".join(says))
        return done(True)

    @applies(RemoveUser)
    def remove_user(self, stage: Stage, command: RemoveUser) -> CommandResult:
        """Removes a user, its rules and its tokens. The result is `refused` for the last enabled Super."""
        asked = command.origin
        user = self._ids.get(command.user_id)
        if user is None:
            return no_user(command.user_id)
        if self._is_last_super(user):
            return last_super(user)
        self._remove(stage, user)
        self._journal.end(stage, TruthKind.USER, user.id)
        for rule in user.rules:
            stage.delete(META, rule_key(user.id, rule))
            self._journal.drop(stage, TruthKind.RULE, rule_name(user.id, rule))
        for digest in user.tokens:
            self._tokens[digest] = None
            stage.delete(META, meta_keys.token_key(digest))
            self._journal.drop(stage, TruthKind.TOKEN, (user.id, digest))
        self._note(stage, asked, f"User:{user.name}", "removed")
        return done()

    @applies(SetRules)
    def set_rules(self, stage: Stage, command: SetRules) -> CommandResult:
        """Adds rules to a user. A rule replaces the user's earlier one with the same policy and resource. The result's
        value is True if anything changed."""
        asked = command.origin
        user = self._ids.get(command.user_id)
        if user is None:
            return no_user(command.user_id)
        known = {(rule.policy, rule.resource): rule for rule in user.rules}
        wanted = {(rule.policy, rule.resource): rule for rule in map(parse_rule, command.rules)}
        fresh = {place: rule for place, rule in wanted.items() if known.get(place) != rule}
        if len(known | fresh) > RULES_OF_USER_MAX:
            raise InvalidCommandError(f"a user has at most {RULES_OF_USER_MAX} rules: use prefixes")
        if not fresh:
            return done(False)
        for rule in fresh.values():
            stage.put(META, rule_key(user.id, rule), msgpack.packb(rule_row(rule)))
            self._journal.note(stage, TruthKind.RULE, rule_name(user.id, rule))
        says = f"rules set: {listed([told(rule) for rule in fresh.values()])}"
        self._put(stage, asked, replace(user, rules=in_order([*(known | fresh).values()])), says)
        return done(True)

    @applies(RemoveRules)
    def remove_rules(self, stage: Stage, command: RemoveRules) -> CommandResult:
        """Removes a user's rules with this policy and resource. None as the policy means every policy, None as the
        resource every resource. The result's value is the number of removed rules; the result is `not_found` if there
        is no such rule."""
        asked = command.origin
        user = self._ids.get(command.user_id)
        if user is None:
            return no_user(command.user_id)
        of = None if command.policy is None else Policy(command.policy)
        what: Resource | None = None if command.resource is None else parse_resource(command.resource)
        going = [rule for rule in user.rules if of in (None, rule.policy) and what in (None, rule.resource)]
        if not going:
            return not_found(f"user {user.name} has no such rule")
        for rule in going:
            stage.delete(META, rule_key(user.id, rule))
            self._journal.end(stage, TruthKind.RULE, rule_name(user.id, rule))
        says = f"rules removed: {listed([str(rule.resource) for rule in going])}"
        gone = set(going)
        left = tuple([rule for rule in user.rules if rule not in gone])
        self._put(stage, asked, replace(user, rules=left), says)
        return done(len(going))

    @applies(PutToken)
    def put_token(self, stage: Stage, command: PutToken) -> CommandResult:
        """Adds a token to a user; the result is `exists` if any user has it. The log contains only the token's
        SHA-256."""
        asked, digest = command.origin, command.digest
        user = self._ids.get(command.user_id)
        if user is None:
            return no_user(command.user_id)
        token = Token(user.id, command.ends_ms, command.label)
        if self._token(digest) is not None:
            return CommandResult(False, "exists", "there is such a token already")
        if len(user.tokens) >= TOKENS_OF_USER_MAX:
            raise InvalidCommandError(f"a user has at most {TOKENS_OF_USER_MAX} tokens: remove some")
        self._tokens[digest] = token
        stage.put(META, meta_keys.token_key(digest), msgpack.packb(list(token)))
        self._journal.note(stage, TruthKind.TOKEN, (user.id, digest))
        self._put(
            stage, asked, replace(user, tokens=tuple(sorted((*user.tokens, digest)))), f"token {token.label!r} given"
        )
        return done()

    @applies(RemoveToken)
    def remove_token(self, stage: Stage, command: RemoveToken) -> CommandResult:
        """Removes the token with this SHA-256 from its user. The result is `not_found` if there is none."""
        asked, digest = command.origin, command.digest
        token = self._token(digest)
        if token is None:
            return not_found("no such token")
        user = self._ids[token.user_id]
        self._forget_token(stage, user.id, digest)
        left = tuple([each for each in user.tokens if each != digest])
        self._put(stage, asked, replace(user, tokens=left), f"token {token.label!r} taken away")
        return done()

    @applies(SetAuthMode)
    def set_mode(self, stage: Stage, command: SetAuthMode) -> CommandResult:
        """Sets the mode in which requests are judged. The result is `refused` for the mode `enforce` without an enabled
        Super; otherwise its value is True if the mode changed."""
        asked, mode = command.origin, command.mode
        if mode not in MODES:
            raise InvalidCommandError(f"the mode is {', '.join(MODES)}, not {mode!r:.100}")
        if mode == self._mode:
            return done(False)
        if mode == Mode.ENFORCE and not self._supers:
            return CommandResult(False, "refused", "no enabled Super exists: nobody could change anything any more")
        before, self._mode = self._mode, Mode(mode)
        self._journal.note(stage, TruthKind.ACCESS, "")
        self._note(stage, asked, "auth.mode", f"{before.value} -> {self._mode.value}")
        return done(True)

    @applies(SetAuthKey)
    def set_key(self, stage: Stage, command: SetAuthKey) -> CommandResult:
        """Records the id of the key with which secrets are encrypted. The result's value is True if the key changed.
        The result is `refused` if another key is to be recorded while there are users."""
        asked, key = command.origin, command.key
        if key == self._key:
            return done(False)
        if self._ids:
            return CommandResult(False, "refused", "there are users whose secrets another key encrypted")
        self._key = key
        self._journal.note(stage, TruthKind.ACCESS, "")
        self._note(stage, asked, "auth.key", f"the key is {key}")
        return done(True)

    @applies(RotateAuthKey)
    def rotate_key(self, stage: Stage, command: RotateAuthKey) -> CommandResult:
        """Records another key with which secrets are encrypted from now on. Secrets that the key before encrypted stay
        until `reseal`. The result's value is True if the key changed. Raises InvalidCommandError if no key is recorded
        yet, or the new one is ""."""
        asked, key = command.origin, command.key
        if key == self._key:
            return done(False)
        if not key or not self._key:
            raise InvalidCommandError("a key is replaced by another one, and there is none yet")
        self._key = key
        self._journal.note(stage, TruthKind.ACCESS, "")
        self._note(stage, asked, "auth.key", f"the key is {key} from now on")
        return done(True)

    @applies(ResealUser)
    def reseal(self, stage: Stage, command: ResealUser) -> CommandResult:
        """Replaces the encrypted secret of a user by the same secret, encrypted with the present key. The result is
        `conflict` if the user has another secret by now."""
        asked = command.origin
        user = self._ids.get(command.user_id)
        if user is None:
            return no_user(command.user_id)
        after = replace(user, secret=command.secret, key_id=self._checked_key(command.key))
        if user.secret != command.before:
            return CommandResult(False, "conflict", f"user {user.name} has another secret by now")
        self._put(stage, asked, after, f"secret encrypted with the key {after.key_id}")
        return done()

    # -- copies of the first group's rows, in all other groups of brokers

    def copy_common(self, stage: Stage, mode: Mode, key: str) -> None:
        """Stores the mode and the key of the first group of brokers."""
        self._mode, self._key = mode, key
        self._begin_version(stage)

    def copy_user(self, stage: Stage, user_id: int, copied: CopiedUser) -> None:
        """Stores or removes the copied parts of a user. Rules and tokens may come before their user, because the user's
        row changed later. Their rows are stored then, and they take effect when the user comes. No audit row is
        written: the audit is that of the first group."""
        if copied.user is not None:
            self._next_id = max(self._next_id, user_id + 1)
        self._begin_version(stage)
        user, waiting = self._ids.get(user_id), self._waiting.pop(user_id, None) or CopiedUser()
        known = {rule_place(rule): rule for rule in user.rules} if user is not None else {}
        tokens = dict.fromkeys(user.tokens) if user is not None else {}
        rules = {place: rule for place, rule in (known | waiting.rules | copied.rules).items() if rule is not None}
        for digest, token in (waiting.tokens | copied.tokens).items():
            if token is None:
                tokens.pop(digest, None)
            else:
                tokens[digest] = token
        if copied.ended:
            if user is not None:
                self._remove(stage, user)
            gone_rules, gone_tokens = {*rules, *copied.rules}, {*tokens, *copied.tokens}
            rules, tokens = {}, {}
        else:
            gone_rules, gone_tokens = {*copied.rules} - {*rules}, {*copied.tokens} - {*tokens}
        for policy, resource in gone_rules:
            stage.delete(META, meta_keys.rule_key(user_id, policy, resource))
        for digest in gone_tokens:
            row = stage.get(META, meta_keys.token_key(digest))
            # by now the token may belong to another user
            if row is not None and msgpack.unpackb(row)[0] == user_id:
                stage.delete(META, meta_keys.token_key(digest))
                self._tokens[digest] = None
        for place in sorted(copied.rules.keys() & rules.keys()):
            stage.put(META, meta_keys.rule_key(user_id, *place), msgpack.packb(rule_row(rules[place])))
        for digest in sorted(copied.tokens.keys() & tokens.keys()):
            stage.put(META, meta_keys.token_key(digest), msgpack.packb(list(copied.tokens[digest] or ())))
        if copied.user is not None:
            user = self._renamed(stage, user_id, copied.user)
        elif copied.ended:
            return
        if user is None:
            self._waiting[user_id] = CopiedUser(rules=dict(rules), tokens=dict(tokens))
            return
        for digest, token in tokens.items():
            if token is not None:
                self._tokens[digest] = token
        self._store(stage, replace(user, rules=in_order([*rules.values()]), tokens=tuple(sorted(tokens))))

    def _renamed(self, stage: Stage, user_id: int, user: User) -> User:
        """Gives the name of a copied user to this id. If another user has the name, that user is removed. Returns the
        copied user."""
        other = self._names.get(user.name)
        if other is not None and other != user_id:  # the same copy contains the end of the other user
            self.copy_user(stage, other, CopiedUser(ended=True))
        before = self._ids.get(user_id)
        if before is not None:
            del self._names[before.name]
        self._names[user.name] = user_id
        return user

    # -- publishing

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written. The version is set
        last, so a reader that sees it sees the changes too."""
        self.changed = False
        self.judges = self._mode is not Mode.OFF
        touched, self._touched = self._touched, {}
        for user_id, user in touched.items():
            self._publish_one(self.by_id.get(user_id), user)
        tokens, self._tokens = self._tokens, {}
        for digest, token in tokens.items():
            if token is None or self._is_ended(digest):
                self.tokens.pop(digest, None)
            else:
                self.tokens[digest] = token
        self.mode, self.key_id, self.next_id, self.supers = self._mode, self._key, self._next_id, self._supers
        self.keys_in_use = self._keys_in_use()
        self.version = self._version

    def _publish_one(self, before: User | None, user: User | None) -> None:
        if user is not None:
            user = self._shrunk(user)
            self.by_id.put(user.id, user)
            self.users.put(user.name, user)
        elif before is not None:
            self.by_id.remove(before.id)
            known = self.users.get(before.name)
            # the same run may have created another user with this name
            if known is not None and known.id == before.id:
                self.users.remove(before.name)

    def under_other_keys(self) -> list[User]:
        """Returns the users whose secret is encrypted with another key than `key_id`. The call takes one step if there
        are none."""
        if self.keys_in_use <= {self.key_id}:
            return []
        charge(len(self.by_id) // 64)
        return [user for user in self.by_id.values() if user.key_id != self.key_id]

    def _keys_in_use(self) -> frozenset[str]:
        return frozenset([key for key, users in self._under.items() if users] + ([self._key] if self._key else []))

    def _token(self, digest: bytes) -> Token | None:
        return self._tokens[digest] if digest in self._tokens else self.tokens.get(digest)

    def _label(self, digest: bytes) -> str | None:
        token = self._token(digest)
        return None if token is None else token.label

    def _forget_token(self, stage: Stage, user_id: int, digest: bytes) -> None:
        self._tokens[digest] = None
        stage.delete(META, meta_keys.token_key(digest))
        self._journal.end(stage, TruthKind.TOKEN, (user_id, digest))

    def _is_last_super(self, user: User) -> bool:
        return user.is_super and user.enabled and self._supers == 1

    def _put(self, stage: Stage, asked: Origin, user: User, says: str) -> None:
        before = self._ids.get(user.id)
        # If only the user's rules or tokens changed, the journal has noted these by their own names.
        if before is None or user_row(before) != user_row(user):
            self._journal.note(stage, TruthKind.USER, user.id)
        self._note(stage, asked, f"User:{user.name}", says)
        self._store(stage, user)

    def _store(self, stage: Stage, user: User) -> None:
        """Stores a user under the present version."""
        before = self._ids.get(user.id)
        self._supers += (user.is_super and user.enabled) - (before is not None and before.is_super and before.enabled)
        if before is not None:
            self._under[before.key_id] -= 1
        self._under[user.key_id] += 1
        self._ids[user.id] = user = replace(user, version=self._version)
        self._touched[user.id] = user
        stage.put(META, meta_keys.user_key(user.id), pack_user(user))

    def _remove(self, stage: Stage, user: User) -> None:
        """Removes the row of a user."""
        del self._ids[user.id], self._names[user.name]
        self._under[user.key_id] -= 1
        self._supers -= user.is_super and user.enabled
        self._touched[user.id] = None
        stage.delete(META, meta_keys.user_key(user.id))

    def _note(self, stage: Stage, asked: Origin, about: str, says: str) -> None:
        """Writes a change into the audit, and the new version into the row "access"."""
        number, of_each = self._next_audit, self._level() >= OWNERS_LEVEL
        row: list[Any] = [asked.now_ms, asked.user, asked.address, says[:TEXT_LENGTH_MAX], about]
        if of_each:
            row.append(self._counted(stage, asked.user))
        stage.put(META, meta_keys.audit_key(number), msgpack.packb(row))
        if number > AUDIT_KEPT and not (of_each and self._stays(stage, number - AUDIT_KEPT)):
            stage.delete(META, meta_keys.audit_key(number - AUDIT_KEPT))
        self._next_audit = number + 1
        self._begin_version(stage)

    def _begin_version(self, stage: Stage) -> None:
        """Begins the next version, and writes it into the row "access"."""
        self._version, self.changed = self._version + 1, True
        common = AccessRow(self._mode.value, self._key, self._next_id, self._version, self._next_audit)
        stage.put(META, meta_keys.ACCESS_KEY, msgpack.packb(list(common)))

    def _counted(self, stage: Stage, user: str) -> int:
        """Returns the number of a new audit row among those of the user. Removes the user's row that AUDIT_OF_USER_KEPT
        newer ones make superfluous, if it was kept for the user alone."""
        count = _audit_count(stage, user) + 1
        stage.put(META, meta_keys.audit_count_key(user), keys.U64.pack(count))
        if count > AUDIT_OF_USER_KEPT:
            late = meta_keys.audit_kept_key(user, count - AUDIT_OF_USER_KEPT)
            row = stage.get(META, late)
            if row is not None:
                stage.delete(META, late)
                stage.delete(META, meta_keys.audit_key(keys.U64.unpack(row)[0]))
        return count

    def _stays(self, stage: Stage, number: int) -> bool:
        """Returns True if the audit row `number`, which is older than the newest AUDIT_KEPT of all, is still among the
        newest AUDIT_OF_USER_KEPT of its user. In that case records that the row stays, so that `_counted` removes it
        later."""
        row = stage.get(META, meta_keys.audit_key(number))
        fields = [] if row is None else msgpack.unpackb(row)
        if len(fields) <= AUDIT_FIELDS:
            return False  # the row was written below OWNERS_LEVEL and has no number of the user
        user, of_user = fields[1], fields[AUDIT_FIELDS]
        if _audit_count(stage, user) - of_user >= AUDIT_OF_USER_KEPT:
            return False
        stage.put(META, meta_keys.audit_kept_key(user, of_user), keys.U64.pack(number))
        return True

    def _checked_key(self, key: str) -> str:
        if key != self._key or not self._key:
            known = self._key or "(none yet)"
            raise InvalidCommandError(f"secrets are encrypted with the key {known}, not {key!r:.80}")
        return self._key


class AccessReads(Reads):
    """Read access to what a state holds about users."""

    access = family_of(Access)
    """Users and their rules."""


def _audit_count(stage: Stage, user: str) -> int:
    row = stage.get(META, meta_keys.audit_count_key(user))
    count: int = 0 if row is None else keys.U64.unpack(row)[0]
    return count
