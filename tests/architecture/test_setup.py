"""`make setup` on machines that lack something, and what each target installs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kernels import can_compile

ROOT = Path(__file__).parents[2]
PREFLIGHT = ROOT / ".ci" / "preflight"


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """A PATH of its own: the shell tools that preflight uses, and whatever a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "awk", "head"):
        (folder / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is not installed"))
    return folder


def put(bin_dir: Path, name: str, script: str) -> None:
    path = bin_dir / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def preflight(bin_dir: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [str(bin_dir / "sh"), str(PREFLIGHT), *args]
    return subprocess.run(command, env={"PATH": str(bin_dir)}, capture_output=True, text=True, timeout=30)


def assert_three_lines(result: subprocess.CompletedProcess[str], what: str, to_type: str) -> None:
    assert result.returncode == 1
    first, second, third = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert what in first
    assert second.startswith("  why: ")
    assert third.startswith(" type: ")
    assert to_type in third


OLD = 'case "$2" in *version_info*) exit 1;; esac; echo "Python 3.9.2"'
GOOD = "exit 0"
NO_VENV = 'case "$2" in *ensurepip*) exit 1;; *print*) echo 3.12;; esac'


def test_no_python_at_all(bin_dir: Path) -> None:
    assert_three_lines(preflight(bin_dir, "python"), "no Python 3.11 or newer", "apt-get install python3.11")


def test_python_is_too_old(bin_dir: Path) -> None:
    put(bin_dir, "python3", OLD)
    assert_three_lines(preflight(bin_dir, "python"), "Python 3.9.2", "python3.11-venv")


def test_a_newer_python_beside_an_old_one_is_taken(bin_dir: Path) -> None:
    put(bin_dir, "python3", OLD)
    put(bin_dir, "python3.12", GOOD)
    assert preflight(bin_dir, "which").stdout == "python3.12\n"
    assert preflight(bin_dir, "python").returncode == 0


def test_a_python_asked_for_is_not_replaced(bin_dir: Path) -> None:
    put(bin_dir, "python3", GOOD)
    put(bin_dir, "mine", OLD)
    assert preflight(bin_dir, "which", "mine").stdout == "mine\n"
    assert_three_lines(preflight(bin_dir, "python", "mine"), "mine: Python 3.9.2", "PYTHON=")


def test_no_venv_module(bin_dir: Path) -> None:
    put(bin_dir, "python3", NO_VENV)
    assert_three_lines(preflight(bin_dir, "python"), "python3 has no venv module", "apt-get install python3.12-venv")


@pytest.mark.parametrize(("free_kib", "is_enough"), [(1024 * 1024 - 1, False), (1024 * 1024, True)])
def test_disk(bin_dir: Path, free_kib: int, is_enough: bool) -> None:
    put(bin_dir, "df", f"echo 'Filesystem 1024-blocks Used Available'; echo '/dev/x 9 9 {free_kib} 1% /'")
    result = preflight(bin_dir, "disk", "1", "base")
    if is_enough:
        assert (result.returncode, result.stderr) == (0, "")
    else:
        assert_three_lines(result, "1023 MiB free", "df -h")


def test_no_npm(bin_dir: Path) -> None:
    assert_three_lines(preflight(bin_dir, "npm"), "npm was not found", "apt-get install npm")


def test_the_cpp_client_does_not_load(bin_dir: Path) -> None:
    (bin_dir / "tail").symlink_to(shutil.which("tail") or pytest.fail("tail is not installed"))
    put(bin_dir, "python", "echo Traceback >&2; echo 'OSError: libstdc++.so.6: cannot open' >&2; exit 1")
    said = preflight(bin_dir, "librocketmq", "python")
    assert_three_lines(said, "OSError: libstdc++.so.6", "apt-get install libstdc++6")
    put(bin_dir, "python", GOOD)
    assert preflight(bin_dir, "librocketmq", "python").returncode == 0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What setup.py needs to build the kernel."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(
        ROOT / "cluster/kernel", tmp_path / "cluster/kernel", ignore=shutil.ignore_patterns("*.so", "__*__")
    )
    return tmp_path


def build_kernel(tree: Path, **variables: str) -> tuple[list[Path], str]:
    """What was built, and what was said. It succeeds in any case."""
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tree, env=os.environ | variables, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return list(tree.glob("cluster/kernel/_native.*.so")), done.stderr


@pytest.mark.skipif(not can_compile(), reason="there is no compiler, or no Python.h")
def test_the_kernel_is_built_beside_its_source_and_again_when_that_changes(tree: Path) -> None:
    built, said = build_kernel(tree)
    assert (len(built), said) == (1, "")
    assert sorted(path.name for path in (tree / "cluster/kernel").glob("_native.*")) == sorted(
        ["_native.pyi", "_native.pyx", built[0].name]
    )
    first = built[0].read_bytes()
    with (tree / "cluster/kernel/_native.pyx").open("a") as source:
        source.write("\nADDED = 1\n")
    (again,), said = build_kernel(tree)
    assert said == ""
    assert again.read_bytes() != first
    assert b"ADDED" in again.read_bytes()


def test_without_a_compiler_the_setup_succeeds_and_says_what_is_missing(tree: Path) -> None:
    built, said = build_kernel(tree, CC="no-such-compiler -O9")
    assert built == []
    assert said.splitlines() == [
        "setup: no C compiler (no-such-compiler) was found: the kernel in Python is used, which takes more CPU time"
    ]


@pytest.mark.skipif(not can_compile(), reason="there is no compiler, or no Python.h")
@pytest.mark.parametrize("fails", ["Cython", "compiler"])
def test_a_kernel_that_does_not_compile_is_not_passed_over_in_silence(tree: Path, bin_dir: Path, fails: str) -> None:
    if fails == "Cython":
        (tree / "cluster/kernel/_native.pyx").write_text("cdef int x = undeclared\n")
        built, said = build_kernel(tree)
        words = "undeclared name not builtin"
    else:
        put(bin_dir, "cc", "echo a hundred lines before; echo internal compiler error >&2; exit 1")
        built, said = build_kernel(tree, CC=str(bin_dir / "cc"))
        words = "internal compiler error"
    assert built == []
    assert "setup: the native kernel was not built: " in said
    assert words in said
    (log,) = re.findall(r"everything that was printed is in (\S+)", said)
    assert words in Path(log).read_text()


def plan_of(target: str, folder: Path) -> str:
    """What `make TARGET` would run on a fresh clone."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder)
    (folder / "cluster/kernel").mkdir(parents=True)
    shutil.copy(ROOT / "cluster/kernel/_native.pyx", folder / "cluster/kernel")
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", "-n", target], cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=30
    ).stdout


def test_the_demo_installs_base_only(tmp_path: Path) -> None:
    plan = plan_of("demo", tmp_path)
    assert re.findall(r"-r requirements/(\w+)\.lock", plan) == ["base"]
    assert "npm" not in plan


def test_the_suite_installs_no_foreign_clients(tmp_path: Path) -> None:
    plan = plan_of("test", tmp_path)
    assert re.findall(r"-r requirements/(\w+)\.lock", plan) == ["base", "dev"]
    assert "npm" not in plan


def test_nothing_is_installed_without_hashes(tmp_path: Path) -> None:
    plan = plan_of("test-compat", tmp_path).replace("\\\n", " ")
    installs = [line for line in plan.splitlines() if re.search(r"\sinstall\s", line)]
    assert len(installs) == 4
    assert [line for line in installs if "--require-hashes" not in line and "--no-deps" not in line] == []


def test_ci_runs_the_checks_and_the_test_command_of_the_readme() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands[-2:] == ["make check", "make test"]
    assert "make test" in (ROOT / "README.md").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
