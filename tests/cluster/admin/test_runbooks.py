"""The runbooks that come with the package."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.admin.findings.catalogue import runbook_of
from cluster.admin.handlers.dashboard import NAME, runbooks, static_files
from tests.support.codes import CODES

PAGE = Path(__file__).parents[3] / "docs" / "runbooks.md"


def test_every_code_has_its_section_in_the_package() -> None:
    assert sorted(runbooks()) == sorted(CODES)
    assert all(text.startswith(f"{CODES[code].severity}. ") for code, text in runbooks().items())
    assert runbook_of("fenced") == "docs/runbooks.md#fenced"


def test_the_package_has_the_page_of_the_documentation() -> None:
    assert static_files()[NAME].body == PAGE.read_bytes()


def test_a_terminal_gets_no_links() -> None:
    assert re.findall(r"\]\(", "".join(runbooks().values())) == []
    assert 'the page "Back up and restore" of the docs about' in runbooks()["no_quorum"]


def test_the_text_of_a_link_is_the_title_by_which_a_terminal_names_the_page() -> None:
    links = re.findall(r"\[([^\]]+)\]\(([^)#]+)", PAGE.read_text())
    assert links
    assert {text: (PAGE.parent / page).read_text().partition("\n")[0] for text, page in links} == {
        text: f"# {text}" for text, _ in links
    }
