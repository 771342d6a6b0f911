"""`.ci/same_code.py` sees every change but one of words."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.support.rows import each_row

SCRIPT = Path(__file__).parents[2] / ".ci" / "same_code.py"
BEFORE = '''"""A page."""

class Disk:
    """Old words."""
    size: int = 3
    """In bytes."""

    def full(self):
        return "x"
'''


def code_of(source: str) -> str:
    spec = importlib.util.spec_from_file_location("same_code", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    code: str = module.code_of(source.encode())
    return code


@each_row(
    ("old", "new"),
    [
        ("A page.", "Another page."),
        ("    size", "    # why\n    size"),
        ('\n    """Old words."""', ""),
        ('\n    """In bytes."""', '\n    """Bytes of the disk."""'),
    ],
)
def test_words_are_not_code(old: str, new: str) -> None:
    assert code_of(BEFORE.replace(old, new)) == code_of(BEFORE)


@each_row(("old", "new"), [("= 3", "= 4"), ('return "x"', 'return "y"'), ("full", "empty"), ("int", "str")])
def test_everything_else_is(old: str, new: str) -> None:
    assert code_of(BEFORE.replace(old, new)) != code_of(BEFORE)
