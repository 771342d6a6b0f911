"""An error that is kept holds nothing of the calls that raised it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from raftlog.kept_errors import bare


class Body:
    """What a request holds."""


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def parse(body: Body) -> None:
    try:
        raise KeyError("field")
    except KeyError:
        raise ValueError("no such field") from None


def refusal(body: Body) -> ValueError | None:
    try:
        parse(body)
    except ValueError as error:
        return bare(error)
    return None


def test_what_was_parsed_goes_with_the_call_that_keeps_the_error() -> None:
    def handled() -> tuple[ref[Body], str]:
        body = Body()
        refused = refusal(body)
        return ref(body), str(refused)

    body, why = handled()
    assert why == "no such field"
    assert body() is None


def test_the_errors_behind_it_are_still_named() -> None:
    try:
        raise OSError("disk") from KeyError("behind")
    except OSError as error:
        kept = bare(error)
    assert kept.__traceback__ is None
    assert isinstance(kept.__cause__, KeyError)
