"""`.ci/levels.py`: writes the list of levels into docs/levels.toml, from `statemachine.levels`.

tests/architecture/test_levels.py compares.
"""

from __future__ import annotations

import json
from pathlib import Path

from statemachine.levels import LEVELS

PAGE = Path(__file__).parents[1] / "docs" / "levels.toml"
HEAD = "# Written by .ci/levels.py from statemachine/levels.py.\n"


def listed() -> str:
    """Returns the list of all levels. A text between quotes is written alike in JSON and in TOML."""
    return HEAD + "".join(
        f"\n[[level]]\nnumber = {level.number}\nname = {json.dumps(level.name)}\nwhat = {json.dumps(level.what)}\n"
        for level in LEVELS
    )


def written() -> str:
    """Returns the page with the list of today."""
    return PAGE.read_text().partition(HEAD)[0] + listed()


if __name__ == "__main__":
    PAGE.write_text(written())
