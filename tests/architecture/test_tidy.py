"""The tree reads like a table of contents and carries nothing of the place where it was written."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.pace import at_most
from tests.support.rows import each_row
from tests.support.tools import needs
from tests.support.tree import nodes, parsed, python_files, text_of

ROOT = Path(__file__).parents[2]
PRODUCT = ("raftmq_wire", "raftlog", "statemachine", "cluster", "jepsen_like", "raftmq", "pyspark_raftmq", "bench")

# Spelled in parts, so that this file does not match itself.
BANNED = {
    "a path of one machine": r"(?<![\w.])/" + r"(work|home/\w+|root)/",
    "a package registry's host": r"py" + r"pi\.org|python" + r"hosted\.org|npm" + r"js\.(org|com)|npm" + r"mirror\.com",
    "a note to oneself": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b",
    "a page that is not in this tree": r"\bDESI" + r"GN(\.md|,? ?§)|resea" + r"rch/[a-z-]+\.md|\.\./sha" + r"red\b",
    "a tracker's number": r"\b[Ii]ss" + r"ue #?\d",
}
ANY_BANNED = re.compile("|".join(f"(?:{pattern})" for pattern in BANNED.values()))
# Sample data is other people's text.
NOT_OURS = re.compile(r"(^|/)(data|sample|static)/|\.jsonl(\.gz)?$|^LICENSE$|\.(png|ico|woff2)$")


def tracked_files() -> list[Path]:
    """Files under version control, with those that were added but not committed; deleted ones are left out."""
    command = ["git", "ls-files", "-z", "--cached"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=at_most(30))
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def product_modules() -> list[Path]:
    return [path for package in PRODUCT for path in python_files(package)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def findings(text: str) -> list[str]:
    """Returns the parts of `text` that do not belong in the tree, as "line: reason: match"."""
    found: list[str] = []
    if not ANY_BANNED.search(text):  # of the whole file at once, as of nearly all there is nothing to tell
        return found
    for number, line in enumerate(text.splitlines(), 1):
        for reason, pattern in BANNED.items():
            if match := re.search(pattern, line):
                found.append(f"{number}: {reason}: {match[0]}")
    return found


@needs("git")
def test_nothing_of_the_writing_place_is_left() -> None:
    found = {}
    for path in tracked_files():
        if not NOT_OURS.search(name_of(path)) and (lines := findings(text_of(path))):
            found[name_of(path)] = lines
    assert found == {}


@each_row(
    "line",
    [
        "see /" + "work/main/x.py",
        "https://py" + "pi.org/simple",
        '"resolved": "https://registry.npm' + 'js.org/x"',
        "# TO" + "DO later",
        "as DESI" + "GN §3 says",
    ],
)
def test_a_banned_line_is_found(line: str) -> None:
    assert findings(line)


@each_row("line", ["a producer session", "WORKDIR /opt/work", "framework/work/x", "by design"])
def test_an_innocent_line_is_not(line: str) -> None:
    assert not findings(line)


def test_every_module_says_what_it_is() -> None:
    silent = [name_of(path) for path in product_modules() if not ast.get_docstring(parsed(text_of(path)))]
    assert silent == []


def test_no_module_imports_itself() -> None:
    for path in product_modules():
        module = name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        imported = [node.module for node in nodes(text_of(path)) if isinstance(node, ast.ImportFrom) and not node.level]
        assert path.name == "__init__.py" or module not in imported, path


def test_no_test_edits_the_import_path() -> None:
    """Helpers live in tests/support; a path of their own would hide them from mypy."""
    edit = "sys.path" + ".insert"
    assert [name_of(path) for path in python_files("tests") if edit in text_of(path)] == []


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in python_files("tests") if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
