"""Installed as a user installs it: the client beside packages with the names of the server's, and the server itself."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.local.process import free_base_port
from tests.support.distributions import (
    ROOT,
    STAGING,
    Wheels,
    build,
    environment,
    install_foreign,
    plain_wheels,
    run,
    site_packages,
    uninstall,
    users_folder,
)
from tests.support.pace import at_most

pytestmark = [pytest.mark.ci, pytest.mark.live]

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / ".ci")
    RELEASE = runpy.run_path(str(ROOT / ".ci" / "release.py"))

SEND_AND_READ = """
import os
import sys
import raftmq

with raftmq.connect(sys.argv[1]) as mq:
    mq.send("orders", b"two teas", key="42")
    with mq.consumer(f"shop-{os.getpid()}", "orders") as consumer:
        print(next(iter(consumer)).body.decode())
print({"cluster", "statemachine", "raftlog"} & set(sys.modules))
"""
ALL_THAT_IS_THERE = "import raftmq; [getattr(raftmq, name) for name in raftmq.__all__ if not name.startswith('read_')]"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    return plain_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def client(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the client alone."""
    return environment(tmp_path_factory.mktemp("client"), wheels.client)


@pytest.fixture(scope="module")
def server(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with both, and a foreign `statemachine` and `cluster` beside them."""
    python = environment(tmp_path_factory.mktemp("server"), wheels.client, wheels.server)
    install_foreign(python, "statemachine", "python-statemachine")
    install_foreign(python, "cluster", "cluster")
    return python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return users_folder(tmp_path_factory.mktemp("work") / "project")


@pytest.fixture(scope="module")
def servers(server: Path, folder: Path) -> Iterator[str]:
    """A cluster that the installed command has started in the user's folder, where it also keeps its data."""
    base = free_base_port(12)
    command = server.with_name("raftmq")
    up = run(command, "up", "--detach", "--data", "data", "--base-port", str(base), "--json", cwd=folder)
    try:
        assert up.returncode == 0, up.stderr
        yield json.loads(up.stdout)["servers"]
    finally:
        down = run(command, "down", "--data", "data", cwd=folder)
    assert down.returncode == 0, down.stderr


def test_a_client_alone_sends_and_reads_beside_packages_of_those_names(
    client: Path, servers: str, folder: Path
) -> None:
    """In a folder with a user's cluster.py and statemachine/, beside python-statemachine and after that is gone."""
    foreign = install_foreign(client, "statemachine", "python-statemachine")
    with_it = run(client, "-c", SEND_AND_READ, servers, cwd=folder)
    assert foreign.exists()
    uninstall(client, "python-statemachine")
    assert not (foreign / "__init__.py").exists()
    without_it = run(client, "-c", SEND_AND_READ, servers, cwd=folder)
    for done in (with_it, without_it):
        assert done.stdout.splitlines() == ["two teas", "set()"], done.stderr


def test_a_users_process_sees_its_own_packages_where_the_server_is_installed(
    server: Path, servers: str, folder: Path
) -> None:
    done = run(server, "-c", SEND_AND_READ, servers, cwd=folder)
    assert done.stdout.splitlines() == ["two teas", "set()"], done.stderr
    own = run(server, "-c", "import raftmq, cluster", cwd=folder)
    assert "the cluster.py of the user was imported" in own.stderr


def test_the_server_survives_the_uninstall_of_foreign_packages(server: Path, folder: Path) -> None:
    uninstall(server, "python-statemachine")
    done = run(server.with_name("raftmq"), "status", "--data", "data", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    install_foreign(server, "statemachine", "python-statemachine")


def test_python_m_raftmq_runs_ours_in_the_users_folder(server: Path, servers: str, folder: Path) -> None:
    done = run(server, "-m", "raftmq", "status", "--data", "data", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_client_alone_says_how_to_get_the_server(client: Path, tmp_path: Path) -> None:
    for command in (["up"], ["demo"], []):
        done = run(client.with_name("raftmq"), *command, cwd=tmp_path)
        lines = done.stderr.splitlines()
        assert (done.returncode, len(lines)) == (5, 3), done
        assert lines[2] == "type:    pip install 'raftmq[server]'"
    version = run(client.with_name("raftmq"), "--version", cwd=tmp_path)
    assert version.stderr == "raftmq 0.1.0 (the client)\n"


def test_every_public_name_of_the_client_is_there(client: Path, tmp_path: Path) -> None:
    assert run(client, "-c", ALL_THAT_IS_THERE, cwd=tmp_path).returncode == 0


def test_two_versions_are_named(wheels: Wheels, tmp_path: Path) -> None:
    python = environment(tmp_path / "both", wheels.client, wheels.server)
    (info,) = site_packages(python).glob("raftmq_server-*.dist-info")
    text = (info / "METADATA").read_text()
    (info / "METADATA").write_text(text.replace("\nVersion: 0.1.0\n", "\nVersion: 0.2.0\n", 1))
    done = run(python.with_name("raftmq"), "status", cwd=tmp_path)
    assert done.returncode == 5
    assert "raftmq is 0.1.0, raftmq-server 0.2.0" in done.stderr
    assert "type:    pip install 'raftmq[server]==0.2.0'" in done.stderr


def test_pip_replaces_a_build_by_a_later_one_and_by_the_release(tmp_path: Path) -> None:
    """Two commits, one second apart, and the release that follows them."""
    dist, python, known = tmp_path / "dist", None, []
    for name, between in (("first", 1_800_000_000), ("second", 1_800_000_001), ("release", None)):
        client, server = STAGING["stage"](tmp_path / name, between=between)
        made = build("build_wheel", client, dist, CC="none")
        if python is None:
            python = environment(tmp_path / "python", made)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "--quiet"]
        words = ["install", "--upgrade", "--no-index", "--no-deps", "--find-links", str(dist), "raftmq"]
        subprocess.run([*pip, *words], check=True, capture_output=True, timeout=at_most(100))
        known.append(run(python.with_name("raftmq"), "--version", cwd=tmp_path).stderr.split()[1])
        project = tomllib.loads((server / "pyproject.toml").read_text())["project"]
        assert project["version"] == known[-1]
        assert f"raftmq=={known[-1]}" in project["dependencies"]
    assert known == ["0.1.0.dev20270115080000", "0.1.0.dev20270115080001", "0.1.0"]


def test_a_foreign_package_that_is_imported_already_is_named(server: Path, folder: Path) -> None:
    (folder / "fake.py").write_text("import sys, types\n\nsys.modules['cluster'] = types.ModuleType('cluster')\n")
    done = run(server, "-c", "import fake; from raftmq.__main__ import main; main()", cwd=folder)
    assert done.returncode == 5
    assert "this process has imported a foreign package 'cluster'" in done.stderr


def test_no_installed_file_is_in_both(wheels: Wheels) -> None:
    client, server = (set(zipfile.ZipFile(path).namelist()) for path in wheels)
    assert client & server == set()


def test_spark_tells_what_reading_a_copy_needs(client: Path, tmp_path: Path) -> None:
    code = "from raftmq.server_home import use_formats; use_formats('readFrom=tier')"
    done: subprocess.CompletedProcess[str] = run(client, "-c", code, cwd=tmp_path)
    assert "readFrom=tier needs the formats of the server" in done.stderr
    assert "pip install 'raftmq[server]'" in done.stderr


@pytest.fixture(scope="module")
def installers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands of pip, uv and pipx, which come from the package index."""
    folder = tmp_path_factory.mktemp("installers")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    done = run(folder / "bin/pip", "install", "--quiet", "uv", "pipx", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def installed(
    installers: Path, installer: str, version: str, wheels: Wheels, folder: Path, name: str, *others: str
) -> Path:
    """Installs `name` from the built files, and `others` beside it from the package index. Returns the environment's
    Python. Skips the test if the interpreter is missing."""
    interpreter = RELEASE["interpreter"](version)
    if interpreter is None:
        pytest.skip(f"not run: no CPython {version} on this machine")
    home, files = folder / "home", f"--find-links={wheels.client.parent}"
    if installer == "pipx":
        options = ("--python", interpreter, f"--pip-args={files}")
        pipx = ("env", f"PIPX_HOME={home}", f"PIPX_BIN_DIR={folder}", installers / "pipx")
        steps = [(*pipx, "install", *options, name), *((*pipx, "inject", "raftmq", each) for each in others)]
        python = home / "venvs/raftmq/bin/python"
    else:
        python = home / "bin/python"
        pip = (python, "-m", "pip") if installer == "pip" else (installers / "uv", "pip")
        chosen = () if installer == "pip" else ("--python", python)
        steps = [(interpreter, "-m", "venv", home), (*pip, "install", *chosen, files, name, *others)]
    for step in steps:
        done = run(*step, cwd=folder, timeout_s=at_most(300))
        assert done.returncode == 0, done.stderr
    return python


VERSIONS = pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
INSTALLERS = pytest.mark.parametrize("installer", ["pip", "uv", "pipx"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@VERSIONS
@INSTALLERS
def test_the_client_comes_from_the_files_by_each_installer(
    installers: Path, wheels: Wheels, servers: str, folder: Path, tmp_path: Path, installer: str, version: str
) -> None:
    """With what it really depends on: at most 8 packages and 15 MB, and beside the real python-statemachine."""
    python = installed(installers, installer, version, wheels, tmp_path, "raftmq", "python-statemachine")
    before = run(python, "-c", SEND_AND_READ, servers, cwd=folder)
    uninstall(python, "python-statemachine")
    after = run(python, "-c", SEND_AND_READ, servers, cwd=folder)
    for done in (before, after):
        assert done.stdout.splitlines() == ["two teas", "set()"], done.stderr
    tools = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence")
    held = [path for path in site_packages(python).iterdir() if not path.name.startswith(tools)]
    assert len([path for path in held if path.suffix == ".dist-info"]) <= 8
    size = sum(path.stat().st_size for each in held for path in each.rglob("*") if path.is_file())
    assert size <= 15_000_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@VERSIONS
@INSTALLERS
def test_the_server_comes_from_the_files_by_each_installer(
    installers: Path, wheels: Wheels, tmp_path: Path, installer: str, version: str
) -> None:
    """The demo loses nothing, and a cluster starts, takes messages of the same environment, and stops."""
    python = installed(installers, installer, version, wheels, tmp_path, "raftmq[server]")
    command, folder = python.with_name("raftmq"), users_folder(tmp_path / "project")
    demo = run(command, "demo", "--messages", "2000", "--json", cwd=folder, timeout_s=at_most(300))
    assert demo.returncode == 0, demo.stderr
    ports = ("--base-port", str(free_base_port(12)))
    up = run(command, "up", "--detach", "--data", "data", *ports, "--json", cwd=folder)
    assert up.returncode == 0, up.stderr
    done = run(python, "-c", SEND_AND_READ, json.loads(up.stdout)["servers"], cwd=folder)
    down = run(command, "down", "--data", "data", cwd=folder)
    assert done.stdout.splitlines() == ["two teas", "set()"], done.stderr
    assert down.returncode == 0, down.stderr
