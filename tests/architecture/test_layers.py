"""Who may import whom: the contracts hold, and each of them can fail."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SUBPACKAGES = (
    "raftlog",
    "raftlog/core",
    "raftlog/storage",
    "statemachine",
    "cluster",
    "raftmq",
    "raftmq/client",
    "jepsen_like",
    "pyspark_raftmq",
)
ROOMS = (
    "node",
    "admin",
    "repair",
    "backup",
    "tier",
    "retention",
    "remoting",
    "broker",
    "state",
    "members",
    "replication",
    "peer",
    "runtime",
    "config",
    "kernel",
    "errors",
    "wire",
)


def run(tool: str, *args: str, cwd: Path = ROOT, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / tool, *args], cwd=cwd, input=text, capture_output=True, text=True, timeout=100)


def test_all_contracts_hold() -> None:
    result = run("lint-imports", "--no-cache")
    assert result.returncode == 0, result.stdout


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """The packages by name only, under the contracts of the real pyproject.toml."""
    for package in (*SUBPACKAGES, *(f"cluster/{room}" for room in ROOMS)):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for module in ("codec", "codes"):  # named by a contract
        (tmp_path / "cluster/wire" / f"{module}.py").touch()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("raftlog", "import cluster", "Imports go down only"),
        ("cluster", "import jepsen_like", "Imports go down only"),
        ("jepsen_like", "import pyspark_raftmq", "Imports go down only"),
        ("cluster/replication", "import cluster.remoting", "The rooms of the server"),
        ("cluster/retention", "import cluster.remoting", "The rooms of the server"),
        ("cluster/broker", "import cluster.remoting", "The rooms of the server"),
        ("cluster/broker", "import cluster.wire.codec", "The broker knows no protocol"),
        ("cluster/broker", "import msgspec", "The broker knows no protocol"),
        ("cluster/runtime", "if TYPE_CHECKING:\n    import cluster.node", "The rooms of the server"),
        ("cluster/wire", "import cluster.runtime", "The rooms of the server"),
        ("cluster/kernel", "import cluster.runtime", "The rooms of the server"),
        ("cluster/kernel", "import time", "The kernel knows bytes and numbers"),
        ("cluster/wire", "import asyncio", "What goes over the wire stands alone"),
        ("raftmq/client", "import cluster.remoting", "The client knows of a node only"),
        ("raftmq/client", "import raftlog.storage", "The client knows of a node only"),
        ("raftlog/core", "import raftlog.storage", "The sans-IO core does not know the files"),
        ("raftlog/core", "import time", "see no clock"),
        ("statemachine", "import asyncio", "see no clock"),
        ("raftlog/storage", "import socket", "The log knows neither network"),
        ("pyspark_raftmq", "import raftlog.core", "The data pipeline sees only"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(small_tree: Path, module: str, line: str, contract: str) -> None:
    (small_tree / module / "__init__.py").write_text(f"{line}\n")
    result = run("lint-imports", "--no-cache", cwd=small_tree)
    broken = [each for each in result.stdout.splitlines() if each.endswith("BROKEN")]
    assert result.returncode == 1, result.stdout
    assert any(contract in each for each in broken), result.stdout


def test_the_pipeline_may_use_the_client(small_tree: Path) -> None:
    (small_tree / "pyspark_raftmq" / "__init__.py").write_text("import raftmq, raftmq.client, raftlog.storage\n")
    assert run("lint-imports", "--no-cache", cwd=small_tree).returncode == 0


def test_the_client_may_use_what_goes_over_the_wire(small_tree: Path) -> None:
    (small_tree / "cluster" / "wire" / "codes.py").touch()
    (small_tree / "raftmq" / "client" / "errors.py").write_text("import cluster.wire.codes\n")
    assert run("lint-imports", "--no-cache", cwd=small_tree).returncode == 0


@pytest.mark.parametrize("folder", ["raftlog/core", "statemachine"])
@pytest.mark.parametrize(
    "code",
    [
        "import time\n\nNOW = time\n",
        "from time import monotonic\n\nNOW = monotonic\n",
        "import os\n\nHOME = os\n",
        "import asyncio\n\nLOOP = asyncio\n",
        "from datetime import datetime\n\nKIND = datetime\n",
        "import random\n\nDRAW = random.random()\n",
        "from random import choice\n\nDRAW = choice\n",
    ],
)
def test_ruff_refuses_clock_chance_and_io(folder: str, code: str) -> None:
    assert "TID251" in lint(folder, code)


@pytest.mark.parametrize("folder", ["raftlog/core", "statemachine"])
def test_ruff_allows_a_seeded_random_passed_in(folder: str) -> None:
    code = "import random\n\n\ndef draw(rng: random.Random) -> int:\n    return rng.randrange(3)\n"
    assert "TID251" not in lint(folder, code)


def test_clocks_are_allowed_elsewhere() -> None:
    assert "TID251" not in lint("cluster", "import time\n\nNOW = time\n")


def lint(folder: str, code: str) -> str:
    """What ruff says about `code`, were it a new file in `folder`."""
    return run("ruff", "check", "--no-cache", "--stdin-filename", f"{folder}/new_file.py", "-", text=code).stdout


def test_every_product_package_is_under_the_contracts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"bench", "tests"}
    assert set(project["tool"]["importlinter"]["root_packages"]) == packages
    assert set(project["tool"]["mypy"]["packages"]) == packages | {"tests"}
