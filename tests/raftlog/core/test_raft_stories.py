"""Every story in testdata/ comes out as written; read the diff like code, then `pytest --rewrite`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raft_story import retell

STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, rewrite: bool) -> None:
    written = path.read_text()
    told = retell(written)
    if rewrite:
        path.write_text(told)
    else:
        assert told == written
