"""docs/configuration.md has of each key what its field says."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests.support.tree import ROOT


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "configuration_page.py"))


def test_the_page_is_written_from_the_fields(script: dict[str, Any]) -> None:
    assert script["PAGE"].read_text() == script["page"](script["PAGE"].read_text()), (
        "run .venv/bin/python .ci/configuration_page.py"
    )


def test_a_new_key_comes_to_its_place_with_its_docstring_and_one_that_is_gone_goes(script: dict[str, Any]) -> None:
    rows = ["| `deadline_ms` | `1` | By hand |\n", "| `gone` | `1` | By hand |\n"]
    assert script["rows_of"]("send", rows) == [
        "| `deadline_ms` | `3000` | By hand |\n",
        "| `leader_wait_ms` | `2000` |  |\n",
    ]
    rows = script["rows_of"]("repair", [])
    assert rows == ["| `bytes_per_second` | `33554432` |  |\n"]
    (said,) = [row for row in script["rows_of"]("raft", []) if "preferred_lag" in row]
    assert said == (
        "| `preferred_lag_entries` | `64` | "
        "The most entries by which a preferred node may be behind when leadership is transferred to it |\n"
    )


def test_lists_name_whole_sections_and_exceptions(script: dict[str, Any]) -> None:
    listed = script["listed"]
    fields = script["fields_of"](script["Config"])
    limits = [key for key in fields if key.startswith("limits.")]
    send = [key for key in fields if key.startswith("send.")]
    assert listed([*limits, *send]) == "- `[limits]`, `[send]`: every key\n"
    assert listed([*limits[1:], *send]) == "- `[send]`: every key\n- `[limits]`: every key but `profile`\n"
    assert listed([*send, "raft.tick_ms", "raft.election_ticks"]) == (
        "- `[send]`: every key\n- `raft.tick_ms`, `raft.election_ticks`\n"
    )


def test_a_new_section_comes_behind_the_others_with_its_heading_and_its_keys(script: dict[str, Any]) -> None:
    text = script["PAGE"].read_text()
    begin, end = text.index("## How long a write waits: `[send]`"), text.index("## More sends than the log takes")
    made = script["page"](text[:begin] + text[end:])
    section = (
        "## Time limits of a write: `[send]`\n\n| Key | Default | Meaning |\n|---|---|---|\n"
        "| `deadline_ms` | `3000` |  |\n| `leader_wait_ms` | `2000` |  |\n\n"
    )
    assert made == (text[:begin] + text[end:]).replace(script["RANGES"], section + script["RANGES"])
