"""Typed errors of an object store that does not do what was asked. Each message ends with what to change."""

from __future__ import annotations


class StoreError(Exception):
    """A call to an object store failed. `what` happened, on which object, and the `fix`: what to change."""

    retryable = False
    """True if the same call may succeed later without anybody changing anything."""
    outcome_unknown = False
    """True if a write that failed so may have been carried out."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}; {fix}" if fix else what)
        self.what = what
        self.fix = fix


class NotFound(StoreError):
    """There is no such object, bucket or container."""


class _Taken(StoreError):
    """A condition of a write was not met."""

    def __init__(self, what: str, fix: str = "", *, maybe_ours: bool = False) -> None:
        super().__init__(what, fix)
        self.maybe_ours = maybe_ours
        """An earlier attempt of the same call has an unknown outcome, so this may be what the caller wrote."""


class AlreadyExists(_Taken):
    """A create found an object of that name, which is durable. Names are made of the content, so the caller compares
    size and checksum rather than asks whose it is."""


class Conflict(_Taken):
    """A replace found another version than the one that the caller had read: read again, and decide again."""


class Denied(StoreError):
    """The store knows who asks, or does not, and refuses: keys, region, clock, policy, permissions."""


class Throttled(StoreError):
    """The store is there and asks for fewer requests (503 SlowDown, 429), or is busy with another writer."""

    retryable = True


class Unreachable(StoreError):
    """No answer, an incomplete one, or a failure inside the store (5xx). A write may have been carried out."""

    retryable = True
    outcome_unknown = True


class Full(StoreError):
    """No space left, or a quota is used up. Retried: somebody may make room."""

    retryable = True


class BadAnswer(StoreError):
    """An answer that cannot be right: too few bytes, an error in a successful reply. A read may be tried again; a write
    may have been carried out."""

    retryable = True
    outcome_unknown = True


class OtherFormat(BadAnswer):
    """The object is of a format that this version does not read: newer, or of a build before 0.1.0."""

    retryable = False
    outcome_unknown = False


class Unsupported(StoreError):
    """The store, or this installation, cannot do it."""
