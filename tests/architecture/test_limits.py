"""Every limit of time in the tests is one of a quiet machine: `at_most(seconds)` of tests/support/pace.py, so that one
figure makes all of them longer on a slow one."""

from __future__ import annotations

import re

from tests.support.rows import each_row
from tests.support.tree import sources

BARE = re.compile(
    r"\btimeout=\d|\basyncio\.timeout\(\d|\basyncio\.wait_for\(.*, \d[\d.]*\)(?!,)|\bmonotonic\(\) \+ \d"
    r"|\b(?:PATIENCE|WAIT)_S = \d"
)
NO_LIMITS = {
    "tests/cluster/replication/test_modes_live.py": "for so long nothing may be answered",
    "tests/cluster/test_marks_live.py": "a drawn request need not be answered",
    "tests/jepsen_like/sim/test_sim_many_timers.py": "virtual seconds",
    "tests/raftmq/test_upgrade_live.py": "how long a member of the group reads",
    "tests/support/floods.py": "how often a flood looks whether it is over",
}
"""Files with a number that is no limit, and what it is."""


def bare_limits(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if BARE.search(line)]


def test_every_limit_grows_with_the_slowness_of_the_machine() -> None:
    # Programs of their own, and of a foreign client's environment: no run of pytest measures for them. And this file.
    others = ("tests/containers/", "tests/compat/clients/", "tests/architecture/test_limits.py")
    found = {
        name: lines for name, text in sources("tests") if not name.startswith(others) and (lines := bare_limits(text))
    }
    assert {name: lines for name, lines in found.items() if name not in NO_LIMITS} == {}, "give it to at_most()"
    assert set(NO_LIMITS) - set(found) == set(), "this is gone: take it off the list"


@each_row(
    "line",
    [
        "subprocess.run(command, timeout=60)",
        "async with asyncio.timeout(20):",
        "await asyncio.wait_for(gone(), 20)",
        "deadline = time.monotonic() + 30",
        "PATIENCE_S = 60.0",
    ],
)
def test_one_that_is_planted_is_found(line: str) -> None:
    assert bare_limits(f"x = 1\n{line}\n") == [line]
    assert bare_limits(re.sub(r"(\d[\d.]*)", r"at_most(\1)", line)) == []
