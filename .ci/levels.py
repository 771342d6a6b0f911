"""`.ci/levels.py`: writes docs/levels.toml, the list of levels, from `statemachine.levels`.

tests/architecture/test_levels.py compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path

from statemachine.levels import LEVELS

PAGE = Path(__file__).parents[1] / "docs" / "levels.toml"
HEAD = """\
# The levels of clusters (docs/adr/0094). Written by .ci/levels.py from statemachine/levels.py.

# A level is not a version: builds of one version may know different levels, as those of 0.1.0 do. A release knows the
# highest level below.
"""


def written() -> str:
    """Returns the page. A text between quotes is written alike in JSON and in TOML."""
    return HEAD + "".join(
        f"\n[[level]]\nnumber = {level.number}\nname = {json.dumps(level.name)}\nwhat = {json.dumps(level.what)}\n"
        for level in LEVELS
    )


if __name__ == "__main__":
    PAGE.write_text(written())
