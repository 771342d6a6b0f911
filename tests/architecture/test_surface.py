"""What the feature map calls "Not yet" was confirmed after the last command, metric, route or request code of its area.

surface.txt has each of these names with the time at which it came, as 2026-11-24T15:30. docs/internals/feature-map.md
has an area and a time for each row that says "Not yet". A name that came to an area after that time fails its row,
until somebody has looked at it and confirms the row, or says what is built now. A day alone is refused on both sides:
it does not say whether a name came before or after a confirmation of the same day.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

from cluster.admin.routes import ROUTES
from raftmq_wire.codes import RequestCode
from tests.architecture.test_feature_map import PAGE, ROWS
from tests.support.rows import each_row
from tests.support.tree import sources

ROOT = Path(__file__).parents[2]
SURFACE = Path(__file__).with_name("surface.txt")
FOLDERS = ("cluster", "raftmq", "jepsen_like", "pyspark_raftmq")
CONFIRMED = re.compile(r"^\| ([A-Z]\d+) \| ((?:`[^`|]+` ?)+) \| (\S+) \|$", re.MULTILINE)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
"""Times of this form compare as texts."""


class Confirmation(NamedTuple):
    """A row of the table of confirmations."""

    area: tuple[str, ...]
    """Folders and files, or how names begin: `raftmq tier`, `/v1/tier`, `raftmq_tier_`, `POP_`."""
    date: str


# --- what there is ----------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    """Yields each command and the module of its function."""
    from raftmq.cli import cli

    def below(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from below(inner, (*words, name))
        else:
            yield " ".join(words), command.callback.__module__

    context = click.Context(cli)
    return below(cli, ("raftmq",))


def metrics() -> list[str]:
    """Returns the metrics of docs/metrics.md: another test holds the page to the nodes."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    return re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram|unknown) \|", text, re.MULTILINE)


@cache
def literals() -> dict[str, set[str]]:
    """A metric's name or a request code in the sources -> the files that it stands in."""
    found: dict[str, set[str]] = {}
    for file, source in sources(*FOLDERS):
        for name in re.findall(r'"((?:raftmq|rocketmq|ha)_\w+)"|RequestCode\.([A-Z]\w+)', source):
            found.setdefault(name[0] or name[1], set()).add(file)
    return found


@cache
def surface() -> dict[str, frozenset[str]]:
    """Each command, metric, route and request code -> the files that it comes from."""

    def file_of(module: str) -> frozenset[str]:
        return frozenset({f"{module.replace('.', '/')}.py"})

    found = {name: file_of(module) for name, module in commands()}
    found |= {f"{route.method} {route.path}": file_of(route.handler.__module__) for route in ROUTES}
    names = {name: name.removesuffix("_total") for name in metrics()} | {code.name: code.name for code in RequestCode}
    return found | {name: frozenset(literals().get(literal, ())) for name, literal in names.items()}


def recorded(text: str) -> dict[str, str]:
    """Name -> the time at which it came."""
    return {name: date for date, _, name in (line.partition(" ") for line in text.splitlines())}


# --- the rows ---------------------------------------------------------------------------------------


def confirmations(page: str) -> dict[str, Confirmation]:
    return {
        row: Confirmation(tuple(re.findall(r"`([^`]+)`", area)), date) for row, area, date in CONFIRMED.findall(page)
    }


def is_in(area: str, name: str, files: Iterable[str]) -> bool:
    if area.endswith(("/", ".py")):
        return any(file.startswith(area) for file in files)
    return name.startswith(area) or name.partition(" ")[2].startswith(area)


def came_since(confirmed: Confirmation, names: dict[str, frozenset[str]], dates: dict[str, str]) -> list[str]:
    """Returns the names that came to the area after the row was confirmed."""
    return [
        f"{name} ({dates[name]})"
        for name, files in sorted(names.items())
        if dates.get(name, "") > confirmed.date and any(is_in(area, name, files) for area in confirmed.area)
    ]


def without_time(dates: dict[str, str]) -> list[str]:
    """Returns what has a day alone, or no date at all."""
    return [f"{name} ({date})" for name, date in dates.items() if not TIME.fullmatch(date)]


NOT_YET = [row for row, does, *_ in ROWS if "Not yet" in does]


def test_each_name_has_a_time() -> None:
    lines = SURFACE.read_text().splitlines()
    dates = recorded(SURFACE.read_text())
    new, gone = sorted(surface().keys() - dates.keys()), sorted(dates.keys() - surface().keys())
    assert not new, f"add a line with the time (2026-11-24T15:30) to {SURFACE.name} for each: {', '.join(new)}"
    assert not gone, f"remove the line from {SURFACE.name} of each: {', '.join(gone)}"
    assert without_time(dates) == []
    assert lines == sorted(lines, key=lambda line: line.partition(" ")[2])
    assert len(lines) == len(dates) > 300


def test_each_row_that_is_not_built_is_confirmed() -> None:
    assert list(confirmations(PAGE)) == NOT_YET
    assert without_time({row: each.date for row, each in confirmations(PAGE).items()}) == []


@each_row("row", NOT_YET)
def test_nothing_came_since_a_row_was_confirmed(row: str) -> None:
    confirmed = confirmations(PAGE)[row]
    for area in confirmed.area:
        if area.endswith(("/", ".py")):
            assert (ROOT / area).exists()
    known = [name for name, files in surface().items() if any(is_in(area, name, files) for area in confirmed.area)]
    assert known, "an area that has nothing says nothing"
    came = came_since(confirmed, surface(), recorded(SURFACE.read_text()))
    assert not came, f"is row {row} still true? Say what is built, or confirm it with a date: {', '.join(came)}"


def reopened(page: str, handlers: str) -> list[str]:
    """Returns the rows that any new code reopens, whichever file of that folder has its handler."""
    return [row for row, confirmed in confirmations(page).items() if is_all_of(handlers, confirmed.area)]


def is_all_of(folder: str, area: Iterable[str]) -> bool:
    return any(each.endswith("/") and folder.startswith(each) for each in area)


def test_a_new_code_reopens_only_the_rows_that_it_is_about() -> None:
    assert reopened(PAGE, "cluster/remoting/handlers/") == []
    planted = PAGE.replace("| J5 | `cluster/remoting/handlers/assignment.py`", "| J5 | `cluster/remoting/`")
    assert reopened(planted, "cluster/remoting/handlers/") == ["J5"]


def test_what_came_later_is_printed() -> None:
    confirmed = Confirmation(("raftmq tier", "/v1/tier", "cluster/tier/", "POP"), "2026-11-24T08:00")
    names = {
        "raftmq tier ls": frozenset({"raftmq/commands/data/tier.py"}),
        "raftmq tier new": frozenset({"raftmq/commands/data/tier.py"}),
        "POST /v1/tier/new": frozenset({"cluster/admin/handlers/tier.py"}),
        "GET /v1/topics": frozenset({"cluster/admin/handlers/topics.py"}),
        "raftmq_new_total": frozenset({"cluster/tier/tier_metrics.py"}),
        "POP_MESSAGE": frozenset[str](),
        "SEND_MESSAGE": frozenset({"cluster/remoting/handlers/send.py"}),
    }
    dates = dict.fromkeys(names, "2026-11-24T09:00") | {"raftmq tier ls": "2026-11-24T08:00"}
    assert came_since(confirmed, names, dates) == [
        f"{name} (2026-11-24T09:00)"
        for name in ("POP_MESSAGE", "POST /v1/tier/new", "raftmq tier new", "raftmq_new_total")
    ]
    assert came_since(confirmed._replace(date="2026-11-24T09:30"), names, dates) == []
    assert came_since(confirmed._replace(date="2026-11-25T00:00"), names, dates) == []


def test_a_day_without_a_time_is_refused() -> None:
    """As texts, a day comes before every time of it: a name of the evening would slip past a confirmation at noon."""
    dates = recorded("2026-11-24T09:00 GET /v1/tier\n2026-11-24 raftmq up\nraftmq down\n")
    assert without_time(dates) == ["raftmq up (2026-11-24)", "down (raftmq)"]


def test_lines_are_read() -> None:
    assert recorded("2026-11-24T00:00 GET /v1/tier\n2026-11-25T10:00 raftmq up\n") == {
        "GET /v1/tier": "2026-11-24T00:00",
        "raftmq up": "2026-11-25T10:00",
    }
    page = "| M5 | `raftmq user` `cluster/admin/` | 2026-11-24T00:00 |\n| M4 | In part | `a.py` | `t::x` |\n"
    assert confirmations(page) == {"M5": Confirmation(("raftmq user", "cluster/admin/"), "2026-11-24T00:00")}
