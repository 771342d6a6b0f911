"""The index of decisions names every page, and every number that the tree mentions has a page."""

from __future__ import annotations

import re

from tests.support.tree import PACKAGES, ROOT

ADRS = ROOT / "docs" / "adr"
PAGES = sorted(page for page in ADRS.glob("[0-9]*.md") if not page.name.startswith("0000-"))
ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
HEADING = re.compile(r"^# (\d{4}):? (.+)\n\nStatus: ([^·\n]+?)\.?(?: · Date: ([\d-]+).*)?\n")
MENTION = re.compile(r"(?:\bADRs? |\badr/)(\d{4})\b")


def plain(text: str) -> str:
    """Returns the text without links."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)


def test_the_index_says_what_the_pages_say() -> None:
    """Number, file, title, status and date, in the order of the numbers."""
    pages = []
    for page in PAGES:
        heading = HEADING.match(page.read_text())
        assert heading, f"{page.name} does not begin like 0000-template.md"
        number, title, status, date = heading.groups()
        pages.append((number, page.name, title, plain(status), date or "not noted"))
    index = [
        (number, file, title, status, date[:10].rstrip(",") if date[0] == "2" else date)
        for number, file, title, status, date in ROW.findall((ADRS / "README.md").read_text())
    ]
    assert index == pages


def test_a_number_belongs_to_one_page() -> None:
    numbers = [page.name[:4] for page in PAGES]
    assert sorted(set(numbers)) == numbers


def test_every_decision_that_is_mentioned_has_a_page() -> None:
    parts = re.findall(r"^\| (\d{4}) \| .+ \| a part of \[", (ADRS / "README.md").read_text(), re.MULTILINE)
    known = {*parts, *(page.name[:4] for page in ADRS.glob("[0-9]*.md"))}
    unknown = {
        f"{path.relative_to(ROOT)}: {number}"
        for folder in ("docs", *PACKAGES, "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".toml") and path.is_file()
        for number in MENTION.findall(path.read_text())
        if number not in known
    }
    assert unknown == set()
