"""`.ci/request_codes.py`: writes the two places that are generated from the rows of the requests
(`cluster.requests.table`).

These are raftmq_wire/request_codes.py, with the names of the codes, which clients share, and the table in
docs/wire-protocol.md.
tests/architecture/test_request_codes.py compares both with the rows.
"""

from __future__ import annotations

import re
from pathlib import Path

from cluster.requests.table import ROWS, SENT_BY_NODES

ROOT = Path(__file__).parents[1]
CODES = ROOT / "raftmq_wire" / "request_codes.py"
PAGE = ROOT / "docs" / "wire-protocol.md"
TABLE_HEAD = """\
<!-- Written by .ci/request_codes.py from the rows of requests. -->

| Code | Name | Where | Request → reply |
|---|---|---|---|
"""
TABLE = re.compile(re.escape(TABLE_HEAD) + r"(?:\|.*\n)*")
CODES_HEAD = '''\
"""The codes of requests. Written by .ci/request_codes.py from the rows of `cluster.requests.table`."""

from __future__ import annotations

from enum import IntEnum


class RequestCode(IntEnum):
    """The codes of requests: RocketMQ's, and from 700,000 on, where it has none, RaftMQ's own."""

'''


def codes() -> str:
    """Returns the module with the names of all codes."""
    named = {verb.code: verb.name for verb in ROWS} | dict(SENT_BY_NODES)
    return CODES_HEAD + "".join(
        f"    {named[code]} = {f'{code:_}' if code > 99_999 else code}\n" for code in sorted(named)
    )


def table() -> str:
    """Returns the table of requests for people."""
    lines = []
    for verb in sorted(ROWS, key=lambda verb: verb.code):
        says = re.sub(r"\[(\w+)\](?!\()", r"[\1](\1.md)", verb.page.replace("{fields}", f"`{verb.fields}`"))
        lines.append(f"| {verb.code} | {verb.name} | {'leader' if verb.serves.is_leader else 'any'} | {says} |\n")
    return TABLE_HEAD + "".join(lines)


def written() -> dict[Path, str]:
    """Returns each of the two files -> its new text."""
    return {CODES: codes(), PAGE: TABLE.sub(lambda _: table(), PAGE.read_text())}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
