"""`make setup` on machines that lack something, and what each target installs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pace import at_most
from tests.support.tools import needs

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
    return subprocess.run(command, env={"PATH": str(bin_dir)}, capture_output=True, text=True, timeout=at_most(30))


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
BROKEN = "exit 127"
NO_VENV = 'case "$2" in *ensurepip*) exit 1;; *print*) echo 3.12;; esac'


def test_no_python_at_all(bin_dir: Path) -> None:
    assert_three_lines(preflight(bin_dir, "python"), "no Python 3.11 or newer", "apt-get install python3.11")


def test_python_is_too_old(bin_dir: Path) -> None:
    put(bin_dir, "python3", OLD)
    assert_three_lines(preflight(bin_dir, "python"), "Python 3.9.2", "python3.11-venv")


def put_python(
    path: Path, times_ns: str, *, version: str = "3.11.4", headers: str = "headers", file: str | None = None
) -> str:
    """An interpreter that takes the times given for the reference loop, one after the other; returns its file.
    `file`: the one behind it, if it is a link or a shim."""
    path.parent.mkdir(parents=True, exist_ok=True)
    locked = "locked" if version.startswith("3.11.") else "-"
    put(
        path.parent,
        path.name,
        f"""case "$*" in
*sysconfig*) printf '%s\\t%s\\t%s\\t%s\\n' {version} {locked} {headers} '{file or path}' ;;
*python_speed.py) set -- {times_ns}
  turn=0; while read -r _; do turn=$((turn + 1)); done <'{path}.log'
  echo run >>'{path}.log'; shift $turn; echo "${{1:-none}}" ;;
esac""",
    )
    Path(f"{path}.log").touch()
    return str(path)


def which(bin_dir: Path, *folders: Path) -> tuple[str, str]:
    """The interpreter that preflight takes with these folders after bin_dir on PATH, and what it says about it."""
    path = ":".join(map(str, [bin_dir, *folders]))
    command = [str(bin_dir / "sh"), str(PREFLIGHT), "which"]
    result = subprocess.run(
        command, env={"PATH": path}, check=True, capture_output=True, text=True, timeout=at_most(30)
    )
    return result.stdout.removesuffix("\n"), result.stderr


def test_a_newer_python_beside_an_old_one_is_taken(bin_dir: Path) -> None:
    put(bin_dir, "python3", OLD)
    newer = put_python(bin_dir / "python3.12", "", version="3.12.1")
    assert which(bin_dir) == (newer, f"setup: taking {newer} (3.12.1)\n")
    assert preflight(bin_dir, "python").returncode == 0


def test_the_fastest_python_is_taken(bin_dir: Path, tmp_path: Path) -> None:
    first = put_python(bin_dir / "python3", "4000 1900 1900")
    put_python(tmp_path / "a" / "python3.11", "1800 1800 1800")
    fastest = put_python(tmp_path / "b c" / "python3", "2000 1000 3000")
    taken, said = which(bin_dir, tmp_path / "a", tmp_path / "b c")
    assert taken == fastest
    assert said == f"setup: taking {fastest} (3.11.4): it runs plain code 1.90 times as fast as {first} (3.11.4)\n"


@pytest.mark.parametrize(("time_ns", "is_taken"), [(909, True), (910, False)])
def test_another_python_is_taken_only_if_a_tenth_faster(bin_dir: Path, time_ns: int, is_taken: bool) -> None:
    first = put_python(bin_dir / "python3", "1000 1000 1000")
    other = put_python(bin_dir / "python3.11", f"{time_ns} 1000 1000")
    taken, said = which(bin_dir)
    assert taken == (other if is_taken else first)
    if not is_taken:
        assert said == f"setup: taking {first} (3.11.4): none of the other 1 on PATH is faster by a tenth\n"


def test_names_of_one_python_are_measured_once(bin_dir: Path, tmp_path: Path) -> None:
    file = put_python(bin_dir / "python3", "1000 1000 1000")
    put_python(tmp_path / "shims" / "python3", "1 1 1", file=file)
    put(bin_dir, "python3.12", BROKEN)
    assert which(bin_dir, tmp_path / "shims") == (file, f"setup: taking {file} (3.11.4)\n")
    assert Path(f"{file}.log").read_text() == ""  # there was nothing to compare with


def test_a_faster_python_that_the_lock_files_are_not_for_is_left(bin_dir: Path) -> None:
    put_python(bin_dir / "python3", "10 10 10", version="3.12.1")
    locked = put_python(bin_dir / "python3.11", "1000 1000 1000")
    assert which(bin_dir)[0] == locked


@pytest.mark.parametrize("compiler", [None, "cc", "gcc"])
def test_headers_count_where_a_compiler_is(bin_dir: Path, compiler: str | None) -> None:
    bare = put_python(bin_dir / "python3", "10 10 10", headers="-")
    complete = put_python(bin_dir / "python3.11", "1000 1000 1000")
    if compiler:
        put(bin_dir, compiler, GOOD)
    assert which(bin_dir)[0] == (complete if compiler else bare)


def test_a_faster_python_without_venv_is_left(bin_dir: Path) -> None:
    put(bin_dir, "python3", NO_VENV)
    able = put_python(bin_dir / "python3.11", "1000 1000 1000")
    assert which(bin_dir)[0] == able


@pytest.mark.parametrize("first_runs", [True, False])
def test_a_python_that_cannot_run_the_loop_is_not_the_fastest(bin_dir: Path, first_runs: bool) -> None:
    first = put_python(bin_dir / "python3", "1000 1000 1000" if first_runs else "")
    second = put_python(bin_dir / "python3.11", "" if first_runs else "1000 1000 1000")
    assert which(bin_dir)[0] == (first if first_runs else second)


def test_this_python_describes_itself_and_runs_the_reference_loop(bin_dir: Path, tmp_path: Path) -> None:
    (bin_dir / "python3").symlink_to(sys.executable)
    as_this = platform.python_version()  # the version of the lock files would come first
    put_python(tmp_path / "slow" / "python3", "9999999999 9999999999 9999999999", version=as_this)
    taken, said = which(bin_dir, tmp_path / "slow")
    assert taken == os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
    assert f"({platform.python_version()}): none of the other 1 on PATH is faster" in said


def test_a_python_asked_for_is_not_replaced(bin_dir: Path) -> None:
    put_python(bin_dir / "python3", "")
    put(bin_dir, "mine", OLD)
    asked_for = preflight(bin_dir, "which", "mine")
    assert (asked_for.stdout, asked_for.stderr) == ("mine\n", "")
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
    """The files that setup.py needs to build a kernel, which is a small one."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "raftmq_wire/kernel").mkdir(parents=True)
    (tmp_path / "raftmq_wire/kernel/_native.pyx").write_text("VERSION = 1\n")
    return tmp_path


def build_kernel(tree: Path, **variables: str) -> tuple[list[Path], str]:
    """Returns the libraries that were built, and the output. The build succeeds in any case."""
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=tree, env=os.environ | variables, capture_output=True, text=True, timeout=at_most(100)
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return list(tree.glob("raftmq_wire/kernel/_native.*.so")), done.stderr


@pytest.mark.ci
@needs("compiler")
def test_the_kernel_is_built_beside_its_source_and_again_when_that_changes(tree: Path) -> None:
    built, said = build_kernel(tree)
    assert (len(built), said) == (1, "")
    assert sorted(path.name for path in (tree / "raftmq_wire/kernel").glob("_native.*")) == sorted(
        ["_native.pyx", built[0].name]
    )
    first = built[0].read_bytes()
    with (tree / "raftmq_wire/kernel/_native.pyx").open("a") as source:
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


@needs("compiler")
@pytest.mark.parametrize("fails", ["Cython", "compiler"])
def test_a_kernel_that_does_not_compile_is_not_passed_over_in_silence(tree: Path, bin_dir: Path, fails: str) -> None:
    if fails == "Cython":
        (tree / "raftmq_wire/kernel/_native.pyx").write_text("cdef int x = undeclared\n")
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
    """Returns the commands that `make TARGET` would run on a fresh clone."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder)
    (folder / "raftmq_wire/kernel").mkdir(parents=True)
    shutil.copy(ROOT / "raftmq_wire/kernel/_native.pyx", folder / "raftmq_wire/kernel")
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", "-n", target], cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=at_most(30)
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
    assert commands[-4:] == ["make check", "make test-pythons", "make test-ci", "make test"]
    assert "make test" in (ROOT / "README.md").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
