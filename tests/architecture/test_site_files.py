"""The site has copies of the files that people use without the sources, and its pages lead there."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HOOKS: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "docs_links.py"))


@pytest.mark.parametrize(("page", "up"), [("running.md", ""), ("internals/planted-faults.md", "../")])
def test_a_link_to_a_copied_file_leads_to_the_copy(tmp_path: Path, page: str, up: str) -> None:
    HOOKS["on_post_build"]({"site_dir": str(tmp_path)})
    shown = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    for path in HOOKS["COPIED"]:
        told = HOOKS["on_page_markdown"](f"[it](../{up}{path})", shown)
        assert told == f'<a href="{up}files/{path}">it</a>'
        assert (tmp_path / "files" / path).stat().st_size > 0


def test_another_file_is_named_as_one_of_the_sources() -> None:
    shown = SimpleNamespace(file=SimpleNamespace(src_uri="containers.md"))
    told = HOOKS["on_page_markdown"]("[the file](../docker-compose.yml)", shown)
    assert told == "the file (`docker-compose.yml` in the sources)"
