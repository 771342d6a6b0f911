"""What is written from the rows of requests is what the rows say."""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from cluster.requests.table import SENT_BY_NODES, VERBS
from raftmq_wire.codes import REFUSED_NAMES
from tests.support.rows import each_row

ROOT = Path(__file__).parents[2]
OWN_FROM = 700_000
ROCKETMQ = (
    "10-15 17-18 21-23 25-43 45-47 50-54 60-61 100-106 200-217 219-225 300-329 343 345 351-355 361 370 400-402 513 "
    "901-908 1001-1018 2001-2004 3001-3010 3442-3447 3543 5001 200050-200056 200070-200072 200074-200079 200151"
)
"""The request codes of RocketMQ 4.9 to 5.4, by its RequestCode."""


def test_what_comes_from_the_rows_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "request_codes.py"))
    for path, text in script["written"]().items():
        assert path.read_text() == text, "run .venv/bin/python .ci/request_codes.py"


def theirs() -> set[int]:
    """Returns the codes that RocketMQ gives a meaning."""
    ends = [[int(end) for end in each.split("-")] for each in ROCKETMQ.split()]
    return set(chain.from_iterable(range(each[0], each[-1] + 1) for each in ends))


def of_nobody(codes: Iterable[int]) -> list[int]:
    """Returns the codes that are neither RocketMQ's nor in the range of our own."""
    return sorted(code for code in codes if code < OWN_FROM and code not in theirs())


def test_codes_are_rocketmqs_or_from_700_000_on_our_own() -> None:
    """RocketMQ may give any other number a meaning of its own in its next release."""
    assert of_nobody([*VERBS, *SENT_BY_NODES, *REFUSED_NAMES]) == [], f"codes of our own begin at {OWN_FROM}"
    assert max(theirs()) < OWN_FROM
    assert max(VERBS) > OWN_FROM


@each_row("code", [0, 16, 44, 11_901, 200_073, OWN_FROM - 1])
def test_another_code_is_seen(code: int) -> None:
    assert of_nobody([10, code, OWN_FROM]) == [code]
