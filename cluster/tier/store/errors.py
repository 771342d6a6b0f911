"""Typed errors of an object store that did not do what was asked. A message ends with the remedy, if one is known."""

from __future__ import annotations


class StoreError(Exception):
    """A call to an object store failed. The text says `what` happened and on which object. `fix` says what to change;
    "" if that is not known."""

    retryable = False
    """True if the same call may succeed later although nobody changes anything."""
    outcome_unknown = False
    """True if the failed write may have been carried out."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}; {fix}" if fix else what)
        self.what = what
        self.fix = fix


class NotFound(StoreError):
    """There is no such object, bucket or container."""


class _Taken(StoreError):
    """The condition of a write was not met: the name is taken, or the object has another version."""

    def __init__(self, what: str, fix: str = "", *, maybe_ours: bool = False) -> None:
        super().__init__(what, fix)
        self.maybe_ours = maybe_ours
        """True if an earlier attempt of the same call has an unknown outcome, so that the caller itself may have
        written the object that was found."""


class AlreadyExists(_Taken):
    """A create found a durable object of that name. Names are made from the content, so the caller compares size and
    checksum and need not know who wrote it."""


class Conflict(_Taken):
    """A replace found another version than the one that the caller had read. The caller reads and decides again."""


class Denied(StoreError):
    """The store refuses the request: because of keys, region, clock, policy or permissions."""


class Throttled(StoreError):
    """The store asks for fewer requests (503 SlowDown, 429), or is busy with another writer."""

    retryable = True


class Unreachable(StoreError):
    """The store gave no answer or an incomplete one, or failed inside (5xx). A write may have been carried out."""

    retryable = True
    outcome_unknown = True


class Full(StoreError):
    """No space is left, or a quota is used up. The call may be retried, because an operator may make room."""

    retryable = True


class BadAnswer(StoreError):
    """The answer cannot be right: too few bytes, or an error in a successful reply. A read may be tried again; a write
    may have been carried out."""

    retryable = True
    outcome_unknown = True


class OtherFormat(BadAnswer):
    """The object has a format that this version cannot read: a newer one, or one of a build before 0.1.0."""

    retryable = False
    outcome_unknown = False


class Unsupported(StoreError):
    """The store, or this installation, does not support the call."""
