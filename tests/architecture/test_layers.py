"""The layers: which package may import which. The contracts hold, and each of them can fail."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.pace import at_most
from tests.support.rows import each_row

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SUBPACKAGES = (
    "raftmq_wire",
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
LINT = """
import contextlib, io, json, os, sys
from importlinter.cli import lint_imports
path = sys.path[:]
for folder in sys.argv[1:]:
    os.chdir(folder)
    sys.path[:] = [folder, *path]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = lint_imports(no_cache=True)
    print(json.dumps([code, said.getvalue()]))
"""
"""The work of the command lint-imports, in one folder after the other."""


def run(tool: str, *args: str, cwd: Path = ROOT, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / tool, *args], cwd=cwd, input=text, capture_output=True, text=True, timeout=at_most(100)
    )


def test_all_contracts_hold() -> None:
    result = run("lint-imports", "--no-cache")
    assert result.returncode == 0, result.stdout


FORBIDDEN = [
    ("raftlog", "import cluster", "Imports go down only"),
    ("cluster", "import jepsen_like", "Imports go down only"),
    ("jepsen_like", "import pyspark_raftmq", "Imports go down only"),
    ("cluster/replication", "import cluster.remoting", "The rooms of the server"),
    ("cluster/retention", "import cluster.remoting", "The rooms of the server"),
    ("cluster/broker", "import cluster.remoting", "The rooms of the server"),
    ("cluster/admin", "if TYPE_CHECKING:\n    import cluster.remoting.router", "The rooms of the server"),
    ("cluster/remoting", "import cluster.admin.access", "The rooms of the server"),
    ("cluster/requests", "import cluster.remoting.request", "The rooms of the server"),
    ("cluster/requests/verb", "import cluster.requests.table", "Inner rooms of cluster.requests"),
    ("cluster/broker", "import raftmq_wire.codec", "The broker knows no protocol"),
    ("cluster/broker", "import msgspec", "The broker knows no protocol"),
    ("cluster/runtime", "if TYPE_CHECKING:\n    import cluster.node", "The rooms of the server"),
    ("raftmq_wire", "import raftlog.errors", "Imports go down only"),
    ("raftmq_wire/kernel", "import cluster.runtime", "Imports go down only"),
    ("raftmq_wire/json_text", "import raftmq_wire.codec", "Inner rooms of raftmq_wire"),
    ("raftmq_wire/kernel", "import time", "The kernel knows bytes and numbers"),
    ("raftmq_wire", "import asyncio", "What goes over the wire stands alone"),
    ("raftmq/client", "import cluster.remoting", "The client knows of a node only"),
    ("raftmq/client", "import raftlog.storage", "The client knows of a node only"),
    ("raftmq/arrow", "import cluster.members.joining", "The client knows of a node only"),
    ("raftlog/core", "import raftlog.storage", "The sans-IO core does not know the files"),
    ("raftlog/core", "import time", "see no clock"),
    ("statemachine", "import asyncio", "see no clock"),
    ("raftlog/storage", "import socket", "The log knows neither network"),
    ("pyspark_raftmq", "import raftlog.core", "The data pipeline sees only"),
    ("raftmq/server_home", "import raftmq.__main__", "Inner rooms of raftmq"),
    ("cluster/admin/errors", "import cluster.admin.server", "Inner rooms of cluster.admin"),
    ("cluster/tier/object_names", "import cluster.tier.tier_assembly", "Inner rooms of cluster.tier"),
    ("cluster/remoting/request", "import cluster.remoting.router", "Inner rooms of cluster.remoting"),
    ("cluster/broker/message_copies", "import cluster.broker.broker_metrics", "Inner rooms of cluster.broker"),
    (
        "cluster/replication/append_lane",
        "import cluster.replication.internal_sends",
        "Inner rooms of cluster.replication",
    ),
    ("jepsen_like/commit_seed", "import jepsen_like.chaos_cli", "Inner rooms of jepsen_like"),
    ("jepsen_like/sim/options", "import jepsen_like.sim.campaign", "Inner rooms of jepsen_like.sim"),
    ("jepsen_like/live/conclusion", "import jepsen_like.live.doctor", "Inner rooms of jepsen_like.live"),
    ("raftlog/storage/files", "import raftlog.storage.node_dir", "Inner rooms of raftlog.storage"),
    ("statemachine/commands", "import statemachine.checkpoint_reader", "Inner rooms of statemachine"),
    ("raftlog/core/state", "import raftlog.core.raw_node", "Inner rooms of raftlog.core"),
]
"""(where, what is imported there, the contract that it breaks)."""
ALLOWED = [
    ("pyspark_raftmq/__init__.py", "import raftmq, raftmq.client, raftlog.storage"),
    ("raftmq/client/errors.py", "import raftmq_wire.codes"),
]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Line -> exit code and output of lint-imports for a tree with it. One process runs all: its start is slow."""
    files = [*((f"{module}/__init__.py", line) for module, line, _ in FORBIDDEN), *ALLOWED]
    folders = [small_tree(tmp_path_factory.mktemp("tree"), *each) for each in files]
    done = subprocess.run(
        [sys.executable, "-P", "-c", LINT, *folders], capture_output=True, text=True, timeout=at_most(100)
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {f"{file}: {line}": (code, said) for (file, line), (code, said) in zip(files, told, strict=True)}


def layers_of_contracts() -> list[str]:
    """Folders of all layers that contracts name below a container, the containers themselves before them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = [each for each in project["tool"]["importlinter"]["contracts"] if "containers" in each]
    return sorted(
        f"{container}.{layer.strip(' ()')}".replace(".", "/")
        for contract in contracts
        for container in contract["containers"]
        for layers in contract["layers"]
        for layer in layers.split("|")
    )


def small_tree(folder: Path, file: str, line: str) -> Path:
    """The packages by name only, under the contracts of the real pyproject.toml; one file has a line."""
    for package in (*SUBPACKAGES, *layers_of_contracts()):
        (folder / package).mkdir(exist_ok=True)
        (folder / package / "__init__.py").touch()
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (folder / file).write_text(f"{line}\n")
    return folder


@each_row(("module", "line", "contract"), FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract(
    judged: dict[str, tuple[int, str]], module: str, line: str, contract: str
) -> None:
    code, said = judged[f"{module}/__init__.py: {line}"]
    broken = [each for each in said.splitlines() if each.endswith("BROKEN")]
    assert code == 1, said
    assert any(contract in each for each in broken), said


@pytest.mark.parametrize(("file", "line"), ALLOWED, ids=["the pipeline uses the client", "the client uses the wire"])
def test_what_is_allowed_breaks_none(judged: dict[str, tuple[int, str]], file: str, line: str) -> None:
    code, said = judged[f"{file}: {line}"]
    assert code == 0, said


@each_row("folder", ["raftlog/core", "statemachine"])
@each_row(
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
    """Returns ruff's findings about `code`, were it a new file in `folder`."""
    return run("ruff", "check", "--no-cache", "--stdin-filename", f"{folder}/new_file.py", "-", text=code).stdout


def test_every_product_package_is_under_the_contracts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"bench", "tests"}
    assert set(project["tool"]["importlinter"]["root_packages"]) == packages
    assert set(project["tool"]["mypy"]["packages"]) == packages | {"tests"}
