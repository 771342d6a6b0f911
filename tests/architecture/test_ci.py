"""CI and the git hooks run make targets and .ci/run, nothing of their own and nothing from elsewhere."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pace import at_most
from tests.support.tools import TOOLS, needs

ROOT = Path(__file__).parents[2]
BY_DEFAULT = ["compiler", "gcc", "git", "dpkg", "promtool", "ip", "mount"]
"""Tools of which a test of the default suite wants some."""
ON_RUNNERS = {"gcc", "libc6-dev", "python3-dev", "git", "dpkg", "mount", "util-linux"}
FOREIGN = [
    "promtool",
    "prometheus",
    "chromium",
    "npm",
    "node",
    "mvn",
    "java",
    "go",
    "ip",
    "valgrind",
    "strace",
    "docker",
]
INSTALL = "sudo apt-get install --yes --no-install-recommends "
ABOUT_THE_RUNNER = {
    "sudo apt-get update",
    f"{INSTALL}iproute2 prometheus",
    "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    f"{INSTALL}valgrind",
}
"""The lines that install tools which no Python package has."""
RUN = re.compile(r"(\.ci/bare )?\.ci/run|make [a-z -]+")
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / ".ci")
    OTHERS = importlib.import_module("other_pythons")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_workflows_run_the_ci_script_and_make() -> None:
    assert WORKFLOWS
    for path in WORKFLOWS:
        steps = [step for job in load(path)["jobs"].values() for step in job["steps"]]
        commands = [step["run"] for step in steps if "run" in step]
        assert commands
        assert [one for one in commands if not RUN.fullmatch(one) and one not in ABOUT_THE_RUNNER] == []
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
    checks = [{"run": ".ci/run"}, {"run": ".ci/bare .ci/run"}]
    compilers = [job.get("env", {}).get("CC") for job in jobs if any(step in checks for step in job["steps"])]
    assert compilers == [None, "none"]
    assert shutil.which("none") is None


def test_one_job_has_only_what_the_readme_asks_for_and_one_has_every_tool() -> None:
    jobs = load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"].values()
    commands = [[step["run"] for step in job["steps"] if "run" in step] for job in jobs]
    assert [".ci/bare .ci/run"] in commands
    (complete,) = (each for each in commands if "make test-all" in each)
    assert complete[-1] == "make test-all", "after everything is installed"
    installed = " ".join(each.removeprefix(INSTALL) for each in complete if each.startswith(INSTALL)).split()
    assert {package for name in BY_DEFAULT for package in TOOLS[name].packages.split()} <= {*installed, *ON_RUNNERS}


@needs("dpkg")
def test_a_bare_path_has_no_tool_that_the_readme_does_not_ask_for() -> None:
    look = 'for name; do command -v "$name"; done; exit 3'
    command = [str(ROOT / ".ci" / "bare"), "sh", "-c", look, "sh", "sh", "make", "python3", *FOREIGN]
    env = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=at_most(60), check=False)
    assert [Path(line).name for line in done.stdout.splitlines()] == ["sh", "make", "python3"], done.stderr
    assert done.returncode == 3, "the command's"


def test_ci_runs_the_oldest_python_that_is_supported_and_one_job_the_others_too() -> None:
    oldest = re.search(r'^requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert oldest
    versions = {
        tuple(step["with"]["python-version"].split())
        for path in WORKFLOWS
        for job in load(path)["jobs"].values()
        for step in job["steps"]
        if "setup-python" in step.get("uses", "")
    }
    assert versions == {(oldest[1],), (*OTHERS.PYTHONS, oldest[1])}


def test_a_python_that_is_not_there_is_not_a_pass(capfd: pytest.CaptureFixture[str]) -> None:
    assert OTHERS.main(["--pythons", "3.99"]) == 0
    assert capfd.readouterr().out == "not run: the suite on CPython 3.99, which is not on PATH\n"


def test_the_other_pythons_get_all_of_the_lock_file_but_spark() -> None:
    lock = (ROOT / "requirements" / "dev.lock").read_text()
    left = OTHERS.without(lock, OTHERS.OF_SPARK)
    names = re.compile(r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==", re.MULTILINE)
    assert set(names.findall(lock)) - set(names.findall(left)) == set(OTHERS.OF_SPARK)
    assert left.count("--hash=") > 1000


def test_hooks_are_local_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    repositories = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].split()[:2] == ["make", "-s"]
        assert set(hook["entry"].split()[2:]) <= targets
