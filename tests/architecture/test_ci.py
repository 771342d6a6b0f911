"""CI and the git hooks run make targets and .ci/run, nothing of their own and nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
VALGRIND = "sudo apt-get install --yes --no-install-recommends valgrind"
"""The one tool that the runners lack and no Python package brings."""
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_workflows_run_the_ci_script_and_make() -> None:
    assert WORKFLOWS
    for path in WORKFLOWS:
        steps = [step for job in load(path)["jobs"].values() for step in job["steps"]]
        commands = [step["run"] for step in steps if "run" in step]
        assert commands
        assert [one for one in commands if not re.fullmatch(r"\.ci/run|make [a-z -]+", one) and one != VALGRIND] == []
        assert {step["uses"].partition("@")[0] for step in steps if "uses" in step} <= {
            "actions/checkout",
            "actions/setup-python",
        }


def test_workflows_need_no_secret_and_may_only_read() -> None:
    for path in WORKFLOWS:
        assert load(path)["permissions"] == {"contents": "read"}
        assert "secrets." not in path.read_text()


def test_the_suite_runs_with_both_kernels() -> None:
    """One of the machines has no compiler. The kernel in Python is then the only one, as it is for its users."""
    jobs = [job for path in WORKFLOWS for job in load(path)["jobs"].values()]
    compilers = [job.get("env", {}).get("CC") for job in jobs if {"run": ".ci/run"} in job["steps"]]
    assert compilers == [None, "none"]
    assert shutil.which("none") is None


def test_ci_runs_the_oldest_python_that_is_supported() -> None:
    oldest = re.search(r'^requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert oldest
    versions = {
        step["with"]["python-version"]
        for path in WORKFLOWS
        for job in load(path)["jobs"].values()
        for step in job["steps"]
        if "setup-python" in step.get("uses", "")
    }
    assert versions == {oldest[1]}


def test_hooks_are_local_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    repositories = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].split()[:2] == ["make", "-s"]
        assert set(hook["entry"].split()[2:]) <= targets
