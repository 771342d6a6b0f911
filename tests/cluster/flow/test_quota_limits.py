"""The table of limits, and those who take their names and words from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from cluster.admin.handlers.quotas import QuotaLimits
from cluster.flow.quota_limits import LIMITS, Shape, misplaced, shape_of, told
from raftmq.commands.access.quota import set_
from statemachine.access.quotas import LIMIT, parse_subject
from tests.support.rows import each_row

DOCS = Path(__file__).parents[3] / "docs"


def test_the_http_api_and_the_command_have_each_limit() -> None:
    assert QuotaLimits.__struct_fields__ == tuple(LIMITS)
    options: dict[str, Any] = {each.name: each for each in set_.params if isinstance(each, click.Option)}
    assert options.keys() >= LIMITS.keys()
    for name, limit in LIMITS.items():
        assert LIMIT.fullmatch(name)
        assert limit.name == name
        assert options[name].opts == [limit.option]
        assert options[name].help == limit.help


@pytest.mark.parametrize("page", ["quotas.md", "cli.md", "http-api.md"])
def test_the_pages_name_each_limit(page: str) -> None:
    text = (DOCS / page).read_text()
    for name, limit in LIMITS.items():
        assert (limit.option if page == "cli.md" else name) in text


def test_a_limit_is_told_in_words() -> None:
    assert told({"send_messages": 1}) == "1 message sent a second"
    assert told({"send_bytes": 2000, "of_later": 1}) == "2,000 bytes sent a second"


@each_row(
    ("subject", "shape"),
    [
        ("user=a", Shape.USER),
        ("user=*", Shape.USER),
        ("user=a,topic=t", Shape.USER_AND_TOPIC),
        ("address=10.0.0.1", Shape.ADDRESS),
        ("topic=*", Shape.TOPIC),
    ],
)
def test_a_limit_has_its_subjects(subject: str, shape: Shape) -> None:
    parsed = parse_subject(subject)
    assert shape_of(parsed) is shape
    for limit in LIMITS.values():
        assert (misplaced(parsed, [limit.name]) == "") is (shape in limit.shapes)


def test_a_limit_of_another_subject_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only = LIMITS["send_bytes"]._replace(shapes=frozenset({Shape.USER, Shape.TOPIC}))
    monkeypatch.setitem(LIMITS, "send_bytes", only)
    wrong = misplaced(parse_subject("address=*"), ["send_messages", "send_bytes"])
    assert wrong == "send_bytes cannot be a limit of address=*: it may be given to user=NAME and topic=NAME"


def test_limits_have_an_upper_bound() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"send_bytes": 2**62}, QuotaLimits)
