"""docs/architecture.md has the floors of the import contracts, and ways through the code that name each file once."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.architecture.test_docs import ARCHITECTURE, cited_files, cited_names, module_file
from tests.support.rows import each_row

ROOT = Path(__file__).parents[2]
FLOWS = (
    "Send",
    "Pull",
    "Deliver a delayed message",
    "End a transaction",
    "Commit a staged write",
    "Change the members of a consumer group",
    "Answer an HTTP request",
    "Change the configuration",
    "Upload and evict",
    "Restart",
    "Change roles",
)
TEXT = ARCHITECTURE.read_text()
FLOORS = runpy.run_path(str(ROOT / ".ci" / "floors.py"))
Replaced = Callable[[str, Path], str]


def section(text: str, heading: str) -> str:
    """Returns the section under a heading; "" if there is none."""
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def steps(text: str) -> list[str]:
    return re.findall(r"^\d+\. .*?(?=^\d+\. |\Z)", text, re.MULTILINE | re.DOTALL)


def files_of(text: str) -> Counter[str]:
    """Each file that the text cites, by its path or by a name in it, and how often."""
    found = Counter(name for name in cited_files(text) if name.endswith(".py"))
    for span in re.findall(r"`([^`\n]+)`", text):
        parts = span.split(".")
        if not cited_names(f"`{span}`"):
            continue
        while parts and (path := module_file(parts)) is None:
            parts.pop()
        found[path.relative_to(ROOT).as_posix()] += 1  # type: ignore[union-attr]  # a cited name begins with a package
    return found


@each_row("flow", FLOWS)
def test_a_way_has_numbered_steps_and_names_each_file_once(flow: str) -> None:
    way = section(TEXT, flow)
    assert [int(step.partition(".")[0]) for step in steps(way)] == list(range(1, len(steps(way)) + 1))
    assert len(steps(way)) >= 4
    assert [name for name, count in files_of(way).items() if count > 1] == []
    assert len(files_of(way)) >= 4


def test_a_file_that_is_named_twice_is_found() -> None:
    text = (
        "1. `cluster.remoting.router.Router`, `cluster/broker/name_rules.py`\n2. `cluster.remoting.router.Listeners`\n"
    )
    assert files_of(text) == {"cluster/remoting/router.py": 2, "cluster/broker/name_rules.py": 1}
    assert len(steps(text)) == 2
    assert section(f"## A\n\n{text}\n## B\n", "A").strip() == text.strip()
    assert section(TEXT, "No such heading") == ""


def test_the_floors_are_those_of_the_contracts() -> None:
    replaced: Replaced = FLOORS["replaced"]
    assert replaced(TEXT, ROOT) == TEXT, "run .venv/bin/python .ci/floors.py"


def test_another_contract_and_another_room_change_the_page(tmp_path: Path) -> None:
    (tmp_path / "a" / "low").mkdir(parents=True)
    (tmp_path / "a" / "__init__.py").write_text('"""All of it. More."""')
    (tmp_path / "a" / "low" / "__init__.py").write_text('"""The ground,\nof rock."""')
    contracts = (
        '[[tool.importlinter.contracts]]\ntype = "layers"\nlayers = ["a"]\n'
        '[[tool.importlinter.contracts]]\ntype = "forbidden"\n'
        '[[tool.importlinter.contracts]]\ntype = "layers"\ncontainers = ["a"]\nlayers = ["top | (beside)", "low"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(contracts)
    replaced: Replaced = FLOORS["replaced"]
    page = f"before\n{FLOORS['BEGIN']}old\n{FLOORS['END']}after\n"
    told = replaced(page, tmp_path)
    assert told.startswith("before\n")
    assert told.endswith("after\n")
    assert "| `a/` | top, beside · low |" in told
    assert "| `a/` | All of it |\n| `a/low/` | The ground, of rock |" in told
    assert replaced(told, tmp_path) == told
    assert "old" not in told
