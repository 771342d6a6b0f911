"""What is written from the rows of requests is what the rows say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_comes_from_the_rows_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "request_codes.py"))
    for path, text in script["written"]().items():
        assert path.read_text() == text, "run .venv/bin/python .ci/request_codes.py"
