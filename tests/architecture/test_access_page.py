"""docs/access-table.md says what the rows say by which nodes judge."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_rows_by_which_nodes_judge() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "access_table.py"))
    assert script["PAGE"].read_text() == script["page"](), "run .venv/bin/python .ci/access_table.py"
