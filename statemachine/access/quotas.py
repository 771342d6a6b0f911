"""Quotas: limits on what one user, address or topic may send to and pull from the cluster. They are rows of the
replicated state (docs/adr/0115).

A row has a *subject*, a text that says whom the row limits, and *limits*, a map from the name of a limit to a number.
The leader that proposes a change knows which limits exist (`cluster.flow.quota_buckets`); to this module their names
have no meaning. The state machine itself never uses a limit: the leader enforces limits before it proposes anything.

Subjects; `*` as a name means everybody without a row of their own:

    user=NAME              sends and pulls signed by the user
    user=NAME,topic=NAME   the same, of one topic, instead of the row of the user
    address=IP             sends and pulls that no user has signed, from one address
    topic=NAME             sends and pulls of the topic, by any user or address
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

import msgpack
from msgspec import Meta

from raftmq_wire.names import NAME as TOPIC_NAME
from statemachine.access.user_rows import NAME as USER_NAME
from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import U64, Command, CommandResult, InvalidCommandError, Text, converted, done
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import QUOTAS_LEVEL
from statemachine.rows import meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage

EVERYBODY: Final = "*"
QUOTAS_MAX: Final = 10_000
LIMITS_MAX: Final = 32
"""The most limits of a row."""
ROWS_PER_COMMAND: Final = 1_000
LIMIT: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
TOPIC_LENGTH_MAX: Final = 255
VALUE_MAX: Final = 2**62


class Subject(NamedTuple):
    """The user, address and topic that a quota names; "" for each that it does not name."""

    user: str = ""
    address: str = ""
    topic: str = ""

    def __str__(self) -> str:
        """Returns the subject as text, as rows and people write it."""
        return ",".join(f"{name}={value}" for name, value in self._asdict().items() if value)


def parse_subject(text: str) -> Subject:
    """Returns the subject with this text. Raises ValueError that says what is wrong with it."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in Subject._fields or name in fields:
            raise ValueError(f"{text!r:.100} is no subject: user=NAME, user=NAME,topic=NAME, address=IP or topic=NAME")
        fields[name] = value
    subject = Subject(**fields)
    if subject.address and (subject.user or subject.topic):
        raise ValueError("an address is a subject of its own: what a user has signed counts for the user")
    for name, check in _CHECKS.items():
        if name in fields and fields[name] != EVERYBODY:
            check(fields[name])
    if subject.user and subject.topic == EVERYBODY:
        raise ValueError("topic=* beside a user says no more than the user alone")
    return subject._replace(address=_plain(subject.address))


def _plain(address: str) -> str:
    return address if address in ("", EVERYBODY) else str(ip_address(address))


def _check_user(name: str) -> None:
    if not USER_NAME.fullmatch(name):
        raise ValueError(f"{name!r:.100} is no name of a user, nor *")


def _check_topic(name: str) -> None:
    if len(name) > TOPIC_LENGTH_MAX or not TOPIC_NAME.fullmatch(name):
        raise ValueError(f"{name!r:.100} is no name of a topic, nor *")


_CHECKS: Final = {"user": _check_user, "address": ip_address, "topic": _check_topic}


class Quota(NamedTuple):
    """The limits of a subject."""

    limits: Mapping[str, int]
    """Name of the limit -> number, in the order of the names; at least one."""
    changed_ms: int
    """Log time at which the quota was last set."""
    changed_by: str

    def row(self) -> list[object]:
        """Returns the fields of the row."""
        return [dict(self.limits), self.changed_ms, self.changed_by]


Limits = Annotated[dict[str, Annotated[int, Meta(ge=1, le=VALUE_MAX)]], Meta(min_length=1, max_length=LIMITS_MAX)]


def parse_quota(subject: str, row: object) -> tuple[str, Quota]:
    """Returns the subject and the quota of a row that was copied from the first group of brokers. Raises
    InvalidCommandError if the row is malformed."""
    limits, changed_ms, changed_by = _converted(row)
    return checked_subject(subject), Quota(_checked_limits(limits), changed_ms, changed_by)


def _converted(row: object) -> tuple[dict[str, int], int, str]:
    kind: Any = tuple[Limits, U64, Text]
    fields: tuple[dict[str, int], int, str] = converted(row, kind)
    return fields


def checked_subject(text: str) -> str:
    """Checks the text of a subject, and returns it in the form that rows have. Raises InvalidCommandError, which says
    what is wrong with it."""
    try:
        return str(parse_subject(text))
    except ValueError as error:
        raise InvalidCommandError(str(error)) from error


def _checked_limits(limits: Mapping[str, int]) -> dict[str, int]:
    for name in limits:
        if not LIMIT.fullmatch(name):
            raise InvalidCommandError(f"{name!r:.100} is no name of a limit")
    return dict(sorted(limits.items()))


class SetQuotas(Command, tag="set_quotas", frozen=True):
    """Sets the quotas of subjects, or removes them. New limits replace all limits that the subject had."""

    LEVEL: ClassVar[int] = QUOTAS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    quotas: Annotated[Sequence[tuple[str, Limits | None]], Meta(min_length=1, max_length=ROWS_PER_COMMAND)]
    """(subject, limits) of each quota; None as the limits removes the quota."""
    now_ms: U64
    """Log time of the proposal."""
    author: Text


class Quotas(Family):
    """The quotas. `by_subject` is replaced and never changed, so any thread may read it."""

    ROWS = ((META, meta_keys.QUOTA_PREFIX),)
    LATER_ROWS = (LaterRows(QUOTAS_LEVEL, META, meta_keys.QUOTA_PREFIX),)

    def __init__(self, kv: KV, journal: TruthJournal) -> None:
        self._journal = journal
        self._rows = dict(_read(kv))
        self._named = Counter(name for quota in self._rows.values() for name in quota.limits)
        self.changed: bool = True
        self.by_subject: Mapping[str, Quota] = {}
        """Subject, as text -> its quota."""
        self.limited: frozenset[str] = frozenset()
        """The names of all limits that at least one quota has."""
        self.publish()

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[TruthJournal])

    @property
    def current(self) -> Mapping[str, Quota]:
        """The quotas, with the changes of the batch being applied (apply thread only)."""
        return self._rows

    @applies(SetQuotas)
    def set(self, stage: Stage, command: SetQuotas) -> CommandResult:
        """Sets and removes quotas: all of the command's, or none (result `refused`) if there would be more than
        QUOTAS_MAX. The result's value is the number of quotas that changed."""
        wanted: dict[str, Quota | None] = {}
        for text, limits in command.quotas:
            subject = checked_subject(text)
            if limits is None:
                wanted[subject] = None
            else:
                wanted[subject] = Quota(_checked_limits(limits), command.now_ms, command.author)
        set_now = {subject for subject, quota in wanted.items() if quota is not None}
        if len((self._rows.keys() - wanted.keys()) | set_now) > QUOTAS_MAX:
            return CommandResult(False, "refused", f"a cluster has at most {QUOTAS_MAX} quotas; nothing was changed")
        changed = 0
        for subject, quota in wanted.items():
            known = self._rows.get(subject)
            if quota is None and known is not None:
                self._end(stage, subject)
                changed += 1
            elif quota is not None and (known is None or known.limits != quota.limits):
                self.copy(stage, subject, quota)
                changed += 1
        return done(changed)

    def copy(self, stage: Stage, subject: str, quota: Quota | None) -> None:
        """Stores a quota that was copied from the first group; removes the subject's quota if `quota` is None."""
        if quota is None:
            if subject in self._rows:
                self._end(stage, subject)
            return
        self._forget(subject)
        self._rows[subject] = quota
        self._named.update(quota.limits.keys())
        self.changed = True
        stage.put(META, meta_keys.quota_key(subject), msgpack.packb(quota.row()))
        self._journal.note(stage, TruthKind.QUOTA, subject)

    def _end(self, stage: Stage, subject: str) -> None:
        self._forget(subject)
        self.changed = True
        stage.delete(META, meta_keys.quota_key(subject))
        self._journal.end(stage, TruthKind.QUOTA, subject)

    def _forget(self, subject: str) -> None:
        known = self._rows.pop(subject, None)
        if known is not None:
            self._named.subtract(known.limits.keys())

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self.changed:
            self.changed = False
            self.by_subject = dict(self._rows)
            self.limited = frozenset(name for name, rows in self._named.items() if rows)


def _read(kv: KV) -> Iterator[tuple[str, Quota]]:
    for key, row in kv.scan(META, *meta_keys.QUOTAS):
        limits, changed_ms, changed_by = msgpack.unpackb(row)
        yield meta_keys.quota_subject(key), Quota(limits, changed_ms, changed_by)


class QuotaReads(Reads):
    """Read access to what a state holds about quotas."""

    quotas = family_of(Quotas)
    """The quotas of the cluster."""
