"""The dashboard's files: what a browser is told about them, and that they need nothing from anywhere else.

What the pages show is for tests/browser to see.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster.admin.handlers.dashboard import CONTENT_TYPES, INDEX, static_files
from tests.support.dashboard import run_dashboard
from tests.support.rows import each_row
from tests.support.tools import needs

OWN = sorted(name for name in static_files() if not name.startswith("uplot"))
SCRIPTS = [name for name in OWN if name.endswith(".js")]


@pytest.mark.parametrize("name", sorted(static_files()))
async def test_every_file_is_served_as_what_it_is(client: Any, name: str) -> None:
    answer = await client.get(f"/static/{name}")
    assert (answer.status, await answer.read()) == (200, static_files()[name].body)
    assert answer.headers["Content-Type"] == CONTENT_TYPES[name.rpartition(".")[2]]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_is_the_index_with_a_strict_policy(client: Any) -> None:
    answer = await client.get("/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert await answer.read() == static_files()[INDEX].body
    policy = dict(each.strip().partition(" ")[::2] for each in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["Referrer-Policy"] == "no-referrer"


@each_row(
    "name",
    [
        "app.jss",
        "..%2fpage.py",
        "%2e%2e/page.py",
        "../page.py",
        "__pycache__",
        "index.html%00.js",
        "%2fetc%2fpasswd",
    ],
)
async def test_other_files_are_not_there(client: Any, name: str) -> None:
    answer = await client.get(f"/static/{name}")
    assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")


async def test_a_misspelled_file_names_the_nearest(client: Any) -> None:
    answer = await client.get("/static/ap.js")
    assert (await answer.json())["error"]["hint"] == "did you mean app.js?"


@each_row("name", OWN)
def test_no_file_names_another_host(name: str) -> None:
    """The name of SVG's language looks like an address, and is none."""
    text = static_files()[name].body.decode().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:|wss?:)?//[\w.-]+\.\w+", text) == []


@each_row("name", SCRIPTS)
def test_scripts_never_make_markup_or_code_of_a_text(name: str) -> None:
    """The browser refuses it as well: the policy asks for trusted types, and makes none."""
    found = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:",
        static_files()[name].body.decode(),
    )
    assert found == []


def test_everything_that_is_imported_or_linked_is_there() -> None:
    wanted = {INDEX}
    for name in OWN:
        text = static_files()[name].body.decode()
        wanted |= set(re.findall(r'(?:from|import) "\./([\w.-]+)"', text))
        wanted |= set(re.findall(r'(?:src|href)="static/([\w.-]+)"', text))
    assert wanted <= set(static_files())
    assert {name for name in OWN if name.endswith((".js", ".css"))} <= wanted, "a file that nothing uses"


def test_the_documentation_names_every_page() -> None:
    text = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text()
    rows = re.findall(r"^\| (\w+) \| .* \| .* \|$", text, re.MULTILINE)
    titles = [
        match[1]
        for name in SCRIPTS
        if (match := re.search(r'name: "\w*", title: "(\w+)"', static_files()[name].body.decode()))
    ]
    assert len(titles) == len([name for name in SCRIPTS if name.startswith("page-")]) > 0
    assert sorted(rows) == sorted([*titles, "Page"])


def test_the_library_comes_with_its_licence() -> None:
    version = re.search(rb"uPlot \(v([\d.]+)\)", static_files()["uplot.iife.min.js"].body)
    assert version is not None
    assert b"MIT" in static_files()["uplot.LICENSE.txt"].body


def test_commands_on_the_pages_are_commands() -> None:
    """The commands have the options that their page needs: its reader is elsewhere, and a cluster may have a secret."""
    from raftmq.cli import COMMANDS

    text = "\n".join(static_files()[name].body.decode() for name in SCRIPTS)
    assert set(re.findall(r"raftmq ([a-z]+(?:-[a-z]+)*)", text)) <= set(COMMANDS)
    assert "raftmq inspect-consistency --admin ${host()}" in text
    assert "--via http://${host()} --secret SECRET" in text


def test_long_names_do_not_make_a_narrow_page_wider() -> None:
    """On a telephone the cells of a table stand one below the other; none keeps a long name on one line."""
    style = static_files()["style.css"].body.decode()
    assert ".group { display: inline-flex; flex-wrap: wrap;" in style, "the kinds of events"
    narrow = style.partition("@media (max-width: 640px)")[2]
    assert ".panel .tight, .panel .words { overflow-wrap: anywhere; }" in narrow


NONE = "\u2013"
MEMBERS = """
const { lagOf, courseOf } = await import(`${folder}/members.js`);
const members = [
  {},
  { lag_bytes: null, lag_ms: null },
  { lag_bytes: 0, lag_ms: 0, lag_bytes_per_s: 0 },
  { lag_bytes: 1572864, lag_ms: 4200, lag_bytes_per_s: -900, caught_up_in_s: 44 },
  { lag_bytes: 1572864, lag_ms: 4200, lag_bytes_per_s: 900, snapshot_in_s: 7300 },
  { lag_bytes: 1572864, lag_ms: 4200, lag_bytes_per_s: 2048 },
  { lag_bytes: 1572864, lag_ms: 4200, snapshot_in_s: 0 },
];
console.log(JSON.stringify(members.map((member) => [lagOf(member), courseOf(member)])));
"""


@needs("node")
def test_a_member_has_its_lag_and_what_becomes_of_it(tmp_path: Path) -> None:
    lag = "1.50 MiB, 4 s"
    assert json.loads(run_dashboard(tmp_path, MEMBERS, "127.0.0.1:1")) == [
        [NONE, None],
        [NONE, None],
        ["0 B", None],
        [lag, ["info", "gone in 44 s"]],
        [lag, ["warn", "snapshot in 2 h 1 min"]],
        [lag, ["warn", "grows by 2 KiB/s"]],
        [lag, ["warn", "snapshot at any time"]],
    ]
