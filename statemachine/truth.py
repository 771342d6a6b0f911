"""The truth: the data that all groups of brokers have in common. The first group owns it, and the others copy it
(docs/adr/0108).

The first group has the rows themselves, and the journal of what changed (cluster_wide/truth_journal.py). Another group
copies pages of names with their rows. Each page is one command, after which the group has the truth up to the page's
version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgpack
import msgspec
from msgspec import Meta

from raftlog.types import FIRST_GROUP, GROUPS_MAX
from statemachine.access.access_commands import Digest, Secret
from statemachine.access.learnt_limits import Learnt, names_above, parse_learnt
from statemachine.access.quotas import Quotas, checked_subject, parse_quota
from statemachine.access.rules import PolicyNumber, RuleRow, parse_resource, parse_rule
from statemachine.access.user_rows import CopiedUser, Mode, Token, User, checked_user_name, rule_name, user_row
from statemachine.access.users import Access
from statemachine.cluster_wide.broker_groups import BrokerGroups, parse_group
from statemachine.cluster_wide.settings import Setting, Settings, checked_value
from statemachine.cluster_wide.truth_journal import SlicePlace, TruthJournal, TruthKind, TruthName
from statemachine.commands import (
    U63,
    U64,
    Command,
    CommandResult,
    InvalidCommandError,
    NumberFrom1,
    Text,
    converted,
    done,
)
from statemachine.consuming.groups import (
    GroupConfig,
    Groups,
    check_group_config,
    check_group_name,
    group_settings,
    settings_map,
)
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import GROUPS_LEVEL
from statemachine.removal_slices import DeleteGroup, DeleteTopic, RemovalSlices
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import (
    PlaceRows,
    TopicConfig,
    Topics,
    check_topic_config,
    check_topic_name,
    place_rows,
)

PAGE_BYTES = 64 * 1024
"""The most bytes of a page's packed rows; a larger row is a page alone. A page becomes one entry of another group's
log. Applying the entry takes some 50 us for each topic of 70 bytes."""
SLICE_NAMES_MAX = 4_096
"""The most names that get journal rows in one slice, about 5 us each. The last user in a slice brings all of its rules
and tokens, which may exceed the number."""

TruthRow = tuple[int, Any, Any]
"""A name of the truth with its row: (kind, name, row). The row is None if the name has ended."""


class TruthPage(NamedTuple):
    """A page of the truth: rows of names that changed after some version."""

    rows: tuple[TruthRow, ...]
    version: int
    """The version that a group has after it has copied the rows."""
    more: bool
    """True if rows of later versions exist."""


class JournalNames(Command, tag="journal_names", frozen=True):
    """Gives journal rows to the next names that existed before the journal began."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    names: Annotated[int, Meta(ge=1, le=SLICE_NAMES_MAX)]
    """The most names that get rows. A user counts with its rules and tokens, which may exceed the number."""


class CopyTruth(Command, tag="copy_truth", frozen=True):
    """Copies a page of the truth into another group than the first."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    after: U63
    """The version that the group must have for the page to follow; 0 for the first page."""
    version: U63
    """The version that the group has after the page."""
    rows: Sequence[tuple[int, object, object]]
    """The rows of `TruthPage`, by the versions of their names ascending."""


class Truth(Family):
    """Reads the truth for the other groups (in the first group), or applies the pages copied from the first group (in
    all others). Any thread may use `after` and `copied`."""

    ROWS = ((META, meta_keys.COPIED_KEY),)
    LATER_ROWS = (LaterRows(GROUPS_LEVEL, META, meta_keys.COPIED_KEY),)

    def __init__(self, kv: KV, families: Families) -> None:
        self._kv = kv
        self._own = families.group
        self._journal = families[TruthJournal]
        self._topics, self._groups, self._removals = families[Topics], families[Groups], families[RemovalSlices]
        self._settings, self._access = families[Settings], families[Access]
        self._broker_groups, self._quotas, self._learnt = families[BrokerGroups], families[Quotas], families[Learnt]
        row = kv.get(META, meta_keys.COPIED_KEY)
        self._copied: int = 0 if row is None else keys.U64.unpack(row)[0]
        self.changed: bool = True
        self.publish()

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families)

    # -- reads, any thread

    def after(self, version: int, bytes_max: int = PAGE_BYTES) -> TruthPage:
        """Returns a page of the names that changed after `version`, in the order of their versions. The packed rows
        have at most `bytes_max` bytes together, but a page has at least one row if any name changed. Each row is as of
        the version of the name's change."""
        rows: list[TruthRow] = []
        size, reached = 0, version
        for change in self._journal.changes(version):
            row = None if change.ended else self._row(change.kind, change.name)
            # A name that changed while its row was read is left out here: it comes later, with its new version.
            if (change.ended or row is not None) and self._journal.is_newest(change.version):
                found = (int(change.kind), change.name, row)
                size += len(msgpack.packb(found))
                if size > bytes_max and rows:
                    return TruthPage(tuple(rows), reached, more=True)
                rows.append(found)
            reached = change.version
        return TruthPage(tuple(rows), reached, more=False)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.copied, self.changed = self._copied, False
        """The version of the truth that this group has copied; 0 if it has copied nothing."""

    def _row(self, kind: TruthKind, name: Any) -> Any:
        """Returns the row of a name as readers see it; None if it has just ended."""
        match kind:
            case TruthKind.TOPIC:
                topic = self._topics.by_name.get(name)
                return None if topic is None else topic_row(topic)
            case TruthKind.GROUP:
                group = self._groups.by_name.get(name)
                return None if group is None else group_settings(group)
            case TruthKind.USER:
                user = self._access.by_id.get(name)
                return None if user is None else user_row(user)
            case TruthKind.RULE:
                row = self._kv.get(META, meta_keys.rule_key(*name))
                return None if row is None else msgpack.unpackb(row)
            case TruthKind.TOKEN:
                token = self._access.tokens.get(name[1])
                return None if token is None else [token.ends_ms, token.label]
            case TruthKind.ACCESS:
                return [self._access.mode.value, self._access.key_id]
            case TruthKind.SETTING:
                return list(self._settings.by_key[name])
            case TruthKind.BROKER_GROUP:
                return self._broker_groups.by_number[name].row()
            case TruthKind.QUOTA:
                quota = self._quotas.by_subject.get(name)
                return None if quota is None else quota.row()
            case TruthKind.LEARNT:
                row = self._kv.get(META, meta_keys.learnt_key(*name))
                return None if row is None else msgpack.unpackb(row)
            case TruthKind.OFFSETS:
                return None

    # -- in the first group: journal rows for names that existed before the journal began

    @applies(JournalNames)
    def journal_names(self, stage: Stage, command: JournalNames) -> CommandResult:
        """Adds journal rows for the next names, up to `command.names` of them, and for all those of the last user. The
        result's value is True if all names have rows."""
        journal, left = self._journal, command.names
        while left > 0 and (place := journal.place) is not None:
            reached = self._next(place.kind)
            for at, names in self._units(place):
                # Names that have rows already, because they changed since the journal began, are skipped and not
                # counted.
                fresh = [each for each in names if not journal.has(*each)]
                for kind, name in fresh:
                    journal.note(stage, kind, name)
                left -= len(fresh)
                if left <= 0:
                    reached = SlicePlace(place.kind, at)
                    break
            journal.go_on(stage, reached)
        return done(journal.place is None)

    def _next(self, kind: TruthKind) -> SlicePlace | None:
        """Returns the beginning of the kind after `kind`; None if `kind` is the last one."""
        last = TruthKind.BROKER_GROUP
        if self._quotas.current:
            last = TruthKind.QUOTA
        if self._learnt.is_there:
            last = TruthKind.LEARNT
        return SlicePlace(TruthKind(kind + 1), None) if kind < last else None

    def _units(self, place: SlicePlace) -> Iterator[tuple[TruthName, list[tuple[TruthKind, TruthName]]]]:
        """Yields the names of the place's kind above the place, ascending. Each comes with the list of (kind, name)
        that get rows together: a user's with its rules and tokens. Includes names that the batch being applied made."""
        kind, after = place
        match kind:
            case TruthKind.TOPIC:
                for name in _keys_above(self._topics.by_name, self._topics.changed, after):
                    if self._topics.current(name) is not None:
                        yield name, [(kind, name)]
            case TruthKind.GROUP:
                for name in _keys_above(self._groups.by_name, self._groups.changed, after):
                    if self._groups.exists(name):
                        yield name, [(kind, name)]
            case TruthKind.USER:
                for user_id in _keys_above(self._access.by_id, self._access.touched, after):
                    user = self._access.current(user_id)
                    if user is not None:
                        rules = [(TruthKind.RULE, rule_name(user_id, rule)) for rule in user.rules]
                        tokens = [(TruthKind.TOKEN, (user_id, digest)) for digest in user.tokens]
                        yield user_id, [(kind, user_id), *rules, *tokens]
            case TruthKind.ACCESS:
                if after is None:
                    yield "", [(kind, "")]
            case TruthKind.SETTING:
                for key in sorted(self._settings.current):
                    if after is None or key > str(after):
                        yield key, [(kind, key)]
            case TruthKind.QUOTA:
                for subject in sorted(self._quotas.current):
                    if after is None or subject > str(after):
                        yield subject, [(kind, subject)]
            case TruthKind.LEARNT:
                for row in names_above(self._learnt, after):
                    yield row, [(kind, row)]
            case _:  # kinds that come with their user, or that do not exist before the journal begins
                pass

    # -- in all other groups: copying

    @applies(CopyTruth)
    def copy(self, stage: Stage, command: CopyTruth) -> CommandResult:
        """Stores the rows of a page unchanged. A page that the group already has changes nothing. The result is
        `conflict` if the page does not follow the version that the group has, and `refused` in the first group;
        otherwise its value is the version afterwards."""
        if self._own == FIRST_GROUP:
            return CommandResult(False, "refused", f"group {FIRST_GROUP} has the truth and copies it from nobody")
        if command.version == self._copied:
            return done(self._copied)
        if command.after != self._copied or command.version < command.after:
            told = f"a page from {command.after} to {command.version} does not follow version {self._copied}"
            return CommandResult(False, "conflict", told)
        steps = [_parsed(kind, name, row) for kind, name, row in command.rows]
        users: dict[int, CopiedUser] = {}
        for step in steps:
            if isinstance(step, _OfUser):
                # All rows of one user are copied in one call, because each change of a user costs a step per rule.
                step.add_to(users.setdefault(step.user_id, CopiedUser()))
        for step in steps:
            if isinstance(step, _OfUser):
                of_user = users.pop(step.user_id, None)
                if of_user is not None:
                    self._access.copy_user(stage, step.user_id, of_user)
            else:
                self._put(stage, step)
        self._copied = command.version
        self.changed = True
        stage.put(META, meta_keys.COPIED_KEY, keys.U64.pack(self._copied))
        return done(self._copied)

    def _put(self, stage: Stage, step: _Step) -> None:
        name, row = step.name, step.row
        match step.kind:
            case TruthKind.TOPIC if row is None:
                self._removals.delete_topic(stage, DeleteTopic(name))
            case TruthKind.TOPIC:
                self._topics.copy(stage, row)
            case TruthKind.GROUP if row is None:
                self._removals.delete_group(stage, DeleteGroup(name, clean_offsets=False))
            case TruthKind.GROUP:
                self._groups.copy(stage, row)
            case TruthKind.OFFSETS:
                self._removals.clean_offsets(stage, name)
            case TruthKind.ACCESS:
                self._access.copy_common(stage, *row)
            case TruthKind.SETTING:
                self._settings.copy(stage, name, row)
            case TruthKind.BROKER_GROUP:
                self._broker_groups.copy(stage, name, row)
            case TruthKind.QUOTA:
                self._quotas.copy(stage, name, row)
            case TruthKind.LEARNT:
                self._learnt.copy(stage, name, row)


class TruthReads(Reads):
    """Read access to what a state holds about the data that all groups of brokers share."""

    truth = family_of(Truth)
    """The pages of the truth for other groups, and the version that this group has copied."""
    truth_journal = family_of(TruthJournal)
    """The journal of the truth, which the first group keeps."""
    broker_groups = family_of(BrokerGroups)
    """The groups of brokers of the cluster."""


# -- rows


class _Step(NamedTuple):
    """A checked row of a page. `row` is in the form that the family stores; None if the name has ended."""

    kind: TruthKind
    name: Any
    row: Any


class _OfUser(NamedTuple):
    """A checked row of a page about a user, or about a rule or a token of a user."""

    kind: TruthKind
    user_id: int
    what: Any
    """The rest of the name after the user's id: None for the user, (policy, resource) for a rule, the SHA-256 for a
    token."""
    row: Any

    def add_to(self, copied: CopiedUser) -> None:
        """Adds this row to `copied`, which collects the rows of the user."""
        if self.kind is TruthKind.USER:
            copied.user, copied.ended = self.row, self.row is None
        elif self.kind is TruthKind.RULE:
            copied.rules[self.what] = self.row
        else:
            copied.tokens[self.what] = self.row


class _TopicRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A row of a topic, as `topic_row` returns it."""

    perm: int
    order: bool
    sys_flag: int
    attributes: dict[str, str]
    created_ms: U64
    changed_ms: U64
    changed_by: Text
    place: PlaceRows


_UserRow = tuple[str, bool, bool, Secret, str, U64]
"""The row of a user: (name, super, enabled, secret, key id, created_ms)."""


def topic_row(topic: TopicConfig) -> list[Any]:
    """Returns the fields of a topic that other groups copy: all but its name and its id, which each group assigns
    itself."""
    return [
        topic.perm,
        topic.order,
        topic.sys_flag,
        dict(topic.attributes),
        topic.created_ms,
        topic.changed_ms,
        topic.changed_by,
        place_rows(topic.queues_of_groups),
    ]


def _parsed(number: int, name: object, row: object) -> _Step | _OfUser:
    """Checks a row of a page, and returns it in the form that families store. `number`: the kind of the name. Raises
    InvalidCommandError if anything in it is malformed."""
    if number not in list(TruthKind):
        raise InvalidCommandError(f"the truth has no kind {number}")
    kind = TruthKind(number)
    match kind:
        case TruthKind.TOPIC:
            topic = check_topic_name(name)
            return _Step(kind, topic, None if row is None else _topic(topic, _converted(row, _TopicRow)))
        case TruthKind.GROUP:
            group = GroupConfig(check_group_name(name))
            return _Step(kind, group.name, None if row is None else _group(group, _converted(row, list[object])))
        case TruthKind.OFFSETS:
            if row is not None:
                raise InvalidCommandError("offsets only end")
            return _Step(kind, check_group_name(name), None)
        case TruthKind.USER:
            user_id = _converted(name, _Id)
            return _OfUser(kind, user_id, None, None if row is None else _user(user_id, _converted(row, _UserRow)))
        case TruthKind.RULE:
            user_id, policy, resource = _converted(name, tuple[_Id, PolicyNumber, str])
            rule = None if row is None else parse_rule(_converted(row, RuleRow))
            if rule is not None and rule_name(user_id, rule) != (user_id, policy, resource):
                raise InvalidCommandError(f"a rule of another name than {name!r:.100}")
            return _OfUser(kind, user_id, (policy, str(parse_resource(resource))), rule)
        case TruthKind.TOKEN:
            user_id, digest = _converted(name, tuple[_Id, Digest])
            token = None if row is None else Token(user_id, *_converted(row, tuple[U64, Text]))
            return _OfUser(kind, user_id, digest, token)
        case TruthKind.ACCESS:
            mode, key = _converted(row, tuple[Mode, Text])
            return _Step(kind, "", (mode, key))
        case TruthKind.SETTING:
            key, (value, version) = _converted(name, str), _converted(row, tuple[bool | int | str, NumberFrom1])
            return _Step(kind, key, Setting(checked_value(key, value), version))
        case TruthKind.BROKER_GROUP:
            number = _converted(name, Annotated[int, Meta(ge=FIRST_GROUP, le=GROUPS_MAX)])
            return _Step(kind, number, parse_group(row))
        case TruthKind.QUOTA:
            subject = _converted(name, str)
            return _Step(kind, *((checked_subject(subject), None) if row is None else parse_quota(subject, row)))
        case TruthKind.LEARNT:
            return _Step(kind, *parse_learnt(name, row))


def _converted(value: object, kind: Any) -> Any:
    return converted(value, kind)


_Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]


def _topic(name: str, row: _TopicRow) -> TopicConfig:
    base = TopicConfig(
        0,
        name,
        created_ms=row.created_ms,
        changed_ms=row.changed_ms,
        changed_by=row.changed_by,
        place={group: (read, write) for group, read, write in row.place},
    )
    fields = {"perm": row.perm, "order": row.order, "sys_flag": row.sys_flag, "attributes": row.attributes}
    return check_topic_config(base, fields)


def _group(base: GroupConfig, row: list[object]) -> GroupConfig:
    return check_group_config(base, settings_map(row))


def _user(user_id: int, row: _UserRow) -> User:
    name, is_super, enabled, secret, key, created_ms = row
    return User(user_id, checked_user_name(name), is_super, enabled, secret, key, created_ms, 0)


def _keys_above(names: SortedMap[Any, Any], changed: Iterable[Any], after: Any) -> Iterator[Any]:
    """Yields the keys above `after` (None: all), ascending, both of the published `names` and of `changed`, the changes
    of the batch being applied. A key may come twice."""
    return merge(_pages(names, after), sorted([name for name in changed if after is None or name > after]))


def _pages(names: SortedMap[Any, Any], after: Any) -> Iterator[Any]:
    while found := names.keys_from(after, _KEYS_AT_ONCE):
        yield from found
        after = found[-1]


_KEYS_AT_ONCE = 256
