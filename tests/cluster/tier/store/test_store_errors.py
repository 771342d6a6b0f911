"""Errors of object stores: which may be retried, and after which a write may have been carried out."""

from __future__ import annotations

from cluster.tier.store import errors

FINAL = (errors.NotFound, errors.AlreadyExists, errors.Conflict, errors.Denied, errors.Unsupported)
REFUSED_FOR_NOW = (errors.Throttled, errors.Full)
UNKNOWN = (errors.Unreachable, errors.BadAnswer)


def test_only_what_nobody_answered_properly_is_unknown() -> None:
    for kind in (*FINAL, *REFUSED_FOR_NOW, *UNKNOWN):
        assert (kind.retryable, kind.outcome_unknown) == (kind not in FINAL, kind in UNKNOWN)


def test_a_message_ends_with_what_to_change() -> None:
    assert str(errors.Denied("the key is unknown", "set AWS_ACCESS_KEY_ID")).endswith("; set AWS_ACCESS_KEY_ID")
    assert str(errors.NotFound("there is no x")) == "there is no x"
