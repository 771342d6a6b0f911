"""The site that `make docs` builds, opened as files in Chromium: nothing is fetched from another host; search works."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.chromium import Page, browser
from tests.support.pace import at_most
from tests.support.tools import needs

pytestmark = [pytest.mark.browser, needs("chromium")]
ROOT = Path(__file__).parents[2]
PAGES = ("index.html", "cli.html", "adr/index.html", "internals/feature-map.html", "guarantees.html", "python-api.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the site in a folder of its own."""
    subprocess.run(["make", "-s", "docs"], cwd=ROOT, check=True, timeout=at_most(600))
    return Path(shutil.copytree(ROOT / "build" / "site", tmp_path_factory.mktemp("site") / "site"))


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A tab of a new browser."""
    async with browser(tmp_path / "profile") as tab:
        yield tab


async def test_pages_need_no_other_host(site: Path, page: Page) -> None:
    for name in PAGES:
        await page.open((site / name).as_uri())
        assert await page.run("document.querySelectorAll('h1').length") == 1, name
    assert [each for each in page.addresses if not each.startswith(("file:", "data:", "blob:", "about:"))] == []
    assert page.errors == []


async def test_search_finds_a_page(site: Path, page: Page) -> None:
    await page.open((site / "adr" / "index.html").as_uri())
    await page.run("document.querySelector('[data-md-component=search-query]').focus()")
    for letter in "fdatasync":
        await page.press(letter, ord(letter.upper()), text=letter)
    await page.until("document.querySelectorAll('.md-search-result__item').length > 0")
    first = await page.run("document.querySelector('.md-search-result__link').href")
    assert first.startswith(site.as_uri())
    assert page.errors == []
