"""The fragments of changelog.d/: their names, and that towncrier takes them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.pace import at_most
from tests.support.rows import each_row

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "changelog.d"
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
KINDS = [each["directory"] for each in TOWNCRIER["type"]]
NAME = re.compile(rf"\+[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md")


def problem(name: str, text: str) -> str:
    """Returns the fault of a fragment; "" if there is none."""
    if not NAME.fullmatch(name):
        return f"changelog.d/{name} is not called +some-name.KIND.md with KIND one of {', '.join(KINDS)}"
    if not text.strip() or text.lstrip()[0] in "#-*":
        return f"changelog.d/{name} holds no plain sentence"
    return ""


def problems(folder: Path) -> list[str]:
    """Returns the faults of the folder's fragments."""
    fragments = sorted(path for path in folder.iterdir() if path.name != "README.md")
    return [what for path in fragments if (what := problem(path.name, path.read_text()))]


def test_every_fragment_has_a_valid_name_and_a_sentence() -> None:
    assert problems(FOLDER) == []


def test_the_example_of_the_page_is_valid_and_a_wrong_one_beside_it_is_named(tmp_path: Path) -> None:
    page = (FOLDER / "README.md").read_text()
    [example] = re.findall(r"^changelog\.d/(\S+)$", page, re.MULTILINE)
    (tmp_path / "README.md").write_text(page)
    (tmp_path / example).write_text("A slow disk raises an alarm.\n")
    assert problems(tmp_path) == []
    (tmp_path / "+slow-disk.feature.md").write_text("A slow disk raises an alarm.\n")
    [found] = problems(tmp_path)
    assert "+slow-disk.feature.md" in found


@each_row(
    ("name", "text"),
    [
        ("slow-disk.added.md", "A sentence."),
        ("+slow-disk.feature.md", "A sentence."),
        ("+Slow_Disk.added.md", "A sentence."),
        ("+slow-disk.added.txt", "A sentence."),
        ("+slow-disk.added.md", "\n"),
        ("+slow-disk.added.md", "- A bullet."),
    ],
)
def test_a_wrong_fragment_is_found(name: str, text: str) -> None:
    assert problem(name, text)


def test_the_page_lists_the_kinds_that_are_configured() -> None:
    assert re.findall(r"^\| `(\w+)` \|", (FOLDER / "README.md").read_text(), re.MULTILINE) == KINDS


def test_towncrier_puts_a_fragment_above_what_is_there(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "+slow-disk.fixed.md").write_text("A slow disk raises an alarm.\n")
    command = [sys.executable, "-m", "towncrier", "build", "--keep", "--version", "9.9.9", "--date", "2030-01-02"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=at_most(60))
    written = (tmp_path / "CHANGELOG.md").read_text()
    section = "## 9.9.9 (2030-01-02)\n\n### Fixed\n\n- A slow disk raises an alarm.\n"
    assert section in written
    assert written.index(section) < written.index("## 0.1.0")
